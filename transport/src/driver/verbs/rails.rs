//! The cables to one peer: which are up, what happens when one goes down, and how it comes back.
//!
//! A rail is one cable: a device of ours, a device of theirs, a control queue, and, where pieces are not written into
//! memory but sent into receives, a data queue per lane. When something is wrong with it, either end makes its queue
//! pairs dead first, so that nothing can arrive through them any more; it then tells the peer over another rail, repeats
//! there what was not acknowledged, and grants again what was to come. Once its port is active its queue pairs are made
//! new; the rail is used again when both ends have said so.
//!
//! Data queues alone can be made new in the same way, over the control queue: that is the answer to a message that was
//! lost between sends and receives that are matched by their order.
//!
//! Invariants: receives are posted to a data queue only while it is up, hence after the peer has made its end new; so no
//! message of an earlier life can meet them.

use super::{
    incoming::Incoming,
    memory::Run,
    outgoing::Outgoing,
    peer::{AUX_SLOTS, Env, Notice, Peer, RX_SLOTS, read},
    queue::{Queue, What},
    wire::{Header, Kind, LANES, Mark, SLOT_BYTES, Tally},
};
use crate::{
    TransportError,
    memory::Span,
    verbs::{Access, LocalAddress, PostError, RemoteAddress, VerbsError},
};

/// Bytes of a place for an unsequenced message or a trailer.
pub(super) const AUX_BYTES: usize = size_of::<Header>() + size_of::<Mark>();
/// Trailers of a lane that may be under way; more than the window of pieces.
pub(super) const TRAILERS: usize = 32;
/// Slots whose receives are posted anew together.
const REPOST_AT: usize = 8;

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

    fn with_ours(self) -> State {
        match self {
            State::Up | State::Down { theirs: true, .. } => State::Up,
            State::Down { theirs: false, .. } => State::Down { ours: true, theirs: false },
        }
    }

    fn with_theirs(self) -> State {
        match self {
            State::Up | State::Down { ours: true, .. } => State::Up,
            State::Down { ours: false, .. } => State::Down { ours: false, theirs: true },
        }
    }

    fn without_theirs(self) -> State {
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
    control_life: u8,
    data_life: u8,
    /// Pieces of each lane that its device takes receives for at a time, once that is known.
    pub(super) piece_limits: [usize; LANES],
    /// Bytes granted on it that have not come.
    pub(super) incoming_bytes: u64,
    /// Why it is down.
    pub(super) cause: String,
    places: Places,
    /// Slots whose receives are to be posted anew.
    free: Vec<u32>,
    aux_next: u32,
    aux_requests: [u32; AUX_SLOTS as usize],
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

    fn trailer_out(self, lane: usize, piece: u32) -> usize {
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

    /// Can pieces of a lane travel on it?
    #[inline]
    pub(super) fn takes_pieces(&self, _lane: usize) -> bool {
        self.is_up() && (self.data.is_none() || self.data_state == State::Up)
    }

    /// Can a piece of a lane, with what follows it, be sent now?
    #[inline]
    pub(super) fn has_room(&self, lane: usize) -> bool {
        let queue = self.data.as_ref().map_or(&self.control, |data| &data[lane]);
        self.takes_pieces(lane) && queue.has_room(2)
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
        (kind, tally, flags): (Kind, Tally, u8),
        mark: Option<Mark>,
    ) -> Result<bool, TransportError> {
        let index = self.aux_next % AUX_SLOTS;
        let last = self.aux_requests[index as usize];
        if !self.control.has_room(1) || last != u32::MAX && !self.control.has_left(last) {
            return Ok(false);
        }
        let run = self.write_message(env, self.places.aux(index), (kind, tally, flags), mark)?;
        let request = self.control.next();
        // If the queue has failed, its completions say so.
        let sent = self.control.send(run, kind == Kind::Goodbye).unwrap_or(false);
        if sent {
            self.aux_requests[index as usize] = request;
            self.aux_next = self.aux_next.wrapping_add(1);
        }
        Ok(sent)
    }

    fn write_message(
        &self,
        env: &mut Env<'_>,
        at: usize,
        (kind, tally, flags): (Kind, Tally, u8),
        mark: Option<Mark>,
    ) -> Result<Run, TransportError> {
        let payload: &[u8] = mark.as_ref().map_or(&[], |mark| bytemuck::bytes_of(mark));
        let mut header = Header { flags, len: payload.len() as u32, ..Header::new(kind, tally) };
        if env.rules.checksum {
            header.crc = header.checksum(payload);
        }
        env.memory.put(at, Span::from(bytemuck::bytes_of(&header)));
        env.memory.put(at + size_of::<Header>(), Span::from(payload));
        env.ports[self.port].keys.run(at, size_of::<Header>() + payload.len())
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

    /// What a trailer says, if it is whole and of that piece.
    pub(super) fn trailer(&self, env: &Env<'_>, lane: usize, piece: u32, bytes: usize) -> Option<Mark> {
        if bytes != AUX_BYTES {
            return None;
        }
        let at = self.places.trailer_in(lane, piece);
        let (header, kind) = read::<Header>(env.memory, at).checked(bytes).ok()?;
        let mark = read::<Mark>(env.memory, at + size_of::<Header>());
        let whole = !env.rules.checksum || header.crc == header.checksum(bytemuck::bytes_of(&mark));
        (kind == Kind::Trailer && whole && mark.piece == piece && mark.lane as usize == lane).then_some(mark)
    }

    /// Makes the queue pairs new, with receives posted where they stand ready at all times.
    fn renew(&mut self, env: &mut Env<'_>, data_only: bool) -> Result<(), VerbsError> {
        let access = if env.rules.one_sided { Access::Remote } else { Access::Local };
        self.data_life = (self.data_life + 1) % 16;
        if !data_only {
            self.control_life = (self.control_life + 1) % 16;
            self.control.initialise(access)?;
            self.control.set_life(self.control_life);
            self.free.clear();
            self.aux_requests = [u32::MAX; AUX_SLOTS as usize];
            self.incoming_bytes = 0;
        }
        for (queue, far) in self.data.iter_mut().flatten().zip(&self.far.data) {
            queue.initialise(access)?;
            queue.set_life(self.data_life);
            queue.connect(&self.near, far)?;
        }
        if !data_only {
            self.control.connect(&self.near, &self.far.control)?;
        }
        Ok(())
    }
}

impl Peer {
    /// Makes our end of a rail new at the start, when the peer does the same; both know by the exchange that follows.
    pub(super) fn start_rail(&mut self, env: &mut Env<'_>, rail: usize) -> Result<(), TransportError> {
        let r = &mut self.rails[rail];
        r.renew(env, false).map_err(|error| TransportError::Rail { rail: r.name.clone(), error })?;
        self.rails[rail].control_state = State::Up;
        self.rails[rail].data_state = State::Up;
        self.post_slots(env, rail)
    }

    /// Posts the receives of all slots that are not in the runtime's hands.
    fn post_slots(&mut self, env: &mut Env<'_>, rail: usize) -> Result<(), TransportError> {
        for slot in 0..RX_SLOTS {
            let kept = self.incoming.iter().any(|incoming| {
                incoming.eager.iter().any(|message| usize::from(message.rail) == rail && message.slot == slot)
            });
            if !kept && !self.repost(env, rail, slot)? {
                if self.rails[rail].free.len() + 1 == RX_SLOTS as usize {
                    return self.take_down(env, rail, false, "the device takes no receives");
                }
                self.rails[rail].free.push(slot);
            }
        }
        Ok(())
    }

    /// Gives a slot back to its rail.
    #[inline]
    pub(super) fn release_slot(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        slot: u32,
    ) -> Result<(), TransportError> {
        self.rails[rail].free.push(slot);
        if self.rails[rail].free.len() < REPOST_AT {
            return Ok(());
        }
        while let Some(slot) = self.rails[rail].free.pop() {
            if self.rails[rail].control_state.ours() && !self.repost(env, rail, slot)? {
                // When something has come there is room for one more.
                self.rails[rail].free.push(slot);
                break;
            }
        }
        Ok(())
    }

    /// Sends the trailer of a piece behind it.
    pub(super) fn send_trailer(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        lane: usize,
        mark: Mark,
    ) -> Result<(), TransportError> {
        let at = self.rails[rail].places.trailer_out(lane, mark.piece);
        let run =
            self.rails[rail].write_message(env, at, (Kind::Trailer, Tally::default(), 0), Some(mark))?;
        let Some(data) = &mut self.rails[rail].data else { return Ok(()) };
        match data[lane].send(run, false) {
            Ok(true) => Ok(()),
            Ok(false) => self.take_down(env, rail, true, "the send queue is full"),
            Err(error) => self.take_down(env, rail, true, &error.to_string()),
        }
    }

    /// A data queue has received something where a piece was expected.
    pub(super) fn data_came(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        lane: usize,
        (piece, bytes): (u32, u32),
    ) -> Result<(), TransportError> {
        if self.incoming[lane].len_of(piece) != Some(bytes as usize) {
            return self.take_down(env, rail, true, "a message was lost");
        }
        self.piece_came(env, rail, (lane, piece))
    }

    /// A data queue has received something where a trailer was expected.
    pub(super) fn trailer_came(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        lane: usize,
        (piece, bytes): (u32, u32),
    ) -> Result<(), TransportError> {
        match self.rails[rail].trailer(env, lane, piece, bytes as usize) {
            Some(mark) => self.checksum_of(env, mark),
            None => self.take_down(env, rail, true, "a message was lost"),
        }
    }

    /// Something is wrong with a rail, or with its data queues alone: ends its use at this end and tells the peer.
    #[cold]
    pub(super) fn take_down(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        data_only: bool,
        cause: &str,
    ) -> Result<(), TransportError> {
        let state = if data_only { self.rails[rail].data_state } else { self.rails[rail].control_state };
        if !state.ours() || self.broken.is_some() {
            return Ok(());
        }
        self.fence(rail, data_only, cause);
        self.notices.push_back(Notice::RailDown { rail: rail as u8, data_only });
        self.go_on_without(env, rail, data_only)
    }

    /// Makes the queue pairs dead: nothing arrives through them from now on.
    fn fence(&mut self, index: usize, data_only: bool, cause: &str) {
        self.out.iter_mut().for_each(|out| out.forget_rail(index));
        // They are granted again, and not twice.
        self.grants.retain(|grant| usize::from(grant.rail) != index);
        let rail = &mut self.rails[index];
        rail.cause = cause.to_owned();
        // A queue pair that can't be made dead belongs to a device that is gone.
        for queue in rail.data.iter().flatten() {
            let _ = queue.fail();
        }
        rail.data_state = State::DOWN;
        if !data_only {
            let _ = rail.control.fail();
            rail.control_state = State::DOWN;
        }
    }

    fn go_on_without(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        data_only: bool,
    ) -> Result<(), TransportError> {
        if data_only {
            self.renew_rail(env, rail, true)?;
        } else if self.active().is_none() {
            self.broken = Some(self.obituary(env));
            return self.check();
        } else {
            self.repeat(env)?;
        }
        self.regrant_rail(env, rail)?;
        self.flush(env)
    }

    /// What happened to each rail, and how our ports are now.
    fn obituary(&self, env: &Env<'_>) -> String {
        let one = |rail: &Rail| {
            let port = env.ports[rail.port].context.port();
            let state = port.ok().and_then(|port| port.state.name()).unwrap_or("silent");
            format!("{}: {}, our port is {state}", rail.name, rail.cause)
        };
        self.rails.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    /// The peer has ended its use of a rail.
    pub(super) fn peer_took_down(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        data_only: bool,
    ) -> Result<(), TransportError> {
        let Some(state) =
            self.rails.get(rail).map(|r| if data_only { r.data_state } else { r.control_state })
        else {
            return Err(self.protocol("news of a rail that is not there"));
        };
        if state == State::Up {
            self.fence(rail, data_only, "the other end has given it up");
            return self.go_on_without(env, rail, data_only);
        }
        // Ours have been dead since it was last up; what the peer made new meanwhile is dead again.
        let r = &mut self.rails[rail];
        r.data_state = r.data_state.without_theirs();
        if !data_only {
            r.control_state = r.control_state.without_theirs();
        }
        Ok(())
    }

    /// The peer's end of a rail is new.
    pub(super) fn peer_is_ready(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        data_only: bool,
    ) -> Result<(), TransportError> {
        let Some(r) = self.rails.get_mut(rail) else {
            return Err(self.protocol("news of a rail that is not there"));
        };
        r.data_state = r.data_state.with_theirs();
        if !data_only {
            r.control_state = r.control_state.with_theirs();
        }
        if r.is_up() { self.regrant_rail(env, rail) } else { Ok(()) }
    }

    /// Makes our end of a rail new and says so. If that fails it stays down, and is tried again later.
    fn renew_rail(&mut self, env: &mut Env<'_>, rail: usize, data_only: bool) -> Result<(), TransportError> {
        if let Err(error) = self.rails[rail].renew(env, data_only) {
            self.rails[rail].cause = error.to_string();
            return Ok(());
        }
        if !data_only {
            self.post_slots(env, rail)?;
        }
        let r = &mut self.rails[rail];
        r.data_state = r.data_state.with_ours();
        if !data_only {
            r.control_state = r.control_state.with_ours();
        }
        self.counters[0].renewed += 1;
        self.notices.push_back(Notice::RailReady { rail: rail as u8, data_only });
        if self.rails[rail].is_up() { self.regrant_rail(env, rail) } else { Ok(()) }
    }

    /// Gives the queue pairs of a rail something to do. Data queues have nothing that could be sent without a piece: they
    /// are made new, by one end, while no piece is under way.
    pub(super) fn keep_alive(&mut self, env: &mut Env<'_>, rail: usize) -> Result<(), TransportError> {
        if !self.rails[rail].is_up() {
            return Ok(());
        }
        self.say(env, rail, Kind::Ack, None)?;
        let r = &self.rails[rail];
        let idle = self.out.iter().all(Outgoing::is_idle) && self.incoming.iter().all(Incoming::is_idle);
        if r.data.is_some() && r.data_state == State::Up && idle && r.is_lower_end {
            self.take_down(env, rail, true, "it had been silent for long")?;
        }
        Ok(())
    }

    /// Compares rails with their ports: takes down those whose port is down, and makes new those whose port is back.
    pub(super) fn look_at_ports(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        for rail in 0..self.rails.len() {
            let active = env.ports[self.rails[rail].port].is_active;
            let r = &self.rails[rail];
            if !active && r.control_state.ours() {
                let device = env.ports[r.port].name().to_owned();
                self.take_down(env, rail, false, &format!("the port of {device} is down"))?;
            } else if active && !r.control_state.ours() && self.broken.is_none() {
                self.renew_rail(env, rail, false)?;
            } else if active && r.is_up() && r.data.is_some() && !r.data_state.ours() {
                self.renew_rail(env, rail, true)?;
            }
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
