//! What is on its way to one peer and from it.
//!
//! Lane 0 carries frames and, right behind a frame that says so, eager messages. It never stands still: what arrives goes to
//! a receive or, within the sender's credit, to the heap. Lane 1 carries messages that were asked for, in the order in which
//! they were, straight from memory to memory.
//!
//! Invariants: a sender has at most [`BUDGET`] units of eager messages on its way that no receive has taken; the receiver
//! gives them back with frames that travel anyway, or when half of them are due. A message is asked for at most once, and
//! only when a receive has taken it.

use super::{
    Delivery,
    books::{Books, Receiving, Sending},
    frame::{EAGER_BYTES, FRAME_BYTES, Frame, FrameBytes},
    inbox::Inbox,
    slot::Label,
};
use crate::{communicator::Wires, executor::CopySink};
use std::collections::{BTreeMap, VecDeque};
use topology::Rank;
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, TransportError,
    memory::{Span, SpanMut},
};

/// The lane of frames.
pub(super) const CONTROL: u8 = 0;
/// The lane of messages that were asked for.
pub(super) const DATA: u8 = 1;

/// What a sender may have in memory of the receiver's, in units.
pub(super) const BUDGET: u32 = (1 << 20) / UNIT_BYTES as u32;
const UNIT_BYTES: usize = 64;

/// What a message takes up of the budget: its bytes, and what is kept beside them.
pub(super) fn units_of(len: usize) -> u32 {
    (2 + len.div_ceil(UNIT_BYTES)) as u32
}

/// Even, as all digests; the low bits of those of payloads are a length or a number.
pub(super) const FRAME: u64 = 0x6d61_696c_0000_0000;
pub(super) const EAGER: u64 = 0x6d61_696c_8000_0000;
const ASKED: u64 = 0x6d61_8000_0000_0000;

/// Names a message that was asked for by its number.
fn asked(number: u64) -> u64 {
    ASKED | number << 1 & 0x7fff_ffff_fffe
}

/// Frames that are taken before others get their turn.
const FRAMES_AT_A_TIME: usize = 32;
/// Messages that a link is told of ahead.
const TOLD_AHEAD: usize = 8;

/// Why a peer could not be served.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The link to it failed, or it said what makes no sense.
    Link(TransportError),
    /// The job has failed.
    Job,
}

impl From<TransportError> for Trouble {
    fn from(error: TransportError) -> Trouble {
        Trouble::Link(error)
    }
}

/// A frame on its way, and what follows it.
#[derive(Debug)]
struct Outgoing {
    frame: FrameBytes,
    state: SendState,
    /// The frame has gone; what follows goes now.
    framed: bool,
    payload: Option<Span<'static>>,
    /// The letter that is done when this has gone.
    letter: Option<Sending>,
}

/// A message that was asked for, on its way to the peer.
#[derive(Debug)]
struct Leaving {
    state: SendState,
    letter: Sending,
    posted: bool,
    gone: bool,
}

/// A message that we have asked for.
#[derive(Debug)]
struct Coming {
    state: RecvState,
    letter: Receiving,
    tag: i32,
    /// As much of the letter's memory as the message has bytes.
    target: SpanMut<'static>,
}

/// The peer, as this rank sees it.
#[derive(Debug)]
pub(super) struct Peer {
    rank: Rank,
    /// Letters that need it.
    pub(super) wanted: u32,
    /// Is it among those that are polled?
    pub(super) listed: bool,
    /// It has closed its mail.
    pub(super) gone: bool,
    /// The latest letter that needed it, for errors.
    pub(super) latest: Option<Label>,
    out: VecDeque<Outgoing>,
    /// Units that we may still use of its memory.
    pub(super) credit: u32,
    /// Units of ours that it uses, and units that it may use again and has not been told of.
    held: u32,
    owed: u32,
    /// The number of our next message that waits to be asked for, and those that do.
    next_number: u64,
    waiting: BTreeMap<u64, Sending>,
    /// The number of its next message that will wait.
    next_ready: u64,
    frame: FrameBytes,
    state: RecvState,
    /// The eager message that is arriving.
    inbox: Option<Inbox>,
    leaving: VecDeque<Leaving>,
    coming: VecDeque<Coming>,
    /// Of those that are coming, how many the link knows of.
    told: usize,
}

impl Peer {
    pub(super) fn new(rank: Rank) -> Peer {
        Peer {
            rank,
            wanted: 0,
            listed: false,
            gone: false,
            latest: None,
            out: VecDeque::new(),
            credit: BUDGET,
            held: 0,
            owed: 0,
            next_number: 0,
            waiting: BTreeMap::new(),
            next_ready: 0,
            frame: [0; FRAME_BYTES],
            state: RecvState::new(FRAME, FRAME_BYTES),
            inbox: None,
            leaving: VecDeque::new(),
            coming: VecDeque::new(),
            told: 0,
        }
    }

    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    /// Is there anything to do?
    pub(super) fn is_active(&self) -> bool {
        self.wanted > 0 || self.has_words() && !self.gone
    }

    /// Is anything on the control lane only half said?
    pub(super) fn has_words(&self) -> bool {
        !self.out.is_empty() || self.inbox.is_some()
    }

    /// Is there anything that it has not been told yet?
    pub(super) fn is_talking(&self) -> bool {
        !self.out.is_empty()
    }

    /// Does a link use memory of a receive?
    pub(super) fn is_writing(&self) -> bool {
        !self.coming.is_empty() || self.inbox.as_ref().is_some_and(Inbox::is_letter)
    }

    /// How many of its own things it remembers, for tests.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.out.len() + self.waiting.len() + self.leaving.len() + self.coming.len()
    }

    /// What a message that is not short may be to travel without being asked for.
    pub(super) fn eager_most(&self, wires: &mut Wires) -> usize {
        let capabilities = wires.link(self.rank, CONTROL).capabilities();
        // Links that want to be told of larger messages beforehand are told on the other lane.
        if capabilities.announced { EAGER_BYTES.min(capabilities.inline_bytes) } else { EAGER_BYTES }
    }

    /// Has a frame sent, with what follows it.
    pub(super) fn say(&mut self, frame: FrameBytes, payload: Option<Span<'static>>) {
        if self.gone {
            return;
        }
        let state = SendState::new(FRAME, Protocol::Copy);
        self.out.push_back(Outgoing { frame, state, framed: false, payload, letter: None });
    }

    /// The bytes of a frame, with all credit that is due.
    pub(super) fn with_credit(&mut self, frame: &Frame) -> FrameBytes {
        let credit = self.owed.min(u16::MAX.into());
        self.owed -= credit;
        frame.encode(credit as u16)
    }

    /// The letter that is done when what was said last has gone, which it has not.
    pub(super) fn attach(&mut self, letter: Sending) {
        if let Some(last) = self.out.back_mut() {
            last.letter = Some(letter);
        }
    }

    /// Has a message wait until it is asked for.
    pub(super) fn offer(&mut self, context: u32, tag: i32, letter: Sending) {
        let number = self.next_number;
        self.next_number += 1;
        let frame = self.with_credit(&Frame::Ready { context, tag, number, len: letter.src.len() });
        self.waiting.insert(number, letter);
        self.say(frame, None);
    }

    /// A message of so many units was taken by a receive.
    pub(super) fn release(&mut self, units: u32) {
        self.held -= units;
        self.owed += units;
        if self.owed >= BUDGET / 2 {
            let frame = self.with_credit(&Frame::Credit);
            self.say(frame, None);
        }
    }

    /// Asks for a message that waits, which fits the receive.
    pub(super) fn ask(
        &mut self,
        wires: &mut Wires,
        (number, len): (u64, usize),
        tag: i32,
        letter: Receiving,
    ) {
        let target = letter.dst.sub(0, len);
        wires.begin_use(target.as_span());
        let state = wires.to_receive(asked(number), len);
        self.coming.push_back(Coming { state, letter, tag, target });
        let frame = self.with_credit(&Frame::Go { number });
        self.say(frame, None);
    }

    /// Does not want a message that waits.
    pub(super) fn refuse(&mut self, number: u64) {
        let frame = self.with_credit(&Frame::Refused { number });
        self.say(frame, None);
    }

    /// Takes what has come of a peer that has closed its mail, all of which is here by now, and says nothing to it any more.
    pub(super) fn take_last(&mut self, wires: &mut Wires, books: &mut Books) {
        self.gone = true;
        self.out.retain(|word| word.letter.is_some());
        while matches!(self.take_frames(wires, books), Ok(true)) {}
        while matches!(self.receive_asked(wires, books), Ok(true)) {}
    }

    /// Does what can be done without waiting. True when anything has moved.
    pub(super) fn drive(&mut self, wires: &mut Wires, books: &mut Books) -> Result<bool, Trouble> {
        let mut moved = self.take_frames(wires, books)?;
        moved |= self.send_frames(wires, books)?;
        if !self.leaving.is_empty() {
            moved |= self.send_asked(wires, books)?;
        }
        if !self.coming.is_empty() {
            moved |= self.receive_asked(wires, books)?;
        }
        Ok(moved)
    }

    /// Sends what was said, as far as that goes. True when anything has moved.
    pub(super) fn send_frames(&mut self, wires: &mut Wires, books: &mut Books) -> Result<bool, Trouble> {
        let mut moved = false;
        while let Some(first) = self.out.front_mut() {
            let link = wires.link(self.rank, CONTROL);
            let src = match first.payload.filter(|_| first.framed) {
                Some(payload) => payload,
                None => Span::from(&first.frame[..]),
            };
            match link.poll_send(&mut first.state, src)? {
                SendProgress::Idle => break,
                SendProgress::Advanced | SendProgress::Posted => return Ok(true),
                SendProgress::Complete => moved = true,
            }
            if let Some(payload) = first.payload
                && !first.framed
            {
                first.framed = true;
                first.state = SendState::new(EAGER | (payload.len() as u64) << 1, Protocol::Copy);
                continue;
            }
            if let Some(letter) = self.out.pop_front().and_then(|first| first.letter) {
                self.wanted -= 1;
                books.sent(&letter, self.rank);
            }
        }
        Ok(moved)
    }

    /// Takes frames and eager messages that have come.
    fn take_frames(&mut self, wires: &mut Wires, books: &mut Books) -> Result<bool, Trouble> {
        let mut moved = false;
        for _ in 0..FRAMES_AT_A_TIME {
            let link = wires.link(self.rank, CONTROL);
            let progress = match &mut self.inbox {
                Some(inbox) => inbox.poll(link)?,
                None => {
                    let landing = SpanMut::from(&mut self.frame[..]);
                    link.poll_recv(&mut self.state, &mut CopySink(landing))?
                }
            };
            if progress != RecvProgress::Complete {
                return Ok(moved | (progress == RecvProgress::Advanced));
            }
            moved = true;
            if let Some(inbox) = self.inbox.take() {
                self.take_eager(inbox, books);
            } else {
                self.state = RecvState::new(FRAME, FRAME_BYTES);
                self.heed(wires, books)?;
            }
        }
        Ok(moved)
    }

    /// An eager message has come as a whole.
    fn take_eager(&mut self, inbox: Inbox, books: &mut Books) {
        let units = units_of(inbox.len());
        if books.file(inbox, &mut self.wanted) {
            self.release(units);
        }
    }

    /// Does what a frame says that has come.
    fn heed(&mut self, wires: &mut Wires, books: &mut Books) -> Result<(), Trouble> {
        let frame = self.frame;
        let (said, credit) = Frame::decode(&frame).map_err(|what| self.nonsense(what))?;
        self.credit += u32::from(credit);
        if self.credit > BUDGET {
            return Err(self.nonsense("more credit for mail than there is").into());
        }
        match said {
            Frame::Short { context, tag, len } => {
                self.hold(units_of(len))?;
                if books.short((context, self.rank, tag), Frame::short(&frame, len), &mut self.wanted) {
                    self.release(units_of(len));
                }
            }
            Frame::Eager { context, tag, len } => {
                self.hold(units_of(len))?;
                let digest = EAGER | (len as u64) << 1;
                let inbox = books.open_inbox((context, self.rank, tag), len, digest, &mut self.wanted);
                self.inbox = Some(inbox);
            }
            Frame::Ready { context, tag, number, len } => {
                if number != self.next_ready {
                    return Err(self.nonsense("mail out of order").into());
                }
                self.next_ready += 1;
                if let Some(letter) = books.ready((context, self.rank, tag), (number, len), &mut self.wanted)
                {
                    self.take_ready(wires, books, (number, len), tag, letter);
                }
            }
            Frame::Go { number } => {
                let Some(letter) = self.waiting.remove(&number) else {
                    return Err(self.nonsense("a demand for mail that does not wait").into());
                };
                wires.begin_use(letter.src);
                let state = wires.message_to_send(self.rank, DATA, asked(number), letter.src);
                self.leaving.push_back(Leaving { state, letter, posted: false, gone: false });
            }
            Frame::Refused { number } => {
                let Some(letter) = self.waiting.remove(&number) else {
                    return Err(self.nonsense("a refusal of mail that does not wait").into());
                };
                self.wanted -= 1;
                books.sent(&letter, self.rank);
            }
            Frame::Credit => {}
        }
        Ok(())
    }

    /// A message that waits has met its receive.
    pub(super) fn take_ready(
        &mut self,
        wires: &mut Wires,
        books: &mut Books,
        (number, len): (u64, usize),
        tag: i32,
        letter: Receiving,
    ) {
        if len > letter.dst.len() {
            self.refuse(number);
            self.wanted -= 1;
            let envelope = (letter.slot.label.context, self.rank, tag);
            books.too_long(&letter, envelope, len);
        } else {
            self.ask(wires, (number, len), tag, letter);
        }
    }

    /// An eager message comes to our memory; its sender must have had credit for it.
    fn hold(&mut self, units: u32) -> Result<(), TransportError> {
        self.held += units;
        if self.held + self.owed > BUDGET { Err(self.nonsense("more mail than it may")) } else { Ok(()) }
    }

    #[cold]
    fn nonsense(&self, what: &'static str) -> TransportError {
        TransportError::Protocol { peer: self.rank.0, what }
    }

    /// Sends messages that were asked for.
    fn send_asked(&mut self, wires: &mut Wires, books: &mut Books) -> Result<bool, Trouble> {
        let mut moved = false;
        for item in self.leaving.iter_mut().filter(|item| !item.gone) {
            let src = item.letter.src;
            let progress = wires.link(self.rank, DATA).poll_send(&mut item.state, src)?;
            match progress {
                // Of one that is posted this is the news that it is still on its way.
                SendProgress::Posted if item.posted => continue,
                SendProgress::Idle => break,
                SendProgress::Advanced => {
                    item.letter.slot.touch();
                    moved = true;
                    break;
                }
                SendProgress::Posted => item.posted = true,
                SendProgress::Complete => {
                    item.gone = true;
                    wires.end_use(src);
                    self.wanted -= 1;
                    books.sent(&item.letter, self.rank);
                }
            }
            item.letter.slot.touch();
            moved = true;
        }
        while self.leaving.pop_front_if(|item| item.gone).is_some() {}
        Ok(moved)
    }

    /// Receives messages that we have asked for.
    fn receive_asked(&mut self, wires: &mut Wires, books: &mut Books) -> Result<bool, Trouble> {
        let mut moved = false;
        loop {
            let link = wires.link(self.rank, DATA);
            tell_ahead(link, &mut self.coming, &mut self.told)?;
            let Some(first) = self.coming.front_mut() else { return Ok(moved) };
            let mut sink = CopySink(first.target);
            match link.poll_recv(&mut first.state, &mut sink)? {
                RecvProgress::Idle => return Ok(moved),
                RecvProgress::Advanced => {
                    first.letter.slot.touch();
                    return Ok(true);
                }
                RecvProgress::Complete => {}
            }
            moved = true;
            let Some(done) = self.coming.pop_front() else { return Ok(moved) };
            self.told = self.told.saturating_sub(1);
            wires.end_use(done.target.as_span());
            // A peer that has failed may have given its memory to others while we read it.
            if !wires.is_sound() {
                return Err(Trouble::Job);
            }
            self.wanted -= 1;
            let delivery = Delivery { from: self.rank, tag: done.tag, bytes: done.target.len() };
            books.received(&done.letter, Ok(delivery));
        }
    }

    /// No memory is used any more.
    pub(super) fn forget(&mut self, wires: &mut Wires) {
        self.leaving.iter().for_each(|item| wires.end_use(item.letter.src));
        self.coming.iter().for_each(|item| wires.end_use(item.target.as_span()));
        *self = Peer { listed: self.listed, ..Peer::new(self.rank) };
    }
}

/// Tells a link of messages that come one behind the other, if it has a use for that.
fn tell_ahead(
    link: &mut dyn Link,
    coming: &mut VecDeque<Coming>,
    told: &mut usize,
) -> Result<(), TransportError> {
    if !link.capabilities().announced {
        return Ok(());
    }
    while *told < coming.len().min(TOLD_AHEAD) {
        // None is told of behind one that was begun untold.
        if *told == 0 && coming[0].state.taken() > 0 {
            break;
        }
        let item = &mut coming[*told];
        let landing = (!item.target.is_empty()).then_some(item.target);
        if !link.announce(&mut item.state, landing)? {
            break;
        }
        *told += 1;
    }
    Ok(())
}
