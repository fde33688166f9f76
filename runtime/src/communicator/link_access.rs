//! Access to a communicator's links without calls, for [`crate::p2p`].
//!
//! The program makes no calls on this communicator, so the links carry nothing else. This module offers the
//! links, and the services of calls: the protocol of a message, deaths, departures and failures of other
//! ranks, and error reports. It does not interpret messages.

use super::{Communicator, closed, closing, diagnosis::explain, watch::CallWatch};
use crate::{
    call::CallRecord,
    error::{Error, PeerName, Result},
    executor::{Stop, Watch, Writes},
};
use std::{
    sync::{
        Arc,
        atomic::{Ordering::Acquire, fence},
    },
    time::Duration,
};
use topology::Rank;
use transport::{Link, RecvState, SendState, SizeClass, Sleeper, TransportError, WaitPolicy, memory::Span};

/// The context of an error: the operation, and its progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorContext<'a> {
    /// The operation as a call.
    pub(crate) record: CallRecord,
    /// Details beside the record.
    pub(crate) details: &'a str,
    /// Time without progress.
    pub(crate) waited: Duration,
}

fn index(peer: Rank, lane: u8) -> usize {
    peer.index() * usize::from(Communicator::LANES) + usize::from(lane)
}

/// A communicator whose links are used without calls.
#[derive(Debug)]
pub(crate) struct LinkAccess(Communicator);

impl LinkAccess {
    pub(crate) fn new(comm: Communicator) -> LinkAccess {
        LinkAccess(comm)
    }

    /// Closes the communicator, without waiting for the receivers of sent messages.
    pub(crate) fn close(self) {
        closing::close_in_background(self.0);
    }

    /// Returns the communicator, for uses other than calls.
    pub(crate) fn communicator(&self) -> &Communicator {
        &self.0
    }

    pub(crate) fn communicator_mut(&mut self) -> &mut Communicator {
        &mut self.0
    }

    pub(crate) fn name(&self, rank: Rank) -> &PeerName {
        &self.0.peers.names[rank.index()]
    }

    /// Whether there is a link to a peer.
    pub(crate) fn reaches(&self, peer: Rank) -> bool {
        self.0.plans.reaches(peer)
    }

    /// Returns the link to a reachable peer.
    #[inline]
    pub(crate) fn link(&mut self, peer: Rank, lane: u8) -> &mut dyn Link {
        self.0.executor.link(index(peer, lane))
    }

    /// Replaces the link to a peer by what is made of it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn wrap_link(
        &mut self,
        peer: Rank,
        lane: u8,
        wrap: impl FnOnce(Box<dyn Link>) -> Box<dyn Link>,
    ) {
        self.0.executor.wrap_link(index(peer, lane), wrap);
    }

    /// Returns the state of a send of these bytes to a peer.
    #[inline]
    pub(crate) fn message_to_send(&mut self, peer: Rank, lane: u8, digest: u64, src: Span<'_>) -> SendState {
        self.0.executor.message_to_send(index(peer, lane), digest, src)
    }

    /// Whether a message of these bytes would travel without a copy.
    pub(crate) fn moves_in_place(&self, src: Span<'_>) -> bool {
        let executor = &self.0.executor;
        executor.protocols().size_class(src.len() as u64) == SizeClass::Bulk
            && self.0.slab.locate(src.as_ptr(), src.len()).is_some()
    }

    /// Returns how a message of `len` bytes is written to its place.
    pub(crate) fn writes_of(&self, len: usize) -> Writes {
        self.0.executor.protocols().writes_of(len)
    }

    /// Returns the state of a receive of `len` bytes.
    #[inline]
    pub(crate) fn to_receive(&self, digest: u64, len: usize) -> RecvState {
        self.0.executor.message_to_receive(digest, len)
    }

    pub(crate) fn wait_policy(&self) -> (WaitPolicy, Option<Arc<dyn Sleeper>>) {
        self.0.executor.wait_policy()
    }

    /// Returns the time that an operation may wait without progress.
    pub(crate) fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// Whether a rank has died, or closed its part of the communicator, as far as known.
    pub(crate) fn is_gone(&mut self, rank: Rank) -> bool {
        self.0.peers.keep_in_touch();
        self.0.peers.is_gone(rank)
    }

    /// Records that a message uses memory, which may be registered.
    pub(crate) fn begin_use(&mut self, memory: Span<'_>) {
        if let Some(endpoint) = self.0.lender() {
            endpoint.begin_use(memory);
        }
    }

    /// Records that a message no longer uses memory.
    pub(crate) fn end_use(&mut self, memory: Span<'_>) {
        if let Some(endpoint) = self.0.lender() {
            endpoint.end_use(memory);
        }
    }

    /// Whether the communicator can go on. Data read from a peer's memory before this returned `true` is what
    /// the peer had sent.
    #[inline]
    pub(crate) fn is_healthy(&self) -> bool {
        fence(Acquire);
        let peers = &self.0.peers;
        self.0.failed.is_none() && !peers.agreement.has_failure() && !peers.control.is_aborted()
    }

    /// Returns the error of an operation that cannot go on.
    #[cold]
    pub(crate) fn failure(&mut self, about: &ErrorContext<'_>) -> Error {
        let known = self.0.failure().or_else(|| self.look(about).err());
        known.unwrap_or_else(|| self.0.check_alive().err().unwrap_or_else(closed))
    }

    /// Checks the job's health during a long wait, as a call does: failures, deaths, departures of the ranks
    /// in the record, and the timeout. An error is not yet recorded as the communicator's.
    pub(crate) fn look(&mut self, about: &ErrorContext<'_>) -> Result<()> {
        let Communicator { peers, executor, timeout, endpoint, slab, .. } = &mut self.0;
        let mut watch = CallWatch {
            peers,
            calls: &[about.record],
            timeout: *timeout,
            waited: about.waited,
            has_looked: false,
            endpoint: endpoint.as_deref(),
            slab,
        };
        watch.look(&executor.waiting_for_message(&about.record, about.details, about.waited))
    }

    /// Publishes the operation that this rank waits for.
    pub(crate) fn publish_waiting(&self, record: &CallRecord) {
        self.0.peers.agreement.enter_message(&record.encode());
    }

    /// Returns the error for a failed link to a peer.
    #[cold]
    pub(crate) fn explain(&mut self, about: &ErrorContext<'_>, peer: Rank, error: TransportError) -> Error {
        let Communicator { peers, timeout, slab, .. } = &mut self.0;
        let mut watch = CallWatch {
            peers,
            calls: &[about.record],
            timeout: *timeout,
            waited: about.waited,
            has_looked: false,
            endpoint: None,
            slab,
        };
        explain(Stop::Link { step: about.details.to_owned(), peer, error }, &mut watch)
    }

    /// Ends all use of memory by links, and records the error as the communicator's and the job's.
    #[cold]
    pub(crate) fn give_up(&mut self, error: Error) {
        self.0.executor.abort_links();
        if self.0.failure().is_none() {
            // `fail` returns the same error.
            let _ = self.0.fail(error);
        }
    }
}
