//! A rank's side of the connection to the rendezvous.
//!
//! While the job starts, the rank waits for the server's answers. Afterwards it never waits: it polls for
//! messages and queues its own, so a server that does not read cannot delay a call.
//!
//! A thread of the process reads, too, so that requests for the rank's status are answered while the rank
//! computes or waits elsewhere.
//!
//! | module | purpose |
//! |---|---|
//! | `join` | from an address to a connection |
//! | `channel` | state of a connection, shared with the status thread |
//! | `absence` | errors of ranks that wait for missing ones |
//! | `deaths` | ends of processes, for a rank that waits at a later rendezvous |
//! | `pauses` | times in which this process did not run |
//! | `status` | function that describes this process |
//! | `status_thread` | thread that answers requests for the status of this process |
//! | `snapshot` | the status of all ranks, for any thread |
//! | `snapshot_requests` | requests for it by purpose, and their replies |

mod absence;
mod channel;
mod deaths;
mod join;
mod pauses;
mod snapshot;
mod snapshot_requests;
mod status;
mod status_thread;

pub use absence::LAUNCHER_ADVICE;
pub use deaths::DeathWatch;
pub use join::Joined;
pub use pauses::{Pause, latest_pause};
pub use snapshot::SnapshotRequester;
pub use snapshot_requests::SnapshotReply;
pub use status::provide_status;

use super::wire::{FromRank, Word};
use crate::{clock::ClockSample, error::Result};
use channel::Channel;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A rank's open connection to the rendezvous.
#[derive(Debug)]
pub struct Connection {
    // Dropped before the channel: the status thread watches its descriptor.
    registration: Option<status_thread::Registration>,
    channel: Arc<Mutex<Channel>>,
}

/// A notice from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A rank's process ended.
    Died {
        /// The rank whose process ended.
        rank: u32,
        /// How the process ended, as the rest of a sentence.
        how: String,
    },
    /// Changed words of other ranks' boards: (rank, words) pairs.
    BoardUpdate(Vec<(u32, Vec<Word>)>),
    /// The first failure of the job, as board words.
    Failed(Vec<Word>),
    /// The connection to the server ended.
    ServerGone,
}

fn locked(channel: &Mutex<Channel>) -> MutexGuard<'_, Channel> {
    channel.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    fn new(channel: Channel) -> Connection {
        Connection { registration: None, channel: Arc::new(Mutex::new(channel)) }
    }

    /// Creates the connection of rank 1 of 3 over an open stream.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn over(frames: super::frame_stream::FrameStream, timeout: Duration) -> Connection {
        Connection::new(Channel::new(frames, 1, 3, timeout))
    }

    fn channel(&self) -> MutexGuard<'_, Channel> {
        locked(&self.channel)
    }

    /// Reports whether this rank can read the other ranks' memory, and waits until all ranks have reported.
    ///
    /// `obstacle` is the reason why this rank cannot. Returns the first obstacle of any rank.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] or [`Error::Absent`] if a rank gave up, died or was late.
    ///
    /// [`Error::Rendezvous`]: crate::Error::Rendezvous
    /// [`Error::Absent`]: crate::Error::Absent
    pub fn start(&mut self, obstacle: Option<String>) -> Result<Option<String>> {
        let first = self.channel().start(obstacle)?;
        self.registration = status_thread::register(&self.channel);
        Ok(first)
    }

    /// Waits until all ranks have started, and for the first exchange, of a rank that has sent both with its
    /// hello.
    fn finish_start(&mut self) -> Result<Vec<Vec<u8>>> {
        let parts = self.channel().wait_for_start_and_exchange()?;
        self.registration = status_thread::register(&self.channel);
        Ok(parts)
    }

    /// Sends `data` to all ranks and returns the data of all ranks, in rank order.
    ///
    /// All ranks must call this the same number of times.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if `data` is larger than 1 MiB; otherwise as [`Connection::start`].
    ///
    /// [`Error::Rendezvous`]: crate::Error::Rendezvous
    pub fn exchange(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.channel().exchange(data)
    }

    /// Whether the rendezvous has ended while this rank waited for an answer.
    #[must_use]
    pub fn has_closed(&self) -> bool {
        self.channel().closed_while_waiting
    }

    /// Exchanges messages in a call that all ranks make, after the start of the job.
    ///
    /// # Errors
    /// [`Error::Absent`] for ranks that do not make the call in time; otherwise as for
    /// [`Connection::exchange`].
    ///
    /// [`Error::Absent`]: crate::Error::Absent
    pub fn exchange_in_call(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.channel().exchange_in_call(data)
    }

    /// Tells the other ranks that this rank cannot start, so that they stop waiting.
    pub fn abort_start(&mut self, why: &str) {
        self.channel().send_final(&FromRank::Abort { why: why.to_owned(), absent: Vec::new() });
    }

    /// Sends changed words of this rank's board and requests those of the other boards.
    ///
    /// Does not wait. Sends nothing if `words` is empty and a request is already pending.
    pub fn sync_board(&mut self, words: Vec<Word>) {
        self.channel().sync_board(words);
    }

    /// Reports a failure of the job. The first reported failure comes back as a notice.
    pub fn report_failure(&mut self, words: Vec<Word>) {
        self.channel().post(&FromRank::ReportFailure { words });
    }

    /// Returns the next notice, if one arrives within the given time. Skips other messages.
    pub fn notice(&mut self, within: Duration) -> Option<Notice> {
        let mut channel = self.channel();
        let notice = channel.notice(within);
        if channel.has_requests()
            && let Some(registration) = &self.registration
        {
            registration.wake_thread();
        }
        notice
    }

    /// Compares this host's clock with the rendezvous', as often as `count` says. Fewer samples mean that an
    /// answer took longer than `within`.
    pub fn sample_clock(&mut self, count: usize, within: Duration) -> Vec<ClockSample> {
        let mut channel = self.channel();
        let samples = (0..count).map_while(|_| channel.sample_clock(within)).collect();
        if channel.has_requests()
            && let Some(registration) = &self.registration
        {
            registration.wake_thread();
        }
        samples
    }

    /// Leaves the job in an orderly way; `words` are the last changed words of this rank's board.
    pub fn goodbye(&mut self, words: Vec<Word>) {
        self.channel().send_final(&FromRank::Goodbye { words });
    }

    /// Returns the means to ask for snapshots of the job, for any thread. It does not keep the connection.
    #[must_use]
    pub fn snapshot_requester(&self) -> SnapshotRequester {
        SnapshotRequester::new(&self.channel)
    }

    /// Returns the means to learn of deaths among these ranks of the job, in the order of their ranks in a
    /// later communicator, while they meet for that.
    #[must_use]
    pub fn death_watch(&self, members: impl Into<Arc<[u32]>>) -> DeathWatch {
        DeathWatch::new(&self.channel, members.into())
    }
}
