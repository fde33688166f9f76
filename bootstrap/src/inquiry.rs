//! Questions about jobs of this user on this host, from a process that is no rank.
//!
//! Every rendezvous has a socket for them, which belongs to its user: both ends check the other one's user,
//! and the job's secret is not needed. A question changes nothing in the job.

use super::{
    frame_stream::{FrameStream, ReadProgress},
    record_layer::RecordLayer,
    snapshot::{JobMembers, ProcessState, Snapshot},
    socket::Socket,
    unix::connect_to_inquiries,
    wire::{Answer, MAX_TO_RANK_BYTES, Question, encode},
};
use crate::{
    connect::wait_for,
    error::{Error, Result},
};
use std::{
    io::{self, ErrorKind},
    time::{Duration, Instant},
};
use transport::host::{is_same_user, peer_process};

/// A rendezvous of this user on this host.
#[derive(Debug)]
pub struct FoundRendezvous {
    frames: FrameStream,
    pid: Option<u32>,
}

impl FoundRendezvous {
    /// Finds every rendezvous of this user on this host.
    ///
    /// # Errors
    /// [`Error::System`] if the system does not list its sockets.
    pub fn all() -> Result<Vec<FoundRendezvous>> {
        let refused = |e| Error::system("looking for jobs of this user", e);
        let streams = connect_to_inquiries().map_err(refused)?;
        let ours = streams.into_iter().filter(|stream| is_same_user(stream));
        let found = ours.map(|stream| {
            let pid = peer_process(&stream);
            let frames = FrameStream::new(Socket::unix(stream)?, RecordLayer::Open);
            Ok(FoundRendezvous { frames, pid })
        });
        found.collect::<io::Result<_>>().map_err(refused)
    }

    /// Returns the process id of the rendezvous, if the system tells.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Returns the state of the process of the rendezvous.
    #[must_use]
    pub fn process_state(&self) -> ProcessState {
        self.pid.map_or(ProcessState::Unknown, ProcessState::of)
    }

    /// Asks for the ranks of the job.
    ///
    /// # Errors
    /// The system's error, [`ErrorKind::TimedOut`] without an answer.
    pub fn members(&mut self, timeout: Duration) -> io::Result<JobMembers> {
        match self.ask(Question::Members, timeout)? {
            Answer::Members(members) => Ok(members),
            Answer::Snapshot(_) => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Asks for a snapshot of the job.
    ///
    /// # Errors
    /// As for [`FoundRendezvous::members`].
    pub fn snapshot(&mut self, timeout: Duration) -> io::Result<Snapshot> {
        match self.ask(Question::Snapshot, timeout)? {
            Answer::Snapshot(snapshot) => Ok(snapshot),
            Answer::Members(_) => Err(ErrorKind::InvalidData.into()),
        }
    }

    fn ask(&mut self, question: Question, timeout: Duration) -> io::Result<Answer> {
        self.frames.send(encode(&question));
        let deadline = Instant::now() + timeout;
        loop {
            let is_flushed = self.frames.flush()?;
            if let Some(answer) = self.frames.frame(MAX_TO_RANK_BYTES)? {
                return Ok(answer);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            wait_for(&self.frames, is_flushed, left)?;
            if self.frames.fill(READ_BYTES)? == ReadProgress::Closed {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;
