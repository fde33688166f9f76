//! Two channels over simulated connections that are cut anywhere: every message arrives once, whole and in
//! order.
//!
//! A simulated connection has the bytes that were written, those that have reached the other end's system,
//! and those that its reader has taken. A cut loses what has not reached the other end's system.

use super::{
    super::{
        receive::{ExpectedPart, Polled, RecvTarget, ReduceBuffer},
        socket::{ReadResult, Source},
        wire::Header,
    },
    carrier::{Carrier, PendingCarrier},
    channel::{Accepted, Answer, Channel, Failure, Phase},
    stream_out::{MAX_LOGGED_BYTES, MAX_TAIL_BYTES},
};
use crate::{
    Sink,
    memory::{Span, SpanMut},
};
use std::{cell::RefCell, collections::VecDeque, io, rc::Rc};

/// One direction of a simulated connection.
#[derive(Debug, Default)]
struct Pipe {
    /// Bytes that were written and have not arrived.
    under_way: VecDeque<u8>,
    /// Bytes that have arrived and have not been read.
    arrived: VecDeque<u8>,
    is_cut: bool,
    /// Whether the writer has closed the connection.
    is_closed: bool,
    /// Bytes that the writer's system takes at a time.
    room: usize,
}

impl Pipe {
    fn deliver(&mut self, bytes: usize) {
        let now = if self.is_cut { 0 } else { bytes.min(self.under_way.len()) };
        self.arrived.extend(self.under_way.drain(..now));
    }
}

/// One end of a simulated connection.
#[derive(Clone, Debug)]
struct Wire {
    out: Rc<RefCell<Pipe>>,
    into: Rc<RefCell<Pipe>>,
}

fn wires(room: usize) -> [Wire; 2] {
    let pipe = || Rc::new(RefCell::new(Pipe { room, ..Pipe::default() }));
    let (forth, back) = (pipe(), pipe());
    [Wire { out: Rc::clone(&forth), into: Rc::clone(&back) }, Wire { out: back, into: forth }]
}

impl Wire {
    fn cut(&self) {
        self.out.borrow_mut().is_cut = true;
        self.into.borrow_mut().is_cut = true;
    }

    fn deliver(&self, bytes: usize) {
        self.out.borrow_mut().deliver(bytes);
        self.into.borrow_mut().deliver(bytes);
    }
}

impl Source for Wire {
    fn recv<const N: usize>(&self, parts: [SpanMut<'_>; N]) -> io::Result<ReadResult> {
        let mut pipe = self.into.borrow_mut();
        if pipe.arrived.is_empty() {
            return match (pipe.is_cut, pipe.is_closed) {
                (true, _) => Err(io::ErrorKind::ConnectionReset.into()),
                (false, true) => Ok(ReadResult::Eof),
                (false, false) => Ok(ReadResult::WouldBlock),
            };
        }
        let mut read = 0;
        for part in parts {
            let now = part.len().min(pipe.arrived.len());
            let bytes: Vec<u8> = pipe.arrived.drain(..now).collect();
            part.sub(0, now).copy_from(Span::from(&bytes[..]));
            read += now;
        }
        Ok(ReadResult::Bytes(read))
    }
}

impl Carrier for Wire {
    fn send(&self, header: &[u8], body: Span<'_>) -> io::Result<usize> {
        let mut pipe = self.out.borrow_mut();
        if pipe.is_cut {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut bytes = header.to_vec();
        bytes.resize(header.len() + body.len(), 0);
        SpanMut::from(&mut bytes[header.len()..]).copy_from(body);
        let now = bytes.len().min(pipe.room.saturating_sub(pipe.under_way.len()));
        pipe.under_way.extend(&bytes[..now]);
        Ok(now)
    }

    fn flush(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn unreceived(&self) -> u64 {
        self.out.borrow().under_way.len() as u64
    }
}

impl PendingCarrier for Wire {
    type Carrier = Wire;

    fn poll_offset(&mut self) -> io::Result<Option<u64>> {
        let mut pipe = self.into.borrow_mut();
        if pipe.arrived.len() < 8 {
            return if pipe.is_cut { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(None) };
        }
        let bytes: Vec<u8> = pipe.arrived.drain(..8).collect();
        Ok(Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes"))))
    }

    fn into_carrier(self) -> Wire {
        self
    }
}

/// A message that an end sends: its number, bytes, and whether it has begun.
struct Sending {
    number: u64,
    bytes: Vec<u8>,
}

/// One rank with its channel, and a program that sends and receives messages.
struct End {
    channel: Channel<Wire>,
    lens: Vec<usize>,
    sending: Option<Sending>,
    sent: u64,
    received: u64,
    payload: Vec<u8>,
    reduce_buffer: ReduceBuffer,
}

/// Memory of a message, which is reduced if the flag is set.
struct Destination<'a>(&'a mut [u8], bool);

impl Sink for Destination<'_> {
    fn write(&mut self, offset: usize, data: Span<'_>) {
        SpanMut::from(&mut self.0[offset..offset + data.len()]).copy_from(data);
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        (!self.1).then(|| SpanMut::from(&mut *self.0))
    }
}

/// Bytes of a message, different for each one.
fn message(from: usize, number: u64, len: usize) -> Vec<u8> {
    let seed = (from as u64 + 1) * 1_000_003 + number * 7919;
    (0..len as u64).map(|at| ((seed + at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
}

impl End {
    fn new(lens: &[usize]) -> End {
        End {
            channel: Channel::new(),
            lens: lens.to_vec(),
            sending: None,
            sent: 0,
            received: 0,
            payload: Vec::new(),
            reduce_buffer: ReduceBuffer::default(),
        }
    }

    fn is_done(&self, theirs: &[usize]) -> bool {
        self.sent as usize == self.lens.len() && self.received as usize == theirs.len()
    }

    /// Polls the message being sent once; its memory is overwritten when the channel says that it is free.
    fn send(&mut self, me: usize) {
        let Some(len) = self.lens.get(self.sent as usize).copied() else { return };
        let number = self.sent;
        let sending = self.sending.get_or_insert_with(|| {
            let header = Header { digest: number, len: len as u64, part: 0, match_ack: false };
            self.channel.begin(&header, len);
            Sending { number, bytes: message(me, number, len) }
        });
        assert_eq!(sending.number, number);
        let (_, is_complete) = self.channel.write(Span::from(&sending.bytes[..]), len);
        if is_complete {
            sending.bytes.fill(0xee);
            self.sending = None;
            self.sent += 1;
        }
    }

    /// Polls the message being received once.
    fn receive(&mut self, from: usize, theirs: &[usize]) {
        let Some(len) = theirs.get(self.received as usize).copied() else { return };
        self.payload.resize(len, 0);
        let digest = self.received;
        let expected = ExpectedPart { digest, total: len, part: 0, base: 0, len };
        let mut target = RecvTarget {
            sink: &mut Destination(&mut self.payload, digest % 2 == 1),
            reduce_buffer: &mut self.reduce_buffer,
            copied: &mut 0,
        };
        if self.channel.receive(&expected, &mut target).expect("the expected message") == Polled::Complete {
            assert!(self.payload == message(from, digest, len), "message {digest} of {len} bytes");
            self.channel.next();
            self.received += 1;
        }
    }
}

/// An attempt of an end that has begun.
struct Attempt {
    from: usize,
    number: u32,
    wires: [Wire; 2],
    /// The responder's answer, if it was given.
    answer: Option<Answer>,
}

/// Two ends, and the attempts and connections between them.
struct World {
    ends: [End; 2],
    wires: Vec<Wire>,
    attempt: [Option<Attempt>; 2],
    awaited: [bool; 2],
    room: usize,
    cuts: usize,
}

impl World {
    fn new(lens: [&[usize]; 2], room: usize) -> World {
        World {
            ends: lens.map(End::new),
            wires: Vec::new(),
            attempt: [None, None],
            awaited: [false; 2],
            room,
            cuts: 0,
        }
    }

    fn is_done(&self) -> bool {
        let [a, b] = &self.ends;
        a.is_done(&b.lens) && b.is_done(&a.lens)
    }

    fn cut(&mut self) {
        self.cuts += usize::from(!self.wires.is_empty());
        self.wires.iter().for_each(Wire::cut);
        self.wires.clear();
    }

    fn deliver(&mut self, bytes: usize) {
        self.wires.iter().for_each(|wire| wire.deliver(bytes));
    }

    /// Starts an attempt of an end that needs a connection, or that replaces one that works.
    fn dial(&mut self, from: usize, is_forced: bool) {
        let channel = &mut self.ends[from].channel;
        let is_needed = channel.needs_connection() || is_forced && channel.phase() == Phase::Running;
        if self.attempt[from].is_some() || !is_needed {
            return;
        }
        let number = channel.next_attempt();
        channel.start_attempt();
        let wires = wires(self.room);
        self.wires.push(wires[0].clone());
        self.attempt[from] = Some(Attempt { from, number, wires, answer: None });
    }

    /// The responder processes an attempt, unless it was cut off.
    fn answer(&mut self, from: usize) {
        let Some(attempt) = &mut self.attempt[from] else { return };
        let [_, theirs] = &attempt.wires;
        if attempt.answer.is_some() || theirs.into.borrow().is_cut {
            return;
        }
        let responder = 1 - attempt.from;
        let channel = &mut self.ends[responder].channel;
        let answer = channel.accept(attempt.number, responder == 0);
        if matches!(answer, Answer::Accepted(_)) {
            channel.await_offset(theirs.clone());
            self.awaited[responder] = true;
        }
        attempt.answer = Some(answer);
    }

    /// The initiator processes the answer to its attempt, or the loss of it.
    fn conclude(&mut self, from: usize, is_answer_lost: bool) {
        let Some(attempt) = &self.attempt[from] else { return };
        let is_cut = attempt.wires[0].into.borrow().is_cut;
        let answer = attempt.answer.filter(|_| !is_answer_lost && !is_cut);
        if answer.is_none() && !is_cut && !is_answer_lost {
            return;
        }
        let attempt = self.attempt[from].take().expect("seen");
        let channel = &mut self.ends[from].channel;
        let is_superseded = channel.phase() == Phase::Running || channel.pending().is_some();
        let Some(Answer::Accepted(theirs)) = answer.filter(|_| !is_superseded) else {
            channel.give_up_attempt();
            attempt.wires[0].cut();
            return;
        };
        let [ours, _] = attempt.wires;
        let send_offset =
            |wire: &mut Wire, offset: u64| wire.send(&[], Span::from(&offset.to_le_bytes()[..])).map(drop);
        // An attempt of the other end may have won meanwhile.
        if channel.run_initiated(theirs, ours.clone(), send_offset).is_err() {
            ours.cut();
        }
    }

    fn poll_pending(&mut self, at: usize) {
        if std::mem::take(&mut self.awaited[at]) {
            let channel = &mut self.ends[at].channel;
            channel.poll_pending();
            self.awaited[at] = channel.pending().is_some();
        }
    }

    fn poll(&mut self, at: usize) {
        let theirs = self.ends[1 - at].lens.clone();
        self.ends[at].send(at);
        self.ends[at].receive(1 - at, &theirs);
        self.ends[at].channel.resend();
    }

    /// Runs without further cuts until all messages have arrived.
    fn finish(&mut self) {
        for _ in 0..200_000 {
            if self.is_done() {
                return;
            }
            self.step_in_order();
        }
        panic!(
            "stuck: {:?}, attempts {:?}",
            self.ends.each_ref().map(|end| (
                end.sent,
                end.received,
                end.channel.phase(),
                end.channel.pending().is_some(),
                end.channel.failure()
            )),
            self.attempt.each_ref().map(|attempt| attempt.as_ref().map(|attempt| attempt.answer))
        );
    }

    fn step_in_order(&mut self) {
        for at in [0, 1] {
            self.dial(at, false);
            self.answer(at);
            self.conclude(at, false);
            self.poll_pending(at);
            self.poll(at);
        }
        self.deliver(usize::MAX);
    }
}

/// Numbers at random, from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }
}

#[test]
fn a_cut_after_any_byte_of_a_connection_loses_nothing() {
    let lens: [&[usize]; 2] = [&[3, 40, 0, 7], &[5, 1]];
    for bytes in 0..170 {
        for back in [0, bytes / 2, usize::MAX] {
            let mut world = World::new(lens, 1 << 20);
            for _ in 0..4 {
                world.dial(0, false);
                world.answer(0);
                world.conclude(0, false);
                (0..2).for_each(|at| world.poll(at));
            }
            // The first wire is rank 0's end of the first connection.
            let wire = world.wires[0].clone();
            wire.out.borrow_mut().deliver(bytes);
            world.poll_pending(1);
            (0..2).for_each(|at| world.poll(at));
            wire.into.borrow_mut().deliver(back);
            (0..2).for_each(|at| world.poll(at));
            world.cut();
            world.finish();
        }
    }
}

#[test]
fn every_order_of_steps_around_two_cuts_loses_nothing() {
    // Each digit of a number selects a step; all numbers of six digits.
    const STEPS: usize = 8;
    for order in 0..STEPS.pow(6) {
        let mut world = World::new([&[3, 20], &[9]], 1 << 20);
        for _ in 0..3 {
            world.step_in_order();
        }
        world.cut();
        let mut digits = order;
        for _ in 0..6 {
            match digits % STEPS {
                0 => world.dial(0, false),
                1 => world.dial(1, false),
                2 => (0..2).for_each(|at| world.answer(at)),
                3 => (0..2).for_each(|at| world.conclude(at, false)),
                4 => world.deliver(usize::MAX),
                5 => (0..2).for_each(|at| world.poll_pending(at)),
                6 => (0..2).for_each(|at| world.poll(at)),
                _ => world.cut(),
            }
            digits /= STEPS;
        }
        world.finish();
    }
}

#[test]
fn cuts_and_lost_answers_at_random_lose_nothing() {
    let long = MAX_TAIL_BYTES + 100_000;
    let sizes = [0, 1, 100, 1024, 5000, MAX_LOGGED_BYTES, MAX_LOGGED_BYTES + 1, long];
    let (mut cuts, mut replaced) = (0, 0);
    for seed in 1..=150 {
        let mut random = Random(u64::wrapping_mul(seed, 0x2545_f491_4f6c_dd1d));
        let mut lens = || (0..12).map(|_| sizes[random.below(sizes.len())]).collect::<Vec<usize>>();
        let (ours, theirs) = (lens(), lens());
        let mut world = World::new([&ours, &theirs], [3000, 70_000, 1 << 20][seed as usize % 3]);
        for _ in 0..600 {
            let at = random.below(2);
            match random.below(40) {
                0 => world.cut(),
                1 => {
                    replaced += usize::from(world.ends[at].channel.phase() == Phase::Running);
                    world.dial(at, true);
                }
                2 => world.conclude(at, true),
                3..=6 => world.dial(at, false),
                7..=10 => world.answer(at),
                11..=14 => world.conclude(at, false),
                15..=17 => world.poll_pending(at),
                18..=28 => world.deliver([1, 7, 100, 5000, 1 << 20][random.below(5)]),
                _ => world.poll(at),
            }
        }
        cuts += world.cuts;
        world.finish();
    }
    assert!(cuts > 500 && replaced > 100, "{cuts} cuts and {replaced} replacements are too few");
}

#[test]
fn counts_that_can_not_be_are_failures_and_no_wrong_bytes() {
    // The peer says that it has received more than was sent.
    let mut world = World::new([&[100], &[]], 1 << 20);
    world.step_in_order();
    world.cut();
    let channel = &mut world.ends[0].channel;
    channel.start_attempt();
    channel
        .run_initiated(Accepted { received: 1 << 40, attempt: 0 }, wires(100)[0].clone(), |_, _| Ok(()))
        .expect("sent");
    assert!(matches!(channel.failure(), Some(Failure::Protocol(_))), "{:?}", channel.failure());
    // It has lost bytes that its system has acknowledged.
    let mut world = World::new([&[MAX_LOGGED_BYTES; 20], &[]], 1 << 20);
    for _ in 0..60 {
        world.step_in_order();
    }
    let channel = &mut world.ends[0].channel;
    channel.start_attempt();
    channel
        .run_initiated(Accepted { received: 5, attempt: 0 }, wires(100)[0].clone(), |_, _| Ok(()))
        .expect("sent");
    assert!(matches!(channel.failure(), Some(Failure::Lost(_))), "{:?}", channel.failure());
}

/// The peer closes a connection that it has accepted and given up, for example while its thread was not
/// scheduled for a second.
#[test]
fn the_end_of_a_connection_is_not_the_end_of_the_peer() {
    let mut world = World::new([&[3, 40], &[5, MAX_LOGGED_BYTES + 1]], 1 << 20);
    world.step_in_order();
    let ours = world.wires[0].clone();
    ours.into.borrow_mut().is_closed = true;
    ours.into.borrow_mut().deliver(usize::MAX);
    for _ in 0..4 {
        world.poll(0);
    }
    let channel = &world.ends[0].channel;
    assert_eq!((channel.phase(), channel.failure()), (Phase::Stopped, None));
    world.cut();
    world.finish();
}

#[test]
fn an_attempt_that_a_later_one_has_replaced_is_stale() {
    let mut channel: Channel<Wire> = Channel::new();
    let accepted = |attempt| Answer::Accepted(Accepted { received: 0, attempt });
    assert_eq!(channel.accept(2, false), accepted(0));
    assert_eq!(channel.accept(1, false), Answer::Stale);
    assert_eq!(channel.accept(2, false), Answer::Stale);
    assert_eq!(channel.next_attempt(), 1);
    channel.start_attempt();
    assert_eq!(channel.accept(3, true), Answer::Crossed);
    assert_eq!(channel.accept(4, false), accepted(1));
}
