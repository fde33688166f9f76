//! One cable to a peer: its queue pairs, the places of its messages, and whether it is up.
//!
//! It has a device of ours, a device of theirs, a control queue, and, where pieces are not written into memory but sent
//! into receives, a data queue per lane. What happens when it goes down, and how it comes back, is in `rails`.

use super::{
    memory::Run,
    pace::Pace,
    peer::{AUX_SLOTS, Env, RX_SLOTS, read},
    queue::{Queue, What},
    wire::{Header, Kind, LANES, Mark, SLOT_BYTES, message_checksum},
};
use crate::{
    TransportError,
    memory::Span,
    verbs::{Access, LocalAddress, PostError, RemoteAddress, RemoteRun, VerbsError},
};

/// Bytes of a place for an unsequenced message or a trailer.
pub(super) const AUX_BYTES: usize = size_of::<Header>() + size_of::<Mark>();
/// Trailers of a lane that may be under way; more than the window of pieces.
pub(super) const TRAILERS: usize = 32;
/// Whether queue pairs can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Both ends are new and know it.
    Up,
    /// Not both ends are.
    Down {
        /// Ours are.
        ours: bool,
        /// Theirs are.
        theirs: bool,
    },
}

impl State {
    pub(super) const DOWN: State = State::Down { ours: false, theirs: false };

    pub(super) fn with_ours(self) -> State {
        match self {
            State::Up | State::Down { theirs: true, .. } => State::Up,
            State::Down { theirs: false, .. } => State::Down { ours: true, theirs: false },
        }
    }

    pub(super) fn with_theirs(self) -> State {
        match self {
            State::Up | State::Down { ours: true, .. } => State::Up,
            State::Down { ours: false, .. } => State::Down { ours: false, theirs: true },
        }
    }

    pub(super) fn without_theirs(self) -> State {
        State::Down { ours: self.ours(), theirs: false }
    }

    pub(super) fn ours(self) -> bool {
        !matches!(self, State::Down { ours: false, .. })
    }
}

/// Whom a rail's queue pairs are connected with.
#[derive(Clone, Debug)]
pub(super) struct Far {
    pub(super) control: RemoteAddress,
    pub(super) data: Vec<RemoteAddress>,
    /// Landing places, by lane and number.
    pub(super) landings: Vec<RemoteRun>,
}

/// One cable.
#[derive(Debug)]
pub(super) struct Rail {
    /// Our device, as an index.
    pub(super) port: usize,
    /// For people: `rdma_en2 of rank 0 to rdma_en3 of rank 1`.
    pub(super) name: String,
    /// Their device, as its rank calls it.
    pub(super) theirs: String,
    /// Is it one of those that are to be used?
    pub(super) is_chosen: bool,
    pub(super) control: Queue,
    pub(super) control_state: State,
    pub(super) data: Option<[Queue; LANES]>,
    pub(super) data_state: State,
    /// Of the two ends, this is that of the lower rank.
    pub(super) is_lower_end: bool,
    pub(super) near: LocalAddress,
    pub(super) far: Far,
    /// How often its control queue and its data queues have been made new, modulo 16; completions of earlier lives are
    /// not heeded.
    pub(super) control_life: u8,
    pub(super) data_life: u8,
    /// Pieces of each lane that its device takes receives for at a time, once that is known.
    pub(super) piece_limits: [usize; LANES],
    /// Bytes granted on it that have not come.
    pub(super) incoming_bytes: u64,
    /// Nanoseconds for a MiB by it, as the peer says.
    pub(super) incoming_cost: Option<u64>,
    /// How fast it carries away what is sent.
    pub(super) pace: Pace,
    /// Why it is down.
    pub(super) cause: String,
    pub(super) places: Places,
    /// Slots whose receives are to be posted anew.
    pub(super) free: Vec<u32>,
    pub(super) aux_next: u32,
    pub(super) aux_requests: [u32; AUX_SLOTS as usize],
}

/// Of the receives for a piece and its trailer, those that the device has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    None,
    /// The piece's. Nothing must be sent through that queue any more.
    Piece,
    Both,
}

/// Where a rail's messages are, by offset in the slab.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    base: usize,
}

impl Places {
    /// Bytes that a rail needs.
    pub(super) const BYTES: usize = RX_SLOTS as usize * SLOT_BYTES
        + AUX_SLOTS as usize * AUX_BYTES
        + LANES * TRAILERS * (AUX_BYTES + SLOT_BYTES);

    pub(super) fn new(base: usize) -> Places {
        Places { base }
    }

    fn slot(self, slot: u32) -> usize {
        self.base + slot as usize * SLOT_BYTES
    }

    /// Where the trailer of a piece is received; a frame of its own.
    fn trailer_in(self, lane: usize, piece: u32) -> usize {
        self.slot(RX_SLOTS) + (lane * TRAILERS + piece as usize % TRAILERS) * SLOT_BYTES
    }

    pub(super) fn trailer_out(self, lane: usize, piece: u32) -> usize {
        self.trailer_in(LANES, 0) + (lane * TRAILERS + piece as usize % TRAILERS) * AUX_BYTES
    }

    fn aux(self, index: u32) -> usize {
        self.trailer_out(LANES, 0) + index as usize * AUX_BYTES
    }
}

impl Rail {
    /// A rail that is down at both ends.
    pub(super) fn new(
        (port, name, theirs, is_lower_end): (usize, String, String, bool),
        control: Queue,
        data: Option<[Queue; LANES]>,
        (near, far): (LocalAddress, Far),
        places: Places,
    ) -> Rail {
        Rail {
            port,
            name,
            is_lower_end,
            theirs,
            is_chosen: true,
            control,
            control_state: State::DOWN,
            data_state: State::DOWN,
            data,
            near,
            far,
            control_life: 0,
            data_life: 0,
            piece_limits: [usize::MAX; LANES],
            incoming_bytes: 0,
            incoming_cost: None,
            pace: Pace::default(),
            cause: String::new(),
            places,
            free: Vec::with_capacity(RX_SLOTS as usize),
            aux_next: 0,
            aux_requests: [u32::MAX; AUX_SLOTS as usize],
        }
    }

    /// Is a completion of this queue, control (0) or data, of its present life?
    #[inline]
    pub(super) fn is_alive(&self, wire: u8, life: u8) -> bool {
        life == if wire == 0 { self.control_life } else { self.data_life }
    }

    /// The life of the queues that pieces arrive through.
    pub(super) fn piece_life(&self) -> u8 {
        if self.data.is_some() { self.data_life } else { self.control_life }
    }

    pub(super) fn is_up(&self) -> bool {
        self.control_state == State::Up
    }

    /// So many bytes less are to come by it.
    pub(super) fn is_not_to_come(&mut self, bytes: u64) {
        self.incoming_bytes = self.incoming_bytes.saturating_sub(bytes);
    }

    /// Can pieces of a lane travel on it?
    #[inline]
    pub(super) fn takes_pieces(&self, _lane: usize) -> bool {
        self.is_up() && (self.data.is_none() || self.data_state == State::Up)
    }

    /// Whether a piece of a lane, with what follows it, can be sent now.
    #[inline]
    pub(super) fn has_room(&self, lane: usize, len: usize) -> bool {
        let queue = self.data.as_ref().map_or(&self.control, |data| &data[lane]);
        self.takes_pieces(lane) && queue.has_room_for_piece(len)
    }

    /// Where a slot is.
    #[inline]
    pub(super) fn slot(&self, slot: u32) -> usize {
        self.places.slot(slot)
    }

    /// Sends an unsequenced message, if there is room.
    pub(super) fn say(
        &mut self,
        env: &mut Env<'_>,
        word: Header,
        mark: Option<Mark>,
    ) -> Result<bool, TransportError> {
        let index = self.aux_next % AUX_SLOTS;
        let last = self.aux_requests[index as usize];
        if !self.control.has_room(AUX_BYTES) || last != u32::MAX && !self.control.has_left(last) {
            return Ok(false);
        }
        let run = self.write_message(env, self.places.aux(index), word, mark)?;
        let request = self.control.next();
        // If the queue has failed, its completions say so.
        let sent = self.control.send(run, word.kind == Kind::Goodbye as u8).unwrap_or(false);
        if sent {
            self.aux_requests[index as usize] = request;
            self.aux_next = self.aux_next.wrapping_add(1);
        }
        Ok(sent)
    }

    pub(super) fn write_message(
        &self,
        env: &mut Env<'_>,
        at: usize,
        word: Header,
        mark: Option<Mark>,
    ) -> Result<Run, TransportError> {
        let payload: &[u8] = mark.as_ref().map_or(&[], |mark| bytemuck::bytes_of(mark));
        let header = Header { len: payload.len() as u32, ..word };
        let bytes = env.write_message(at, &header, Span::from(payload));
        env.ports[self.port].keys.run(at, bytes)
    }

    /// Posts receives for a piece and its trailer; says how many of these the device has taken when it takes no more.
    pub(super) fn expect_piece(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        piece: u32,
        (at, len): (usize, usize),
    ) -> Result<Result<Taken, PostError>, TransportError> {
        let keys = &mut env.ports[self.port].keys;
        let data = keys.run(at, len)?;
        let trailer = keys.run(self.places.trailer_in(lane, piece), SLOT_BYTES)?;
        let Some(queue) = self.data.as_ref().map(|data| &data[lane]) else {
            return Ok(Ok(Taken::Both));
        };
        Ok(match queue.receive(What::Piece, piece, data) {
            Ok(()) => match queue.receive(What::Trailer, piece, trailer) {
                Ok(()) => Ok(Taken::Both),
                Err(PostError::Full) => Ok(Taken::Piece),
                Err(error) => Err(error),
            },
            Err(PostError::Full) => Ok(Taken::None),
            Err(error) => Err(error),
        })
    }

    /// The mark and the operation that a trailer names, if it is whole and of that piece.
    pub(super) fn trailer(
        &self,
        env: &Env<'_>,
        lane: usize,
        piece: u32,
        bytes: usize,
    ) -> Option<(Mark, u64)> {
        if bytes != AUX_BYTES {
            return None;
        }
        let at = self.places.trailer_in(lane, piece);
        let (header, kind) = read::<Header>(env.memory, at).checked(bytes).ok()?;
        let mark = read::<Mark>(env.memory, at + size_of::<Header>());
        let whole = !env.rules.checksum || header.crc == message_checksum(env.memory.bytes(at, bytes));
        (kind == Kind::Trailer && whole && mark.piece == piece && mark.lane as usize == lane)
            .then_some((mark, header.digest))
    }

    /// Makes the queue pairs new, with receives posted where they stand ready at all times.
    pub(super) fn renew(&mut self, env: &mut Env<'_>, data_only: bool) -> Result<(), VerbsError> {
        let access = if env.rules.one_sided { Access::Remote } else { Access::Local };
        self.data_life = (self.data_life + 1) % 16;
        if !data_only {
            self.control_life = (self.control_life + 1) % 16;
            self.control.initialize(access)?;
            self.control.set_life(self.control_life);
            self.free.clear();
            self.aux_requests = [u32::MAX; AUX_SLOTS as usize];
            self.incoming_bytes = 0;
        }
        self.pace = Pace::default();
        for (queue, far) in self.data.iter_mut().flatten().zip(&self.far.data) {
            queue.initialize(access)?;
            queue.set_life(self.data_life);
            queue.connect(&self.near, far)?;
        }
        if !data_only {
            self.control.connect(&self.near, &self.far.control)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_is_up_when_both_ends_are_new_in_either_order() {
        assert_eq!(State::DOWN.with_ours().with_theirs(), State::Up);
        assert_eq!(State::DOWN.with_theirs().with_ours(), State::Up);
        assert!(State::DOWN.with_ours() != State::Up && State::DOWN.with_theirs() != State::Up);
        assert!(!State::DOWN.with_theirs().ours() && State::DOWN.with_ours().ours());
    }

    #[test]
    fn places_do_not_overlap() {
        let places = Places::new(0);
        let mut at = vec![(places.slot(RX_SLOTS - 1), SLOT_BYTES)];
        for lane in 0..LANES {
            for piece in 0..TRAILERS as u32 {
                at.push((places.trailer_in(lane, piece), SLOT_BYTES));
                at.push((places.trailer_out(lane, piece), AUX_BYTES));
            }
        }
        at.extend((0..AUX_SLOTS).map(|i| (places.aux(i), AUX_BYTES)));
        at.sort_unstable();
        assert!(at.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{at:?}");
        let (last, bytes) = at[at.len() - 1];
        assert_eq!(last + bytes, Places::BYTES);
    }
}
