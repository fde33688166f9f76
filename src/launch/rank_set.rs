//! The ranks of a job as the supervisor sees them, on this host or on others.

use super::{Ended, LaunchError, signals::Signals, sink::OutputError};
use rustix::fd::BorrowedFd;
use rustix::process::Signal;

/// A rank's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// The rank.
    pub(super) rank: u32,
    /// Process id on its host.
    pub(super) pid: u32,
    /// Its host, if it runs under an agent.
    pub(super) host: Option<String>,
}

/// The processes of a job's ranks. Dropping it kills those still running.
pub(super) trait RankSet {
    /// Returns the ranks that have ended since the last call.
    fn newly_ended(&mut self) -> Vec<(Member, Ended)>;

    /// Returns the running ranks.
    fn running(&self) -> Vec<Member>;

    /// Signals the process groups of all ranks.
    fn signal(&mut self, signal: Signal);

    /// Returns signals for the ranks that arrived while they were being started.
    fn early_signals(&mut self) -> Vec<i32>;

    /// Returns a descriptor that is readable on events other than signals, if there is one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Returns the error that lost output, once.
    fn output_error(&mut self) -> Option<OutputError>;

    /// Ends the processes that the ended ranks left behind, and forwards their remaining output.
    fn finish(&mut self, signals: &mut Signals) -> Result<(), LaunchError>;
}
