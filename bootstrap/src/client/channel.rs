//! The state of a rank's connection, shared by the thread that makes the rank's calls and the status thread.
//!
//! Requests of the server for the rank's status are set aside, for whichever thread answers them.
//!
//! | module | purpose |
//! |---|---|
//! | `start` | the start of a job, and exchanges |

mod start;

pub(super) use start::{Phase, start_and_contribution, unexpected};

use super::{
    Notice,
    snapshot_requests::{SnapshotPurpose, SnapshotReply, SnapshotRequests},
    status,
};
use crate::{
    clock::{ClockSample, monotonic_nanos},
    connect::{RendezvousHost, wait_for},
    error::Result,
    frame_stream::{FrameStream, ReadProgress},
    liveness,
    snapshot::ProcessState,
    wire::{FromRank, FromServer, MAX_TO_RANK_BYTES, Word, encode},
};
use rustix::fd::AsFd;
use std::{
    collections::VecDeque,
    io::{self, ErrorKind},
    time::{Duration, Instant},
};

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// Interval of heartbeats over TCP.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// How long the last message of a rank may take to be sent.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// A rank's open connection to the rendezvous.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) frames: FrameStream,
    /// The rank whose process runs the rendezvous, if it serves this job alone.
    pub(super) rendezvous_host: Option<RendezvousHost>,
    /// The rank whose process runs the rendezvous of the first job, once it is known.
    pub(super) serving_rank: Option<u32>,
    rank: u32,
    ranks: u32,
    /// How long the server may take to answer while the job starts.
    timeout: Duration,
    /// Whether the connection has ended.
    ended: bool,
    /// Whether the connection ended while this rank waited for an answer.
    pub(super) closed_while_waiting: bool,
    /// Notices received while this rank waited for an answer.
    deferred: VecDeque<FromServer>,
    /// Ranks whose deaths the server has reported, and how their processes ended.
    deaths: Vec<(u32, String)>,
    /// Latest known version of the other ranks' boards.
    seen: u64,
    /// Whether a board update has been requested and not answered.
    update_requested: bool,
    /// Time of the last heartbeat, and of the last liveness check of the server's host.
    last_heartbeat: Instant,
    last_probe: Instant,
    pub(super) phase: Phase,
    /// Requests of the server that no thread has answered.
    requests: Requests,
    /// Requests for snapshots.
    snapshots: SnapshotRequests,
    /// Number of the latest request for the server's time.
    time_requests: u64,
}

/// Requests of the server: the latest one of each kind.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Number of a request for this process's status.
    status: Option<u64>,
    /// Number of a request for states of processes, and their ids.
    process_states: Option<(u64, Vec<u32>)>,
}

/// Maximum number of processes whose states this rank reports.
const MAX_PIDS: usize = 1024;

impl Requests {
    fn is_empty(&self) -> bool {
        self.status.is_none() && self.process_states.is_none()
    }

    /// Returns the answers.
    pub(super) fn answer(self) -> Vec<FromRank> {
        let status = self.status.map(|number| FromRank::Status { number, text: status::own() });
        let states = self.process_states.map(|(number, pids)| {
            let states = pids.into_iter().take(MAX_PIDS).map(ProcessState::of).collect();
            FromRank::ProcessStates { number, states }
        });
        status.into_iter().chain(states).collect()
    }
}

impl Channel {
    /// Creates the connection of `rank`, of `ranks`, over an open stream. `timeout` limits each answer while
    /// the job starts.
    pub(super) fn new(frames: FrameStream, rank: u32, ranks: u32, timeout: Duration) -> Channel {
        let now = Instant::now();
        Channel {
            frames,
            rendezvous_host: None,
            serving_rank: None,
            rank,
            ranks,
            timeout,
            ended: false,
            closed_while_waiting: false,
            deferred: VecDeque::new(),
            deaths: Vec::new(),
            seen: 0,
            update_requested: false,
            last_heartbeat: now,
            last_probe: now,
            phase: Phase::Joining,
            requests: Requests::default(),
            snapshots: SnapshotRequests::default(),
            time_requests: 0,
        }
    }

    /// Returns the next message that concerns calls, once it is complete. Others are set aside.
    fn next_frame(&mut self) -> io::Result<Option<FromServer>> {
        while let Some(frame) = self.frames.frame(MAX_TO_RANK_BYTES)? {
            match frame {
                FromServer::RequestStatus { number } => self.requests.status = Some(number),
                FromServer::RequestProcessStates { number, pids } => {
                    self.requests.process_states = Some((number, pids));
                }
                FromServer::Snapshot { claimed_by, snapshot } => {
                    let claimed = SnapshotReply::ClaimedBy(claimed_by.unwrap_or_default());
                    self.snapshots.record(snapshot.map_or(claimed, SnapshotReply::Snapshot));
                }
                other => {
                    self.record_death(&other);
                    return Ok(Some(other));
                }
            }
        }
        Ok(None)
    }

    fn record_death(&mut self, frame: &FromServer) {
        if let FromServer::Died { rank, how } = frame
            && self.deaths.iter().all(|(dead, _)| dead != rank)
        {
            self.deaths.push((*rank, how.clone()));
        }
    }

    /// Returns the server's unanswered requests, if there are any.
    pub(super) fn take_requests(&mut self) -> Option<Requests> {
        (!self.requests.is_empty()).then(|| std::mem::take(&mut self.requests))
    }

    /// Whether the server has unanswered requests.
    pub(super) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Waits at most `within` for a message, reads all that have arrived, and keeps notices for
    /// [`Channel::notice`].
    pub(super) fn read_ahead(&mut self, within: Duration) {
        let mut within = within;
        // An error counts as the end, which the next notice reports.
        while self.poll_socket(within).unwrap_or(false) {
            within = Duration::ZERO;
        }
        loop {
            match self.next_frame() {
                Ok(Some(frame)) => self.deferred.push_back(frame),
                Ok(None) => return,
                Err(_) => return self.ended = true,
            }
        }
    }

    /// Returns the ranks that have died, whether a call has failed for it or not, and how their processes
    /// ended.
    pub(super) fn deaths(&self) -> &[(u32, String)] {
        &self.deaths
    }

    /// Asks for the server's time, and waits for the answer for a time at most.
    pub(super) fn sample_clock(&mut self, within: Duration) -> Option<ClockSample> {
        self.time_requests += 1;
        let number = self.time_requests;
        let sent = monotonic_nanos();
        self.post(&FromRank::RequestTime { number });
        let until = Instant::now() + within;
        loop {
            match self.next_frame() {
                Ok(Some(FromServer::Time { number: answered, nanos })) if answered == number => {
                    return Some(ClockSample { sent, server: nanos, received: monotonic_nanos() });
                }
                // The late answer to an earlier request.
                Ok(Some(FromServer::Time { .. })) => continue,
                Ok(Some(other)) => {
                    self.deferred.push_back(other);
                    continue;
                }
                Ok(None) => {}
                Err(_) => self.ended = true,
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.poll_socket(left).is_err() {
                return None;
            }
        }
    }

    /// Requests a snapshot; see [`FromRank::RequestSnapshot`].
    pub(super) fn request_snapshot(&mut self, purpose: SnapshotPurpose, claim: bool) {
        self.snapshots.add(purpose);
        self.post(&FromRank::RequestSnapshot { claim });
    }

    /// Returns the reply to the latest request for a snapshot of this purpose, if it has arrived.
    pub(super) fn take_snapshot(&mut self, purpose: SnapshotPurpose) -> Option<SnapshotReply> {
        self.snapshots.take(purpose).or_else(|| self.ended.then_some(SnapshotReply::ServerGone))
    }

    /// Waits, while the job starts, until `next` returns a value.
    pub(super) fn wait<T>(
        &mut self,
        action: &str,
        mut next: impl FnMut(&mut Channel) -> io::Result<Option<T>>,
    ) -> Result<T> {
        let deadline = Instant::now().checked_add(self.timeout);
        loop {
            if let Some(found) = next(self).map_err(|e| self.broken(action, &e))? {
                return Ok(found);
            }
            // No other thread answers while this one waits.
            if let Some(requests) = self.take_requests() {
                requests.answer().iter().for_each(|answer| self.post(answer));
            }
            let left = deadline.map_or(Duration::from_secs(3600), |at| at - Instant::now().min(at));
            if left.is_zero() {
                return Err(self.broken(action, &ErrorKind::TimedOut.into()));
            }
            if let Err(e) = self.poll_socket(left.min(liveness::PROBE_INTERVAL)) {
                self.closed_while_waiting = true;
                return Err(self.broken(action, &e));
            }
            self.check_liveness();
            if let Some((rank, how)) = self.rendezvous_host.as_ref().and_then(RendezvousHost::first_death) {
                return Err(self.died_during_start(rank, &how));
            }
        }
    }

    /// Writes queued bytes, waits at most `within` for the socket, and reads once. Returns whether more bytes
    /// may be available.
    fn poll_socket(&mut self, within: Duration) -> io::Result<bool> {
        if self.ended {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        // A server that no longer reads may have sent the reason, so reading goes on.
        let is_flushed = self.frames.flush().unwrap_or(true);
        wait_for(self.frames.as_fd(), is_flushed, within)?;
        match self.frames.fill(READ_BYTES) {
            Ok(progress) => {
                self.ended |= progress == ReadProgress::Closed;
                Ok(progress == ReadProgress::More)
            }
            Err(e) => {
                self.ended = true;
                Err(e)
            }
        }
    }

    /// Sends changed words of this rank's board and requests those of the other boards.
    ///
    /// Does not wait. Sends nothing if `words` is empty and a request is already pending.
    pub(super) fn sync_board(&mut self, words: Vec<Word>) {
        if words.is_empty() && self.update_requested {
            return;
        }
        self.update_requested = true;
        self.post(&FromRank::SyncBoard { seen: self.seen, words });
    }

    /// Queues a message and writes as much as the socket takes.
    pub(super) fn post(&mut self, message: &FromRank) {
        self.frames.send(encode(message));
        // If the server is gone, the next read reports it.
        let _ = self.frames.flush();
    }

    /// Sends a heartbeat over TCP and checks that the server's host answers.
    ///
    /// Both happen at most once per interval; no heartbeat is queued behind unsent bytes.
    fn check_liveness(&mut self) {
        if !self.frames.socket().is_tcp() {
            return;
        }
        let now = Instant::now();
        if now - self.last_probe >= liveness::PROBE_INTERVAL {
            self.last_probe = now;
            self.ended |= self.frames.socket().is_peer_silent();
        }
        if now - self.last_heartbeat >= HEARTBEAT_INTERVAL && self.frames.is_flushed() {
            self.last_heartbeat = now;
            self.post(&FromRank::Heartbeat);
        }
    }

    /// Returns the next notice, if one arrives within the given time. Skips other messages.
    pub(super) fn notice(&mut self, within: Duration) -> Option<Notice> {
        self.check_liveness();
        let until = Instant::now() + within;
        let mut has_looked = false;
        loop {
            let frame = match self.deferred.pop_front() {
                Some(frame) => Ok(Some(frame)),
                None => self.next_frame(),
            };
            match frame {
                Ok(Some(frame)) => match self.read_notice(frame) {
                    None => continue,
                    notice => return notice,
                },
                Ok(None) if self.ended => return Some(Notice::ServerGone),
                Ok(None) => {}
                Err(_) => return Some(Notice::ServerGone),
            }
            let left = until.saturating_duration_since(Instant::now());
            if has_looked && left.is_zero() {
                return None;
            }
            has_looked = true;
            // A connection that breaks counts as ended; messages received before remain readable.
            let _ = self.poll_socket(left);
        }
    }

    fn read_notice(&mut self, frame: FromServer) -> Option<Notice> {
        match frame {
            FromServer::Died { rank, how } => Some(Notice::Died { rank, how }),
            FromServer::Failed { words } => Some(Notice::Failed(words)),
            FromServer::BoardUpdate { version, mut boards } => {
                (self.seen, self.update_requested) = (version, false);
                boards.retain(|(rank, _)| *rank != self.rank && *rank < self.ranks);
                Some(Notice::BoardUpdate(boards))
            }
            _ => None,
        }
    }

    /// Sends a message and waits until it has arrived. Closing a TCP socket with unread input would discard
    /// bytes that were already sent.
    pub(super) fn send_final(&mut self, message: &FromRank) {
        self.post(message);
        let until = Instant::now() + FLUSH_TIMEOUT;
        let is_tcp = self.frames.socket().is_tcp();
        while !self.ended && Instant::now() < until {
            if self.frames.is_flushed() {
                if !is_tcp {
                    return;
                }
                self.frames.finish();
            }
            if self.poll_socket(until.saturating_duration_since(Instant::now())).is_err() {
                return;
            }
            self.frames.discard_input();
        }
    }
}
