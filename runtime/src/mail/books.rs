//! The books of one rank's mail: which letters are not done, and what has arrived for no one yet.
//!
//! What peers bring is entered here, and meets receives by the rule of `matching`. Nothing here touches a link.

use super::{
    Delivery,
    frame::{FRAME_BYTES, SHORT_BYTES},
    inbox::{Inbox, Place},
    matching::{Envelope, Matching, Pattern},
    nap::Nap,
    slot::{Label, Slot},
};
use crate::error::{Error, PeerName, Result};
use std::sync::Arc;
use topology::Rank;
use transport::memory::{Span, SpanMut};

/// A letter to be sent.
#[derive(Clone, Debug)]
pub(super) struct Sending {
    pub(super) slot: Arc<Slot>,
    pub(super) src: Span<'static>,
}

/// A letter to be received.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) slot: Arc<Slot>,
    pub(super) dst: SpanMut<'static>,
}

/// A message that no receive has matched.
#[derive(Debug)]
pub(super) enum Message {
    /// Here, and short.
    Short { len: u8, bytes: [u8; SHORT_BYTES] },
    /// Here.
    Held(Box<[u8]>),
    /// Waits at its sender to be asked for.
    Ready { number: u64, len: usize },
    /// Waits in memory of this rank, which has sent it to itself.
    Own(Sending),
}

const _: () = assert!(SHORT_BYTES < FRAME_BYTES);

/// What a message is found by: context, sender, tag.
pub(super) type Address = (u32, Rank, i32);

fn envelope((context, from, tag): Address) -> Envelope {
    Envelope { context, from: from.0, tag }
}

/// Letters and messages.
#[derive(Debug)]
pub(super) struct Books {
    rank: Rank,
    names: Arc<[PeerName]>,
    matching: Matching<Receiving, Message>,
    /// Letters that are not done.
    pub(super) pending: usize,
    /// Of these, receives that name no sender and have not met a message.
    pub(super) open: usize,
    /// Of these, messages to other ranks.
    pub(super) sending: usize,
    /// Units that this rank uses by messages to itself.
    pub(super) own: u32,
    nap: Arc<Nap>,
}

impl Books {
    pub(super) fn new(rank: Rank, names: &[PeerName], nap: Arc<Nap>) -> Books {
        let matching = Matching::default();
        Books { rank, names: names.into(), matching, pending: 0, open: 0, sending: 0, own: 0, nap }
    }

    /// A letter that is not done.
    pub(super) fn new_slot(&mut self, label: Label) -> Arc<Slot> {
        self.pending += 1;
        Arc::new(Slot::new(label))
    }

    fn fill(&mut self, slot: &Slot, result: Result<Delivery>) {
        self.pending -= 1;
        slot.fill(result);
        self.nap.wake();
    }

    /// A message to another rank, or to this one, may be forgotten by its sender.
    pub(super) fn sent(&mut self, letter: &Sending, to: Rank) {
        self.sending -= usize::from(to != self.rank);
        let delivery = self.delivery_of(letter);
        self.fill(&letter.slot, Ok(delivery));
    }

    /// What a sender is told.
    fn delivery_of(&self, letter: &Sending) -> Delivery {
        let tag = letter.slot.label.tag.unwrap_or_default();
        Delivery { from: self.rank, tag, bytes: letter.src.len() }
    }

    /// A receive has its message, or an error.
    pub(super) fn received(&mut self, letter: &Receiving, result: Result<Delivery>) {
        self.fill(&letter.slot, result);
    }

    /// A receive has met a message that it has no room for.
    pub(super) fn too_long(&mut self, letter: &Receiving, address: Address, len: usize) {
        let error = self.truncated(address, len, letter.dst.len());
        self.fill(&letter.slot, Err(error));
    }

    pub(super) fn truncated(&self, (context, from, tag): Address, bytes: usize, capacity: usize) -> Error {
        let peer = self.names[from.index()].clone();
        Error::Truncated { rank: self.rank, peer, context, tag, bytes, capacity }
    }

    /// The receive that a message goes to which has just arrived from a rank, for which so many letters wait. Receives that
    /// name their sender do so from the start.
    fn meet(&mut self, address: Address, wanted: &mut u32) -> Option<Receiving> {
        let letter = self.matching.arrive(&envelope(address))?;
        if letter.slot.label.peer.is_none() {
            self.open -= 1;
            *wanted += 1;
        }
        Some(letter)
    }

    /// A short message has come. True when a receive has taken it.
    pub(super) fn short(&mut self, address: Address, bytes: &[u8], wanted: &mut u32) -> bool {
        let Some(letter) = self.meet(address, wanted) else {
            let mut kept = [0; SHORT_BYTES];
            kept[..bytes.len()].copy_from_slice(bytes);
            let message = Message::Short { len: bytes.len() as u8, bytes: kept };
            self.matching.keep(&envelope(address), message);
            return false;
        };
        *wanted -= 1;
        let result = self.copy(address, bytes.into(), letter.dst);
        self.fill(&letter.slot, result);
        true
    }

    /// An eager message is about to come.
    pub(super) fn open_inbox(
        &mut self,
        address: Address,
        len: usize,
        digest: u64,
        wanted: &mut u32,
    ) -> Inbox {
        let letter = self.meet(address, wanted);
        Inbox::new(address, len, digest, letter)
    }

    /// An eager message has come. True when a receive has taken it.
    pub(super) fn file(&mut self, inbox: Inbox, wanted: &mut u32) -> bool {
        let address = (inbox.context, inbox.from, inbox.tag);
        let bytes = inbox.len();
        match inbox.place {
            Place::Letter(letter) => {
                *wanted -= 1;
                let delivery = Delivery { from: inbox.from, tag: inbox.tag, bytes };
                self.fill(&letter.slot, Ok(delivery));
                true
            }
            Place::Nowhere(letter) => {
                *wanted -= 1;
                self.too_long(&letter, address, bytes);
                true
            }
            Place::Heap(bytes) => {
                // A receive may have been posted meanwhile.
                let Some(letter) = self.meet(address, wanted) else {
                    self.matching.keep(&envelope(address), Message::Held(bytes));
                    return false;
                };
                *wanted -= 1;
                let result = self.copy(address, Span::from(&*bytes), letter.dst);
                self.fill(&letter.slot, result);
                true
            }
        }
    }

    /// A message waits at its sender. The receive that asks for it, if there is one.
    pub(super) fn ready(
        &mut self,
        address: Address,
        (number, len): (u64, usize),
        wanted: &mut u32,
    ) -> Option<Receiving> {
        let letter = self.meet(address, wanted);
        if letter.is_none() {
            self.matching.keep(&envelope(address), Message::Ready { number, len });
        }
        letter
    }

    /// A message of this rank to itself. The receive that it goes to, if there is one; then it is done.
    pub(super) fn own(&mut self, address: Address, src: Span<'_>) -> bool {
        let mut unwanted = 0;
        let Some(letter) = self.meet(address, &mut unwanted) else { return false };
        let result = self.copy(address, src, letter.dst);
        self.fill(&letter.slot, result);
        true
    }

    /// Keeps a message of this rank to itself.
    pub(super) fn keep(&mut self, address: Address, message: Message) {
        self.matching.keep(&envelope(address), message);
    }

    /// The message for a receive that is about to be posted.
    pub(super) fn take(&mut self, pattern: &Pattern) -> Option<(Address, Message)> {
        let (envelope, message) = self.matching.take(pattern)?;
        Some(((envelope.context, Rank(envelope.from), envelope.tag), message))
    }

    /// Posts a receive that no message matches.
    pub(super) fn post(&mut self, pattern: &Pattern, letter: Receiving) {
        self.open += usize::from(pattern.from.is_none());
        self.matching.post(pattern, letter);
    }

    /// Copies a message that is here to where it was to be received.
    pub(super) fn copy(&self, address: Address, src: Span<'_>, dst: SpanMut<'_>) -> Result<Delivery> {
        if src.len() > dst.len() {
            return Err(self.truncated(address, src.len(), dst.len()));
        }
        dst.sub(0, src.len()).copy_from(src);
        Ok(Delivery { from: address.1, tag: address.2, bytes: src.len() })
    }

    /// How many receives and messages have met nothing.
    #[cfg(test)]
    pub(super) fn unmatched(&self) -> (usize, usize) {
        self.matching.len()
    }

    /// Nothing is expected any more, and nothing kept.
    pub(super) fn forget(&mut self) {
        self.matching = Matching::default();
        (self.pending, self.open, self.sending, self.own) = (0, 0, 0, 0);
        self.nap.wake();
    }
}
