//! The running ranks of a job, as the supervisor sees them, on this host or on others.

use super::{Ended, LaunchError, signals::Signals, sink::Unwritten};
use rustix::fd::BorrowedFd;
use rustix::process::Signal;

/// A rank's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// The rank.
    pub(super) rank: u32,
    /// Its process id, on its host.
    pub(super) pid: u32,
    /// Its host, where it is under an agent.
    pub(super) host: Option<String>,
}

/// The ranks of a job, wherever they are. Dropping it kills what still runs.
pub(super) trait RankSet {
    /// Returns the ranks that have ended since the last call.
    fn newly_ended(&mut self) -> Vec<(Member, Ended)>;

    /// Returns the running ranks.
    fn running(&self) -> Vec<Member>;

    /// Signals all ranks, and what they have started.
    fn signal(&mut self, signal: Signal);

    /// Signals for the ranks that came while they were being started.
    fn early_signals(&mut self) -> Vec<i32>;

    /// Is readable when there is something new, if anything but a signal can tell so.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Why output is lost, told once.
    fn trouble(&mut self) -> Option<Unwritten>;

    /// When all ranks have ended: ends what they have left behind, and passes their last words on.
    fn finish(&mut self, signals: &mut Signals) -> Result<(), LaunchError>;
}
