//! A communicator's links for those who use them without calls: [`crate::mail`].
//!
//! Whoever does so makes no calls on the communicator, so that the links carry nothing else. It gets the links, and what
//! calls know of them and of the other ranks: how a message travels, who has died, left or failed, and how an error is
//! told. Nothing here knows what the messages mean.

use super::{Communicator, closed, closing, stopped::explain, watch::CallWatch};
use crate::{
    call::CallRecord,
    error::{Error, PeerName, Result},
    executor::{Stop, Watch},
};
use std::{
    sync::{
        Arc,
        atomic::{Ordering::Acquire, fence},
    },
    time::Duration,
};
use topology::Rank;
use transport::{Link, RecvState, SendState, Size, Sleeper, TransportError, WaitPolicy, memory::Span};

/// Whose messages, and where they stand, for errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorContext<'a> {
    /// As a call.
    pub(crate) record: CallRecord,
    /// What there is to say beside that.
    pub(crate) details: &'a str,
    /// How long nothing has moved.
    pub(crate) waited: Duration,
}

fn index(peer: Rank, lane: u8) -> usize {
    peer.index() * usize::from(Communicator::LANES) + usize::from(lane)
}

/// A communicator whose links are somebody's who makes no calls.
#[derive(Debug)]
pub(crate) struct LinkAccess(Communicator);

impl LinkAccess {
    pub(crate) fn new(comm: Communicator) -> LinkAccess {
        LinkAccess(comm)
    }

    /// Closes the communicator, without waiting for receivers of what has been sent.
    pub(crate) fn close(self) {
        closing::behind(self.0);
    }

    /// The communicator, for what is no call.
    pub(crate) fn communicator(&self) -> &Communicator {
        &self.0
    }

    pub(crate) fn communicator_mut(&mut self) -> &mut Communicator {
        &mut self.0
    }

    pub(crate) fn name(&self, rank: Rank) -> &PeerName {
        &self.0.peers.names[rank.index()]
    }

    /// Is there a link to a peer?
    pub(crate) fn reaches(&self, peer: Rank) -> bool {
        self.0.plans.reaches(peer)
    }

    /// The link to a peer that we reach.
    #[inline]
    pub(crate) fn link(&mut self, peer: Rank, lane: u8) -> &mut dyn Link {
        self.0.executor.link(index(peer, lane))
    }

    /// A message of these bytes, about to be sent to a peer.
    #[inline]
    pub(crate) fn message_to_send(&mut self, peer: Rank, lane: u8, digest: u64, src: Span<'_>) -> SendState {
        self.0.executor.message_to_send(index(peer, lane), digest, src)
    }

    /// Would a message of these bytes go from where they are, without being copied on the way?
    pub(crate) fn moves_in_place(&self, src: Span<'_>) -> bool {
        let executor = &self.0.executor;
        executor.protocols().size(src.len() as u64) == Size::Bulk
            && self.0.slab.locate(src.as_ptr(), src.len()).is_some()
    }

    /// A message of so many bytes, about to be received.
    #[inline]
    pub(crate) fn to_receive(&self, digest: u64, len: usize) -> RecvState {
        self.0.executor.message_to_receive(digest, len)
    }

    pub(crate) fn wait_policy(&self) -> (WaitPolicy, Option<Arc<dyn Sleeper>>) {
        self.0.executor.waiting_by()
    }

    /// How long something may wait without progress.
    pub(crate) fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// Has this rank closed its part of the communicator, as far as it is known?
    pub(crate) fn has_left(&mut self, rank: Rank) -> bool {
        self.0.peers.keep_in_touch();
        self.0.peers.agreement.has_left(rank)
    }

    /// A message begins to use memory that may be registered.
    pub(crate) fn begin_use(&mut self, memory: Span<'_>) {
        if Arc::strong_count(&self.0.lending) > 1
            && let Some(endpoint) = &mut self.0.endpoint
        {
            endpoint.begin_use(memory);
        }
    }

    /// A message has ended that used this memory.
    pub(crate) fn end_use(&mut self, memory: Span<'_>) {
        if Arc::strong_count(&self.0.lending) > 1
            && let Some(endpoint) = &mut self.0.endpoint
        {
            endpoint.end_use(memory);
        }
    }

    /// Does nothing that can be seen at once forbid to go on? What was read from a peer's memory before this was asked is then
    /// what the peer had sent.
    #[inline]
    pub(crate) fn is_healthy(&self) -> bool {
        fence(Acquire);
        let peers = &self.0.peers;
        self.0.failed.is_none() && !peers.agreement.has_failure() && !peers.control.is_aborted()
    }

    /// The error for those who can't go on.
    #[cold]
    pub(crate) fn failure(&mut self, about: &ErrorContext<'_>) -> Error {
        let known = self.0.failure().or_else(|| self.look(about).err());
        known.unwrap_or_else(|| self.0.check_alive().err().unwrap_or_else(closed))
    }

    /// Looks around during a long wait, as a call does: has anyone failed, died or left whom the record names, and is
    /// there time left? An error is not yet the communicator's.
    pub(crate) fn look(&mut self, about: &ErrorContext<'_>) -> Result<()> {
        let Communicator { peers, executor, timeout, .. } = &mut self.0;
        let mut watch = CallWatch {
            peers,
            calls: &[about.record],
            timeout: *timeout,
            waited: about.waited,
            has_looked: false,
        };
        watch.look(&executor.wait_said(about.details, about.waited))
    }

    /// Tells others, should they wonder, what this rank waits for; or that it no longer does.
    pub(crate) fn publish_waiting(&self, record: Option<&CallRecord>) {
        match record {
            Some(record) => self.0.peers.agreement.enter_message(record),
            None => self.0.peers.agreement.finish_message(),
        }
    }

    /// The error for a link to a peer that has failed.
    #[cold]
    pub(crate) fn explain(&mut self, about: &ErrorContext<'_>, peer: Rank, error: TransportError) -> Error {
        let Communicator { peers, timeout, .. } = &mut self.0;
        let mut watch = CallWatch {
            peers,
            calls: &[about.record],
            timeout: *timeout,
            waited: about.waited,
            has_looked: false,
        };
        explain(Stop::Link { step: about.details.to_owned(), peer, error }, &mut watch)
    }

    /// Ends all use of memory by links, and makes the error the communicator's and the job's.
    #[cold]
    pub(crate) fn give_up(&mut self, error: Error) {
        self.0.executor.abort_links();
        if self.0.failure().is_none() {
            // It gives the error back.
            let _ = self.0.fail(error);
        }
    }
}
