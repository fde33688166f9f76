//! One peer: the parts of the protocol, and the rails that they share.
//!
//! | part | idea |
//! |---|---|
//! | `sequence` | numbered messages that arrive once and in order |
//! | `slots` | their places at both ends |
//! | `stream` | the order of runtime messages on a lane, and credit |
//! | `placed`, `granted` | the bytes of bulk messages |
//! | `rails`, `handshake`, `pulse` | cables that fall and come back |
//!
//! This module sends sequenced and unsequenced messages. Module `receiving` takes messages in, `messages` sends and
//! receives those of the runtime.
//!
//! Invariant: every header carries the latest counters, so any later message makes up for a lost one.

use super::{
    granted::Granted,
    lent::Lent,
    memory::{Keys, Memory},
    notice::Notice,
    pace::{self, Candidate},
    placed::Placed,
    port::Port,
    queue::Queue,
    rail::Rail,
    receiving::Inbound,
    sequence::{RecvSequence, Route, SendSequence, WINDOW},
    slots::{Kept, Queues, SendStore},
    stream::Stream,
    wire::{
        ASK, FRAME_BYTES, GRANTS_PER_MESSAGE, Grant, Header, Kind, MISSING, STREAMS, Selective,
        message_checksum,
    },
};
use crate::{Counters, TransportError, memory::Span, verbs::Access};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// The first wait for an acknowledgement, and the longest.
const FIRST_TIMEOUT: Duration = Duration::from_millis(2);
const LAST_TIMEOUT: Duration = Duration::from_millis(100);
/// A call that waits sleeps for a while between looks; as long as that, a message counts as expected.
const AWAITED_FOR: Duration = Duration::from_millis(200);
/// Bytes of a message from which it counts for the speed of its rail.
const MEASURED_BYTES: usize = 4096;
/// Bytes of a piece from which pieces cost little more than their bytes.
const LEAST_PIECE_BYTES: usize = 64 << 10;
/// Received messages that need not be acknowledged at once.
const UNACKNOWLEDGED: u32 = 12;

/// Rules that are the same for all peers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Bytes of a piece, at most.
    pub(super) piece_bytes: usize,
    /// Pieces that may be in flight in a direction: of a stream where they are granted.
    pub(super) window: usize,
    /// Whether messages and pieces carry checksums.
    pub(super) checksum: bool,
    /// Whether sent messages arrive, or the queue pair fails.
    pub(super) reliable: bool,
    /// Whether pieces are written into the peer's memory.
    pub(super) one_sided: bool,
    /// Whether rails have a queue pair for pieces that meet receives.
    pub(super) has_placed: bool,
    /// Queue pairs of messages with headers.
    pub(super) queues: Queues,
    /// Time that a peer without a rail is waited for.
    pub(super) cable_wait: Duration,
}

impl Rules {
    /// Whether a completion of a piece tells that it has arrived for good, so that nothing else need tell.
    pub(super) fn completions_confirm(&self) -> bool {
        self.reliable && self.one_sided && !self.checksum
    }

    /// Whether bulk messages travel in pieces.
    #[inline]
    pub(super) fn has_pieces(&self) -> bool {
        self.one_sided || self.has_placed
    }

    /// Bytes of the pieces of a bulk message, but for the last one. Pieces of a shorter message are shorter, so that
    /// the copy, the checksum and the reduction of one overlap with the way of the next.
    #[inline]
    pub(super) fn piece_len(&self, total: usize) -> usize {
        let eighth = (total / 8).next_multiple_of(FRAME_BYTES);
        self.piece_bytes.min(eighth.max(LEAST_PIECE_BYTES))
    }

    /// Access that queue pairs and regions need.
    pub(super) fn access(&self) -> Access {
        if self.one_sided { Access::Remote } else { Access::Local }
    }
}

/// Resources that the methods of a peer work with.
pub(super) struct Env<'a> {
    pub(super) rules: Rules,
    pub(super) memory: &'a Memory,
    pub(super) lent: &'a Lent,
    pub(super) ports: &'a mut [Port],
    /// Tells the user what is waited for.
    pub(super) say: &'a dyn Fn(&str),
}

impl Env<'_> {
    /// Place of memory that is registered with the devices, if it is.
    #[inline]
    pub(super) fn locate(&self, start: *const u8, len: usize) -> Option<usize> {
        self.memory.locate(start, len).or_else(|| self.lent.locate(start, len))
    }

    /// Writes a message to a place in the slab, with its checksum; returns its bytes.
    #[inline]
    pub(super) fn write_message(&self, at: usize, header: &Header, payload: Span<'_>) -> usize {
        self.memory.put(at + size_of::<Header>(), payload);
        self.write_header(at, header, size_of::<Header>() + payload.len())
    }

    /// Writes the header of a message of that many bytes before its payload, with the checksum of both.
    #[inline]
    pub(super) fn write_header(&self, at: usize, header: &Header, bytes: usize) -> usize {
        self.memory.put(at, Span::from(bytemuck::bytes_of(header)));
        if self.rules.checksum {
            let crc = message_checksum(self.memory.bytes(at, bytes));
            self.memory.put(at, Span::from(&crc.to_le_bytes()[..]));
        }
        bytes
    }

    pub(super) fn keys(&mut self, rail: &Rail) -> &mut Keys {
        &mut self.ports[rail.port()].keys
    }
}

/// A sequenced message that is not acknowledged.
#[derive(Debug)]
pub(super) struct Outbound {
    kept: Kept,
    header: Header,
}

/// A wait for an acknowledgement or a word, which is repeated after longer and longer times.
#[derive(Debug)]
struct Retry {
    since: Option<Instant>,
    timeout: Duration,
}

impl Retry {
    const NEW: Retry = Retry { since: None, timeout: FIRST_TIMEOUT };

    /// Whether the wait that lasts has timed out; begins the next one then.
    fn is_due(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let is_due = now.saturating_duration_since(since) >= self.timeout;
        if is_due {
            self.since = Some(now);
            self.timeout = (self.timeout * 2).min(LAST_TIMEOUT);
        }
        is_due
    }
}

/// One peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) rank: u32,
    pub(super) rails: Vec<Rail>,
    pub(super) streams: [Stream; STREAMS],
    pub(super) sequence: SendSequence<Outbound>,
    store: SendStore,
    pub(super) received: RecvSequence<Inbound>,
    /// Bulk messages: one of the two, or none.
    pub(super) placed: Option<Placed>,
    pub(super) granted: Vec<Granted>,
    /// Number of the next sequenced message expected, as the peer was last told.
    told_ack: u32,
    /// Whether the peer must be told at once.
    pub(super) ack_now: bool,
    /// Whether the peer must be told the counters of all streams.
    pub(super) tell_all: bool,
    /// Whether messages are missing.
    pub(super) is_missing: bool,
    acknowledgement: Retry,
    /// Whether a send waits for a counter of the peer.
    pub(super) wants_word: bool,
    word: Retry,
    /// The rail whose pace was told last.
    pace_next: usize,
    /// Messages and grants so far, for turns between rails.
    turns: u64,
    pub(super) grants_made: u64,
    pub(super) notices: VecDeque<Notice>,
    pub(super) grants: Vec<Grant>,
    /// Whether a call has waited for a message since the last look, and when one was last seen to.
    is_awaited: bool,
    last_awaited: Option<Instant>,
    /// Since when no rail has been up.
    pub(super) no_rail_since: Option<Instant>,
    /// Whether this is the end of the lower rank.
    pub(super) is_lower_end: bool,
    /// Reason why nothing works any more.
    pub(super) broken: Option<String>,
    /// Whether the peer has said goodbye.
    pub(super) is_gone: bool,
}

impl Peer {
    /// A peer whose rails are connected. `store` holds what is sent.
    pub(super) fn new(
        (rank, is_lower_end): (u32, bool),
        rails: Vec<Rail>,
        store: SendStore,
        placed: Option<Placed>,
        granted: Vec<Granted>,
    ) -> Peer {
        Peer {
            rank,
            rails,
            streams: std::array::from_fn(|_| Stream::new()),
            sequence: SendSequence::new(),
            store,
            received: RecvSequence::new(),
            placed,
            granted,
            told_ack: 0,
            ack_now: false,
            tell_all: false,
            is_missing: false,
            acknowledgement: Retry::NEW,
            wants_word: false,
            word: Retry::NEW,
            pace_next: 0,
            turns: 0,
            grants_made: 0,
            notices: VecDeque::with_capacity(64),
            grants: Vec::with_capacity(256),
            is_awaited: false,
            last_awaited: None,
            no_rail_since: None,
            is_lower_end,
            broken: None,
            is_gone: false,
        }
    }

    /// The first rail that is up, of the preferred ones if any of these is.
    #[inline]
    pub(super) fn active(&self) -> Option<usize> {
        let chosen = self.rails.iter().position(|rail| rail.is_chosen && rail.is_up());
        chosen.or_else(|| self.rails.iter().position(Rail::is_up))
    }

    /// # Errors
    /// [`TransportError::NoRail`] once no rail has been up for too long.
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

    /// Pieces of a stream received in all, as the peer counts them.
    #[inline]
    fn done(&self, stream: usize) -> u32 {
        match &self.placed {
            Some(placed) => placed.done(),
            None => self.granted.get(stream).map_or(0, |granted| granted.recv.done()),
        }
    }

    /// Writes the counters into a header.
    #[inline]
    fn count(&mut self, header: &mut Header) {
        let stream = usize::from(header.stream);
        header.ack = self.received.expected();
        header.limit = self.streams[stream].recv.limit();
        header.done = self.done(stream);
        if self.rails.len() > 1 {
            self.pace_next = (self.pace_next + 1) % self.rails.len();
            header.pace = self.rails[self.pace_next].pace.told(self.pace_next);
        }
    }

    /// Notes that the counters of a stream are on their way to the peer.
    #[inline]
    fn counted(&mut self, stream: usize) {
        self.told_ack = self.received.expected();
        self.ack_now = false;
        self.streams[stream].recv.limit_told();
        match (&mut self.placed, self.granted.get_mut(stream)) {
            (Some(placed), _) => placed.done_told(),
            (None, Some(granted)) => granted.recv.done_told(),
            _ => {}
        }
    }

    /// Sends a sequenced message; false when there is no room for it.
    #[inline]
    pub(super) fn send(
        &mut self,
        env: &mut Env<'_>,
        header: Header,
        payload: Span<'_>,
        is_control: bool,
        pinned: Option<u8>,
    ) -> Result<bool, TransportError> {
        if self.sequence.len() == WINDOW {
            return Ok(false);
        }
        let Some(kept) = self.store.take(payload.len(), is_control) else { return Ok(false) };
        let kept = Kept { pinned, ..kept };
        env.memory.put(kept.at + size_of::<Header>(), payload);
        let header = Header { len: payload.len() as u32, ..header };
        self.sequence.push(Outbound { kept, header });
        self.post_unsent(env)?;
        Ok(true)
    }

    /// The rail and the queue pair that a message is sent by.
    #[inline]
    fn route(&self, kept: &Kept, queues: Queues) -> Option<Route> {
        let queue = queues.queue(kept.class) as u8;
        let rail = match &self.rails[..] {
            [rail] => rail.is_up().then_some(0)?,
            _ => match kept.pinned {
                Some(rail) if self.rails[usize::from(rail)].is_up() => usize::from(rail),
                _ if queue == 0 && queues != Queues::Shared || kept.bytes < MEASURED_BYTES => {
                    self.active()?
                }
                _ => self.fastest(kept.bytes)?,
            },
        };
        Some(Route { rail: rail as u8, queue })
    }

    /// The rail by which a message leaves first.
    fn fastest(&self, bytes: usize) -> Option<usize> {
        let up = self.rails.iter().enumerate().filter(|(_, rail)| rail.is_up());
        let any_chosen = up.clone().any(|(_, rail)| rail.is_chosen);
        let candidate = |(index, rail): (usize, &Rail)| Candidate {
            rail: index,
            under_way: rail.pace.in_flight(),
            cost: Some(u64::from(rail.pace.cost())).filter(|cost| *cost != 0),
        };
        let used = up.filter(|(_, rail)| rail.is_chosen || !any_chosen);
        pace::first(used.map(candidate), bytes as u64, self.turns)
    }

    /// Posts the messages that are not sent, in order, as far as queue pairs have room.
    #[inline]
    pub(super) fn post_unsent(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        while let Some((number, outbound)) = self.sequence.unsent() {
            let (kept, mut header) = (outbound.kept, outbound.header);
            let Some(route) = self.route(&kept, env.rules.queues) else { break };
            let (index, queue) = (usize::from(route.rail), usize::from(route.queue));
            let wire_bytes = env.rules.queues.wire_bytes(kept.class, kept.bytes);
            let rail = &mut self.rails[index];
            if !rail.has_room(queue, wire_bytes) {
                break;
            }
            header.seq = number;
            header.previous = rail.last_sequenced[queue].unwrap_or(number) as u16;
            rail.stamp(&mut header);
            self.count(&mut header);
            env.write_header(kept.at, &header, kept.bytes);
            let rail = &mut self.rails[index];
            let run = env.ports[rail.port()].keys.run(kept.at, wire_bytes)?;
            // The speed of rails follows from completions, where there is a choice.
            let is_measured = self.rails.len() > 1 && wire_bytes >= MEASURED_BYTES;
            let rail = &mut self.rails[index];
            match rail.slot_queues[queue].0.send(run, is_measured) {
                Ok(true) => {
                    rail.last_sequenced[queue] = Some(number);
                    self.sequence.sent(number, route);
                    self.counted(usize::from(header.stream));
                    if is_measured {
                        self.turns += 1;
                        self.rails[index].pace.posted(wire_bytes as u64, Instant::now());
                    }
                }
                Ok(false) => break,
                Err(error) => return self.take_down(env, index, &error.to_string()),
            }
        }
        Ok(())
    }

    /// Takes in an acknowledgement.
    #[inline]
    pub(super) fn acknowledge(&mut self, ack: u32) {
        let store = &mut self.store;
        if self.sequence.acknowledge(ack, |outbound| store.give_back(&outbound.kept)) {
            self.acknowledgement = Retry::NEW;
        }
    }

    /// Sends an unsequenced message by a rail, if it can be done at once.
    pub(super) fn say(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        kind: Kind,
        payload: &[u8],
    ) -> Result<bool, TransportError> {
        self.say_header(env, rail, Header::new(kind), payload)
    }

    fn say_header(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        mut header: Header,
        payload: &[u8],
    ) -> Result<bool, TransportError> {
        self.count(&mut header);
        let is_said = self.rails[rail].say(env, header, payload)?;
        if is_said {
            self.counted(usize::from(header.stream));
        }
        Ok(is_said)
    }

    /// Acknowledges all that has been received, with the counters of a stream.
    fn say_ack(&mut self, env: &mut Env<'_>, stream: usize, flags: u8) -> Result<(), TransportError> {
        let Some(active) = self.active() else { return Ok(()) };
        let selective = Selective { received: self.received.selective() };
        let missing = if self.is_missing { MISSING } else { 0 };
        let payload = if self.received.has_gap() { bytemuck::bytes_of(&selective) } else { &[] };
        let header = Header { stream: stream as u16, flags: flags | missing, ..Header::new(Kind::Ack) };
        if self.say_header(env, active, header, payload)? {
            self.is_missing = false;
        }
        Ok(())
    }

    /// Whether the peer must be told of the counters of a stream soon.
    #[inline]
    fn owes(&self, stream: usize, confirm: bool) -> bool {
        let owes_done = match &self.placed {
            Some(placed) => stream == 0 && placed.owes_done(),
            None => !confirm && self.granted.get(stream).is_some_and(|granted| granted.recv.owes_done()),
        };
        owes_done || self.streams[stream].recv.owes_limit()
    }

    /// Sends what waits to be sent: messages, notices, grants, and counters that the peer needs.
    #[inline]
    pub(super) fn flush(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        if self.broken.is_some() {
            return Ok(());
        }
        self.post_unsent(env)?;
        if self.placed.is_some() {
            self.post_pieces(env)?;
        } else {
            self.repeat_pieces(env)?;
        }
        if !self.notices.is_empty() {
            self.flush_notices(env)?;
        }
        if !self.grants.is_empty() && self.notices.is_empty() {
            self.flush_grants(env)?;
        }
        for stream in 0..STREAMS {
            if self.tell_all || self.owes(stream, env.rules.completions_confirm()) {
                self.say_ack(env, stream, 0)?;
            }
        }
        self.tell_all = false;
        let unacknowledged = self.received.expected().wrapping_sub(self.told_ack);
        if self.ack_now || unacknowledged >= UNACKNOWLEDGED {
            self.say_ack(env, 0, 0)?;
        }
        Ok(())
    }

    fn flush_notices(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        while let Some(notice) = self.notices.front() {
            let (header, payload, len) = notice.encode();
            let pinned = notice.pinned();
            if !self.send(env, header, Span::from(&payload[..len]), true, pinned)? {
                break;
            }
            self.notices.pop_front();
        }
        Ok(())
    }

    fn flush_grants(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        if self.grants.len() > 1 {
            // Those that are granted again belong before later ones that wait here.
            let done: [u32; STREAMS] = std::array::from_fn(|stream| self.done(stream));
            self.grants.sort_by_key(|grant| grant.piece.wrapping_sub(done[usize::from(grant.stream)]));
        }
        while !self.grants.is_empty() {
            let mut batch = [bytemuck::Zeroable::zeroed(); GRANTS_PER_MESSAGE];
            let count = self.grants.len().min(GRANTS_PER_MESSAGE);
            batch[..count].copy_from_slice(&self.grants[..count]);
            let payload = Span::from(bytemuck::cast_slice(&batch[..count]));
            if !self.send(env, Header::new(Kind::Grants), payload, true, None)? {
                break;
            }
            self.grants.drain(..count);
        }
        Ok(())
    }

    /// Repeats what was not acknowledged in time, and asks for counters that may have been lost.
    pub(super) fn retry(&mut self, env: &mut Env<'_>, now: Instant) -> Result<(), TransportError> {
        if self.is_gone || self.active().is_none() {
            return Ok(());
        }
        if self.sequence.is_empty() {
            self.acknowledgement = Retry::NEW;
        } else if !env.rules.reliable && self.acknowledgement.is_due(now) {
            self.streams[0].counters.retransmissions += self.sequence.forget_all() as u64;
            self.post_unsent(env)?;
        }
        // Calls do not wait for staged pieces, but their places and the end of the connection do.
        if !std::mem::take(&mut self.wants_word) && self.are_pieces_sent() {
            self.word = Retry::NEW;
        } else if self.word.is_due(now) {
            self.say_ack(env, 0, ASK)?;
        }
        Ok(())
    }

    /// Whether all pieces that were sent have arrived.
    pub(super) fn are_pieces_sent(&self) -> bool {
        let placed = self.placed.as_ref().is_none_or(Placed::is_sent);
        placed && self.granted.iter().all(|granted| granted.send.is_idle())
    }

    /// Notes that a call waits for a message.
    #[inline]
    pub(super) fn await_message(&mut self) {
        self.is_awaited = true;
    }

    /// Whether anything is expected of the peer: a message, or an acknowledgement.
    pub(super) fn expects_word(&mut self, now: Instant) -> bool {
        if std::mem::take(&mut self.is_awaited) {
            self.last_awaited = Some(now);
        }
        let is_awaited =
            self.last_awaited.is_some_and(|last| now.saturating_duration_since(last) < AWAITED_FOR);
        is_awaited || !self.sequence.is_empty() || !self.are_pieces_sent()
    }

    /// Between calls: tells what has not been told, and, after a long silence, gives every queue pair something
    /// to do.
    pub(super) fn look_after(&mut self, env: &mut Env<'_>, is_silent: bool) -> Result<(), TransportError> {
        if self.broken.is_some() || self.is_gone {
            return Ok(());
        }
        for stream in 0..STREAMS {
            let has_untold_done = match &self.placed {
                Some(placed) => stream == 0 && placed.has_untold_done(),
                None => self.granted.get(stream).is_some_and(|granted| granted.recv.has_untold_done()),
            };
            if has_untold_done || self.streams[stream].recv.has_untold_limit() {
                self.say_ack(env, stream, 0)?;
            }
        }
        if self.told_ack != self.received.expected() {
            self.say_ack(env, 0, 0)?;
        }
        if is_silent {
            self.keep_alive(env)?;
        }
        Ok(())
    }

    /// Counters of a stream. What is counted once for all streams stands with the first.
    pub(super) fn counters(&self, stream: usize) -> Counters {
        let mut counters = self.streams[stream].counters;
        if stream == 0 {
            counters.refused += self.queues().map(|queue| queue.refusals).sum::<u64>();
        }
        counters
    }

    /// The queue pairs of all rails.
    pub(super) fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.rails.iter().flat_map(Rail::queues)
    }
}

/// Reads a value from the slab; the place need not be aligned.
#[inline]
pub(super) fn read<T: bytemuck::Pod>(memory: &Memory, at: usize) -> T {
    bytemuck::pod_read_unaligned(memory.bytes(at, size_of::<T>()))
}
