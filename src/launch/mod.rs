//! Starting the ranks of a job on this host, and ending them.
//!
//! [`launch`] starts one process per rank, tells each who it is through its environment, passes signals on, and
//! comes back when all are gone. Its [`Outcome`] carries the exit status that a shell should see.
//!
//! Invariants: whatever way `launch` is left, by return, error or panic, no process of a rank's process group is
//! alive and no file has been made. A rank's process id is not given back to the system while the rank's group may
//! still be signalled, so a signal never meets a stranger.
//!
//! One thread does everything but the tagging of output; it sleeps in `poll` until a signal arrives (`SIGCHLD`
//! among them) or a deadline passes.
//!
//! This module does not parse command lines, does not run the rendezvous server, and does not reach other hosts.

mod ended;
mod environment;
mod output;
mod program;
mod ranks;
mod signals;
mod spawn;
mod supervisor;

pub use ended::Ended;

use crate::bootstrap::Server;
use std::{ffi::OsString, io, path::PathBuf, time::Duration};
use thiserror::Error;

/// What to start, and how to end it.
#[derive(Clone, Debug)]
pub struct LaunchSpec {
    /// How many ranks; at least 1.
    pub ranks: u32,
    /// What each rank runs: a path, or a name to be found in `PATH`.
    pub program: OsString,
    /// The program's arguments, the same on every rank.
    pub args: Vec<OsString>,
    /// Added to the environment of every rank, last one wins. May replace anything but the `TBCCL_*` variables
    /// that tell a rank who it is.
    pub env: Vec<(OsString, OsString)>,
    /// Added to the environment of one rank, after `env` and under the same rule: the first is rank 0's. Ranks
    /// beyond its end get nothing of their own.
    pub rank_env: Vec<Vec<(OsString, OsString)>>,
    /// Whether each line of output is preceded by its rank.
    pub output: Output,
    /// How long the whole job may take.
    pub timeout: Option<Duration>,
    /// How long the other ranks may run on by themselves after one has failed, to report what it means to them.
    pub drain: Duration,
    /// How long after `SIGTERM` a rank is killed.
    pub grace: Duration,
    /// Who speaks in messages on stderr, e.g. `tbccl run`.
    pub name: &'static str,
    /// Statuses with which a rank exits only when it has said why, so that nothing needs to be added.
    pub explained: &'static [u8],
}

/// What becomes of the ranks' stdout and stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// The ranks write to ours directly; terminals stay terminals.
    #[default]
    Direct,
    /// Whole lines, each preceded by `[rank]` or `[rank:err]`.
    Tagged,
}

impl LaunchSpec {
    /// `ranks` times `program`, with no arguments and the usual patience.
    pub fn new(ranks: u32, program: impl Into<OsString>) -> LaunchSpec {
        LaunchSpec {
            ranks,
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            rank_env: Vec::new(),
            output: Output::Direct,
            timeout: None,
            drain: Duration::from_secs(1),
            grace: Duration::from_secs(3),
            name: "tbccl run",
            explained: &[],
        }
    }
}

/// The server at which the ranks of a job find each other, as far as the launcher is concerned.
pub trait Rendezvous {
    /// The value of `TBCCL_BOOTSTRAP`.
    fn address(&self) -> String;

    /// Tells all other ranks that this one is dead. `how` is the rest of a sentence: `was killed by SIGKILL`.
    fn report_exit(&self, rank: u32, pid: u32, how: &str);

    /// Says that a rank has ended with status 0. Nobody need wait for it if it has not joined.
    fn report_success(&self, _rank: u32, _pid: u32) {}
}

impl Rendezvous for Server {
    fn address(&self) -> String {
        Server::address(self).to_owned()
    }

    fn report_exit(&self, rank: u32, pid: u32, how: &str) {
        Server::report_exit(self, rank, pid, how);
    }

    fn report_success(&self, rank: u32, pid: u32) {
        Server::report_success(self, rank, pid);
    }
}

/// The rank that failed first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The rank.
    pub rank: u32,
    /// Its process id.
    pub pid: u32,
    /// How it ended.
    pub how: Ended,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All ranks did their work.
    Succeeded,
    /// This rank was the first that failed.
    Failed(Failure),
    /// The time was over.
    TimedOut,
    /// Someone interrupted it twice.
    Interrupted,
}

impl Outcome {
    /// The exit status for a shell: that of the first failing rank, or 128 + the signal that killed it; 124 as
    /// timeout(1) when the time was over; 0 when all ranks did their work.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Outcome::Succeeded => 0,
            Outcome::Failed(failure) => failure.how.exit_code(),
            Outcome::TimedOut => 124,
            Outcome::Interrupted => Ended::Signaled(signal_hook::consts::SIGINT).exit_code(),
        }
    }
}

/// Why a job could not be started, or not be watched. Nothing of it is left.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No ranks were asked for.
    #[error("a job needs at least one rank, not 0")]
    NoRanks,
    /// The program is nowhere.
    #[error("no program `{}`; {remedy}", .program.display())]
    NotFound {
        /// What was asked for.
        program: OsString,
        /// What can be done.
        remedy: String,
    },
    /// The program is there, and can't be run.
    #[error("`{}` can't be run: {why}", .program.display())]
    NotExecutable {
        /// Where it is.
        program: PathBuf,
        /// The reason and the remedy.
        why: &'static str,
    },
    /// A variable that can't be set by the user.
    #[error("the variable `{}` is set by the launcher for each rank; leave it out", .0.display())]
    Reserved(OsString),
    /// The system refused to start a process.
    #[error("rank {rank} of {ranks} can't be started: {source}{}", spawn::remedy(.source))]
    Spawn {
        /// The rank.
        rank: u32,
        /// Of so many.
        ranks: u32,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused something else.
    #[error("can't {what}: {source}{}", spawn::remedy(.source))]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl LaunchError {
    /// Adds what was to be done to what the system said.
    fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> LaunchError {
        move |source| LaunchError::System { what, source: source.into() }
    }
}

/// Runs a job from its start to its end.
///
/// While it runs, `SIGINT`, `SIGTERM`, `SIGHUP`, `SIGUSR1` and `SIGUSR2` go to all ranks instead of this process,
/// and a second `SIGINT` kills the ranks; signals that are ignored stay ignored. A rank that fails brings the
/// others down: they get `drain` to find out for themselves, `SIGTERM`, `grace`, and `SIGKILL`.
///
/// # Errors
/// [`LaunchError`] when not every rank could be started. Those that were are ended first.
pub fn launch(spec: &LaunchSpec, rendezvous: &dyn Rendezvous) -> Result<Outcome, LaunchError> {
    if spec.ranks == 0 {
        return Err(LaunchError::NoRanks);
    }
    for env in std::iter::once(&spec.env).chain(&spec.rank_env) {
        environment::check(env)?;
    }
    let program = program::find(&spec.program, &spec.env)?;
    supervisor::run(spec, &program, rendezvous)
}
