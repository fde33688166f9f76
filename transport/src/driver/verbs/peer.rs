//! One peer: the numbered messages between us, over whichever rails are up.
//!
//! Control messages and small messages of the runtime travel in *slots*: fixed places of a frame each, for which the
//! receiver always has receives posted. Sequenced ones are kept until the peer has acknowledged them and repeated when
//! they are missing, so they arrive in order and once, on unreliable queue pairs and over a change of rails too. Every
//! message carries all counters ([`Tally`]), so nothing needs to be said twice.
//!
//! Invariants: at most [`TX_SLOTS`] sequenced messages are unacknowledged, and at most [`EAGER_CREDITS`] eager ones of a
//! lane are unmatched, so that lanes cannot starve each other; control messages are consumed as they come, so there is
//! always room for them again.
//!
//! How pieces of larger messages travel is in `incoming` and `outgoing`, what happens when a rail goes down in `rails`.

use super::{
    incoming::Incoming,
    landing::LANDED_BYTES,
    lent::Lent,
    memory::{Keys, Memory},
    outgoing::Outgoing,
    port::Port,
    queue::{Queue, What},
    rail::Rail,
    telling::Notice,
    wire::{
        Grant, Header, Kind, LANES, MISSING, Mark, PAYLOAD_BYTES, SLOT_BYTES, Tally, is_before,
        message_checksum,
    },
};
use crate::{Counters, TransportError, memory::Span, verbs::PostError};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Sequenced messages under way; a power of two.
pub(super) const TX_SLOTS: u32 = 64;
/// Of these, so many are for control messages.
const CONTROL_RESERVE: u32 = 16;
/// Eager messages of a lane that the peer need not have matched yet.
pub(super) const EAGER_CREDITS: u32 = 16;
/// Receives posted on each rail: all sequenced messages, all pieces, and as many again for what is repeated.
pub(super) const RX_SLOTS: u32 = 128;
/// Unsequenced messages under way on each rail.
pub(super) const AUX_SLOTS: u32 = 16;
/// The first wait for an acknowledgement.
pub(super) const FIRST_PATIENCE: Duration = Duration::from_millis(2);

/// What is the same for all peers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Bytes of a piece, at most.
    pub(super) piece_bytes: usize,
    /// Pieces of a lane that may be under way.
    pub(super) window: usize,
    /// Messages and pieces carry checksums.
    pub(super) checksum: bool,
    /// What is sent arrives, or the queue pair fails.
    pub(super) reliable: bool,
    /// Pieces are written into the peer's memory; otherwise they are sent into receives.
    pub(super) one_sided: bool,
}

impl Rules {
    /// Whether devices hold a send until the peer has posted its receive: those without remote write do (TN3205).
    pub(super) fn holds_sends(&self) -> bool {
        !self.one_sided
    }

    /// Whether the pieces of a message of this length are written to landing places when they need no grant.
    pub(super) fn lands(&self, total: u64) -> bool {
        self.one_sided && total <= LANDED_BYTES
    }

    /// Whether the pieces of a message of this length may go without grants at all.
    pub(super) fn may_be_unsolicited(&self, total: u64) -> bool {
        self.holds_sends() || self.lands(total)
    }

    /// Does a completion of a piece say that it has arrived for good? Not where its checksum may still be wrong, and not
    /// where a trailer has yet to follow: there the peer's counter says so.
    pub(super) fn completions_confirm(&self) -> bool {
        self.reliable && self.one_sided && !self.checksum
    }
}

/// What a peer's methods work with.
#[derive(Debug)]
pub(super) struct Env<'a> {
    pub(super) rules: Rules,
    pub(super) memory: &'a Memory,
    pub(super) lent: &'a Lent,
    pub(super) ports: &'a mut [Port],
}

impl Env<'_> {
    /// Where memory lies that devices know, if it is such.
    #[inline]
    pub(super) fn locate(&self, start: *const u8, len: usize) -> Option<usize> {
        self.memory.locate(start, len).or_else(|| self.lent.locate(start, len))
    }

    /// Writes a message to a place in the slab, with its checksum; returns its bytes.
    #[inline]
    pub(super) fn write_message(&self, at: usize, header: &Header, payload: Span<'_>) -> usize {
        let bytes = size_of::<Header>() + payload.len();
        self.memory.put(at, Span::from(bytemuck::bytes_of(header)));
        self.memory.put(at + size_of::<Header>(), payload);
        if self.rules.checksum {
            let crc = message_checksum(self.memory.bytes(at, bytes));
            self.memory.put(at, Span::from(&crc.to_le_bytes()[..]));
        }
        bytes
    }

    pub(super) fn keys(&mut self, rail: &Rail) -> &mut Keys {
        &mut self.ports[rail.port].keys
    }
}

/// One peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) rank: u32,
    pub(super) rails: Vec<Rail>,
    pub(super) out: [Outgoing; LANES],
    pub(super) incoming: [Incoming; LANES],
    pub(super) counters: [Counters; LANES],
    /// The slots of sequenced messages, by offset in the slab.
    pub(super) tx_base: usize,
    /// The number of the next sequenced message, and of the first one that is not acknowledged.
    pub(super) next: u32,
    pub(super) acked: u32,
    /// From this sequenced message on, none has been posted: the queue took no more.
    pub(super) held: Option<u32>,
    /// Bytes of each sequenced message that is kept.
    pub(super) lengths: [u32; TX_SLOTS as usize],
    /// Since when the first unacknowledged message has been waiting, and how long it may.
    pub(super) waiting_since: Option<Instant>,
    pub(super) patience: Duration,
    /// The first unacknowledged message when the peer last asked for it to be repeated.
    pub(super) repeated: Option<u32>,
    /// The number of the next sequenced message expected.
    pub(super) expected: u32,
    /// Something must be said to the peer soon.
    pub(super) ack_now: bool,
    /// The missing message that was asked for.
    pub(super) asked_for: Option<u32>,
    /// What the peer has been told.
    pub(super) told: Tally,
    /// Grants of pieces so far.
    pub(super) granted: u64,
    /// The rail whose pace was told last.
    pub(super) pace_next: usize,
    pub(super) notices: VecDeque<Notice>,
    pub(super) grants: Vec<Grant>,
    /// A send waits for word of the peer; when it was last asked for.
    pub(super) wants_word: bool,
    pub(super) asked: Option<Instant>,
    pub(super) asking: Duration,
    /// Why nothing works any more.
    pub(super) broken: Option<String>,
    /// The peer has said goodbye.
    pub(super) gone: bool,
}

impl Peer {
    pub(super) fn new(
        rank: u32,
        rails: Vec<Rail>,
        tx_base: usize,
        out: [Outgoing; LANES],
        incoming: [Incoming; LANES],
    ) -> Peer {
        Peer {
            rank,
            rails,
            out,
            incoming,
            counters: Default::default(),
            tx_base,
            next: 0,
            acked: 0,
            held: None,
            lengths: [0; TX_SLOTS as usize],
            waiting_since: None,
            patience: FIRST_PATIENCE,
            repeated: None,
            expected: 0,
            ack_now: false,
            asked_for: None,
            told: Tally { eager_limits: [EAGER_CREDITS; LANES], ..Tally::default() },
            granted: 0,
            pace_next: 0,
            notices: VecDeque::with_capacity(64),
            grants: Vec::with_capacity(256),
            wants_word: false,
            asked: None,
            asking: FIRST_PATIENCE,
            broken: None,
            gone: false,
        }
    }

    /// The first rail that is up, of the chosen ones if any of these is.
    #[inline]
    pub(super) fn active(&self) -> Option<usize> {
        let chosen = self.rails.iter().position(|rail| rail.is_chosen && rail.is_up());
        chosen.or_else(|| self.rails.iter().position(Rail::is_up))
    }

    /// Fails when no rail is left.
    #[inline]
    pub(super) fn check(&self) -> Result<(), TransportError> {
        match &self.broken {
            None => Ok(()),
            Some(causes) => Err(TransportError::NoRail { peer: self.rank, causes: causes.clone() }),
        }
    }

    pub(super) fn protocol(&self, what: &'static str) -> TransportError {
        TransportError::Protocol { peer: self.rank, what }
    }

    pub(super) fn tally(&self) -> Tally {
        Tally {
            ack: self.expected,
            eager_limits: std::array::from_fn(|l| self.incoming[l].matched.wrapping_add(EAGER_CREDITS)),
            pieces_done: std::array::from_fn(|l| self.incoming[l].done),
            pieces_taken: std::array::from_fn(|l| self.incoming[l].first_piece),
        }
    }

    /// How fast one of the rails is, one after the other; nothing where there is no choice.
    #[inline]
    fn pace(&mut self) -> u32 {
        let rails = self.rails.len();
        if rails < 2 {
            return 0;
        }
        self.pace_next = (self.pace_next + 1) % rails;
        self.rails[self.pace_next].pace.told(self.pace_next)
    }

    /// Sequenced messages that are not acknowledged.
    #[inline]
    pub(super) fn unacknowledged(&self) -> u32 {
        self.next.wrapping_sub(self.acked)
    }

    /// Sends a sequenced message; false when there is no room for it.
    #[inline]
    pub(super) fn send(
        &mut self,
        env: &mut Env<'_>,
        header: Header,
        kind: Kind,
        payload: Span<'_>,
    ) -> Result<bool, TransportError> {
        let reserve = if kind == Kind::Eager { CONTROL_RESERVE } else { 0 };
        if self.unacknowledged() >= TX_SLOTS - reserve {
            return Ok(false);
        }
        let Some(active) = self.active() else { return Ok(false) };
        if self.held.is_some() || !self.rails[active].control.has_room(payload.len()) {
            return Ok(false);
        }
        let len = payload.len();
        debug_assert!(len <= PAYLOAD_BYTES);
        let tally = self.tally();
        let header = Header { seq: self.next, len: len as u32, tally, pace: self.pace(), ..header };
        let slot = self.next % TX_SLOTS;
        let at = self.tx_base + slot as usize * SLOT_BYTES;
        self.lengths[slot as usize] = env.write_message(at, &header, payload) as u32;
        self.held = Some(self.next);
        self.next = self.next.wrapping_add(1);
        self.told = tally;
        self.ack_now = false;
        if !env.rules.reliable && self.waiting_since.is_none() {
            self.waiting_since = Some(Instant::now());
        }
        self.post_held(env, active)?;
        Ok(true)
    }

    /// Posts the messages that no queue has taken yet, as far as this rail's does. One that fails takes its rail down, and
    /// all that is not acknowledged is repeated on another one.
    #[inline]
    pub(super) fn post_held(&mut self, env: &mut Env<'_>, rail: usize) -> Result<(), TransportError> {
        while let Some(seq) = self.held {
            if !is_before(seq, self.next) {
                self.held = None;
                break;
            }
            let seq = if is_before(seq, self.acked) { self.acked } else { seq };
            let slot = (seq % TX_SLOTS) as usize;
            let (at, bytes) = (self.tx_base + slot * SLOT_BYTES, self.lengths[slot] as usize);
            let run = env.keys(&self.rails[rail]).run(at, bytes)?;
            match self.rails[rail].control.send(run, false) {
                Ok(true) => self.held = Some(seq.wrapping_add(1)),
                Ok(false) => break,
                Err(error) => return self.take_down(env, rail, false, &error.to_string()),
            }
        }
        Ok(())
    }

    /// Repeats all that is not acknowledged.
    pub(super) fn repeat(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        let Some(active) = self.active() else { return Ok(()) };
        self.waiting_since = (self.acked != self.next && !env.rules.reliable).then(Instant::now);
        self.counters[0].retransmissions += u64::from(self.unacknowledged());
        self.held = Some(self.acked);
        self.post_held(env, active)
    }

    /// Sends an unsequenced message on a rail, if it can be done at once.
    pub(super) fn say(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        kind: Kind,
        mark: Option<Mark>,
    ) -> Result<bool, TransportError> {
        let tally = self.tally();
        let missing = self.asked_for == Some(self.expected);
        let flags = if missing && kind == Kind::Ack { MISSING } else { 0 };
        let word = Header { flags, pace: self.pace(), ..Header::new(kind, tally) };
        let said = self.rails[rail].say(env, word, mark)?;
        if said {
            self.told = tally;
            self.ack_now = false;
        }
        Ok(said)
    }

    /// Sends an eager message of a lane; false when there is no room for it.
    #[inline]
    pub(super) fn send_eager(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        (digest, flags): (u64, u8),
        payload: Span<'_>,
    ) -> Result<bool, TransportError> {
        if !self.out[lane].has_credit() {
            return Ok(false);
        }
        let message = self.out[lane].message;
        let header =
            Header { lane: lane as u8, flags, digest, message, ..Header::new(Kind::Eager, Tally::default()) };
        let sent = self.send(env, header, Kind::Eager, payload)?;
        if sent {
            self.out[lane].use_credit();
        }
        Ok(sent)
    }

    /// Posts a control receive anew; false when the device takes no more of them.
    #[inline]
    pub(super) fn repost(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        slot: u32,
    ) -> Result<bool, TransportError> {
        let at = self.rails[rail].slot(slot);
        let run = env.keys(&self.rails[rail]).run(at, SLOT_BYTES)?;
        match self.rails[rail].control.receive(What::Slot, slot, run) {
            Ok(()) => Ok(true),
            Err(PostError::Full) => {
                self.counters[0].refused += 1;
                Ok(false)
            }
            Err(error) => self.take_down(env, rail, false, &error.to_string()).map(|()| true),
        }
    }

    /// What a lane has done. What is counted once for all lanes stands with the first.
    pub(super) fn counters(&self, lane: usize) -> Counters {
        let mut counters = self.counters[lane];
        if lane == 0 {
            counters.refused += self.queues().map(|queue| queue.refusals).sum::<u64>();
        }
        counters
    }

    /// The queue pairs of all rails, for those who end them.
    pub(super) fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.rails.iter().flat_map(|rail| std::iter::once(&rail.control).chain(rail.data.iter().flatten()))
    }
}

/// Reads a value from the slab; the place need not be aligned.
#[inline]
pub(super) fn read<T: bytemuck::Pod>(memory: &Memory, at: usize) -> T {
    bytemuck::pod_read_unaligned(memory.bytes(at, size_of::<T>()))
}
