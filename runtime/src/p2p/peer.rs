//! Messages in flight from and to one peer.
//!
//! Lane 0 carries frames and, directly behind its frame, each eager message. It never stalls: an arriving
//! message goes to a receive or, within the sender's credit, to the heap. Lane 1 carries announced messages
//! from memory to memory, in the order in which receives asked for them.
//!
//! Invariants: a sender has at most [`CREDIT_UNITS`] units of eager messages that no receive has taken; the
//! receiver returns credit with frames that travel anyway, or by a frame of its own when half of it is due. A
//! message is asked for at most once, and only when a receive has matched it.

use super::{
    Delivery,
    eager::EagerReceive,
    frame::{EAGER_BYTES, FRAME_BYTES, Frame, FrameBytes},
    queues::Queues,
    state::{RecvRequest, RequestInfo, SendRequest},
};
use crate::{communicator::LinkAccess, executor::CopySink};
use std::collections::{BTreeMap, VecDeque};
use topology::Rank;
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, TransportError,
    memory::{Span, SpanMut},
};

/// The lane of control frames.
pub(super) const CONTROL: u8 = 0;
/// The lane of announced messages.
pub(super) const DATA: u8 = 1;

/// Units of the receiver's memory that a sender may use.
pub(super) const CREDIT_UNITS: u32 = (1 << 20) / UNIT_BYTES as u32;
const UNIT_BYTES: usize = 64;

/// Returns the units that a message uses: its bytes and the bookkeeping beside them.
pub(super) fn units_of(len: usize) -> u32 {
    (2 + len.div_ceil(UNIT_BYTES)) as u32
}

/// Digests are even, as all digests of calls; the low bits of a payload's digest are its length or number.
pub(super) const FRAME_DIGEST: u64 = 0x6d61_696c_0000_0000;
pub(super) const EAGER_DIGEST: u64 = 0x6d61_696c_8000_0000;
const DATA_DIGEST: u64 = 0x6d61_8000_0000_0000;

/// Returns the digest of an announced message.
fn data_digest(number: u64) -> u64 {
    DATA_DIGEST | number << 1 & 0x7fff_ffff_fffe
}

/// Frames taken from one peer before others get their turn.
const FRAMES_AT_A_TIME: usize = 32;
/// Receives announced to a link ahead of the current one.
const ANNOUNCED_AHEAD: usize = 8;

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
    payload: Option<Span<'static>>,
    /// The request that completes when this has been sent.
    request: Option<SendRequest>,
}

/// An announced message on its way to the peer.
#[derive(Debug)]
struct DataSend {
    state: SendState,
    request: SendRequest,
    posted: bool,
    is_sent: bool,
}

/// A message that this rank has asked for.
#[derive(Debug)]
struct DataRecv {
    state: RecvState,
    request: RecvRequest,
    tag: i32,
    /// The part of the receive's memory that the message fills.
    target: SpanMut<'static>,
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
    frame: FrameBytes,
    state: RecvState,
    /// The eager message that is arriving.
    eager: Option<EagerReceive>,
    data_sends: VecDeque<DataSend>,
    data_recvs: VecDeque<DataRecv>,
    /// Number of receives in `data_recvs` that have been announced to the link.
    announced_ahead: usize,
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
            frame: [0; FRAME_BYTES],
            state: RecvState::new(FRAME_DIGEST, FRAME_BYTES),
            eager: None,
            data_sends: VecDeque::new(),
            data_recvs: VecDeque::new(),
            announced_ahead: 0,
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
        !self.control_queue.is_empty() || self.eager.is_some()
    }

    /// Whether frames wait to be sent.
    pub(super) fn has_queued_frames(&self) -> bool {
        !self.control_queue.is_empty()
    }

    /// Whether a link writes to memory of a receive.
    pub(super) fn is_receiving(&self) -> bool {
        !self.data_recvs.is_empty() || self.eager.as_ref().is_some_and(EagerReceive::is_matched)
    }

    /// Returns the number of entries of all queues, for tests.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.control_queue.len() + self.awaiting_cts.len() + self.data_sends.len() + self.data_recvs.len()
    }

    /// Returns the longest message that may be sent eagerly to this peer.
    pub(super) fn eager_limit(&self, links: &mut LinkAccess) -> usize {
        let capabilities = links.link(self.rank, CONTROL).capabilities();
        // Links that want larger receives announced get them on the data lane.
        if capabilities.announced { EAGER_BYTES.min(capabilities.inline_bytes) } else { EAGER_BYTES }
    }

    /// Queues a frame, and the payload that follows it.
    pub(super) fn queue_frame(&mut self, frame: FrameBytes, payload: Option<Span<'static>>) {
        if self.is_closed {
            return;
        }
        let state = SendState::new(FRAME_DIGEST, Protocol::Copy);
        self.control_queue.push_back(QueuedFrame {
            frame,
            state,
            is_frame_sent: false,
            payload,
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
        let target = request.dst.sub(0, len);
        links.begin_use(target.as_span());
        let state = links.to_receive(data_digest(number), len);
        self.data_recvs.push_back(DataRecv { state, request, tag, target });
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
        while matches!(self.receive_data(links, queues), Ok(true)) {}
    }

    /// Progresses everything that can be done without waiting. Returns whether anything moved.
    pub(super) fn drive(&mut self, links: &mut LinkAccess, queues: &mut Queues) -> Result<bool, PeerError> {
        let mut moved = self.take_frames(links, queues)?;
        moved |= self.send_frames(links, queues)?;
        if !self.data_sends.is_empty() {
            moved |= self.send_data(links, queues)?;
        }
        if !self.data_recvs.is_empty() {
            moved |= self.receive_data(links, queues)?;
        }
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
            let src = match first.payload.filter(|_| first.is_frame_sent) {
                Some(payload) => payload,
                None => Span::from(&first.frame[..]),
            };
            match link.poll_send(&mut first.state, src)? {
                SendProgress::Idle => break,
                SendProgress::Advanced | SendProgress::Posted => return Ok(true),
                SendProgress::Complete => moved = true,
            }
            if let Some(payload) = first.payload
                && !first.is_frame_sent
            {
                first.is_frame_sent = true;
                first.state = SendState::new(EAGER_DIGEST | (payload.len() as u64) << 1, Protocol::Copy);
                continue;
            }
            if let Some(request) = self.control_queue.pop_front().and_then(|first| first.request) {
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
                None => {
                    let destination = SpanMut::from(&mut self.frame[..]);
                    link.poll_recv(&mut self.state, &mut CopySink(destination))?
                }
            };
            if progress != RecvProgress::Complete {
                return Ok(moved | (progress == RecvProgress::Advanced));
            }
            moved = true;
            if let Some(eager) = self.eager.take() {
                self.finish_eager(eager, queues);
            } else {
                self.state = RecvState::new(FRAME_DIGEST, FRAME_BYTES);
                self.handle_frame(links, queues)?;
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

    /// Handles a control frame that has arrived.
    fn handle_frame(&mut self, links: &mut LinkAccess, queues: &mut Queues) -> Result<(), PeerError> {
        let frame = self.frame;
        let (said, credit) = Frame::decode(&frame).map_err(|what| self.protocol_error(what))?;
        self.credit += u32::from(credit);
        if self.credit > CREDIT_UNITS {
            return Err(self.protocol_error("more credit than it was given").into());
        }
        match said {
            Frame::Short { context, tag, len } => {
                self.charge(units_of(len))?;
                if queues.short((context, self.rank, tag), Frame::short(&frame, len), &mut self.outstanding) {
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
                self.next_announced += 1;
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
                links.begin_use(request.src);
                let state = links.message_to_send(self.rank, DATA, data_digest(number), request.src);
                self.data_sends.push_back(DataSend { state, request, posted: false, is_sent: false });
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

    /// Sends announced messages that were asked for.
    fn send_data(&mut self, links: &mut LinkAccess, queues: &mut Queues) -> Result<bool, PeerError> {
        let mut moved = false;
        for item in self.data_sends.iter_mut().filter(|item| !item.is_sent) {
            let src = item.request.src;
            let progress = links.link(self.rank, DATA).poll_send(&mut item.state, src)?;
            match progress {
                // A repeated `Posted` says only that the message is still in flight.
                SendProgress::Posted if item.posted => continue,
                SendProgress::Idle => break,
                SendProgress::Advanced => {
                    item.request.state.mark_progress();
                    moved = true;
                    break;
                }
                SendProgress::Posted => item.posted = true,
                SendProgress::Complete => {
                    item.is_sent = true;
                    links.end_use(src);
                    self.outstanding -= 1;
                    queues.sent(&item.request, self.rank);
                }
            }
            item.request.state.mark_progress();
            moved = true;
        }
        while self.data_sends.pop_front_if(|item| item.is_sent).is_some() {}
        Ok(moved)
    }

    /// Receives messages that this rank has asked for.
    fn receive_data(&mut self, links: &mut LinkAccess, queues: &mut Queues) -> Result<bool, PeerError> {
        let mut moved = false;
        loop {
            let link = links.link(self.rank, DATA);
            announce_ahead(link, &mut self.data_recvs, &mut self.announced_ahead)?;
            let Some(first) = self.data_recvs.front_mut() else { return Ok(moved) };
            let mut sink = CopySink(first.target);
            match link.poll_recv(&mut first.state, &mut sink)? {
                RecvProgress::Idle => return Ok(moved),
                RecvProgress::Advanced => {
                    first.request.state.mark_progress();
                    return Ok(true);
                }
                RecvProgress::Complete => {}
            }
            moved = true;
            let Some(done) = self.data_recvs.pop_front() else { return Ok(moved) };
            self.announced_ahead = self.announced_ahead.saturating_sub(1);
            links.end_use(done.target.as_span());
            // A peer that has failed may have reused its memory while it was read.
            if !links.is_healthy() {
                return Err(PeerError::Job);
            }
            self.outstanding -= 1;
            let delivery = Delivery { from: self.rank, tag: done.tag, bytes: done.target.len() };
            queues.received(&done.request, Ok(delivery));
        }
    }

    /// Ends all use of memory.
    pub(super) fn reset(&mut self, links: &mut LinkAccess) {
        self.data_sends.iter().for_each(|item| links.end_use(item.request.src));
        self.data_recvs.iter().for_each(|item| links.end_use(item.target.as_span()));
        *self = Peer { is_polled: self.is_polled, ..Peer::new(self.rank) };
    }
}

/// Announces consecutive receives to links that want that.
fn announce_ahead(
    link: &mut dyn Link,
    data_recvs: &mut VecDeque<DataRecv>,
    announced_ahead: &mut usize,
) -> Result<(), TransportError> {
    if !link.capabilities().announced {
        return Ok(());
    }
    while *announced_ahead < data_recvs.len().min(ANNOUNCED_AHEAD) {
        // A receive that has begun unannounced must end before later ones are announced.
        if *announced_ahead == 0 && data_recvs[0].state.received() > 0 {
            break;
        }
        let item = &mut data_recvs[*announced_ahead];
        let destination = (!item.target.is_empty()).then_some(item.target);
        if !link.announce(&mut item.state, destination)? {
            break;
        }
        *announced_ahead += 1;
    }
    Ok(())
}
