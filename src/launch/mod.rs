//! Starting, supervising and ending the ranks of a job, on this host and others.
//!
//! [`launch`] starts one process per rank, passes each its identity in its environment, forwards signals, and
//! returns when all have ended. Its [`Outcome`] carries the exit status for a shell.
//!
//! On each host the ranks run under an [`agent`]. The launcher reaches those of other hosts by ssh. Agents
//! forward output line by line, or, on this host, leave the launcher's stdout and stderr to the ranks
//! ([`Output::Inherited`]).
//!
//! | module | purpose |
//! |---|---|
//! | [`agent`] | runs on each host: starts and ends the ranks there |
//! | `ended` | the way a process ended |
//! | `ending` | the end of all processes of a job |
//! | `environment` | environment variables of a rank |
//! | `error` | errors of starting a job |
//! | `frame` | frames between the launcher and the agents |
//! | `harness` | in tests and fuzzing: arbitrary bytes for both ends of a connection |
//! | `hosts` | ranks on all hosts |
//! | `limited` | commands with a time limit |
//! | `lines` | splits output into tagged lines |
//! | `machine` | cores and binding |
//! | `processes` | finds the processes of a job |
//! | `program` | search for the program |
//! | `ranks` | process groups of this host |
//! | `signals` | waiting for signals |
//! | `sink` | destination of the ranks' output |
//! | `spawn` | starting processes |
//! | `supervisor` | the phases of a job |
//!
//! Invariants: when `launch` returns, fails or panics, no process that descends from a rank is alive on any
//! reachable host, and no file was created that was not requested. On Linux this holds of processes in other
//! sessions and of daemons, and if the launcher, an agent, or the agent's keeper is killed or an agent is
//! stopped; `ending` and [`agent`] have the details. A signal never reaches a foreign process: a rank's
//! process id is not returned to the system while its group may still be signalled, and other processes are
//! signalled by descriptors.
//!
//! One thread makes all decisions. It sleeps in `poll` until a signal arrives (`SIGCHLD` among them), a host
//! sends a message, or a deadline passes.
//!
//! This module does not parse command lines or hostfiles, and does not run the rendezvous server.

pub mod agent;
mod ended;
mod ending;
mod environment;
mod error;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod harness;
mod hosts;
mod limited;
mod lines;
mod machine;
mod processes;
mod program;
mod ranks;
mod signals;
mod sink;
mod spawn;
mod supervisor;

pub use ended::Ended;
pub use error::LaunchError;
pub use hosts::ask;

pub(crate) use limited::output_within;
pub(crate) use spawn::in_own_group;

use bootstrap::Server;
use std::{
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    time::Duration,
};
use topology::Bind;

/// The processes of a job, and the rules for ending them.
#[derive(Clone, Debug)]
pub struct LaunchSpec {
    /// Ranks of the job; at least 1.
    pub ranks: u32,
    /// The program of each rank: a path, or a name to look up in `PATH`.
    pub program: OsString,
    /// The program's arguments, the same on every rank.
    pub args: Vec<OsString>,
    /// Variables added to the environment of every rank; the last one of a name wins. They may replace any
    /// but the `TBCCL_*` variables of a rank's identity.
    pub env: Vec<(OsString, OsString)>,
    /// Variables added to the environment of one rank, after `env` and under the same rule. Entry `i` is for
    /// rank `i`; ranks beyond the end get none.
    pub rank_env: Vec<Vec<(OsString, OsString)>>,
    /// The working folder of every rank. By default the launcher's, or on other hosts the login folder.
    pub cwd: Option<PathBuf>,
    /// Binding of ranks to cores.
    pub bind: Bind,
    /// Hosts of the ranks.
    pub hosts: Hosts,
    /// Time limit of the whole job.
    pub timeout: Option<Duration>,
    /// Effect of a rank's failure on the others.
    pub on_failure: OnFailure,
    /// Time that the other ranks may run on after a failure, to report errors of their own.
    pub drain: Duration,
    /// Time between `SIGTERM` and `SIGKILL`.
    pub grace: Duration,
    /// Prefix of messages on stderr, e.g. `tbccl run`.
    pub name: &'static str,
    /// Exit statuses of ranks that have printed the reason themselves; the launcher adds no message.
    pub reported_statuses: &'static [u8],
}

/// Effect of a rank's failure on the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The others are ended, and the job has failed.
    #[default]
    EndAll,
    /// The others continue and may do without the failed rank ([`tbccl::Communicator::shrink`]). The job has
    /// failed only if no rank succeeds.
    Continue,
}

/// The hosts of a job, and how they are reached.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// The hosts; each has at least one rank.
    pub hosts: Vec<HostSpec>,
    /// Index in `hosts` of each rank's host, in rank order.
    pub host_of: Vec<usize>,
    /// The command that reaches another host, with its first arguments.
    pub ssh: Vec<OsString>,
    /// Path of `tbccl` on other hosts. By default this program's own path if it exists there, else `PATH`.
    pub tbccl: Option<PathBuf>,
    /// Path of this program, whose subcommand `agent` calls [`agent::serve`].
    pub agent: PathBuf,
    /// Files for every rank: the variable that names the file, and its content. They exist on each host while
    /// the job runs.
    pub files: Vec<(String, String)>,
    /// Destination of the ranks' output.
    pub output: Output,
    /// Receivers of this process's stdin.
    pub stdin: Stdin,
}

/// A host, as ssh knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// The destination for ssh.
    pub name: String,
    /// Whether it is the local host, which needs no ssh.
    pub local: bool,
}

impl HostSpec {
    /// Creates the host of a name. `localhost`, `127.0.0.1`, `::1` and this machine's own name are local.
    #[must_use]
    pub fn new(name: impl Into<String>) -> HostSpec {
        let name = name.into();
        HostSpec { local: hosts::is_here(&name), name }
    }
}

impl Hosts {
    /// Creates a plan of this host alone, whose ranks have the launcher's stdin, stdout and stderr.
    pub fn here(ranks: u32, agent: impl Into<PathBuf>) -> Hosts {
        let host_of = vec![0; ranks as usize];
        Hosts { output: Output::Inherited, ..Hosts::new(vec![HostSpec::new("localhost")], host_of, agent) }
    }

    /// Creates a plan that reaches hosts by `ssh`; `agent` is the path of this program.
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

/// Destination of the output of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Ranks have the launcher's stdout and stderr, and rank 0 its stdin unless that is a terminal. For ranks
    /// of this host only.
    Inherited,
    /// Whole lines on the launcher's stdout and stderr.
    Lines {
        /// Whether `[rank]` or `[rank:err]` precedes each line.
        tagged: bool,
        /// Whether the time precedes each line.
        stamped: bool,
    },
    /// One file for each stream of each rank: `rank.2.out`, `rank.2.err`.
    Files {
        /// The folder; it is created if it does not exist.
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

/// Receivers of the launcher's stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// No rank.
    None,
    /// One rank.
    Rank(u32),
    /// Every rank gets all of it.
    All,
}

impl Default for Stdin {
    fn default() -> Stdin {
        Stdin::Rank(0)
    }
}

impl LaunchSpec {
    /// Creates a spec for `ranks` processes of `program` on this host, without arguments and with default
    /// time limits. `agent` is the path of this program.
    pub fn new(ranks: u32, program: impl Into<OsString>, agent: impl Into<PathBuf>) -> LaunchSpec {
        LaunchSpec {
            ranks,
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            rank_env: Vec::new(),
            cwd: None,
            bind: Bind::None,
            hosts: Hosts::here(ranks, agent),
            timeout: None,
            on_failure: OnFailure::EndAll,
            drain: Duration::from_secs(1),
            grace: Duration::from_secs(3),
            name: "tbccl run",
            reported_statuses: &[],
        }
    }

    /// Prints one line on stderr in one write, because the ranks may write there too.
    fn say(&self, text: &str) {
        let line = format!("{}: {text}\n", self.name);
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// The launcher's interface to the rendezvous server of a job.
pub trait Rendezvous {
    /// Returns the value of `TBCCL_BOOTSTRAP` for ranks of this host.
    fn address(&self) -> String;

    /// Returns the address for ranks of this host when others run elsewhere. `reached` is the address by
    /// which another host reaches this one, if known.
    fn address_here(&self, _reached: Option<&str>) -> String {
        self.address()
    }

    /// Returns the value of `TBCCL_BOOTSTRAP` for ranks of another host, which reaches this one at `reached`,
    /// if known.
    fn address_from(&self, _reached: Option<&str>) -> String {
        self.address()
    }

    /// Returns the value of `TBCCL_SECRET`, if the job has one.
    fn secret(&self) -> Option<String> {
        None
    }

    /// Reports to the other ranks that this one has died. `how` is the rest of a sentence: `was killed by
    /// SIGKILL`.
    fn report_exit(&self, rank: u32, pid: u32, how: &str);

    /// Reports that a rank has exited with status 0, so that no rank waits for it if it has not joined.
    fn report_success(&self, _rank: u32, _pid: u32) {}
}

impl Rendezvous for Server {
    fn address(&self) -> String {
        Server::address(self).to_owned()
    }

    fn secret(&self) -> Option<String> {
        Server::secret(self).map(|secret| secret.to_hex().to_string())
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
    /// The way the process ended.
    pub how: Ended,
    /// Its host, if the job has ranks on other hosts.
    pub host: Option<String>,
}

/// The result of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All ranks exited with status 0.
    Succeeded,
    /// The rank that failed first.
    Failed(Failure),
    /// The time limit has passed.
    TimedOut,
    /// A second `SIGINT` killed the ranks.
    Interrupted,
    /// The reader of the output has closed it.
    OutputClosed,
    /// Output could not be written; the reason has been printed.
    OutputError,
}

impl Outcome {
    /// Returns the exit status for a shell.
    ///
    /// The status of a failed job is that of the first failing rank, or 128 + the signal that killed it. It
    /// is 124, as for timeout(1), after the time limit; 128 + SIGPIPE when the output's reader is gone; 2
    /// when output cannot be written; and 0 when all ranks exited with status 0.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Outcome::Succeeded => 0,
            Outcome::Failed(failure) => failure.how.exit_code(),
            Outcome::TimedOut => 124,
            Outcome::Interrupted => Ended::Signaled(signal_hook::consts::SIGINT).exit_code(),
            Outcome::OutputClosed => Ended::Signaled(signal_hook::consts::SIGPIPE).exit_code(),
            Outcome::OutputError => 2,
        }
    }
}

/// Runs a job from its start to its end.
///
/// While it runs, `SIGINT`, `SIGTERM`, `SIGHUP`, `SIGUSR1` and `SIGUSR2` go to all ranks instead of this
/// process, and a second `SIGINT` kills the ranks; ignored signals stay ignored. Unless
/// [`OnFailure::Continue`] is set, the failure of a rank ends the others: they get `drain` to report errors
/// of their own, then `SIGTERM`, `grace`, and `SIGKILL`.
///
/// # Errors
/// [`LaunchError`] if not every rank could be started; ranks already started are ended first.
pub fn launch(spec: &LaunchSpec, rendezvous: &dyn Rendezvous) -> Result<Outcome, LaunchError> {
    if spec.ranks == 0 {
        return Err(LaunchError::NoRanks);
    }
    for env in std::iter::once(&spec.env).chain(&spec.rank_env) {
        environment::check(env)?;
    }
    supervisor::run(spec, rendezvous)
}
