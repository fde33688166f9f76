//! How steps get on: what the executor and a transport would do, event by event.
//!
//! A rank has one processor, which does one thing after the other: begins and receives pieces of messages, copies,
//! combines. A message goes through its stream in pieces:
//!
//! 1. Its send's turn comes when the sends before it in the stream have been handed on and the steps it comes after are
//!    complete. If it must, it waits for the receiver's word where it goes; each piece waits for a credit.
//! 2. The sender's processor begins each piece, which then leaves at the rate of the [network](super::network) once the
//!    pieces before it have left, and arrives one latency later.
//! 3. The receiver's processor takes it once it is the turn of its receive: that those before it in the stream and the
//!    steps it comes after are complete. That gives the credit back, and with the last piece the receive is complete.
//! 4. The send is complete when it is copied (small messages), or when the sender knows that the last byte has arrived.
//!
//! Invariants: a stream's messages keep their order in every stage. Whatever may move is looked at when what it waited
//! for has happened, so a run that ends with steps left is one that would hang.

use super::{
    Timing, Why,
    costs::{Costs, Way, at_rate},
    event::{Event, Events},
    network::Network,
    program::{Kind, NONE, Program, Step},
};
use std::collections::VecDeque;

/// A place in a stream: a message, by its position in the stream's list, and a piece of it.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    message: u32,
    piece: u32,
}

/// What the next piece of a sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    /// Nothing, or what it will be told of in any case.
    None,
    Grant,
    Credit,
}

/// The progress of a stream.
#[derive(Debug)]
struct Progress {
    /// What the sender's processor begins next, and whether it is at it.
    begins: Place,
    is_beginning: bool,
    block: Block,
    /// What leaves next, and how many pieces are ready to.
    leaves: Place,
    ready: u32,
    /// When the message that leaves began to.
    left_since: f64,
    /// Pieces begun, and pieces taken, in all.
    begun: u32,
    taken_in_all: u32,
    /// When the sender knows that the latest pieces were taken: as many as there are credits.
    taken_at: VecDeque<f64>,
    /// What the receiver's processor takes next, how many pieces are there, and whether it is at one.
    takes: Place,
    here: u32,
    is_taking: bool,
    /// The first receive that the sender has not been told of, and when it knew of those before.
    told: u32,
    /// The first send that is not complete.
    released: u32,
}

/// A run.
pub(super) struct Machine<'a> {
    program: &'a Program,
    costs: &'a Costs,
    network: Network,
    events: Events,
    now: f64,
    waits_for: Vec<u32>,
    streams: Vec<Progress>,
    /// Per message: when its sender knows where it goes.
    granted_at: Vec<f64>,
    /// When each rank's processor is free, and the step that it is busy with until then.
    processors: Vec<(f64, u32)>,
    timings: Vec<Timing>,
    remaining: usize,
    makespan: f64,
}

/// What a run came to.
pub(super) struct Run {
    pub(super) timings: Vec<Timing>,
    pub(super) network: Network,
    pub(super) makespan: f64,
    pub(super) events: u64,
    /// A step that never was complete, if there is one.
    pub(super) stuck: Option<u32>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(program: &'a Program, costs: &'a Costs, mut network: Network) -> Machine<'a> {
        program.routes.iter().for_each(|route| network.add(*route));
        let progress = |stream: &super::program::Stream| {
            let place = Place { message: stream.first, piece: 0 };
            Progress {
                begins: place,
                is_beginning: false,
                block: Block::None,
                leaves: place,
                ready: 0,
                left_since: 0.0,
                begun: 0,
                taken_in_all: 0,
                taken_at: VecDeque::new(),
                takes: place,
                here: 0,
                is_taking: false,
                told: stream.first,
                released: stream.first,
            }
        };
        Machine {
            costs,
            network,
            events: Events::default(),
            now: 0.0,
            waits_for: program.waits_for.clone(),
            streams: program.streams.iter().map(progress).collect(),
            granted_at: if costs.granted { vec![f64::INFINITY; program.sends.len()] } else { Vec::new() },
            processors: vec![(0.0, NONE); program.bases.len() - 1],
            timings: vec![Timing::default(); program.steps.len()],
            remaining: program.steps.len(),
            makespan: 0.0,
            program,
        }
    }

    pub(super) fn run(mut self) -> Run {
        for rank in 0..self.processors.len() as u32 {
            self.events.at(self.costs.call_us * 1e-6, Event::Entered { rank });
        }
        while let Some((time, event)) = self.events.pop() {
            self.now = time;
            self.happens(event);
            if self.events.next_time() != Some(time) {
                self.network.settle(self.now, &mut self.events);
            }
        }
        let is_stuck = |step: &u32| self.timings[*step as usize].end.is_nan();
        let stuck = (self.remaining > 0).then(|| (0..self.timings.len() as u32).find(is_stuck)).flatten();
        let Machine { timings, network, makespan, events, .. } = self;
        Run { timings, network, makespan, events: events.count(), stuck }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Entered { rank } => {
                let steps = self.program.bases[rank as usize]..self.program.bases[rank as usize + 1];
                let free: Vec<u32> = steps.filter(|step| self.waits_for[*step as usize] == 0).collect();
                free.iter().for_each(|step| self.timings[*step as usize].ready = self.now);
                free.into_iter().for_each(|step| self.go_on(step));
                self.tell_all(rank);
            }
            Event::Done { step } => self.complete(step),
            Event::Word { stream } => self.send(stream),
            Event::Sent { stream } => {
                self.streams[stream as usize].is_beginning = false;
                self.has_begun(stream);
                self.send(stream);
            }
            Event::Left { stream, word } if self.network.is_true(stream, word) => self.left(stream),
            Event::Left { .. } => {}
            Event::Arrived { stream } => {
                self.streams[stream as usize].here += 1;
                self.take(stream, Why::Message);
            }
            Event::Taken { stream } => {
                self.streams[stream as usize].is_taking = false;
                self.has_taken(stream);
                self.take(stream, Why::Rank);
            }
            Event::Released { stream } => self.release(stream),
        }
    }

    fn step(&self, step: u32) -> Step {
        self.program.steps[step as usize]
    }

    fn way(&self, step: Step) -> Way {
        self.costs.way(step.bytes, self.program.operation_bytes)
    }

    /// Nothing keeps a step any more but its turn.
    fn go_on(&mut self, step: u32) {
        let Step { kind, stream, bytes, .. } = self.step(step);
        match kind {
            Kind::Send => self.send(stream),
            Kind::Recv | Kind::RecvReduce => {
                self.tell(stream);
                self.take(stream, Why::Dependency);
            }
            Kind::Copy | Kind::Reduce | Kind::Pack => {
                let gbs = match kind {
                    Kind::Copy => self.costs.copy_gbs,
                    Kind::Reduce => self.costs.reduce_gbs,
                    _ => self.costs.pack_gbs,
                };
                let seconds = self.costs.step_us * 1e-6 + at_rate(bytes, gbs);
                let end = self.occupy(step, seconds, true);
                self.events.at(end, Event::Done { step });
            }
        }
    }

    /// Has a rank's processor do something of a step as soon as it can; returns when it is done. `begins` for the first
    /// thing that is done of it.
    fn occupy(&mut self, step: u32, seconds: f64, begins: bool) -> f64 {
        let (free, owner) = &mut self.processors[self.program.steps[step as usize].rank as usize];
        let start = free.max(self.now);
        if begins {
            let timing = &mut self.timings[step as usize];
            timing.begin = start;
            if start > self.now && *owner != NONE {
                (timing.why, timing.cause) = (Why::Rank, *owner);
            }
        }
        (*free, *owner) = (start + seconds, step);
        start + seconds
    }

    fn complete(&mut self, step: u32) {
        self.timings[step as usize].end = self.now;
        self.makespan = self.makespan.max(self.now);
        self.remaining -= 1;
        let range = self.program.starts[step as usize]..self.program.starts[step as usize + 1];
        for at in range {
            let dependent = self.program.dependents[at as usize];
            self.waits_for[dependent as usize] -= 1;
            if self.waits_for[dependent as usize] == 0 {
                let timing = &mut self.timings[dependent as usize];
                (timing.ready, timing.why, timing.cause) = (self.now, Why::Dependency, step);
                self.go_on(dependent);
            }
        }
    }

    /// The first send that is not complete is; and so are those behind it that were copied already, since sends are complete
    /// in order.
    fn release(&mut self, stream: u32) {
        loop {
            let progress = &mut self.streams[stream as usize];
            let step = self.program.sends[progress.released as usize];
            progress.released += 1;
            self.complete(step);
            let Progress { released, begins, .. } = self.streams[stream as usize];
            if released >= begins.message || !self.way(self.step(self.program.sends[released as usize])).eager
            {
                return;
            }
        }
    }

    /// Begins what may be sent of a stream.
    fn send(&mut self, stream: u32) {
        loop {
            let progress = &self.streams[stream as usize];
            let Place { message, piece } = progress.begins;
            if progress.is_beginning || message == self.program.streams[stream as usize].end {
                return;
            }
            let number = self.program.sends[message as usize];
            if self.waits_for[number as usize] != 0 || !self.may_begin(stream, number) {
                return;
            }
            let step = self.step(number);
            let way = self.way(step);
            if piece == 0 {
                self.note_begin(stream, number);
            }
            let once = if piece == 0 { self.costs.send_us * 1e-6 } else { 0.0 };
            let bytes = part(step.bytes, way.pieces, piece);
            let seconds = once + self.costs.moving(bytes, self.costs.send_gbs, way.copied);
            let end = if seconds > 0.0 { self.occupy(number, seconds, piece == 0) } else { self.now };
            let progress = &mut self.streams[stream as usize];
            (progress.is_beginning, progress.block) = (true, Block::None);
            if end > self.now {
                self.events.at(end, Event::Sent { stream });
                return;
            }
            self.streams[stream as usize].is_beginning = false;
            self.has_begun(stream);
        }
    }

    /// Has the next piece of a stream a place to go and a credit? If not, the sender is told when it has.
    fn may_begin(&mut self, stream: u32, step: u32) -> bool {
        let progress = &self.streams[stream as usize];
        let known = if self.way(self.step(step)).granted {
            self.granted_at[progress.begins.message as usize]
        } else {
            0.0
        };
        if known > self.now {
            return self.wait_for(stream, Block::Grant, known);
        }
        let missing = (progress.begun - progress.taken_in_all).checked_sub(self.costs.credits.max(1));
        let Some(missing) = missing else {
            // The word of the piece that makes room has to come back; the oldest of those under way counts.
            let under_way = progress.begun - progress.taken_in_all;
            let spare = (self.costs.credits.max(1) - under_way) as usize;
            let latest = progress.taken_at.len().checked_sub(spare).and_then(|at| progress.taken_at.get(at));
            let known = latest.copied().unwrap_or(0.0);
            return known <= self.now || self.wait_for(stream, Block::Credit, known);
        };
        debug_assert!(missing == 0, "more pieces than credits");
        self.wait_for(stream, Block::Credit, f64::INFINITY)
    }

    /// Lets the sender be told at a time, where that is known. False.
    fn wait_for(&mut self, stream: u32, block: Block, time: f64) -> bool {
        let progress = &mut self.streams[stream as usize];
        if time.is_finite() {
            self.events.at(time, Event::Word { stream });
        }
        progress.block = block;
        false
    }

    /// Notes why a send has begun now and not before.
    fn note_begin(&mut self, stream: u32, number: u32) {
        let progress = &self.streams[stream as usize];
        let message = progress.begins.message;
        let first = self.program.streams[stream as usize].first;
        let timing = &mut self.timings[number as usize];
        timing.begin = self.now;
        if self.now <= timing.ready {
            return;
        }
        match progress.block {
            // What kept the receiver from saying so: a step before the receive, or the receives ahead of it.
            Block::Grant => {
                let recv = self.program.recvs[message as usize];
                let ahead = message.checked_sub(self.costs.ahead.max(1)).filter(|at| *at >= first);
                let kept = self.timings[recv as usize].cause;
                let cause = if kept == NONE {
                    ahead.map_or(NONE, |at| self.program.recvs[at as usize])
                } else {
                    kept
                };
                let timing = &mut self.timings[number as usize];
                (timing.why, timing.cause) = (Why::Grant, cause);
            }
            Block::Credit => {
                let taken = progress.takes.message.min(message.saturating_sub(1)).max(first);
                (timing.why, timing.cause) = (Why::Credit, self.program.recvs[taken as usize]);
            }
            Block::None if message > first => {
                (timing.why, timing.cause) = (Why::Fifo, self.program.sends[message as usize - 1]);
            }
            Block::None => {}
        }
    }

    /// The sender's processor is done with a piece.
    fn has_begun(&mut self, stream: u32) {
        let progress = &mut self.streams[stream as usize];
        let Place { message, piece } = progress.begins;
        let number = self.program.sends[message as usize];
        let step = self.program.steps[number as usize];
        let way = self.costs.way(step.bytes, self.program.operation_bytes);
        progress.begun += 1;
        progress.ready += 1;
        let is_last = piece + 1 == way.pieces;
        progress.begins = next(progress.begins, is_last);
        if self.network.is_under_way(stream) {
            self.network.follow(stream, self.costs.on_the_wire(part(step.bytes, way.pieces, piece)));
        } else {
            self.leave(stream);
        }
        if is_last && way.eager && self.streams[stream as usize].released == message {
            self.release(stream);
        }
    }

    /// The bytes on the wire of the piece that leaves next, and whether it is its message's last.
    fn leaving(&self, stream: u32) -> (u64, bool) {
        let Place { message, piece } = self.streams[stream as usize].leaves;
        let step = self.step(self.program.sends[message as usize]);
        let pieces = self.way(step).pieces;
        (self.costs.on_the_wire(part(step.bytes, pieces, piece)), piece + 1 == pieces)
    }

    fn leave(&mut self, stream: u32) {
        let (bytes, _) = self.leaving(stream);
        let progress = &mut self.streams[stream as usize];
        if progress.leaves.piece == 0 {
            progress.left_since = self.now;
        }
        self.network.begin(stream, bytes, self.now);
    }

    /// A piece has left.
    fn left(&mut self, stream: u32) {
        let (bytes, is_last) = self.leaving(stream);
        let latency = self.network.latency(stream);
        self.events.at(self.now + latency, Event::Arrived { stream });
        let progress = &mut self.streams[stream as usize];
        let message = progress.leaves.message;
        let number = self.program.sends[message as usize];
        if is_last {
            self.timings[number as usize].wire = (self.now - progress.left_since) as f32;
            if !self.costs.way(self.program.steps[number as usize].bytes, self.program.operation_bytes).eager
            {
                let known = self.now
                    + latency
                    + self.program.back[stream as usize].latency * self.costs.confirmations;
                self.events.at(known, Event::Released { stream });
            }
        }
        let progress = &mut self.streams[stream as usize];
        progress.ready -= 1;
        progress.leaves = next(progress.leaves, is_last);
        if progress.ready == 0 {
            self.network.end(stream, bytes, self.now);
            return;
        }
        if is_last {
            progress.left_since = self.now;
        }
        let (following, _) = self.leaving(stream);
        self.network.go_on(stream, (bytes, following), self.now, &mut self.events);
    }

    /// Tells of the first receives of all streams of a rank that has entered the call.
    fn tell_all(&mut self, rank: u32) {
        for step in self.program.bases[rank as usize]..self.program.bases[rank as usize + 1] {
            let Step { kind, stream, .. } = self.step(step);
            let first = matches!(kind, Kind::Recv | Kind::RecvReduce)
                && self.program.recvs[self.program.streams[stream as usize].first as usize] == step;
            if first {
                self.tell(stream);
            }
        }
    }

    /// Tells the sender of receives whose memory may be written, in order and ahead of time.
    fn tell(&mut self, stream: u32) {
        if !self.costs.granted {
            return;
        }
        let end = self.program.streams[stream as usize].end;
        loop {
            let progress = &self.streams[stream as usize];
            let (told, ahead) = (progress.told, self.costs.ahead.max(1));
            if told == end || told - progress.takes.message >= ahead {
                return;
            }
            let number = self.program.recvs[told as usize];
            // What will be combined waits in memory of the transport's own.
            let lands = self.step(number).kind == Kind::Recv;
            if lands && (self.waits_for[number as usize] != 0 || self.timings[number as usize].ready.is_nan())
            {
                return;
            }
            let known = self.now + self.word(stream) + self.costs.grant_us * 1e-6;
            self.granted_at[told as usize] = known;
            let progress = &mut self.streams[stream as usize];
            progress.told += 1;
            if progress.block == Block::Grant && progress.begins.message == told {
                self.events.at(known, Event::Word { stream });
            }
        }
    }

    /// How long a word takes from the receiver of a stream to its sender.
    fn word(&self, stream: u32) -> f64 {
        let back = &self.program.back[stream as usize];
        let waits = if self.costs.words_wait { self.network.backlog(back, self.now) } else { 0.0 };
        back.latency + waits
    }

    /// Takes what is there of a stream.
    fn take(&mut self, stream: u32, mut why: Why) {
        loop {
            let progress = &self.streams[stream as usize];
            let Place { message, piece } = progress.takes;
            if progress.is_taking || progress.here == 0 {
                return;
            }
            let number = self.program.recvs[message as usize];
            if self.waits_for[number as usize] != 0 || self.timings[number as usize].ready.is_nan() {
                return;
            }
            let step = self.step(number);
            let way = self.way(step);
            self.note_take(stream, number, why);
            let bytes = part(step.bytes, way.pieces, piece);
            let once = if piece == 0 { self.costs.recv_us * 1e-6 } else { 0.0 };
            let combining = match step.kind {
                Kind::RecvReduce => at_rate(bytes, self.costs.reduce_gbs),
                _ => 0.0,
            };
            // What is combined is read where it lies.
            let copied = way.copied && step.kind != Kind::RecvReduce;
            let seconds = once + combining + self.costs.moving(bytes, self.costs.recv_gbs, copied);
            let end = if seconds > 0.0 { self.occupy(number, seconds, piece == 0) } else { self.now };
            let progress = &mut self.streams[stream as usize];
            (progress.is_taking, progress.here) = (true, progress.here - 1);
            if end > self.now {
                self.events.at(end, Event::Taken { stream });
                return;
            }
            self.streams[stream as usize].is_taking = false;
            self.has_taken(stream);
            why = Why::Rank;
        }
    }

    /// Notes why a piece is taken now and not before. The last one's reason is the message's, unless it followed at once.
    fn note_take(&mut self, stream: u32, number: u32, why: Why) {
        let Place { message, piece } = self.streams[stream as usize].takes;
        let timing = &mut self.timings[number as usize];
        if piece == 0 {
            timing.begin = self.now;
        }
        match why {
            Why::Message => (timing.why, timing.cause) = (Why::Message, self.program.sends[message as usize]),
            Why::Rank if piece == 0 => {
                let before =
                    message.checked_sub(1).filter(|at| *at >= self.program.streams[stream as usize].first);
                let before = before.map_or(NONE, |before| self.program.recvs[before as usize]);
                (timing.why, timing.cause) = (Why::Fifo, before);
            }
            _ => {}
        }
    }

    /// The receiver's processor is done with a piece.
    fn has_taken(&mut self, stream: u32) {
        let known = self.now + self.word(stream);
        let progress = &mut self.streams[stream as usize];
        let Place { message, piece } = progress.takes;
        let number = self.program.recvs[message as usize];
        let step = self.program.steps[number as usize];
        let pieces = self.costs.way(step.bytes, self.program.operation_bytes).pieces;
        progress.taken_in_all += 1;
        if self.costs.credits != u32::MAX {
            progress.taken_at.push_back(known);
            if progress.taken_at.len() > self.costs.credits as usize {
                progress.taken_at.pop_front();
            }
        }
        let is_last = piece + 1 == pieces;
        progress.takes = next(progress.takes, is_last);
        if progress.block == Block::Credit {
            self.events.at(known, Event::Word { stream });
        }
        if is_last {
            self.complete(number);
            self.tell(stream);
        }
    }
}

/// What follows a piece.
fn next(place: Place, is_last: bool) -> Place {
    if is_last {
        Place { message: place.message + 1, piece: 0 }
    } else {
        Place { piece: place.piece + 1, ..place }
    }
}

/// The bytes of a piece: all of them differ by a byte at most.
fn part(bytes: u64, pieces: u32, piece: u32) -> u64 {
    let upto =
        |pieces_before: u32| (u128::from(bytes) * u128::from(pieces_before) / u128::from(pieces)) as u64;
    upto(piece + 1) - upto(piece)
}
