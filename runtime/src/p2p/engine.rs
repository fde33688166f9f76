//! The engine of one rank: takes requests, drives peers, and fails or closes all of them.
//!
//! One engine stands behind one lock, and every thread that waits drives it. Nothing here blocks. Only peers
//! with outstanding requests are polled, or all peers while a receive from any source is posted; messages
//! that no request needs stay in their links, which push back.
//!
//! Invariant: the memory of a request is used only until the request is complete. After a failure or the
//! close, no memory is used.

mod posting;

use super::{
    Delivery,
    message_copy::MessageCopy,
    parker::Parker,
    peer::{Peer, PeerError},
    queues::Queues,
    records::Records,
    state::{RequestInfo, RequestState},
};
use crate::{
    call::CallKind,
    communicator::{ErrorContext, LinkAccess},
    error::{Error, Result},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use topology::Rank;
use transport::TransportError;

/// The outcome of posting a request.
#[derive(Debug)]
pub(super) enum Posted {
    /// The request completed at once.
    Done(Result<Delivery>),
    /// The request is in flight.
    Pending(Arc<RequestState>),
}

/// The state of the thread that progresses messages while no thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgressThread {
    /// No request has been posted yet.
    NotStarted,
    /// Parked until a request is posted.
    Parked,
    /// Polling at intervals.
    Running,
    /// About to end.
    Stopping,
}

#[derive(Debug)]
pub(super) struct Engine {
    links: LinkAccess,
    rank: Rank,
    /// Peers by rank; `None` for this rank and for ranks without a link.
    peers: Vec<Option<Peer>>,
    /// Ranks of the peers that are polled.
    active: Vec<u32>,
    queues: Queues,
    failed: Option<Error>,
    /// Requests posted so far.
    requests: u64,
    /// The latest request posted, or the latest that was waited for long.
    latest: Option<RequestInfo>,
    pub(super) progress_thread: ProgressThread,
    /// Longest wait of the close for queued frames.
    close_timeout: Duration,
}

impl Engine {
    pub(super) fn new(links: LinkAccess, parker: Arc<Parker>) -> Engine {
        let comm = links.communicator();
        let rank = comm.rank();
        let records = Records::new(comm.control().shared_trace());
        let queues = Queues::new(rank, comm.members(), parker, records);
        let is_peer = |peer: &Rank| *peer != rank && links.reaches(*peer);
        let peers = (0..comm.size()).map(Rank).map(|peer| is_peer(&peer).then(|| Peer::new(peer))).collect();
        Engine {
            rank,
            peers,
            active: Vec::new(),
            queues,
            failed: None,
            requests: 0,
            latest: None,
            progress_thread: ProgressThread::NotStarted,
            close_timeout: links.timeout(),
            links,
        }
    }

    /// Limits the waits of the close for queued frames, and then for sent ones to arrive.
    pub(super) fn limit_close(&mut self, limit: Duration) {
        self.close_timeout = self.close_timeout.min(limit);
        self.links.communicator_mut().limit_departure(limit);
    }

    pub(super) fn links(&mut self) -> &mut LinkAccess {
        &mut self.links
    }

    /// Returns the error that every further operation gives, if any.
    pub(super) fn failed(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Whether any request or control traffic is outstanding.
    pub(super) fn is_busy(&self) -> bool {
        self.failed.is_none() && (self.queues.pending > 0 || !self.active.is_empty())
    }

    /// Returns a description for errors about no particular request.
    fn placeholder(&self, peer: Option<Rank>) -> RequestInfo {
        let (kind, number) = (CallKind::Recv, self.requests);
        RequestInfo { kind, peer, context: 0, tag: None, bytes: 0, number, began: 0 }
    }

    /// Returns the engine's or the job's failure, if any.
    fn check(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.links.is_healthy() { Ok(()) } else { Err(self.fail_job()) }
    }

    #[cold]
    fn fail_job(&mut self) -> Error {
        let info = self.latest.unwrap_or(self.placeholder(None));
        let about = ErrorContext { record: info.record(), details: &info.details(), waited: Duration::ZERO };
        let error = self.links.failure(&about);
        self.fail(error)
    }

    /// Records a request that has completed as it was posted.
    #[inline]
    pub(super) fn record(&mut self, result: &Result<Delivery>) {
        if let Some(info) = self.latest {
            self.queues.records.completed(&info, result);
        }
    }

    /// Lets a send read a copy of its message, if one is given, instead of the caller's memory. Returns false
    /// if the send is complete, or its receiver has begun to take the message.
    pub(super) fn give_copy(
        &mut self,
        to: Rank,
        state: &Arc<RequestState>,
        copy: Option<&MessageCopy>,
    ) -> bool {
        match &mut self.peers[to.index()] {
            Some(peer) => peer.give_copy(state, copy),
            None => self.queues.give_copy(state, copy),
        }
    }

    /// Sends queued frames to a peer as far as possible without waiting.
    fn flush(&mut self, at: usize) -> Result<()> {
        let Some(peer) = &mut self.peers[at] else { return Ok(()) };
        let sent = peer.send_frames(&mut self.links, &mut self.queues);
        activate(&mut self.active, peer);
        match sent {
            Ok(_) => Ok(()),
            Err(trouble) => self.handle_peer_error(at, trouble),
        }
    }

    /// Progresses everything that can be done without waiting. Returns whether anything moved; errors show in
    /// [`Engine::failed`].
    pub(super) fn drive(&mut self) -> bool {
        self.check().is_ok() && self.drive_peers().unwrap_or(false)
    }

    fn drive_peers(&mut self) -> Result<bool> {
        let mut moved = false;
        if self.queues.any_source > 0 {
            for at in 0..self.peers.len() {
                moved |= self.drive_peer(at)?;
            }
            return Ok(moved);
        }
        let mut next = 0;
        while let Some(at) = self.active.get(next).map(|at| *at as usize) {
            moved |= self.drive_peer(at)?;
            match &mut self.peers[at] {
                Some(peer) if !peer.is_active() => {
                    peer.is_polled = false;
                    self.active.swap_remove(next);
                }
                _ => next += 1,
            }
        }
        Ok(moved)
    }

    fn drive_peer(&mut self, at: usize) -> Result<bool> {
        let Some(peer) = self.peers[at].as_mut().filter(|peer| !peer.is_closed || peer.outstanding > 0)
        else {
            return Ok(false);
        };
        let moved = peer.drive(&mut self.links, &mut self.queues);
        activate(&mut self.active, peer);
        match moved {
            Ok(moved) => Ok(moved),
            Err(trouble) => self.handle_peer_error(at, trouble).map(|()| false),
        }
    }

    /// Handles a peer that cannot be driven. A peer that closed in good order is no failure, unless a request
    /// still needs more from it than it sent before it closed.
    #[cold]
    fn handle_peer_error(&mut self, at: usize, trouble: PeerError) -> Result<()> {
        let error = match trouble {
            PeerError::Job => return Err(self.fail_job()),
            PeerError::Link(error) => self.explain(at, error),
        };
        if let Error::PeerLeft { peer, .. } = &error
            && let Some(peer) = &mut self.peers[peer.rank.index()]
        {
            peer.drain_closed(&mut self.links, &mut self.queues);
            if peer.outstanding == 0 {
                return Ok(());
            }
        }
        Err(self.fail(error))
    }

    /// Checks the job's health on behalf of a request that has been waited for `waited` without progress.
    /// Errors show in [`Engine::failed`].
    pub(super) fn look(&mut self, info: &RequestInfo, waited: Duration) {
        if self.failed.is_some() {
            return;
        }
        self.latest = Some(*info);
        let about = ErrorContext { record: info.record(), details: &info.details(), waited };
        if let Err(error) = self.links.look(&about) {
            // Messages that the peer sent before it left may have arrived since the last poll.
            if !self.drive() {
                self.fail(error);
            }
        }
    }

    /// Checks the job's health on behalf of every peer with outstanding requests, without regard to time
    /// limits.
    pub(super) fn check_all_peers(&mut self) {
        let of_peers = self.peers.iter().flatten().filter(|peer| peer.outstanding > 0);
        let mut labels: Vec<RequestInfo> = of_peers.filter_map(|peer| peer.latest).collect();
        if self.queues.any_source > 0 {
            labels.push(self.placeholder(None));
        }
        for info in labels {
            self.look(&info, Duration::ZERO);
        }
    }

    /// Publishes on this rank's board the request that it waits for.
    pub(super) fn publish_waiting(&self, info: &RequestInfo) {
        self.links.publish_waiting(&info.record());
    }

    /// Turns a link error into the error of the latest request on that link.
    fn explain(&mut self, at: usize, error: TransportError) -> Error {
        let rank = Rank(at as u32);
        let latest = self.peers[at].as_ref().and_then(|peer| peer.latest);
        let info = latest.unwrap_or(self.placeholder(Some(rank)));
        let about = ErrorContext { record: info.record(), details: &info.details(), waited: Duration::ZERO };
        self.links.explain(&about, rank, error)
    }

    /// Ends all use of memory and fails every request with this error. The first error wins and is returned.
    #[cold]
    pub(super) fn fail(&mut self, error: Error) -> Error {
        if let Some(failed) = &self.failed {
            return failed.clone();
        }
        self.links.give_up(error.clone());
        self.reset();
        self.failed = Some(error.clone());
        error
    }

    fn reset(&mut self) {
        self.peers.iter_mut().flatten().for_each(|peer| peer.reset(&mut self.links));
        self.peers.iter_mut().flatten().for_each(|peer| peer.is_polled = false);
        self.active.clear();
        self.queues.reset();
    }

    /// Closes in good order: waits within the time limit until all open peers have taken the queued frames. A
    /// message that is only partly sent or received by then is lost, which is a failure.
    pub(super) fn close(&mut self) {
        let began = Instant::now();
        while self.failed.is_none() && self.has_queued_frames() && began.elapsed() < self.close_timeout {
            if !self.drive() {
                std::thread::sleep(Duration::from_micros(100));
                self.drop_closed_peers();
            }
        }
        let writing = self.peers.iter().flatten().any(Peer::is_receiving);
        if self.failed.is_none() && (self.queues.sends > 0 || writing || self.has_queued_frames()) {
            let what =
                format!("rank {} closed its point-to-point messages while some were in flight", self.rank);
            self.fail(Error::InvalidArgument(what));
        }
        self.reset();
    }

    /// Closes the links of an engine that has been closed.
    pub(super) fn end(self) {
        self.links.close();
    }

    /// Whether a peer that is still open has not taken all queued frames.
    fn has_queued_frames(&self) -> bool {
        self.peers.iter().flatten().any(|peer| peer.has_queued_frames() && !peer.is_closed)
    }

    /// Drops the queued frames of peers that have closed or died meanwhile.
    fn drop_closed_peers(&mut self) {
        for peer in self.peers.iter_mut().flatten().filter(|peer| peer.has_queued_frames()) {
            peer.is_closed |= self.links.is_gone(peer.rank());
        }
    }

    /// Progresses one peer; returns its error as it is, without asking other ranks for the cause.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn drive_peer_once(&mut self, at: usize) -> Result<(), PeerError> {
        let Some(peer) = &mut self.peers[at] else { return Ok(()) };
        let moved = peer.drive(&mut self.links, &mut self.queues);
        activate(&mut self.active, peer);
        moved.map(drop)
    }

    /// Returns the units of a peer's memory that this rank may still use.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn credit_of(&self, at: usize) -> u32 {
        self.peers[at].as_ref().map_or(0, |peer| peer.credit)
    }

    /// Returns the number of posted receives, unexpected messages, and messages in flight.
    #[cfg(test)]
    pub(super) fn memory(&self) -> (usize, usize, usize) {
        let (posted, arrived) = self.queues.unmatched();
        (posted, arrived, self.peers.iter().flatten().map(Peer::memory).sum())
    }
}

/// Adds a peer with work to the polled ones.
#[inline]
fn activate(active: &mut Vec<u32>, peer: &mut Peer) {
    if !peer.is_polled && peer.is_active() {
        peer.is_polled = true;
        active.push(peer.rank().0);
    }
}
