//! One queue pair, and the fill level of its send queue.
//!
//! Requests are posted with growing numbers. Completions come in the same order, so the latest one tells how
//! many entries are free again. Only some requests ask for a completion.
//!
//! Devices may accept less than they report. A device that refuses a request although the queue should have
//! room is given no more at a time than it has taken.
//!
//! # Safety
//! The device reads and writes memory by address after a post has returned. All of that memory lies in the
//! slab of [`Memory`](super::memory::Memory), which is mapped as long as the endpoint exists, and queue pairs
//! are dropped before it; or in registered user memory, which stays until its registration ends. The protocol
//! ensures that two parties do not use the same bytes at the same time. They are bytes, of which any value is
//! valid.

use super::memory::Run;
use crate::verbs::{
    Access, LocalAddress, Operation, PostError, QueuePair, RemoteAddress, SendRequest, VerbsError,
};
use std::collections::VecDeque;

/// Identifier of a request, which its completion returns, packed into 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) kind: RequestKind,
    pub(super) peer: u16,
    /// Less than 16.
    pub(super) rail: u8,
    /// Life of the queue pair, modulo 16.
    pub(super) life: u8,
    /// Number of the queue pair within the rail.
    pub(super) queue: u8,
    /// Slot, piece, or number of the request, depending on the kind.
    pub(super) value: u32,
}

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RequestKind {
    /// A send or a write; the value is the number of the request.
    Sent = 0,
    /// A receive into a slot; the value is the slot.
    Slot = 1,
    /// A receive of a piece; the value is the number of the piece.
    Piece = 2,
    /// A receive of a trailer; the value is the number of its piece.
    Trailer = 3,
}

impl Id {
    pub(super) fn pack(self) -> u64 {
        (self.kind as u64) << 60
            | u64::from(self.queue) << 56
            | u64::from(self.life) << 52
            | u64::from(self.rail) << 48
            | u64::from(self.peer) << 32
            | u64::from(self.value)
    }

    pub(super) fn unpack(id: u64) -> Id {
        let kinds = [RequestKind::Sent, RequestKind::Slot, RequestKind::Piece, RequestKind::Trailer];
        Id {
            kind: kinds[(id >> 60) as usize & 3],
            queue: (id >> 56) as u8 & 15,
            life: (id >> 52) as u8 & 15,
            rail: (id >> 48) as u8 & 15,
            peer: (id >> 32) as u16,
            value: id as u32,
        }
    }
}

/// Queue pair, and counts of its requests.
#[derive(Debug)]
pub(super) struct Queue {
    pair: QueuePair,
    /// Identifier of its completions, without `kind` and `value`.
    id: Id,
    /// Requests posted to the send queue, and known to have left it.
    posted: u32,
    completed: u32,
    /// Entries of the send queue: frames on devices that count in frames, requests on others.
    depth: u32,
    /// Base-2 logarithm of the bytes of an entry, on devices that count in frames.
    frame_shift: Option<u32>,
    /// Entries of all requests, and of those that have left the queue.
    entries: u64,
    entries_left: u64,
    /// Entries up to the latest request that asked for its completion.
    entries_signaled: u64,
    /// Entries of the largest request.
    largest: u64,
    /// The request after the latest one that asked for its completion.
    signaled: u32,
    /// Number of times that the device took less than the queue had room for.
    refusals: u64,
    inline_bytes: usize,
    /// Bytes posted in all.
    bytes: u64,
    /// Requests that asked for their completions.
    marks: VecDeque<Mark>,
    /// Bytes that have left the queue.
    left: u64,
    /// Pieces whose completion confirms their arrival: the request, the stream, and the piece, by number.
    pieces: VecDeque<(u32, u32, u32)>,
}

/// A request that asked for its completion, with the totals up to it.
#[derive(Clone, Copy, Debug)]
struct Mark {
    request: u32,
    bytes: u64,
    entries: u64,
}

/// Requests, and entries, of which one asks for a completion.
const SIGNAL_EVERY: u32 = 8;
const SIGNAL_ENTRIES: u64 = 16;

impl Queue {
    /// `id` identifies its completions, without `kind` and `value`. `depth` is that of its send queue, in
    /// frames of `frame_bytes`, a power of two, if that is given.
    pub(super) fn new(pair: QueuePair, id: Id, depth: u32, frame_bytes: Option<u32>) -> Queue {
        let inline_bytes = pair.granted().max_inline_data as usize;
        let frame_shift = frame_bytes.map(|bytes| {
            assert!(bytes.is_power_of_two(), "frames of {bytes} bytes");
            bytes.trailing_zeros()
        });
        Queue {
            pair,
            id,
            posted: 0,
            completed: 0,
            depth,
            frame_shift,
            entries: 0,
            entries_left: 0,
            entries_signaled: 0,
            largest: 1,
            signaled: 0,
            refusals: 0,
            inline_bytes,
            bytes: 0,
            marks: VecDeque::with_capacity(64),
            left: 0,
            pieces: VecDeque::with_capacity(256),
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.pair.number()
    }

    /// Resets the queue pair: receives can be posted again.
    pub(super) fn initialize(&mut self, access: Access) -> Result<(), VerbsError> {
        self.pair.initialize(access)?;
        self.posted = 0;
        self.completed = 0;
        self.signaled = 0;
        self.marks.clear();
        (self.bytes, self.left) = (0, 0);
        (self.entries, self.entries_left, self.entries_signaled) = (0, 0, 0);
        self.pieces.clear();
        Ok(())
    }

    /// Sets the life by which its completions differ from earlier ones.
    pub(super) fn set_life(&mut self, life: u8) {
        self.id.life = life;
    }

    pub(super) fn connect(&self, ours: &LocalAddress, theirs: &RemoteAddress) -> Result<(), VerbsError> {
        self.pair.connect(ours, theirs)
    }

    /// Changes the rights of the peer.
    pub(super) fn permit(&self, access: Access) -> Result<(), VerbsError> {
        self.pair.permit(access)
    }

    /// Makes the queue pair dead: when this returns, the device does not access memory for it any more.
    ///
    /// In ERR a device may still finish the request that it is working on. In RESET it has stopped.
    pub(super) fn stop(&self) -> Result<(), VerbsError> {
        self.pair.fail().and_then(|()| self.pair.reset())
    }

    /// Whether there is room for a message of this length.
    #[inline]
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.has_entries(self.entries_of(len))
    }

    /// Whether there is room for a piece and its trailer.
    #[inline]
    pub(super) fn has_room_for_piece(&self, len: usize) -> bool {
        self.has_entries(self.entries_of(len) + 1)
    }

    #[inline]
    fn has_entries(&self, entries: u64) -> bool {
        self.entries - self.entries_left + entries <= self.depth.into()
    }

    /// Returns the entries that a message takes.
    #[inline]
    fn entries_of(&self, len: usize) -> u64 {
        self.frame_shift.map_or(1, |shift| (len.saturating_sub(1) as u64 >> shift) + 1)
    }

    /// The number that the next request will have.
    pub(super) fn next(&self) -> u32 {
        self.posted
    }

    /// Whether the request of that number has left the queue.
    pub(super) fn has_left(&self, request: u32) -> bool {
        super::wire::is_before(request, self.completed)
    }

    /// Whether all requests have left the queue. Known at once only if the last one has asked for its
    /// completion.
    pub(super) fn is_empty(&self) -> bool {
        self.posted == self.completed
    }

    /// Number of times that the device took less than the queue had room for.
    pub(super) fn refusals(&self) -> u64 {
        self.refusals
    }

    /// Posts a message; false when there is no room. `signaled` asks for its completion.
    #[inline]
    pub(super) fn send(&mut self, run: Run, signaled: bool) -> Result<bool, PostError> {
        self.post(run, Operation::Send, signaled)
    }

    /// Posts a piece; false when there is no room. `confirms` means that its completion confirms its arrival,
    /// `signaled` asks for a completion in any case.
    pub(super) fn send_piece(
        &mut self,
        run: Run,
        operation: Operation,
        (stream, piece): (u32, u32),
        (confirms, signaled): (bool, bool),
    ) -> Result<bool, PostError> {
        let number = self.posted;
        let posted = self.post(run, operation, confirms || signaled)?;
        if posted && confirms {
            self.pieces.push_back((number, stream, piece));
        }
        Ok(posted)
    }

    /// Posts the trailer of a piece; false when there is no room.
    ///
    /// It asks for its completion. As long as its entry is not known to be free, the next piece may have no
    /// room, and in a queue for one piece it never gets any.
    pub(super) fn send_trailer(&mut self, run: Run) -> Result<bool, PostError> {
        self.post(run, Operation::Send, true)
    }

    #[inline]
    fn post(&mut self, run: Run, operation: Operation, signaled: bool) -> Result<bool, PostError> {
        if !self.has_room(run.len()) {
            return Ok(false);
        }
        let entries = self.entries_of(run.len());
        let signaled = signaled || self.is_signal_due(entries);
        let request = SendRequest {
            id: Id { kind: RequestKind::Sent, value: self.posted, ..self.id }.pack(),
            run: run.local(),
            operation,
            signaled,
            inline: matches!(operation, Operation::Send) && run.len() <= self.inline_bytes,
        };
        // SAFETY: a `Run` lies in the slab, which outlives the queue pair; see the module.
        match unsafe { self.pair.post_send(&request) } {
            Ok(()) => {
                self.bytes += run.len() as u64;
                self.entries += entries;
                self.largest = self.largest.max(entries);
                if signaled {
                    self.entries_signaled = self.entries;
                    self.marks.push_back(Mark {
                        request: self.posted,
                        bytes: self.bytes,
                        entries: self.entries,
                    });
                    self.signaled = self.posted.wrapping_add(1);
                }
                self.posted = self.posted.wrapping_add(1);
                Ok(true)
            }
            Err(PostError::Full) if self.learns_depth() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a request must ask for its completion, so that several in a full queue do, however short it
    /// is.
    #[inline]
    fn is_signal_due(&self, entries: u64) -> bool {
        let requests = self.posted.wrapping_sub(self.signaled) + 1;
        let unsignaled = self.entries + entries - self.entries_signaled;
        let most = SIGNAL_ENTRIES.min(u64::from(self.depth) / 4);
        requests >= SIGNAL_EVERY || self.frame_shift.is_some() && unsignaled >= most
    }

    /// Lowers the depth after the device has refused a request for which there should be room, but never
    /// below a piece and its trailer. Returns false when no completion is due that would make room.
    #[cold]
    fn learns_depth(&mut self) -> bool {
        self.refusals += 1;
        self.depth = (self.entries - self.entries_left).max(self.largest + 1) as u32;
        super::wire::is_before(self.completed, self.signaled)
    }

    /// Posts a receive.
    #[inline]
    pub(super) fn receive(&self, kind: RequestKind, value: u32, run: Run) -> Result<(), PostError> {
        let id = Id { kind, value, ..self.id }.pack();
        // SAFETY: as for `post`.
        unsafe { self.pair.post_receive(id, run.local()) }
    }

    /// Notes that the request of that number and all before it have left the queue. Calls `arrived` for every
    /// piece whose arrival this confirms. Returns the number of bytes that have left.
    pub(super) fn complete(&mut self, request: u32, mut arrived: impl FnMut(u32, u32)) -> u64 {
        self.completed = request.wrapping_add(1);
        let before = self.left;
        while let Some(&mark) = self.marks.front()
            && !super::wire::is_before(request, mark.request)
        {
            self.marks.pop_front();
            (self.left, self.entries_left) = (mark.bytes, mark.entries);
        }
        while let Some(&(number, stream, piece)) = self.pieces.front()
            && !super::wire::is_before(request, number)
        {
            self.pieces.pop_front();
            arrived(stream, piece);
        }
        self.left - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        driver::verbs::memory::{DeviceKeys, Memory},
        memory::{Mapping, Slab},
        verbs::{QpType, QueuePairSpec, null_device},
    };
    use std::sync::Arc;

    #[test]
    fn ids_survive_packing() {
        for kind in [RequestKind::Sent, RequestKind::Slot, RequestKind::Piece, RequestKind::Trailer] {
            let id = Id { kind, peer: 1023, rail: 7, life: 15, queue: 2, value: u32::MAX };
            assert_eq!(Id::unpack(id.pack()), id);
        }
    }

    /// The entry of the trailer stayed taken, so that the queue never had room for a second piece.
    #[test]
    fn a_queue_for_one_piece_has_room_again_after_the_completions_that_were_asked_for() {
        const PIECE_BYTES: usize = 128 << 10;
        let mapping = Arc::new(Mapping::private(2 * PIECE_BYTES).expect("memory"));
        let slab = Slab::over(mapping, 0..2 * PIECE_BYTES, None);
        let memory = Memory::new(&slab, 2 * PIECE_BYTES, PIECE_BYTES);
        let domain =
            null_device::library().open("null").and_then(|device| device.domain()).expect("a domain");
        let mut keys = DeviceKeys::new(domain.clone(), Access::Local, memory);
        let completions = domain.context().completion_queue(64, None).expect("a queue");
        let spec = QueuePairSpec { service: QpType::UC, send_depth: 33, recv_depth: 33, inline_bytes: 0 };
        let pair = domain.queue_pair_on(&spec, &completions, &completions).expect("a queue pair");
        let number = pair.number();
        let id = Id { kind: RequestKind::Sent, peer: 1, rail: 0, life: 0, queue: 2, value: 0 };
        let mut queue = Queue::new(pair, id, 33, Some(4096));
        for piece in 0..3 {
            assert!(queue.has_room_for_piece(PIECE_BYTES), "piece {piece}");
            let mut run = |len| keys.run(0, len).expect("a part of the slab");
            let posted = queue.send_piece(run(PIECE_BYTES), Operation::Send, (0, piece), (false, true));
            assert!(posted.expect("a device that takes everything"));
            assert!(queue.send_trailer(run(80)).expect("a device that takes everything"));
            assert!(!queue.has_room_for_piece(PIECE_BYTES));
            while let Some(id) = null_device::take_send(number) {
                queue.complete(Id::unpack(id).value, |_, _| ());
            }
        }
    }
}
