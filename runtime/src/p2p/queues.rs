//! Posted receives, unexpected messages and the number of outstanding requests of one rank.
//!
//! Messages that peers bring are entered here, and meet receives by the rule of `matching`. Nothing here
//! touches a link.

use super::{
    Delivery,
    eager::{Destination, EagerReceive},
    frame::{FRAME_BYTES, SHORT_BYTES},
    matching::{Envelope, Matching, Pattern},
    message_copy::MessageCopy,
    parker::Parker,
    records::Records,
    state::{RecvRequest, RequestInfo, RequestState, SendRequest},
};
use crate::error::{Error, PeerName, Result};
use std::sync::Arc;
use topology::Rank;
use transport::memory::{Span, SpanMut};

/// An unexpected message.
#[derive(Debug)]
pub(super) enum Message {
    /// A short message.
    Short { len: u8, bytes: [u8; SHORT_BYTES] },
    /// An eager message on the heap.
    Heap(Box<[u8]>),
    /// An announced message at its sender.
    AtSender { number: u64, len: usize },
    /// A long message of this rank to itself, at the sender's address.
    OwnSend(SendRequest),
}

const _: () = assert!(SHORT_BYTES < FRAME_BYTES);

impl Message {
    /// Returns a copy of a message.
    fn of(bytes: &[u8]) -> Message {
        if bytes.len() > SHORT_BYTES {
            return Message::Heap(bytes.into());
        }
        let mut kept = [0; SHORT_BYTES];
        kept[..bytes.len()].copy_from_slice(bytes);
        Message::Short { len: bytes.len() as u8, bytes: kept }
    }
}

/// Context, source and tag.
pub(super) type MessageKey = (u32, Rank, i32);

fn envelope((context, from, tag): MessageKey) -> Envelope {
    Envelope { context, from: from.0, tag }
}

/// Outstanding requests and unexpected messages.
#[derive(Debug)]
pub(super) struct Queues {
    rank: Rank,
    names: Arc<[PeerName]>,
    matching: Matching<RecvRequest, Message>,
    /// Incomplete requests.
    pub(super) pending: usize,
    /// Incomplete receives from any source that have not been matched.
    pub(super) any_source: usize,
    /// Incomplete sends to other ranks.
    pub(super) sends: usize,
    /// Units used by messages of this rank to itself.
    pub(super) own_units: u32,
    parker: Arc<Parker>,
    pub(super) records: Records,
}

impl Queues {
    pub(super) fn new(rank: Rank, names: &[PeerName], parker: Arc<Parker>, records: Records) -> Queues {
        let matching = Matching::default();
        Queues {
            rank,
            names: names.into(),
            matching,
            pending: 0,
            any_source: 0,
            sends: 0,
            own_units: 0,
            parker,
            records,
        }
    }

    /// Creates the state of a request.
    pub(super) fn new_state(&mut self, info: RequestInfo) -> Arc<RequestState> {
        self.pending += 1;
        Arc::new(RequestState::new(info))
    }

    fn complete(&mut self, state: &RequestState, result: Result<Delivery>) {
        self.pending -= 1;
        self.records.completed(&state.info, &result);
        state.complete(result);
        self.parker.wake();
    }

    /// Completes a send.
    pub(super) fn sent(&mut self, request: &SendRequest, to: Rank) {
        self.sends -= usize::from(to != self.rank);
        let delivery = self.delivery_of(request);
        self.complete(&request.state, Ok(delivery));
    }

    /// Returns the result of a send.
    fn delivery_of(&self, request: &SendRequest) -> Delivery {
        let tag = request.state.info.tag.unwrap_or_default();
        Delivery { from: self.rank, tag, bytes: request.src.len() }
    }

    /// Completes a receive.
    pub(super) fn received(&mut self, request: &RecvRequest, result: Result<Delivery>) {
        self.complete(&request.state, result);
    }

    /// Completes a receive that has no room for its message.
    pub(super) fn complete_truncated(&mut self, request: &RecvRequest, address: MessageKey, len: usize) {
        let error = self.truncated(address, len, request.dst.len());
        self.complete(&request.state, Err(error));
    }

    pub(super) fn truncated(&self, (context, from, tag): MessageKey, bytes: usize, capacity: usize) -> Error {
        let peer = self.names[from.index()].clone();
        Error::Truncated { rank: self.rank, peer, context, tag, bytes, capacity }
    }

    /// Returns the posted receive that an arriving message matches. `outstanding` counts the peer's requests,
    /// which include receives that name their source from the start.
    fn match_posted(&mut self, address: MessageKey, outstanding: &mut u32) -> Option<RecvRequest> {
        let request = self.matching.arrive(&envelope(address))?;
        if request.state.info.peer.is_none() {
            self.any_source -= 1;
            *outstanding += 1;
        }
        Some(request)
    }

    /// Handles a message that has arrived as a whole. Returns whether a receive took it.
    pub(super) fn arrived(&mut self, address: MessageKey, bytes: &[u8], outstanding: &mut u32) -> bool {
        let Some(request) = self.match_posted(address, outstanding) else {
            self.matching.keep(&envelope(address), Message::of(bytes));
            return false;
        };
        *outstanding -= 1;
        let result = self.copy(address, bytes.into(), request.dst);
        self.complete(&request.state, result);
        true
    }

    /// Begins to receive an eager message.
    pub(super) fn begin_eager(
        &mut self,
        address: MessageKey,
        len: usize,
        digest: u64,
        outstanding: &mut u32,
    ) -> EagerReceive {
        let request = self.match_posted(address, outstanding);
        EagerReceive::new(address, len, digest, request)
    }

    /// Handles a complete eager message. Returns whether a receive took it.
    pub(super) fn deliver(&mut self, eager: EagerReceive, outstanding: &mut u32) -> bool {
        let address = (eager.context, eager.from, eager.tag);
        let bytes = eager.len();
        match eager.destination {
            Destination::Posted(request) => {
                *outstanding -= 1;
                let delivery = Delivery { from: eager.from, tag: eager.tag, bytes };
                self.complete(&request.state, Ok(delivery));
                true
            }
            Destination::TooShort(request) => {
                *outstanding -= 1;
                self.complete_truncated(&request, address, bytes);
                true
            }
            Destination::Heap(bytes) => {
                // A receive may have been posted meanwhile.
                let Some(request) = self.match_posted(address, outstanding) else {
                    self.matching.keep(&envelope(address), Message::Heap(bytes));
                    return false;
                };
                *outstanding -= 1;
                let result = self.copy(address, Span::from(&*bytes), request.dst);
                self.complete(&request.state, result);
                true
            }
        }
    }

    /// Handles an announcement. Returns the receive that asks for the message, if one is posted.
    pub(super) fn ready(
        &mut self,
        address: MessageKey,
        (number, len): (u64, usize),
        outstanding: &mut u32,
    ) -> Option<RecvRequest> {
        let request = self.match_posted(address, outstanding);
        if request.is_none() {
            self.matching.keep(&envelope(address), Message::AtSender { number, len });
        }
        request
    }

    /// Delivers a message of this rank to itself. Returns whether a receive took it.
    pub(super) fn deliver_own(&mut self, address: MessageKey, src: Span<'_>) -> bool {
        let mut unwanted = 0;
        let Some(request) = self.match_posted(address, &mut unwanted) else { return false };
        let result = self.copy(address, src, request.dst);
        self.complete(&request.state, result);
        true
    }

    /// Stores an unexpected message of this rank to itself.
    pub(super) fn keep(&mut self, address: MessageKey, message: Message) {
        self.matching.keep(&envelope(address), message);
    }

    /// Lets a send of this rank to itself read a copy. Returns false if there is none with that state.
    pub(super) fn give_copy(&mut self, state: &Arc<RequestState>, copy: Option<&MessageCopy>) -> bool {
        self.matching.arrived_mut().any(|message| match message {
            Message::OwnSend(request) => request.give_copy(state, copy),
            _ => false,
        })
    }

    /// Takes the unexpected message for a new receive.
    pub(super) fn take(&mut self, pattern: &Pattern) -> Option<(MessageKey, Message)> {
        let (envelope, message) = self.matching.take(pattern)?;
        Some(((envelope.context, Rank(envelope.from), envelope.tag), message))
    }

    /// Posts a receive that no message matches.
    pub(super) fn post(&mut self, pattern: &Pattern, request: RecvRequest) {
        self.any_source += usize::from(pattern.from.is_none());
        self.matching.post(pattern, request);
    }

    /// Copies a message to the memory of its receive.
    pub(super) fn copy(&self, address: MessageKey, src: Span<'_>, dst: SpanMut<'_>) -> Result<Delivery> {
        if src.len() > dst.len() {
            return Err(self.truncated(address, src.len(), dst.len()));
        }
        dst.sub(0, src.len()).copy_from(src);
        Ok(Delivery { from: address.1, tag: address.2, bytes: src.len() })
    }

    /// Returns the number of unmatched receives and messages.
    #[cfg(test)]
    pub(super) fn unmatched(&self) -> (usize, usize) {
        self.matching.len()
    }

    /// Drops all receives and messages.
    pub(super) fn reset(&mut self) {
        self.matching = Matching::default();
        (self.pending, self.any_source, self.sends, self.own_units) = (0, 0, 0, 0);
        self.parker.wake();
    }
}
