//! One peer: the parts of the protocol, and the rails that they share.
//!
//! The parts know nothing of a peer: `sequence`, `slots`, `stream`, `placed`, `granted`, `rail`. The children
//! of this module join them:
//!
//! | module | content |
//! |---|---|
//! | `messages` | messages of the runtime, sent and received |
//! | `sending`, `receiving` | sequenced messages to the peer; all messages from the peer |
//! | `repeats` | places of messages that are sent again |
//! | `control` | counters, acknowledgements, notices and grants to the peer |
//! | `completions` | completions of this peer's requests |
//! | `placed`, `granted`, `grants` | bulk messages in pieces |
//! | `ends` | streams that are opened, given up and closed |
//! | `epochs` | renewal of the placed queues |
//! | `rails` | cables that fail and come back |
//!
//! Invariant: every header carries the latest counters, so any later message makes up for a lost one.

mod completions;
mod control;
mod ends;
mod epochs;
mod granted;
mod grants;
mod messages;
mod placed;
mod rails;
mod receiving;
mod repeats;
mod sending;

use super::{
    attempts::Retry,
    notice::Notice,
    placed::Placed,
    queue::Queue,
    rail::{Rail, Request},
    round_trip::RoundTrip,
    sequence::{RecvSequence, SendSequence},
    slots::{Kept, SendStore},
    streams::Streams,
    wire::Grant,
};
use crate::{Counters, TransportError};
use receiving::Inbound;
use sending::Outbound;
use std::{collections::VecDeque, time::Instant};

/// In [`SendState::awaits`](crate::SendState): the send waits until the device has taken the sequenced
/// message of this number, or the pieces of a bulk message before the piece of this number.
const TAKEN: u64 = 1 << 33;

/// Reason why a peer is of no further use.
#[derive(Clone, Debug)]
enum Break {
    /// No rail has been up for too long.
    NoRail(String),
    /// The peer has violated the protocol.
    Protocol(&'static str),
    /// Something else.
    Other(String),
}

/// One peer.
#[derive(Debug)]
pub(super) struct Peer {
    rank: u32,
    rails: Vec<Rail>,
    streams: Streams,
    sequence: SendSequence<Outbound>,
    store: SendStore,
    /// Places of messages that are acknowledged or have another place, which a request may still send.
    lingering: Vec<(Kept, Request)>,
    received: RecvSequence<Inbound>,
    /// State of bulk messages of all streams, where pieces meet receives.
    placed: Option<Placed>,
    /// Counters that belong to no stream.
    counters: Counters,
    /// Number of the next sequenced message expected, as it was last reported to the peer.
    told_ack: u32,
    /// Whether the peer must be sent an acknowledgement at once.
    ack_now: bool,
    /// Whether messages are missing.
    is_missing: bool,
    acknowledgement: Retry,
    /// Time in which messages are acknowledged.
    round_trip: RoundTrip,
    /// Questions for counters of the peer that a send waits for.
    word: Retry,
    /// Whether pieces were granted again and are not sent again yet.
    has_repetitions: bool,
    /// Rail whose bandwidth was reported last.
    report_next: usize,
    /// Number of messages so far whose bandwidth counts, for turns between rails.
    turns: u64,
    grants_made: u64,
    notices: VecDeque<Notice>,
    grants: Vec<Grant>,
    /// Whether a call has waited for a message since the last check, and the time of the last check that
    /// found one.
    is_awaited: bool,
    last_awaited: Option<Instant>,
    /// Time since which no rail has been up.
    no_rail_since: Option<Instant>,
    /// Whether the user has been told that a rail is waited for.
    has_told_wait: bool,
    /// Whether this rank is lower than the peer's.
    is_lower_end: bool,
    /// Reason why the peer cannot be reached any more.
    broken: Option<Break>,
    /// Whether the peer has closed its end.
    is_gone: bool,
}

impl Peer {
    /// Creates a peer whose rails are not connected yet. `store` holds messages until they are acknowledged.
    pub(super) fn new(
        (rank, is_lower_end): (u32, bool),
        rails: Vec<Rail>,
        store: SendStore,
        placed: Option<Placed>,
    ) -> Peer {
        Peer {
            rank,
            rails,
            streams: Streams::new(),
            sequence: SendSequence::new(),
            store,
            lingering: Vec::new(),
            received: RecvSequence::new(),
            placed,
            counters: Counters::default(),
            told_ack: 0,
            ack_now: false,
            is_missing: false,
            acknowledgement: Retry::NEW,
            round_trip: RoundTrip::default(),
            word: Retry::NEW,
            has_repetitions: false,
            report_next: 0,
            turns: 0,
            grants_made: 0,
            notices: VecDeque::with_capacity(64),
            grants: Vec::with_capacity(256),
            is_awaited: false,
            last_awaited: None,
            no_rail_since: None,
            has_told_wait: false,
            is_lower_end,
            broken: None,
            is_gone: false,
        }
    }

    /// Returns the first rail that is up, of the preferred ones if any of them is up.
    #[inline]
    fn active(&self) -> Option<usize> {
        let chosen = self.rails.iter().position(|rail| rail.is_chosen && rail.is_up());
        chosen.or_else(|| self.rails.iter().position(Rail::is_up))
    }

    /// Checks that the peer can still be reached.
    ///
    /// # Errors
    /// [`TransportError::NoRail`] once no rail has been up for too long; what else has ended the connection.
    #[inline]
    pub(super) fn check(&self) -> Result<(), TransportError> {
        match &self.broken {
            None => Ok(()),
            Some(broken) => Err(self.error_of(broken)),
        }
    }

    #[cold]
    fn error_of(&self, broken: &Break) -> TransportError {
        let peer = self.rank;
        match broken.clone() {
            Break::NoRail(causes) => TransportError::NoRail { peer, causes },
            Break::Protocol(what) => TransportError::Protocol { peer, what },
            Break::Other(what) => TransportError::Lost { peer, what },
        }
    }

    /// Gives the peer up because of an error: its queue pairs are made dead, so devices access no memory for
    /// them any more.
    #[cold]
    pub(super) fn give_up(&mut self, error: &TransportError) {
        let broken = match error {
            TransportError::NoRail { causes, .. } => Break::NoRail(causes.clone()),
            TransportError::Protocol { what, .. } => Break::Protocol(what),
            other => Break::Other(other.to_string()),
        };
        self.broken.get_or_insert(broken);
        self.kill_queues();
    }

    fn protocol(&self, what: &'static str) -> TransportError {
        TransportError::Protocol { peer: self.rank, what }
    }

    /// Counters of a stream.
    pub(super) fn counters(&self, stream: usize) -> Counters {
        self.streams.get(stream).map_or(Counters::default(), |stream| stream.counters)
    }

    /// Counters of the rails, which all streams share.
    pub(super) fn shared_counters(&self) -> Counters {
        let refusals = self.rails.iter().flat_map(Rail::queues).map(Queue::refusals).sum::<u64>();
        Counters { refused: self.counters.refused + refusals, ..self.counters }
    }

    /// The rails, in the order that both ends agree on.
    pub(super) fn rails(&self) -> &[Rail] {
        &self.rails
    }

    pub(super) fn rails_mut(&mut self) -> &mut [Rail] {
        &mut self.rails
    }

    /// Whether any rail is up.
    pub(super) fn is_reachable(&self) -> bool {
        self.active().is_some()
    }

    /// Whether the peer cannot be reached any more.
    #[inline]
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Whether the peer may still send or receive: it has not left, and has not failed.
    pub(super) fn is_open(&self) -> bool {
        !self.is_gone && self.broken.is_none()
    }

    /// Whether all sequenced messages are acknowledged.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.sequence.is_empty()
    }

    /// Number of the latest sequenced message.
    pub(super) fn latest(&self) -> u32 {
        self.sequence.last()
    }

    /// Whether all sequenced messages up to this number are acknowledged.
    pub(super) fn is_acknowledged_to(&self, number: u32) -> bool {
        self.sequence.is_acknowledged(number)
    }

    /// The digest of the next message of a stream, if it has begun to arrive.
    pub(super) fn peek_digest(&self, stream: usize) -> Option<u64> {
        self.streams.get(stream).and_then(|stream| stream.recv.peek_digest())
    }

    /// Makes all queue pairs dead: devices do not access memory for them any more.
    fn kill_queues(&self) {
        for queue in self.rails.iter().flat_map(Rail::queues) {
            // A queue pair that can't be made dead belongs to a device that is gone.
            let _ = queue.stop();
        }
    }
}
