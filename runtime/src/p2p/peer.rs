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

/// The lane of frames.
pub(super) const CONTROL: u8 = 0;
/// The lane of messages that were asked for.
pub(super) const DATA: u8 = 1;

/// What a sender may have in memory of the receiver's, in units.
pub(super) const CREDIT_UNITS: u32 = (1 << 20) / UNIT_BYTES as u32;
const UNIT_BYTES: usize = 64;

/// What a message takes up of the budget: its bytes, and what is kept beside them.
pub(super) fn units_of(len: usize) -> u32 {
    (2 + len.div_ceil(UNIT_BYTES)) as u32
}

/// Even, as all digests; the low bits of those of payloads are a length or a number.
pub(super) const FRAME_DIGEST: u64 = 0x6d61_696c_0000_0000;
pub(super) const EAGER_DIGEST: u64 = 0x6d61_696c_8000_0000;
const DATA_DIGEST: u64 = 0x6d61_8000_0000_0000;

/// Names a message that was asked for by its number.
fn data_digest(number: u64) -> u64 {
    DATA_DIGEST | number << 1 & 0x7fff_ffff_fffe
}

/// Frames that are taken before others get their turn.
const FRAMES_AT_A_TIME: usize = 32;
/// Messages that a link is told of ahead.
const ANNOUNCED_AHEAD: usize = 8;

/// Why a peer could not be served.
#[derive(Debug)]
pub(super) enum PeerError {
    /// The link to it failed, or it said what makes no sense.
    Link(TransportError),
    /// The job has failed.
    Job,
}

impl From<TransportError> for PeerError {
    fn from(error: TransportError) -> PeerError {
        PeerError::Link(error)
    }
}

/// A frame on its way, and what follows it.
#[derive(Debug)]
struct QueuedFrame {
    frame: FrameBytes,
    state: SendState,
    /// The frame has gone; what follows goes now.
    is_frame_sent: bool,
    payload: Option<Span<'static>>,
    /// The letter that is done when this has gone.
    request: Option<SendRequest>,
}

/// A message that was asked for, on its way to the peer.
#[derive(Debug)]
struct DataSend {
    state: SendState,
    request: SendRequest,
    posted: bool,
    is_sent: bool,
}

/// A message that we have asked for.
#[derive(Debug)]
struct DataRecv {
    state: RecvState,
    request: RecvRequest,
    tag: i32,
    /// As much of the letter's memory as the message has bytes.
    target: SpanMut<'static>,
}

/// The peer, as this rank sees it.
#[derive(Debug)]
pub(super) struct Peer {
    rank: Rank,
    /// Letters that need it.
    pub(super) outstanding: u32,
    /// Is it among those that are polled?
    pub(super) is_polled: bool,
    /// It has closed its mail.
    pub(super) is_closed: bool,
    /// The latest letter that needed it, for errors.
    pub(super) latest: Option<RequestInfo>,
    control_queue: VecDeque<QueuedFrame>,
    /// Units that we may still use of its memory.
    pub(super) credit: u32,
    /// Units of ours that it uses, and units that it may use again and has not been told of.
    credit_held: u32,
    credit_owed: u32,
    /// The number of our next message that waits to be asked for, and those that do.
    next_number: u64,
    awaiting_cts: BTreeMap<u64, SendRequest>,
    /// The number of its next message that will wait.
    next_announced: u64,
    frame: FrameBytes,
    state: RecvState,
    /// The eager message that is arriving.
    eager: Option<EagerReceive>,
    data_sends: VecDeque<DataSend>,
    data_recvs: VecDeque<DataRecv>,
    /// Of those that are coming, how many the link knows of.
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

    /// Is there anything to do?
    pub(super) fn is_active(&self) -> bool {
        self.outstanding > 0 || self.has_control_traffic() && !self.is_closed
    }

    /// Is anything on the control lane only half said?
    pub(super) fn has_control_traffic(&self) -> bool {
        !self.control_queue.is_empty() || self.eager.is_some()
    }

    /// Is there anything that it has not been told yet?
    pub(super) fn has_queued_frames(&self) -> bool {
        !self.control_queue.is_empty()
    }

    /// Does a link use memory of a receive?
    pub(super) fn is_receiving(&self) -> bool {
        !self.data_recvs.is_empty() || self.eager.as_ref().is_some_and(EagerReceive::is_matched)
    }

    /// How many of its own things it remembers, for tests.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.control_queue.len() + self.awaiting_cts.len() + self.data_sends.len() + self.data_recvs.len()
    }

    /// What a message that is not short may be to travel without being asked for.
    pub(super) fn eager_limit(&self, links: &mut LinkAccess) -> usize {
        let capabilities = links.link(self.rank, CONTROL).capabilities();
        // Links that want to be told of larger messages beforehand are told on the other lane.
        if capabilities.announced { EAGER_BYTES.min(capabilities.inline_bytes) } else { EAGER_BYTES }
    }

    /// Has a frame sent, with what follows it.
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

    /// The bytes of a frame, with all credit that is due.
    pub(super) fn encode_with_credit(&mut self, frame: &Frame) -> FrameBytes {
        let credit = self.credit_owed.min(u16::MAX.into());
        self.credit_owed -= credit;
        frame.encode(credit as u16)
    }

    /// The letter that is done when what was said last has gone, which it has not.
    pub(super) fn attach(&mut self, request: SendRequest) {
        if let Some(last) = self.control_queue.back_mut() {
            last.request = Some(request);
        }
    }

    /// Has a message wait until it is asked for.
    pub(super) fn request_to_send(&mut self, context: u32, tag: i32, request: SendRequest) {
        let number = self.next_number;
        self.next_number += 1;
        let frame =
            self.encode_with_credit(&Frame::RequestToSend { context, tag, number, len: request.src.len() });
        self.awaiting_cts.insert(number, request);
        self.queue_frame(frame, None);
    }

    /// A message of so many units was taken by a receive.
    pub(super) fn release(&mut self, units: u32) {
        self.credit_held -= units;
        self.credit_owed += units;
        if self.credit_owed >= CREDIT_UNITS / 2 {
            let frame = self.encode_with_credit(&Frame::Credit);
            self.queue_frame(frame, None);
        }
    }

    /// Asks for a message that waits, which fits the receive.
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

    /// Does not want a message that waits.
    pub(super) fn reject(&mut self, number: u64) {
        let frame = self.encode_with_credit(&Frame::Reject { number });
        self.queue_frame(frame, None);
    }

    /// Takes what has come of a peer that has closed its mail, all of which is here by now, and says nothing to it any more.
    pub(super) fn drain_closed(&mut self, links: &mut LinkAccess, queues: &mut Queues) {
        self.is_closed = true;
        self.control_queue.retain(|word| word.request.is_some());
        while matches!(self.take_frames(links, queues), Ok(true)) {}
        while matches!(self.receive_data(links, queues), Ok(true)) {}
    }

    /// Does what can be done without waiting. True when anything has moved.
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

    /// Sends what was said, as far as that goes. True when anything has moved.
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

    /// Takes frames and eager messages that have come.
    fn take_frames(&mut self, links: &mut LinkAccess, queues: &mut Queues) -> Result<bool, PeerError> {
        let mut moved = false;
        for _ in 0..FRAMES_AT_A_TIME {
            let link = links.link(self.rank, CONTROL);
            let progress = match &mut self.eager {
                Some(eager) => eager.poll(link)?,
                None => {
                    let landing = SpanMut::from(&mut self.frame[..]);
                    link.poll_recv(&mut self.state, &mut CopySink(landing))?
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

    /// An eager message has come as a whole.
    fn finish_eager(&mut self, eager: EagerReceive, queues: &mut Queues) {
        let units = units_of(eager.len());
        if queues.deliver(eager, &mut self.outstanding) {
            self.release(units);
        }
    }

    /// Does what a frame says that has come.
    fn handle_frame(&mut self, links: &mut LinkAccess, queues: &mut Queues) -> Result<(), PeerError> {
        let frame = self.frame;
        let (said, credit) = Frame::decode(&frame).map_err(|what| self.protocol_error(what))?;
        self.credit += u32::from(credit);
        if self.credit > CREDIT_UNITS {
            return Err(self.protocol_error("more credit than there is").into());
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
                    return Err(self.protocol_error("announcement out of order").into());
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

    /// A message that waits has met its receive.
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

    /// An eager message comes to our memory; its sender must have had credit for it.
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

    /// Sends messages that were asked for.
    fn send_data(&mut self, links: &mut LinkAccess, queues: &mut Queues) -> Result<bool, PeerError> {
        let mut moved = false;
        for item in self.data_sends.iter_mut().filter(|item| !item.is_sent) {
            let src = item.request.src;
            let progress = links.link(self.rank, DATA).poll_send(&mut item.state, src)?;
            match progress {
                // Of one that is posted this is the news that it is still on its way.
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

    /// Receives messages that we have asked for.
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
            // A peer that has failed may have given its memory to others while we read it.
            if !links.is_healthy() {
                return Err(PeerError::Job);
            }
            self.outstanding -= 1;
            let delivery = Delivery { from: self.rank, tag: done.tag, bytes: done.target.len() };
            queues.received(&done.request, Ok(delivery));
        }
    }

    /// No memory is used any more.
    pub(super) fn reset(&mut self, links: &mut LinkAccess) {
        self.data_sends.iter().for_each(|item| links.end_use(item.request.src));
        self.data_recvs.iter().for_each(|item| links.end_use(item.target.as_span()));
        *self = Peer { is_polled: self.is_polled, ..Peer::new(self.rank) };
    }
}

/// Tells a link of messages that come one behind the other, if it has a use for that.
fn announce_ahead(
    link: &mut dyn Link,
    data_recvs: &mut VecDeque<DataRecv>,
    announced_ahead: &mut usize,
) -> Result<(), TransportError> {
    if !link.capabilities().announced {
        return Ok(());
    }
    while *announced_ahead < data_recvs.len().min(ANNOUNCED_AHEAD) {
        // None is told of behind one that was begun untold.
        if *announced_ahead == 0 && data_recvs[0].state.taken() > 0 {
            break;
        }
        let item = &mut data_recvs[*announced_ahead];
        let landing = (!item.target.is_empty()).then_some(item.target);
        if !link.announce(&mut item.state, landing)? {
            break;
        }
        *announced_ahead += 1;
    }
    Ok(())
}
