//! Starting the ranks of a job, on this host and others, and ending them.
//!
//! [`launch`] starts one process per rank, gives each its identity through its environment, passes signals
//! on, and returns when all are gone. Its [`Outcome`] carries the exit status for a shell.
//!
//! Ranks are either children of this process that write to its stdout and stderr directly ([`Place::Here`]),
//! or run on hosts, of which this may be one, under an agent each ([`Place::Hosts`], [`agent`]). The agents
//! are reached by ssh, and pass output on line by line.
//!
//! Invariants: however `launch` ends, by return, error or panic, no process of a rank's process group is
//! alive, on any host that can be reached, and no file has been created that was not requested. A rank's
//! process id is not returned to the system while the rank's group may still be signalled, so a signal never
//! reaches a foreign process.
//!
//! One thread decides; it sleeps in `poll` until a signal arrives (`SIGCHLD` among them), a host sends a
//! message, or a deadline passes.
//!
//! This module does not parse command lines or hostfiles, and does not run the rendezvous server.

pub mod agent;
mod ended;
mod environment;
mod error;
mod frame;
mod hosts;
mod lines;
mod local_ranks;
mod machine;
mod program;
mod rank_set;
mod ranks;
mod signals;
mod sink;
mod spawn;
mod supervisor;

pub use ended::Ended;
pub use error::LaunchError;

use bootstrap::Server;
use std::{
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    time::Duration,
};
use topology::Bind;

/// The processes to start, and the rules of their end.
#[derive(Clone, Debug)]
pub struct LaunchSpec {
    /// How many ranks; at least 1.
    pub ranks: u32,
    /// The program of each rank: a path, or a name to be found in `PATH`.
    pub program: OsString,
    /// The program's arguments, the same on every rank.
    pub args: Vec<OsString>,
    /// Variables added to the environment of every rank; the last one of a name wins. They may replace any
    /// but the `TBCCL_*` variables of a rank's identity.
    pub env: Vec<(OsString, OsString)>,
    /// Variables added to the environment of one rank, after `env` and under the same rule: the first entry
    /// is rank 0's. Ranks beyond its end get none.
    pub rank_env: Vec<Vec<(OsString, OsString)>>,
    /// The folder in which every rank starts; without it our own, or on other hosts that of who logs in.
    pub cwd: Option<PathBuf>,
    /// How ranks are kept on cores.
    pub bind: Bind,
    /// The hosts of the ranks.
    pub place: Place,
    /// How long the whole job may take.
    pub timeout: Option<Duration>,
    /// The fate of the other ranks when one fails.
    pub on_failure: OnFailure,
    /// Time that the other ranks may run on after one has failed, to report errors of their own.
    pub drain: Duration,
    /// How long after `SIGTERM` a rank is killed.
    pub grace: Duration,
    /// The prefix of messages on stderr, e.g. `tbccl run`.
    pub name: &'static str,
    /// Statuses with which a rank exits only when it has said why, so that nothing needs to be added.
    pub explained: &'static [u8],
}

/// The fate of the other ranks when one fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// They are ended, and the job has failed.
    #[default]
    EndAll,
    /// They go on: they may do without ([`tbccl::Communicator::shrink`]). The job has failed if no rank
    /// succeeds.
    GoOn,
}

/// The place of ranks.
#[derive(Clone, Debug, Default)]
pub enum Place {
    /// As children of this process, with its stdout and stderr; rank 0 has its stdin.
    #[default]
    Here,
    /// On hosts, each under an agent.
    Hosts(Hosts),
}

/// The hosts of a job, and how they are reached.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// The hosts; each has at least one rank.
    pub hosts: Vec<HostSpec>,
    /// The place in `hosts` of each rank's host, in rank order.
    pub host_of: Vec<usize>,
    /// The command that reaches another host, and its first arguments.
    pub ssh: Vec<OsString>,
    /// The path of `tbccl` on other hosts. Without it: the path here if it exists there, or else `PATH`.
    pub tbccl: Option<PathBuf>,
    /// This program, whose subcommand `agent` calls [`agent::serve`].
    pub agent: PathBuf,
    /// Files for every rank: the variable that names one, and its content. They are created on each host, and
    /// end with the job.
    pub files: Vec<(String, String)>,
    /// The handling of the ranks' output.
    pub output: Output,
    /// The receiver of this process's stdin.
    pub stdin: Stdin,
}

/// A host, as ssh knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// The destination for ssh.
    pub name: String,
    /// Whether it is this host, which needs no ssh.
    pub local: bool,
}

impl HostSpec {
    /// The host of this name: `localhost`, `127.0.0.1`, `::1` and this machine's own name are this one.
    #[must_use]
    pub fn new(name: impl Into<String>) -> HostSpec {
        let name = name.into();
        HostSpec { local: hosts::is_here(&name), name }
    }
}

impl Hosts {
    /// Returns hosts that are reached by `ssh`; `agent` is this program.
    pub fn new(hosts: Vec<HostSpec>, host_of: Vec<usize>, agent: impl Into<PathBuf>) -> Hosts {
        Hosts {
            hosts,
            host_of,
            ssh: vec!["ssh".into()],
            tbccl: None,
            agent: agent.into(),
            files: Vec::new(),
            output: Output::default(),
            stdin: Stdin::default(),
        }
    }
}

/// The handling of the output of ranks under agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Whole lines on our stdout and stderr.
    Lines {
        /// Each preceded by `[rank]` or `[rank:err]`.
        tagged: bool,
        /// And before that by the time.
        stamped: bool,
    },
    /// A file for each stream of each rank: `rank.2.out`, `rank.2.err`.
    Files {
        /// The folder, which is made if need be.
        folder: PathBuf,
        /// Whether each line begins with the time.
        stamped: bool,
    },
}

impl Default for Output {
    fn default() -> Output {
        Output::Lines { tagged: false, stamped: false }
    }
}

/// Which ranks get what the launcher reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// None.
    None,
    /// This one.
    Rank(u32),
    /// Each gets all of it.
    All,
}

impl Default for Stdin {
    fn default() -> Stdin {
        Stdin::Rank(0)
    }
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
            cwd: None,
            bind: Bind::None,
            place: Place::Here,
            timeout: None,
            on_failure: OnFailure::EndAll,
            drain: Duration::from_secs(1),
            grace: Duration::from_secs(3),
            name: "tbccl run",
            explained: &[],
        }
    }

    /// One line on stderr, in one write: the ranks may be writing there as well.
    fn say(&self, text: &str) {
        let line = format!("{}: {text}\n", self.name);
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// The server at which the ranks of a job find each other, as far as the launcher is concerned.
pub trait Rendezvous {
    /// The value of `TBCCL_BOOTSTRAP` for ranks of this host.
    fn address(&self) -> String;

    /// Returns the address for ranks of this host when others run elsewhere, `reached` being the address by
    /// which another host reaches this one, if known.
    fn address_here(&self, _reached: Option<&str>) -> String {
        self.address()
    }

    /// Returns the value of `TBCCL_BOOTSTRAP` for ranks of another host, which reaches this one at `reached`,
    /// if known.
    fn address_from(&self, _reached: Option<&str>) -> String {
        self.address()
    }

    /// The value of `TBCCL_SECRET`, if there is one.
    fn secret(&self) -> Option<String> {
        None
    }

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
    /// Its host, where it was under an agent.
    pub host: Option<String>,
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
    /// The reader of the output has closed it.
    Unread,
    /// Output could not be written, as has been said.
    Unwritten,
}

impl Outcome {
    /// Returns the exit status for a shell: that of the first failing rank, or 128 + the signal that killed
    /// it; 124, as timeout(1), when the time was over; 128 + SIGPIPE when the output's reader is gone; 2 when
    /// output cannot be written; 0 when all ranks did their work.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Outcome::Succeeded => 0,
            Outcome::Failed(failure) => failure.how.exit_code(),
            Outcome::TimedOut => 124,
            Outcome::Interrupted => Ended::Signaled(signal_hook::consts::SIGINT).exit_code(),
            Outcome::Unread => Ended::Signaled(signal_hook::consts::SIGPIPE).exit_code(),
            Outcome::Unwritten => 2,
        }
    }
}

/// Runs a job from its start to its end.
///
/// While it runs, `SIGINT`, `SIGTERM`, `SIGHUP`, `SIGUSR1` and `SIGUSR2` go to all ranks instead of this
/// process, and a second `SIGINT` kills the ranks; ignored signals stay ignored. A rank that fails ends the
/// others: they get `drain` to find out for themselves, `SIGTERM`, `grace`, and `SIGKILL`; unless they are to
/// go on.
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
    supervisor::run(spec, rendezvous)
}
