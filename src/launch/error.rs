//! Errors of starting a job.

use super::spawn;
use std::{ffi::OsString, io, path::PathBuf};
use thiserror::Error;

/// Error that prevented a job from starting, or from being supervised. No process of the job is left.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The job has zero ranks.
    #[error("a job needs at least one rank, not 0")]
    NoRanks,
    /// The program was not found.
    #[error("no program `{}`; {remedy}", .program.display())]
    NotFound {
        /// The program, as given.
        program: OsString,
        /// The remedy.
        remedy: String,
    },
    /// The program exists but cannot be executed.
    #[error("`{}` can't be run: {why}", .program.display())]
    NotExecutable {
        /// The path.
        program: PathBuf,
        /// The reason and the remedy.
        why: &'static str,
    },
    /// The working folder does not exist.
    #[error("the folder {} does not exist; create it, or name another with --cwd", .0.display())]
    NoFolder(PathBuf),
    /// The user set a variable that the launcher reserves.
    #[error("the variable `{}` is set by the launcher for each rank; leave it out", .0.display())]
    Reserved(OsString),
    /// The system refused to start a process.
    #[error("rank {rank} of {ranks} can't be started: {source}{}", spawn::remedy(.source))]
    Spawn {
        /// The rank.
        rank: u32,
        /// The number of ranks.
        ranks: u32,
        /// The system's error.
        source: io::Error,
    },
    /// An agent, or the ssh that reaches it, can't be started.
    #[error(
        "host {host}: can't run `{}`: {source}{}",
        .program.display(),
        agent_remedy(.source)
    )]
    Agent {
        /// The host.
        host: String,
        /// The program.
        program: OsString,
        /// The system's error.
        source: io::Error,
    },
    /// Hosts that cannot run their ranks: one line for each, with the remedy.
    #[error("{}", .0.join("\n"))]
    Hosts(Vec<String>),
    /// A signal arrived before all ranks were started.
    #[error(
        "interrupted by {} before all ranks were started",
        signal_hook::low_level::signal_name(*.0).unwrap_or("a signal")
    )]
    Interrupted(i32),
    /// An output file can't be created.
    #[error("can't make {} for the ranks' output: {source}{}", .path.display(), output_remedy(.source))]
    Output {
        /// The file, or the folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another system call failed.
    #[error("can't {what}: {source}{}", spawn::remedy(.source))]
    System {
        /// The operation, as the rest of a sentence.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl LaunchError {
    /// Returns a function that wraps a system error together with the failed operation.
    pub(super) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> LaunchError {
        move |source| LaunchError::System { what, source: source.into() }
    }
}

fn agent_remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => "; install it, or name another with --ssh",
        _ => spawn::remedy(source),
    }
}

fn output_remedy(source: &io::Error) -> &'static str {
    rustix::io::Errno::from_io_error(source).map_or("", write_remedy)
}

/// Returns the remedy for a refused write, as the end of a sentence.
pub(super) fn write_remedy(error: rustix::io::Errno) -> &'static str {
    match error {
        rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT => {
            "; make room there, or name another folder with --output"
        }
        rustix::io::Errno::ACCESS | rustix::io::Errno::ROFS | rustix::io::Errno::PERM => {
            "; name a folder with --output in which you may write"
        }
        rustix::io::Errno::MFILE => "; raise the limit on open files with `ulimit -n`, or leave --output out",
        rustix::io::Errno::NOTDIR | rustix::io::Errno::EXIST => {
            "; a file has that name, so name another folder with --output"
        }
        _ => "",
    }
}
