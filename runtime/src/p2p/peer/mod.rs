//! Messages in flight from and to one peer.
//!
//! Lane 0 carries frames and, directly behind its frame, each eager message. Where the link lets a receiver
//! find out what arrives, a frame and a short eager message are one message of the link (`packed`). The lane
//! never stalls: an arriving message goes to a receive or, within the sender's credit, to the heap. Lane 1
//! (`data_lane`) carries announced messages.
//!
//! Invariants: a sender has at most [`CREDIT_UNITS`] units of eager messages that no receive has taken; the
//! receiver returns credit with frames that travel anyway, or by a frame of its own when half of it is due. A
//! message is asked for at most once, and only when a receive has matched it.

mod data_lane;
mod packed;

use super::{
    eager::EagerReceive,
    frame::{EAGER_BYTES, FRAME_BYTES, Frame, FrameBytes},
    message_copy::MessageCopy,
    queues::Queues,
    state::{RecvRequest, RequestInfo, RequestState, SendRequest},
};
use crate::{
    communicator::LinkAccess,
    executor::{CopySink, Writes},
};
use data_lane::DataLane;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) use data_lane::{DATA, data_digest};
use packed::PackedReceive;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) use packed::digest as packed_digest;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};
use topology::Rank;
use transport::{
    Protocol, RecvProgress, RecvState, SendProgress, SendState, TransportError,
    memory::{Span, SpanMut},
};

/// The lane of control frames.
pub(super) const CONTROL: u8 = 0;

/// Units of the receiver's memory that a sender may use.
pub(super) const CREDIT_UNITS: u32 = (1 << 20) / UNIT_BYTES as u32;
const UNIT_BYTES: usize = 64;

/// Returns the units that a message uses: its bytes and the bookkeeping beside them.
pub(super) fn units_of(len: usize) -> u32 {
    (2 + len.div_ceil(UNIT_BYTES)) as u32
}

/// Digests are even, as all digests of calls; the low bits of an eager message's digest are its length.
pub(super) const FRAME_DIGEST: u64 = 0x6d61_696c_0000_0000;
pub(super) const EAGER_DIGEST: u64 = 0x6d61_696c_8000_0000;

/// Announced messages of one sender that may wait for a receive: each takes memory at the receiver.
pub(super) const MAX_ANNOUNCED: usize = 1 << 16;

/// Frames taken from one peer before others get their turn.
pub(super) const FRAMES_AT_A_TIME: usize = 32;

/// The reason why a peer cannot be driven.
#[derive(Debug)]
pub(super) enum PeerError {
    /// Its link failed, or it violated the protocol.
    Link(TransportError),
    /// The job has failed.
    Job,
}

impl From<TransportError> for PeerError {
    fn from(error: TransportError) -> PeerError {
        PeerError::Link(error)
    }
}

/// A queued frame, and the payload that follows it.
#[derive(Debug)]
struct QueuedFrame {
    frame: FrameBytes,
    state: SendState,
    /// Whether the frame has been sent, and the payload is next.
    is_frame_sent: bool,
    /// Whether the frame, or the payload, is on its way.
    is_posted: bool,
    payload: Option<Span<'static>>,
    /// The frame with its payload as one message, which is sent in the place of both.
    packed: Option<Vec<u8>>,
    /// The request that completes when this has been sent.
    request: Option<SendRequest>,
}

/// The state of one peer.
#[derive(Debug)]
pub(super) struct Peer {
    rank: Rank,
    /// Incomplete requests that need this peer.
    pub(super) outstanding: u32,
    /// Whether the engine polls this peer.
    pub(super) is_polled: bool,
    /// Whether the peer has closed its messages.
    pub(super) is_closed: bool,
    /// The latest request that needed this peer, for errors.
    pub(super) latest: Option<RequestInfo>,
    control_queue: VecDeque<QueuedFrame>,
    /// Units of the peer's memory that this rank may still use.
    pub(super) credit: u32,
    /// Units of this rank's memory that the peer uses, and units to be returned to it.
    credit_held: u32,
    credit_owed: u32,
    /// The number of this rank's next announced message, and the announced messages that wait for a
    /// clear-to-send.
    next_number: u64,
    awaiting_cts: BTreeMap<u64, SendRequest>,
    /// The number that the peer's next announced message must have.
    next_announced: u64,
    /// Messages announced by the peer that have been neither asked for nor rejected.
    unanswered: usize,
    frame: FrameBytes,
    state: RecvState,
    /// The eager message that is arriving.
    eager: Option<EagerReceive>,
    /// Frames that arrive with their messages.
    packed: PackedReceive,
    /// Memory of the latest packed message that has been sent.
    spare: Vec<u8>,
    data_lane: DataLane,
}

impl Peer {
    pub(super) fn new(rank: Rank) -> Peer {
        Peer {
            rank,
            outstanding: 0,
            is_polled: false,
            is_closed: false,
            latest: None,
            control_queue: VecDeque::new(),
            credit: CREDIT_UNITS,
            credit_held: 0,
            credit_owed: 0,
            next_number: 0,
            awaiting_cts: BTreeMap::new(),
            next_announced: 0,
            unanswered: 0,
            frame: [0; FRAME_BYTES],
            state: RecvState::new(FRAME_DIGEST, FRAME_BYTES),
            eager: None,
            packed: PackedReceive::default(),
            spare: Vec::new(),
            data_lane: DataLane::default(),
        }
    }

    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    /// Whether there is anything to do for this peer.
    pub(super) fn is_active(&self) -> bool {
        self.outstanding > 0 || self.has_control_traffic() && !self.is_closed
    }

    /// Whether a frame or an eager message is partly transferred.
    pub(super) fn has_control_traffic(&self) -> bool {
        !self.control_queue.is_empty() || self.eager.is_some() || self.packed.is_arriving()
    }

    /// Whether frames wait to be sent.
    pub(super) fn has_queued_frames(&self) -> bool {
        !self.control_queue.is_empty()
    }

    /// Whether a link writes to memory of a receive.
    pub(super) fn is_receiving(&self) -> bool {
        self.data_lane.is_receiving() || self.eager.as_ref().is_some_and(EagerReceive::is_matched)
    }

    /// Returns the number of entries of all queues, for tests.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.control_queue.len() + self.awaiting_cts.len() + self.data_lane.len()
    }

    /// Returns the longest message that may be sent eagerly to this peer.
    pub(super) fn eager_limit(&self, links: &mut LinkAccess) -> usize {
        EAGER_BYTES.min(links.link(self.rank, CONTROL).capabilities().eager_bytes)
    }

    /// Whether a message of `len` bytes is packed with its frame.
    pub(super) fn packs(&self, links: &mut LinkAccess, len: usize) -> bool {
        FRAME_BYTES + len <= links.link(self.rank, CONTROL).capabilities().packed_bytes
    }

    /// Queues a frame, and the payload that follows it.
    pub(super) fn queue_frame(&mut self, frame: FrameBytes, payload: Option<Span<'static>>) {
        self.queue((frame, FRAME_DIGEST), payload, None);
    }

    /// Queues a frame and a copy of its message, as one message of the link.
    pub(super) fn queue_packed(&mut self, frame: FrameBytes, message: Span<'_>) {
        let packed = packed::pack(std::mem::take(&mut self.spare), &frame, message);
        self.queue((frame, packed::digest(packed.len())), None, Some(packed));
    }

    fn queue(
        &mut self,
        (frame, digest): (FrameBytes, u64),
        payload: Option<Span<'static>>,
        packed: Option<Vec<u8>>,
    ) {
        if self.is_closed {
            return;
        }
        self.control_queue.push_back(QueuedFrame {
            frame,
            state: SendState::new(digest, Protocol::Copy),
            is_frame_sent: false,
            is_posted: false,
            payload,
            packed,
            request: None,
        });
    }

    /// Encodes a frame with all credit that is due.
    pub(super) fn encode_with_credit(&mut self, frame: &Frame) -> FrameBytes {
        let credit = self.credit_owed.min(u16::MAX.into());
        self.credit_owed -= credit;
        frame.encode(credit as u16)
    }

    /// Completes a request when the last queued frame has been sent.
    pub(super) fn attach(&mut self, request: SendRequest) {
        if let Some(last) = self.control_queue.back_mut() {
            last.request = Some(request);
        }
    }

    /// Lets a send read a copy. Returns false if the peer has asked for the message, or it has been sent.
    pub(super) fn give_copy(&mut self, state: &Arc<RequestState>, copy: Option<&MessageCopy>) -> bool {
        let queued = self.control_queue.iter_mut().any(|queued| {
            let is_this = queued.request.as_mut().is_some_and(|request| request.give_copy(state, copy));
            if let (true, Some(copy)) = (is_this, copy) {
                queued.payload = Some(copy.bytes);
            }
            is_this
        });
        queued || self.awaiting_cts.values_mut().rev().any(|request| request.give_copy(state, copy))
    }

    /// Whether another message may be announced before a receive takes one.
    pub(super) fn can_announce(&self) -> bool {
        self.awaiting_cts.len() < MAX_ANNOUNCED
    }

    /// Announces a message, which waits for a clear-to-send.
    pub(super) fn request_to_send(&mut self, context: u32, tag: i32, request: SendRequest) {
        let number = self.next_number;
        self.next_number += 1;
        let frame =
            self.encode_with_credit(&Frame::RequestToSend { context, tag, number, len: request.src.len() });
        self.awaiting_cts.insert(number, request);
        self.queue_frame(frame, None);
    }

    /// Returns the units of a message that a receive has taken.
    pub(super) fn release(&mut self, units: u32) {
        self.credit_held -= units;
        self.credit_owed += units;
        if self.credit_owed >= CREDIT_UNITS / 2 {
            let frame = self.encode_with_credit(&Frame::Credit);
            self.queue_frame(frame, None);
        }
    }

    /// Asks for an announced message that fits the receive.
    pub(super) fn clear_to_send(
        &mut self,
        links: &mut LinkAccess,
        (number, len): (u64, usize),
        tag: i32,
        request: RecvRequest,
    ) {
        self.data_lane.push_recv(links, (number, len), tag, request);
        let frame = self.encode_with_credit(&Frame::ClearToSend { number });
        self.queue_frame(frame, None);
    }

    /// Rejects an announced message.
    pub(super) fn reject(&mut self, number: u64) {
        let frame = self.encode_with_credit(&Frame::Reject { number });
        self.queue_frame(frame, None);
    }

    /// Takes everything that a closed peer had sent, all of which has arrived by now, and sends it nothing
    /// more.
    pub(super) fn drain_closed(&mut self, links: &mut LinkAccess, queues: &mut Queues) {
        self.is_closed = true;
        self.control_queue.retain(|word| word.request.is_some());
        while matches!(self.take_frames(links, queues), Ok(true)) {}
        let Peer { rank, data_lane, outstanding, .. } = self;
        while matches!(data_lane.receive(*rank, links, queues, outstanding), Ok(true)) {}
    }

    /// Progresses everything that can be done without waiting. Returns whether anything moved.
    pub(super) fn drive(&mut self, links: &mut LinkAccess, queues: &mut Queues) -> Result<bool, PeerError> {
        let mut moved = self.take_frames(links, queues)?;
        moved |= self.send_frames(links, queues)?;
        moved |= self.data_lane.drive(self.rank, links, queues, &mut self.outstanding)?;
        Ok(moved)
    }

    /// Sends queued frames as far as possible. Returns whether anything moved.
    pub(super) fn send_frames(
        &mut self,
        links: &mut LinkAccess,
        queues: &mut Queues,
    ) -> Result<bool, PeerError> {
        let mut moved = false;
        while let Some(first) = self.control_queue.front_mut() {
            let link = links.link(self.rank, CONTROL);
            let src = match (first.payload.filter(|_| first.is_frame_sent), &first.packed) {
                (Some(payload), _) => payload,
                (None, Some(packed)) => Span::from(&packed[..]),
                (None, None) => Span::from(&first.frame[..]),
            };
            match link.poll_send(&mut first.state, src)? {
                SendProgress::Idle => break,
                // A repeated `Posted` is no progress: a request whose frame never leaves would never fail.
                SendProgress::Posted if first.is_posted => break,
                SendProgress::Posted => {
                    first.is_posted = true;
                    return Ok(true);
                }
                SendProgress::Advanced => return Ok(true),
                SendProgress::Complete => moved = true,
            }
            if let Some(payload) = first.payload
                && !first.is_frame_sent
            {
                first.is_frame_sent = true;
                first.is_posted = false;
                first.state = SendState::new(EAGER_DIGEST | (payload.len() as u64) << 1, Protocol::Copy);
                continue;
            }
            let Some(sent) = self.control_queue.pop_front() else { break };
            if let Some(packed) = sent.packed {
                self.spare = packed;
            }
            if let Some(request) = sent.request {
                self.outstanding -= 1;
                queues.sent(&request, self.rank);
            }
        }
        Ok(moved)
    }

    /// Takes frames and eager messages that have arrived.
    fn take_frames(&mut self, links: &mut LinkAccess, queues: &mut Queues) -> Result<bool, PeerError> {
        let mut moved = false;
        for _ in 0..FRAMES_AT_A_TIME {
            let link = links.link(self.rank, CONTROL);
            let progress = match &mut self.eager {
                Some(eager) => eager.poll(link)?,
                None if self.packed.is_arriving() => self.packed.poll(link)?,
                None => {
                    let destination = SpanMut::from(&mut self.frame[..]);
                    match link.poll_recv(&mut self.state, &mut CopySink::new(destination, Writes::Cached)) {
                        Err(error) if self.packed.begin(link, &self.state, &error) => continue,
                        progress => progress?,
                    }
                }
            };
            if progress != RecvProgress::Complete {
                return Ok(moved | (progress == RecvProgress::Advanced));
            }
            moved = true;
            if let Some(eager) = self.eager.take() {
                self.finish_eager(eager, queues);
            } else if self.packed.is_arriving() {
                self.finish_packed(queues)?;
            } else {
                self.state = RecvState::new(FRAME_DIGEST, FRAME_BYTES);
                self.handle_frame(links, queues)?;
            }
            // Another poll would keep the waiting thread from its message.
            if self.outstanding == 0 && self.eager.is_none() {
                return Ok(true);
            }
        }
        Ok(moved)
    }

    /// Handles an eager message that has arrived whole.
    fn finish_eager(&mut self, eager: EagerReceive, queues: &mut Queues) {
        let units = units_of(eager.len());
        if queues.deliver(eager, &mut self.outstanding) {
            self.release(units);
        }
    }

    /// Handles a frame that has arrived with its message.
    fn finish_packed(&mut self, queues: &mut Queues) -> Result<(), PeerError> {
        let (frame, memory) = self.packed.take();
        let message = &memory[FRAME_BYTES..];
        let (said, credit) = Frame::decode(&frame).map_err(|what| self.protocol_error(what))?;
        let Frame::Eager { context, tag, len } = said else {
            return Err(self.protocol_error("a message behind a frame that has none").into());
        };
        if len != message.len() {
            return Err(self.protocol_error("a message of another length than its frame says").into());
        }
        self.take_credit(credit)?;
        self.charge(units_of(len))?;
        if queues.arrived((context, self.rank, tag), message, &mut self.outstanding) {
            self.release(units_of(len));
        }
        self.packed.give_back(memory);
        Ok(())
    }

    fn take_credit(&mut self, credit: u16) -> Result<(), TransportError> {
        self.credit += u32::from(credit);
        if self.credit > CREDIT_UNITS {
            return Err(self.protocol_error("more credit than it was given"));
        }
        Ok(())
    }

    /// Handles a control frame that has arrived.
    fn handle_frame(&mut self, links: &mut LinkAccess, queues: &mut Queues) -> Result<(), PeerError> {
        let frame = self.frame;
        let (said, credit) = Frame::decode(&frame).map_err(|what| self.protocol_error(what))?;
        self.take_credit(credit)?;
        match said {
            Frame::Short { context, tag, len } => {
                self.charge(units_of(len))?;
                if queues.arrived((context, self.rank, tag), Frame::short(&frame, len), &mut self.outstanding)
                {
                    self.release(units_of(len));
                }
            }
            Frame::Eager { context, tag, len } => {
                self.charge(units_of(len))?;
                let digest = EAGER_DIGEST | (len as u64) << 1;
                let eager = queues.begin_eager((context, self.rank, tag), len, digest, &mut self.outstanding);
                self.eager = Some(eager);
            }
            Frame::RequestToSend { context, tag, number, len } => {
                if number != self.next_announced {
                    return Err(self.protocol_error("an announcement out of order").into());
                }
                if self.unanswered == MAX_ANNOUNCED {
                    return Err(self.protocol_error("more announced messages than may wait").into());
                }
                self.next_announced += 1;
                self.unanswered += 1;
                if let Some(request) =
                    queues.ready((context, self.rank, tag), (number, len), &mut self.outstanding)
                {
                    self.match_announced(links, queues, (number, len), tag, request);
                }
            }
            Frame::ClearToSend { number } => {
                let Some(request) = self.awaiting_cts.remove(&number) else {
                    return Err(self.protocol_error("a clear-to-send for no announced message").into());
                };
                self.data_lane.push_send(links, self.rank, number, request);
            }
            Frame::Reject { number } => {
                let Some(request) = self.awaiting_cts.remove(&number) else {
                    return Err(self.protocol_error("a rejection of no announced message").into());
                };
                self.outstanding -= 1;
                queues.sent(&request, self.rank);
            }
            Frame::Credit => {}
        }
        Ok(())
    }

    /// Handles an announced message that has met its receive.
    pub(super) fn match_announced(
        &mut self,
        links: &mut LinkAccess,
        queues: &mut Queues,
        (number, len): (u64, usize),
        tag: i32,
        request: RecvRequest,
    ) {
        self.unanswered -= 1;
        if len > request.dst.len() {
            self.reject(number);
            self.outstanding -= 1;
            let envelope = (request.state.info.context, self.rank, tag);
            queues.complete_truncated(&request, envelope, len);
        } else {
            self.clear_to_send(links, (number, len), tag, request);
        }
    }

    /// Accounts for an eager message; its sender must have had credit for it.
    fn charge(&mut self, units: u32) -> Result<(), TransportError> {
        self.credit_held += units;
        if self.credit_held + self.credit_owed > CREDIT_UNITS {
            Err(self.protocol_error("more eager bytes than its credit"))
        } else {
            Ok(())
        }
    }

    #[cold]
    fn protocol_error(&self, what: &'static str) -> TransportError {
        TransportError::Protocol { peer: self.rank.0, what }
    }

    /// Ends all use of memory.
    pub(super) fn reset(&mut self, links: &mut LinkAccess) {
        self.data_lane.reset(links);
        *self = Peer { is_polled: self.is_polled, ..Peer::new(self.rank) };
    }
}
