//! One rail: its queue pairs at this end of a cable, the slots of its messages, and its state.
//!
//! A rail has a device at each end. Its first queue pair takes messages with headers. On devices that count
//! in frames a second one may take long messages, and a third one the bare pieces of bulk messages
//! (`placed`). `peer` takes rails down and opens them again.
//!
//! Invariant: a completion of an earlier life of a queue pair has no effect.

use super::{
    attempts::Attempts,
    bandwidth::{Bandwidth, Candidate},
    env::Env,
    handshake::Handshake,
    memory::Run,
    pulse::Pulse,
    queue::{Queue, RequestKind},
    rules::Rules,
    slots::{AUX_PLACES, Queues, REPOST_AT, REPOST_IDLE, SlotPool},
    wire::{FRAME_BYTES, Header, Kind, Selective},
};
use crate::{
    TransportError,
    memory::Span,
    verbs::{Access, LocalAddress, PostError, RemoteAddress, VerbsError},
};

/// Number of the placed queue pair; messages with headers travel by lower ones.
pub(super) const PLACED: u8 = 2;
/// Bytes of a place for an unsequenced message or a trailer.
pub(super) const AUX_BYTES: usize = 128;
/// Places for trailers, in each direction.
const TRAILERS: usize = 32;
/// Pieces that may be in flight, at most: the trailer of a piece keeps its place until all are handed over.
pub(super) const MAX_WINDOW: usize = TRAILERS / 2;

const _: () = assert!(AUX_BYTES >= size_of::<Header>() + size_of::<Selective>());

/// The peer's queue pairs.
#[derive(Clone, Debug)]
struct Far {
    slots: Vec<RemoteAddress>,
    placed: Option<RemoteAddress>,
}

/// Devices at both ends of a rail.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    /// Index of this rank's device.
    pub(super) port: usize,
    /// Description for people, like `rdma_en2 of rank 0 to rdma_en3 of rank 1`.
    pub(super) name: String,
    /// The peer's device, as its rank calls it.
    pub(super) theirs: String,
    pub(super) near: LocalAddress,
}

/// The receives for a piece and its trailer that the device has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Posted {
    None,
    Piece,
    Both,
}

/// A request that was posted to a queue pair of messages with headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) rail: u8,
    queue: u8,
    /// Life of the queue pair.
    life: u8,
    number: u32,
}

/// One cable.
#[derive(Debug)]
pub(super) struct Rail {
    ends: Ends,
    far: Far,
    /// Whether the user prefers it.
    pub(super) is_chosen: bool,
    pub(super) handshake: Handshake,
    /// Queue pairs of messages with headers, and their slots.
    pub(super) slot_queues: Vec<(Queue, SlotPool)>,
    placed: Option<Queue>,
    placed_life: u8,
    /// Whether the placed queue is connected in its present life.
    placed_is_new: bool,
    /// Number of the last sequenced message sent by each queue pair in this life.
    last_sequenced: [Option<u32>; 2],
    /// Bytes granted on it that have not arrived.
    incoming_bytes: u64,
    /// Nanoseconds for a MiB in the peer's direction, as the peer has measured it.
    incoming_cost: Option<u64>,
    pub(super) bandwidth: Bandwidth,
    /// Bytes of messages and pieces posted at this end, with headers.
    pub(super) sent_bytes: u64,
    /// Number of the latest request that marks all earlier ones as sent.
    pub(super) mark: Option<u32>,
    /// Signs that the rail answers.
    pub(super) pulse: Pulse,
    pub(super) attempts: Attempts,
    /// Reason why the rail is down.
    pub(super) cause: String,
    aux_base: usize,
    trailer_base: usize,
    aux_next: u32,
    aux_requests: [u32; AUX_PLACES as usize],
}

/// Bytes of the slab that a rail needs.
pub(super) fn rail_bytes(rules: &Rules) -> usize {
    let trailers = if rules.has_placed { TRAILERS * (FRAME_BYTES + AUX_BYTES) } else { 0 };
    rules.queues.receive_bytes().next_multiple_of(64) + AUX_PLACES as usize * AUX_BYTES + trailers
}

impl Rail {
    /// A rail before its queue pairs are connected. Its slots begin at the offset `base`. `far` is the
    /// address of the peer's device, without the numbers of its queue pairs.
    pub(super) fn new(
        ends: Ends,
        far: RemoteAddress,
        queues: Queues,
        pairs: Vec<Queue>,
        placed: Option<Queue>,
        base: usize,
    ) -> Rail {
        let mut at = base;
        let mut slot_queues = Vec::new();
        for (queue, slots) in pairs.into_iter().zip(queues.receives()) {
            slot_queues.push((queue, SlotPool::new(at, *slots)));
            at += slots.span();
        }
        let aux_base = base + queues.receive_bytes().next_multiple_of(64);
        Rail {
            ends,
            far: Far { slots: vec![far], placed: None },
            is_chosen: true,
            handshake: Handshake::started(),
            slot_queues,
            placed,
            placed_life: 0,
            placed_is_new: false,
            last_sequenced: [None; 2],
            incoming_bytes: 0,
            incoming_cost: None,
            bandwidth: Bandwidth::default(),
            sent_bytes: 0,
            mark: None,
            pulse: Pulse::default(),
            attempts: Attempts::default(),
            cause: String::new(),
            aux_base,
            trailer_base: aux_base + AUX_PLACES as usize * AUX_BYTES,
            aux_next: 0,
            aux_requests: [u32::MAX; AUX_PLACES as usize],
        }
    }

    /// Sets the numbers of the peer's queue pairs.
    pub(super) fn set_far_numbers(&mut self, psn: u32, slots: &[u32], placed: Option<u32>) {
        let address = self.far.slots[0];
        let number = |qp: u32| RemoteAddress { qp, psn, ..address };
        self.far = Far { slots: slots.iter().copied().map(number).collect(), placed: placed.map(number) };
    }

    /// Devices at both ends.
    pub(super) fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Index of this rank's device.
    #[inline]
    pub(super) fn port(&self) -> usize {
        self.ends.port
    }

    /// Whether messages can be sent.
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.handshake.is_up()
    }

    /// Whether a completion of a queue pair belongs to its present life.
    #[inline]
    pub(super) fn is_current(&self, queue: u8, life: u8) -> bool {
        life == if queue == PLACED { self.placed_life } else { self.handshake.life() } & 15
    }

    /// Whether completions of a queue pair count: it has not been made dead.
    #[inline]
    pub(super) fn is_alive(&self, queue: u8) -> bool {
        self.handshake.is_alive() && (queue != PLACED || self.placed_is_new)
    }

    /// Whether the queue pair of unsequenced messages has sent all that it was given.
    pub(super) fn has_sent_all(&self) -> bool {
        self.slot_queues[0].0.is_empty()
    }

    /// Whether the request that marks all earlier ones as sent has left the queue.
    pub(super) fn has_sent_marked(&self) -> bool {
        self.mark.is_some_and(|mark| self.slot_queues[0].0.has_left(mark))
    }

    /// Life of the queue pairs for which pieces are granted.
    pub(super) fn life(&self) -> u8 {
        self.handshake.life()
    }

    /// The queue pair of unsequenced messages, which also writes pieces.
    #[inline]
    pub(super) fn control(&mut self) -> &mut Queue {
        &mut self.slot_queues[0].0
    }

    /// Whether a message of that many bytes can be sent now.
    #[inline]
    pub(super) fn has_room(&self, queue: usize, bytes: usize) -> bool {
        self.is_up() && self.slot_queues[queue].0.has_room(bytes)
    }

    /// Whether a piece and its trailer can be sent by the placed queue now.
    #[inline]
    pub(super) fn has_room_for_piece(&self, bytes: usize) -> bool {
        self.placed.as_ref().is_some_and(|queue| queue.has_room_for_piece(bytes))
    }

    /// Number of the last sequenced message that a queue pair has sent in this life.
    #[inline]
    pub(super) fn last_sequenced(&self, queue: usize) -> Option<u32> {
        self.last_sequenced[queue]
    }

    /// The next request of a queue pair; `rail` is the index of this rail.
    #[inline]
    pub(super) fn next_request(&self, rail: u8, queue: usize) -> Request {
        let number = self.slot_queues[queue].0.next();
        Request { rail, queue: queue as u8, life: self.handshake.life(), number }
    }

    /// Whether the device may still execute a request: the queue pair is alive, and the request is not known
    /// to have left it.
    pub(super) fn may_hold(&self, request: &Request) -> bool {
        let is_present = self.handshake.is_alive() && self.handshake.life() == request.life;
        is_present && !self.slot_queues[usize::from(request.queue)].0.has_left(request.number)
    }

    /// Notes that a queue pair has sent a sequenced message.
    #[inline]
    pub(super) fn sent_sequenced(&mut self, queue: usize, number: u32) {
        self.last_sequenced[queue] = Some(number);
    }

    /// The rail, with index `rail`, as a candidate for bytes to the peer.
    pub(super) fn outgoing(&self, rail: usize) -> Candidate {
        let cost = Some(u64::from(self.bandwidth.cost())).filter(|cost| *cost != 0);
        Candidate { rail, in_flight: self.bandwidth.in_flight(), cost }
    }

    /// The rail, with index `rail`, as a candidate for bytes from the peer.
    pub(super) fn incoming(&self, rail: usize) -> Candidate {
        Candidate { rail, in_flight: self.incoming_bytes, cost: self.incoming_cost }
    }

    /// Takes in the cost of the peer's direction, as the peer has measured it.
    #[inline]
    pub(super) fn set_incoming_cost(&mut self, cost: u64) {
        self.incoming_cost = Some(cost);
    }

    /// Notes that bytes have been granted on the rail.
    pub(super) fn expect_incoming(&mut self, bytes: u64) {
        self.incoming_bytes += bytes;
    }

    /// Notes that granted bytes are not expected any more.
    pub(super) fn forget_incoming(&mut self, bytes: u64) {
        self.incoming_bytes = self.incoming_bytes.saturating_sub(bytes);
    }

    /// Offset of a slot in the slab.
    #[inline]
    pub(super) fn slot(&self, queue: usize, slot: u32) -> usize {
        self.slot_queues[queue].1.place(slot).0
    }

    /// Sends an unsequenced message if there is room.
    pub(super) fn send_word(
        &mut self,
        env: &mut Env<'_>,
        mut header: Header,
        payload: &[u8],
    ) -> Result<bool, TransportError> {
        let index = self.aux_next % AUX_PLACES;
        let last = self.aux_requests[index as usize];
        let bytes = size_of::<Header>() + payload.len();
        if !self.control().has_room(bytes) || last != u32::MAX && !self.control().has_left(last) {
            return Ok(false);
        }
        self.stamp(&mut header);
        let at = self.aux_base + index as usize * AUX_BYTES;
        let run = self.write_message(env, at, &header, payload)?;
        let request = self.control().next();
        // A failed queue pair has completions that report it.
        let is_mark = [Kind::Goodbye as u8, Kind::Ping as u8].contains(&header.kind);
        let sent = self.control().send(run, is_mark).unwrap_or(false);
        if sent {
            self.aux_requests[index as usize] = request;
            self.aux_next = self.aux_next.wrapping_add(1);
        }
        Ok(sent)
    }

    /// Writes the lives of both ends into a header.
    #[inline]
    pub(super) fn stamp(&self, header: &mut Header) {
        header.life = self.handshake.life();
        header.their_life = self.handshake.their_life();
    }

    fn write_message(
        &self,
        env: &mut Env<'_>,
        at: usize,
        header: &Header,
        payload: &[u8],
    ) -> Result<Run, TransportError> {
        let header = Header { len: payload.len() as u16, ..*header };
        let bytes = env.write_message(at, &header, Span::from(payload));
        env.ports[self.ends.port].keys.run(at, bytes)
    }

    /// Writes the trailer of a piece, for the placed queue.
    pub(super) fn write_trailer(
        &self,
        env: &mut Env<'_>,
        piece: u32,
        header: &Header,
        payload: &[u8],
    ) -> Result<Run, TransportError> {
        let out = self.trailer_base + TRAILERS * FRAME_BYTES;
        self.write_message(env, out + piece as usize % TRAILERS * AUX_BYTES, header, payload)
    }

    /// Offset of the place where the trailer of a piece is received; it has a frame.
    pub(super) fn trailer_in(&self, piece: u32) -> usize {
        self.trailer_base + piece as usize % TRAILERS * FRAME_BYTES
    }

    /// Posts the receives for a piece and its trailer, from those in `already` on.
    pub(super) fn expect_piece(
        &mut self,
        env: &mut Env<'_>,
        piece: u32,
        (at, len): (usize, usize),
        already: Posted,
    ) -> Result<Result<Posted, PostError>, TransportError> {
        let keys = &mut env.ports[self.ends.port].keys;
        let bytes = keys.run(at, len)?;
        let trailer = keys.run(self.trailer_in(piece), FRAME_BYTES)?;
        let Some(queue) = &self.placed else { return Ok(Ok(Posted::None)) };
        if already == Posted::None {
            match queue.receive(RequestKind::Piece, piece, bytes) {
                Ok(()) => {}
                Err(PostError::Full) => return Ok(Ok(Posted::None)),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(match queue.receive(RequestKind::Trailer, piece, trailer) {
            Ok(()) => Ok(Posted::Both),
            Err(PostError::Full) => Ok(Posted::Piece),
            Err(error) => Err(error),
        })
    }

    /// Posts receives for free slots if there are many; returns how many the device refused (0 or 1).
    #[inline]
    pub(super) fn refill(
        &mut self,
        env: &mut Env<'_>,
        queue: usize,
    ) -> Result<Result<u64, PostError>, TransportError> {
        if self.slot_queues[queue].1.free() < REPOST_AT || !self.handshake.is_alive() {
            return Ok(Ok(0));
        }
        self.post_slots(env, queue, usize::MAX)
    }

    /// Posts receives for some free slots of a queue pair, while the rank waits; returns how many the device
    /// refused (0 or 1).
    pub(super) fn refill_idle(
        &mut self,
        env: &mut Env<'_>,
        queue: usize,
    ) -> Result<Result<u64, PostError>, TransportError> {
        self.post_slots(env, queue, REPOST_IDLE)
    }

    /// Whether receives can be posted for slots of a queue pair.
    #[inline]
    pub(super) fn needs_refill(&self, queue: usize) -> bool {
        self.handshake.is_alive() && self.slot_queues[queue].1.free() > 0
    }

    /// Number of queue pairs that take messages with headers.
    #[inline]
    pub(super) fn slot_queue_count(&self) -> usize {
        self.slot_queues.len()
    }

    /// Posts receives for at most `most` free slots of a queue pair; returns how many the device refused
    /// (0 or 1).
    pub(super) fn post_slots(
        &mut self,
        env: &mut Env<'_>,
        queue: usize,
        most: usize,
    ) -> Result<Result<u64, PostError>, TransportError> {
        let keys = &mut env.ports[self.ends.port].keys;
        let (pair, pool) = &mut self.slot_queues[queue];
        for _ in 0..most {
            let Some(slot) = pool.take() else { break };
            let (at, bytes) = pool.place(slot);
            match pair.receive(RequestKind::Slot, slot, keys.run(at, bytes)?) {
                Ok(()) => {}
                Err(error) => {
                    pool.put_back(slot);
                    return Ok(if error == PostError::Full { Ok(1) } else { Err(error) });
                }
            }
        }
        Ok(Ok(0))
    }

    /// Makes all queue pairs dead: the device does not access memory for them any more.
    pub(super) fn fence(&mut self) {
        // A queue pair that can't be made dead belongs to a device that is gone.
        for (queue, _) in &self.slot_queues {
            let _ = queue.stop();
        }
        self.fence_placed();
        self.handshake.fall();
    }

    /// Makes the placed queue dead.
    pub(super) fn fence_placed(&mut self) {
        if let Some(queue) = &self.placed {
            let _ = queue.stop();
        }
        self.placed_is_new = false;
    }

    /// Sets the index of the address from which the queue pairs connect.
    pub(super) fn set_source(&mut self, gid_index: u8) {
        self.ends.near.gid_index = gid_index;
    }

    /// Connects the queue pairs of messages with headers, in the present life, with these rights of the peer.
    /// `is_kept` names the slots that hold messages, by queue pair and number.
    pub(super) fn connect(
        &mut self,
        access: Access,
        is_kept: impl Fn(u8, u32) -> bool,
    ) -> Result<(), VerbsError> {
        let life = self.handshake.life() & 15;
        for (index, ((queue, pool), far)) in self.slot_queues.iter_mut().zip(&self.far.slots).enumerate() {
            queue.initialize(access)?;
            queue.set_life(life);
            queue.connect(&self.ends.near, far)?;
            pool.reset(|slot| is_kept(index as u8, slot));
        }
        self.last_sequenced = [None; 2];
        self.aux_requests = [u32::MAX; AUX_PLACES as usize];
        self.incoming_bytes = 0;
        self.incoming_cost = None;
        self.bandwidth = Bandwidth::default();
        self.pulse = Pulse::default();
        self.mark = None;
        Ok(())
    }

    /// Permits the peer to write to memory that it has grants for.
    ///
    /// The peer's queue pairs must be new: requests of earlier ones could otherwise write to memory that has
    /// another use by now.
    pub(super) fn permit_writes(&self) -> Result<(), VerbsError> {
        self.slot_queues.iter().try_for_each(|(queue, _)| queue.permit(Access::Remote))
    }

    /// Connects the placed queue, in a new life.
    pub(super) fn connect_placed(&mut self) -> Result<(), VerbsError> {
        let (Some(queue), Some(far)) = (&mut self.placed, &self.far.placed) else { return Ok(()) };
        self.placed_life = (self.placed_life + 1) & 15;
        queue.initialize(Access::Local)?;
        queue.set_life(self.placed_life);
        queue.connect(&self.ends.near, far)?;
        self.placed_is_new = true;
        Ok(())
    }

    /// All queue pairs.
    pub(super) fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.slot_queues.iter().map(|(queue, _)| queue).chain(&self.placed)
    }

    /// The queue pair of a completion.
    pub(super) fn queue_mut(&mut self, queue: u8) -> Option<&mut Queue> {
        match queue {
            PLACED => self.placed.as_mut(),
            queue => self.slot_queues.get_mut(usize::from(queue)).map(|(queue, _)| queue),
        }
    }
}
