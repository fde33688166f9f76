//! Messages of a hostile peer in receive slots, for tests and the fuzz target `verbs_messages` under `fuzz/`.
//!
//! A script fills slots, completes requests of a device that moves no bytes, and makes calls on the streams
//! to the peer. The peer is driven as usual, is given up because of an error, or does nothing; memory outside
//! of the destinations of receives stays as it is.

use super::{
    VerbsConfig,
    engine::Engine,
    granted::Granted,
    memory::{DeviceKeys, LINE, Memory},
    peer::Peer,
    placed::Placed,
    port::Port,
    queue::{Id, Queue, RequestKind},
    rail::{self, Ends, PLACED, Rail},
    rules::Rules,
    slots::{Queues, SendStore},
    wire::{FRAME_BYTES, Grant, Header, Kind, Mark, NO_STREAM, Ready, message_checksum},
};
use crate::{
    Protocol, RecvState, SendState, Sink, SizeClass,
    memory::{Mapping, Registered, Slab, Span, SpanMut},
    verbs::{
        Completion, DeviceCapabilities, Gid, LocalAddress, Mtu, PacketClass, QpType, QueuePairSpec,
        RemoteAddress, WcOpcode, WcStatus, null_device,
    },
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Bytes of the slab.
const SLAB_BYTES: usize = 32 << 20;
/// Bytes of a piece, and pieces in flight.
const PIECE_BYTES: usize = 64 << 10;
const WINDOW: usize = 4;
/// Acts of a script that are carried out.
const MAX_ACTS: usize = 80;
const LENS: [usize; 8] = [0, 40, 5000, 20_000, 70_000, 140_000, 300_000, 64 << 10];
const DIGEST: u64 = 10;
const RAILS: usize = 2;

/// Unread rest of a script.
struct Script<'s>(&'s [u8]);

impl Script<'_> {
    /// Returns the next byte; 0 behind the end.
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Returns a small number, one that is small and negative, or any.
    fn number(&mut self) -> u32 {
        let byte = self.byte();
        match byte >> 6 {
            0 | 1 => u32::from(byte & 63),
            2 => u32::from(byte & 63).wrapping_neg(),
            _ => u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()]),
        }
    }

    fn stream(&mut self) -> u32 {
        match self.byte() {
            0..=99 => 0,
            100..=199 => 1,
            200..=229 => NO_STREAM,
            _ => self.number(),
        }
    }

    fn len(&mut self) -> usize {
        LENS[usize::from(self.byte()) % LENS.len()]
    }

    fn kind(&mut self) -> u8 {
        const KINDS: [Kind; 20] = [
            Kind::Eager,
            Kind::Head,
            Kind::Grants,
            Kind::Sent,
            Kind::Arrived,
            Kind::RailDown,
            Kind::PlacedDown,
            Kind::PlacedReady,
            Kind::Placed,
            Kind::Relay,
            Kind::Revoke,
            Kind::Revoked,
            Kind::Ended,
            Kind::Ack,
            Kind::Hello,
            Kind::Ping,
            Kind::Pong,
            Kind::Probe,
            Kind::Reply,
            Kind::Trailer,
        ];
        KINDS[usize::from(self.byte()) % KINDS.len()] as u8
    }

    fn mark(&mut self) -> Mark {
        Mark { piece: self.number(), crc: 0, stream: self.stream(), attempt: self.number() }
    }
}

/// A sink that drops what it gets, or one with a destination.
struct Destination(Option<SpanMut<'static>>);

impl Sink for Destination {
    fn write(&mut self, offset: usize, data: Span<'_>) {
        if let Some(destination) = self.0 {
            destination.sub(offset, data.len()).copy_from(data);
        }
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        self.0
    }
}

/// A rank with one peer.
struct Rig {
    engine: Engine,
    places: Vec<Registered>,
    /// Numbers of the queue pairs: by rail, those of slots and the placed one.
    pairs: Vec<Vec<u32>>,
    /// Number of the next sequenced message of the hostile peer.
    next: u32,
    now: Instant,
    receive: Option<(usize, RecvState, Destination)>,
    send: Option<(usize, SendState, usize, Vec<u8>)>,
    /// Messages that the peer has acknowledged, in tests.
    #[cfg(test)]
    acknowledged: u32,
}

/// The rules that the lowest bits of a number select.
fn rules(bits: u8) -> Rules {
    let one_sided = bits & 1 == 1;
    Rules {
        piece_bytes: PIECE_BYTES,
        window: WINDOW,
        checksum: bits & 2 != 0,
        reliable: bits & 4 != 0,
        one_sided,
        has_placed: !one_sided,
        queues: if one_sided { Queues::Shared } else { Queues::Both },
        cable_wait: Duration::from_secs(1),
    }
}

impl Rig {
    fn new(bits: u8) -> Rig {
        let rules = rules(bits);
        let mapping = Arc::new(Mapping::private(SLAB_BYTES).expect("memory"));
        let slab = Slab::over(mapping, 0..SLAB_BYTES, Some(LINE as u64));
        let memory = Memory::new(&slab, SLAB_BYTES, PIECE_BYTES);
        let config = VerbsConfig::default();
        let context = null_device::library().open("null").expect("a device");
        let domain = context.domain().expect("a domain");
        let keys = DeviceKeys::new(domain.clone(), rules.access(), memory.clone());
        let [sends, receives] = [(); 2].map(|()| context.completion_queue(4096, None).expect("a queue"));
        let capabilities = capabilities(&rules);
        let port = Port::new(
            (context, domain, keys, capabilities),
            (sends, receives, None),
            (0, Gid([0xfe; 16])),
            &VerbsConfig::default(),
        );
        let engine = Engine::new(vec![None, None], vec![port], memory, rules, &config);
        let (now, places, pairs) = (Instant::now(), Vec::new(), Vec::new());
        let mut rig = Rig {
            engine,
            places,
            pairs,
            next: 0,
            now,
            receive: None,
            send: None,
            #[cfg(test)]
            acknowledged: 0,
        };
        rig.connect(&slab, &rules);
        rig
    }

    /// Makes the peer, its rails and two streams to it.
    fn connect(&mut self, slab: &Slab, rules: &Rules) {
        let rails: Vec<Rail> = (0..RAILS).map(|index| self.make_rail(slab, rules, index)).collect();
        let store = SendStore::new(rules.queues, self.place(slab, rules.queues.send_bytes()));
        let placed = rules.has_placed.then(|| {
            let base = self.place(slab, Placed::staging_bytes(rules));
            Placed::new(RAILS, base, rules)
        });
        self.engine.peers[1] = Some(Peer::new((1, true), rails, store, placed));
        for number in 0..2 {
            let granted = match rules.one_sided {
                true => Granted::new(self.place(slab, Granted::staging_bytes(rules)), rules),
                false => Granted::unused(),
            };
            self.engine.peer(1).expect("a peer").0.open_stream(number, granted).expect("a new number");
        }
        let (peer, mut env) = self.engine.peer(1).expect("a peer");
        for rail in 0..RAILS {
            let numbers: Vec<u32> = (0..rules.queues.receives().len() as u32).collect();
            peer.rails_mut()[rail].set_far_numbers(0, &numbers, rules.has_placed.then_some(9));
            peer.start_rail(&mut env, rail).expect("a device that grants everything");
        }
    }

    fn place(&mut self, slab: &Slab, bytes: usize) -> usize {
        let place = slab.allocate(bytes).expect("room in the slab");
        let at = self.engine.memory.locate(place.as_ptr(), bytes).expect("a part of the slab");
        self.places.push(place);
        at
    }

    fn make_rail(&mut self, slab: &Slab, rules: &Rules, index: usize) -> Rail {
        let base = self.place(slab, rail::rail_bytes(rules));
        let port = &self.engine.ports[0];
        let mut numbers = Vec::new();
        let mut queue = |queue: u8| {
            let spec =
                QueuePairSpec { service: QpType::RC, send_depth: 256, recv_depth: 512, inline_bytes: 0 };
            let pair = port.domain.queue_pair_on(&spec, &port.sends, &port.receives).expect("a queue pair");
            numbers.push(pair.number());
            let id = Id { kind: RequestKind::Sent, peer: 1, rail: index as u8, life: 0, queue, value: 0 };
            Queue::new(pair, id, 256, port.capabilities.frame_bytes)
        };
        let pairs = (0..rules.queues.receives().len()).map(|number| queue(number as u8)).collect();
        let placed = rules.has_placed.then(|| queue(PLACED));
        self.pairs.push(numbers);
        let near = LocalAddress { gid_index: 0, mtu: Mtu::B4096, psn: 0, class: PacketClass::default() };
        let ends = Ends { port: 0, name: format!("rail {index}"), theirs: "far".to_owned(), near };
        let far = RemoteAddress { qp: 0, gid: Gid([0xfe; 16]), lid: 0, psn: 0 };
        Rail::new(ends, far, rules.queues, pairs, placed, base)
    }

    /// Completes the oldest receive of a queue pair, as a message of `bytes` bytes or a write.
    fn complete(
        &mut self,
        (rail, queue): (usize, usize),
        message: &[u8],
        imm: Option<u32>,
        status: WcStatus,
    ) {
        let pairs = &self.pairs[rail];
        let Some(id) = null_device::take_receive(pairs[queue % pairs.len()]) else { return };
        let slot = Id::unpack(id);
        let receives = self.engine.rules.queues.receives();
        let rail = &self.engine.peer(1).expect("a peer").0.rails()[rail];
        let place = match slot.kind {
            RequestKind::Slot => {
                let queue = usize::from(slot.queue);
                Some((rail.slot(queue, slot.value), receives[queue].bytes))
            }
            RequestKind::Trailer => Some((rail.trailer_in(slot.value), FRAME_BYTES)),
            RequestKind::Sent | RequestKind::Piece => None,
        };
        let message = place.map_or(message, |(_, room)| &message[..message.len().min(room)]);
        if let Some((at, _)) = place {
            self.engine.memory.put(at, Span::from(message));
        }
        let opcode = if imm.is_some() { WcOpcode::RECV_RDMA_WITH_IMM } else { WcOpcode::RECV };
        let bytes = message.len() as u32;
        let completion = Completion { id, status, opcode, bytes, imm, qp: 0 };
        self.engine.drive(1, |peer, env| peer.take_completion(env, slot, &completion));
        self.engine.drive(1, Peer::flush);
    }

    /// Returns a message as the hostile peer would write it, with a header that is right but for what the
    /// script says.
    fn message(&mut self, script: &mut Script<'_>) -> Vec<u8> {
        let kind = script.kind();
        let is_sequenced = kind < Kind::Ack as u8;
        let (life, their_life) = {
            let rail = &self.engine.peer(1).expect("a peer").0.rails()[0];
            (rail.handshake.their_life(), rail.handshake.life())
        };
        let skew = script.byte();
        let seq = self.next.wrapping_add(if skew > 240 { script.number() } else { 0 });
        if is_sequenced && skew <= 240 {
            self.next = self.next.wrapping_add(1);
        }
        let mut payload = Vec::new();
        match kind {
            kind if kind == Kind::Grants as u8 => {
                for _ in 0..script.byte() % 4 {
                    payload.extend(bytemuck::bytes_of(&grant(script)));
                }
            }
            kind if kind == Kind::PlacedReady as u8 => {
                let (epoch, first) = (script.number(), script.number());
                let (rails, via) = (script.number(), script.number());
                let costs = std::array::from_fn(|_| script.number());
                payload.extend(bytemuck::bytes_of(&Ready { epoch, first, rails, via, costs }));
            }
            _ if script.byte() & 3 != 0 => payload.extend(bytemuck::bytes_of(&script.mark())),
            _ => payload.resize(script.len() % 5001, 7),
        }
        let header = Header {
            seq,
            stream: script.stream(),
            len: payload.len() as u16,
            flags: script.byte() & 7,
            life: life.wrapping_add(if skew & 7 == 7 { script.byte() } else { 0 }),
            their_life,
            previous: seq.wrapping_sub(1) as u16,
            digest: if script.byte() < 250 { DIGEST } else { 1 },
            total: if script.byte() < 128 { payload.len() as u64 } else { script.len() as u64 },
            message: script.number(),
            value: script.number(),
            ack: script.number(),
            limit: script.number(),
            done: script.number(),
            bandwidth: script.number(),
            kind,
            ..Header::new(Kind::Ack)
        };
        let mut message = [bytemuck::bytes_of(&header), &payload].concat();
        let crc = message_checksum(&message);
        message[..4].copy_from_slice(&crc.to_le_bytes());
        message
    }

    fn act(&mut self, script: &mut Script<'_>) {
        let place = (usize::from(script.byte()) % RAILS, usize::from(script.byte() & 3));
        match script.byte() % 12 {
            0..=4 => {
                let message = self.message(script);
                self.complete(place, &message, None, WcStatus::SUCCESS);
            }
            5 => {
                let raw: Vec<u8> = (0..80).map(|_| script.byte()).collect();
                let len = usize::from(script.byte()).min(raw.len());
                self.complete(place, &raw[..len], None, WcStatus::SUCCESS);
            }
            6 => {
                let imm = script.number();
                self.complete(place, &[], Some(imm), WcStatus::SUCCESS);
            }
            7 => self.complete_send(place, script),
            8 => {
                let (stream, len) = (usize::from(script.byte() & 1), script.len());
                self.start_receive(stream, len, script.byte());
            }
            9 => {
                let (stream, len, bits) = (usize::from(script.byte() & 1), script.len(), script.byte());
                let state = SendState::new(DIGEST, Protocol::Copy).with_size(SizeClass::Bulk);
                let state = if bits & 1 == 1 { state.with_match_ack() } else { state };
                self.send = self.send.take().or(Some((stream, state, len, vec![3; len])));
            }
            10 => {
                self.now += Duration::from_millis(u64::from(script.byte()) * 8);
                let now = self.now;
                self.engine.drive(1, |peer, env| {
                    peer.look_at_rails(env, now)?;
                    peer.check_pulses(env, now)?;
                    peer.retry(env, now)?;
                    if !env.rules.reliable {
                        peer.probe_placed(env, now)?;
                    }
                    peer.flush(env)
                });
            }
            _ => {
                let stream = usize::from(script.byte() & 1);
                if script.byte() > 200 {
                    self.engine.drive(1, |peer, env| peer.end_stream(env, stream));
                    self.receive = self.receive.take().filter(|(other, ..)| *other != stream);
                    self.send = self.send.take().filter(|(other, ..)| *other != stream);
                }
            }
        }
        self.poll();
    }

    fn complete_send(&mut self, (rail, queue): (usize, usize), script: &mut Script<'_>) {
        let pairs = &self.pairs[rail];
        let Some(id) = null_device::take_send(pairs[queue % pairs.len()]) else { return };
        let status = if script.byte() < 240 { WcStatus::SUCCESS } else { WcStatus::RETRY_EXC_ERR };
        let completion = Completion { id, status, ..Completion::default() };
        self.engine.drive(1, |peer, env| peer.take_completion(env, Id::unpack(id), &completion));
        self.engine.drive(1, Peer::flush);
    }

    /// Starts a receive of `len` bytes, into registered memory, other memory or none.
    fn start_receive(&mut self, stream: usize, len: usize, bits: u8) {
        if self.receive.is_some() {
            return;
        }
        let state = RecvState::new(DIGEST, len).with_size(SizeClass::Bulk);
        self.receive = Some((stream, state, Destination(None)));
        if let Some((_, state, _)) = &mut self.receive
            && bits & 1 == 1
        {
            self.engine.drive(1, |peer, env| peer.announce(env, stream, state, None).map(drop));
        }
    }

    /// Polls the calls in progress.
    fn poll(&mut self) {
        if self.engine.check(1).is_err() {
            (self.receive, self.send) = (None, None);
            return;
        }
        let (peer, mut env) = self.engine.peer(1).expect("a peer");
        let mut error = None;
        if let Some((stream, state, sink)) = &mut self.receive {
            let before = state.received;
            let polled = peer.poll_recv(&mut env, *stream, state, sink);
            assert!(state.received >= before && state.received <= state.len);
            match polled {
                Ok(crate::RecvProgress::Complete) => self.receive = None,
                Ok(_) => {}
                Err(cause) => error = Some(cause),
            }
        }
        if let Some((stream, state, len, bytes)) = &mut self.send {
            match peer.poll_send(&mut env, *stream, state, Span::from(bytes.as_slice()), *len) {
                Ok(crate::SendProgress::Complete) => self.send = None,
                Ok(_) => {}
                Err(cause) => error = Some(cause),
            }
        }
        if let Some(error) = error {
            assert!(!error.to_string().is_empty());
            (self.receive, self.send) = (None, None);
            for stream in 0..2 {
                self.engine.drive(1, |peer, env| peer.end_stream(env, stream));
            }
        }
    }
}

fn grant(script: &mut Script<'_>) -> Grant {
    Grant {
        address: u64::from(script.number()),
        digest: if script.byte() < 250 { DIGEST } else { 2 },
        offset: u64::from(script.byte() & 3) * (PIECE_BYTES as u64),
        total: script.len() as u64,
        piece: script.number(),
        len: if script.byte() < 128 { PIECE_BYTES as u32 } else { script.number() },
        rkey: 1,
        stream: script.stream(),
        immediate: script.number(),
        rail: script.byte() % 4,
        attempt: script.byte() % 4,
        life: script.byte() % 2,
        zero: 0,
    }
}

fn capabilities(rules: &Rules) -> DeviceCapabilities {
    DeviceCapabilities {
        service: if rules.reliable { QpType::RC } else { QpType::UC },
        unreliable: true,
        one_sided: rules.one_sided,
        write_imm: rules.one_sided,
        events: false,
        max_inline: 0,
        max_sge: 1,
        max_message_bytes: 1 << 24,
        frame_bytes: (!rules.one_sided).then_some(4096),
        late_registration: true,
        max_regions: 100,
        max_queue_pairs: 100,
        region_line: None,
        depth: 4096,
        max_depth: 4096,
    }
}

/// Carries out a script: its first byte selects the rules.
///
/// # Panics
/// If the peer makes this rank violate an invariant.
pub fn feed(script: &[u8]) {
    let mut script = Script(script);
    let mut rig = Rig::new(script.byte());
    for _ in 0..MAX_ACTS {
        if script.0.is_empty() || rig.engine.check(1).is_err() {
            break;
        }
        rig.act(&mut script);
    }
    // As when the rank closes: queue pairs go before devices.
    rig.engine.end();
}

#[cfg(test)]
mod losses;
#[cfg(test)]
mod queued;

#[cfg(test)]
mod tests {
    use super::*;

    fn goodbye(rig: &mut Rig) {
        let rail = &rig.engine.peer(1).expect("a peer").0.rails()[0];
        let (life, their_life) = (rail.handshake.their_life(), rail.handshake.life());
        let mut message =
            bytemuck::bytes_of(&Header { life, their_life, ..Header::new(Kind::Goodbye) }).to_vec();
        let crc = message_checksum(&message);
        message[..4].copy_from_slice(&crc.to_le_bytes());
        rig.complete((0, 0), &message, None, WcStatus::SUCCESS);
    }

    /// Ranks of a communicator may go on after one of them has closed it. They can't after one has failed.
    #[test]
    fn an_engine_is_in_use_until_its_streams_end_or_lead_to_a_peer_that_failed() {
        let end_all = |rig: &mut Rig| {
            for stream in 0..2 {
                rig.engine.drive(1, |peer, env| peer.end_stream(env, stream));
            }
        };
        let lose = |rig: &mut Rig| rig.engine.ports[0].failure = Some("a test".to_owned());
        let give_up = |rig: &mut Rig| {
            rig.engine.give_up(1, &crate::TransportError::Lost { peer: 1, what: "a test".to_owned() });
        };
        let acts: [&dyn Fn(&mut Rig); 4] = [&goodbye, &end_all, &lose, &give_up];
        let expected = [(true, true), (false, false), (false, true), (false, true)];
        for (act, (is_in_use, is_unreachable)) in acts.into_iter().zip(expected) {
            let mut rig = Rig::new(0);
            assert!(rig.engine.is_in_use() && rig.engine.unreachable_peers().is_empty());
            act(&mut rig);
            assert_eq!(rig.engine.is_in_use(), is_in_use);
            assert_eq!(rig.engine.unreachable_peers(), if is_unreachable { vec![1] } else { Vec::new() });
        }
    }

    /// Memory that a device writes after its message was received may belong to somebody else.
    #[test]
    fn a_piece_that_is_written_twice_is_an_error() {
        let mut rig = Rig::new(5);
        rig.start_receive(0, 300_000, 1);
        for is_error in [false, true] {
            rig.complete((0, 0), &[], Some(0), WcStatus::SUCCESS);
            assert_eq!(rig.engine.check(1).is_err(), is_error);
        }
        rig.engine.end();
    }

    #[test]
    fn inputs_that_fuzzing_has_found_are_replayed() {
        support::replay("verbs_messages", feed);
    }
}
