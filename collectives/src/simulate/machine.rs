//! Progress of steps, event by event, as the executor and a transport would carry them out.
//!
//! A rank has one processor, which does one thing at a time: it begins and receives pieces of messages,
//! copies, and reduces. A message passes through its stream in pieces:
//!
//! 1. The turn of a send comes when the sends before it in the stream have been handed on and the steps that
//!    it comes after are complete. If the protocol requires it, the send waits for the receiver's grant. Each
//!    piece waits for a credit. A send that follows a receive waits for each piece of that receive alone.
//! 2. The sender's processor begins each piece. The piece leaves at the rate of the [network](super::network)
//!    once the pieces before it have left, and arrives one latency later.
//! 3. The receiver's processor takes the piece when the turn of its receive comes: the receives before it in
//!    the stream and the steps that it comes after are complete. That returns the credit. With the last piece
//!    the receive is complete.
//! 4. The send is complete when it is copied (small messages), or when the sender knows that the last byte
//!    has arrived.
//!
//! This module handles steps, `sender` handles senders (1, 2, 4), and `receiver` receivers (3).
//!
//! Invariants: a stream's messages keep their order in every stage. Every blocked step is checked again when
//! its condition has come true, so a run that ends with incomplete steps is a run that would hang.

mod receiver;
mod sender;

use super::{
    StartReason, Timing,
    costs::{Costs, Protocol, at_rate},
    event::{Event, Events},
    network::Network,
    program::{Kind, NONE, Program, Step},
};
use std::collections::VecDeque;

/// A position in a stream: a message, by its position in the stream's list, and a piece of it.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    message: u32,
    piece: u32,
}

/// The condition that the next piece of a sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    /// None, or a condition whose end is always announced.
    None,
    Grant,
    Credit,
}

/// The progress of a stream.
#[derive(Debug)]
struct Progress {
    /// The next piece of the sender's processor, and whether it is being processed.
    begins: Position,
    is_beginning: bool,
    block: Block,
    /// The next piece to leave, and the number of pieces that are ready.
    leaves: Position,
    ready: u32,
    /// Time when the leaving message began to leave.
    left_since: f64,
    /// Pieces begun, and pieces taken, in total.
    begun: u32,
    taken_in_all: u32,
    /// Times when the sender knows that the latest pieces were taken: as many as there are credits.
    taken_at: VecDeque<f64>,
    /// The next piece of the receiver's processor, the number of pieces that have arrived, and whether one is
    /// being processed.
    takes: Position,
    here: u32,
    is_taking: bool,
    /// The first receive that has not been granted to the sender, and the time of the latest grant.
    granted: u32,
    /// The first send that is not complete.
    released: u32,
}

/// The state of a run.
pub(super) struct Machine<'a> {
    program: &'a Program,
    costs: &'a Costs,
    network: Network,
    events: Events,
    now: f64,
    waits_for: Vec<u32>,
    streams: Vec<Progress>,
    /// Per message: the time when its sender has the grant.
    granted_at: Vec<f64>,
    /// Per rank: the time when its processor is free, and the step that occupies it until then.
    processors: Vec<(f64, u32)>,
    timings: Vec<Timing>,
    remaining: usize,
    makespan: f64,
}

/// The result of a run.
pub(super) struct Run {
    pub(super) timings: Vec<Timing>,
    pub(super) network: Network,
    pub(super) makespan: f64,
    pub(super) events: u64,
    /// A step that never completed, if there is one.
    pub(super) stuck: Option<u32>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(program: &'a Program, costs: &'a Costs, mut network: Network) -> Machine<'a> {
        program.routes.iter().for_each(|route| network.add(*route));
        let progress = |stream: &super::program::Stream| {
            let place = Position { message: stream.first, piece: 0 };
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
                granted: stream.first,
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
            self.handle(event);
            if self.events.next_time() != Some(time) {
                self.network.update_rates(self.now, &mut self.events);
            }
        }
        let is_stuck = |step: &u32| self.timings[*step as usize].end.is_nan();
        let stuck = (self.remaining > 0).then(|| (0..self.timings.len() as u32).find(is_stuck)).flatten();
        let Machine { timings, network, makespan, events, .. } = self;
        Run { timings, network, makespan, events: events.count(), stuck }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Entered { rank } => {
                let steps = self.program.bases[rank as usize]..self.program.bases[rank as usize + 1];
                let free: Vec<u32> = steps.filter(|step| self.waits_for[*step as usize] == 0).collect();
                free.iter().for_each(|step| self.timings[*step as usize].ready = self.now);
                free.into_iter().for_each(|step| self.start(step));
                self.grant_all(rank);
            }
            Event::Done { step } => self.complete(step),
            Event::Resume { stream } => self.send(stream),
            Event::Sent { stream } => {
                self.streams[stream as usize].is_beginning = false;
                self.finish_begin(stream);
                self.send(stream);
            }
            Event::Left { stream, prediction } if self.network.is_current(stream, prediction) => {
                self.left(stream);
            }
            Event::Left { .. } => {}
            Event::Arrived { stream } => {
                self.streams[stream as usize].here += 1;
                self.take(stream, StartReason::Message);
            }
            Event::Taken { stream } => {
                self.streams[stream as usize].is_taking = false;
                self.finish_take(stream);
                self.take(stream, StartReason::Rank);
            }
            Event::Released { stream } => self.release(stream),
        }
    }

    fn step(&self, step: u32) -> Step {
        self.program.steps[step as usize]
    }

    fn protocol(&self, step: Step) -> Protocol {
        self.costs.protocol(step.bytes)
    }

    /// Starts a step that waits for nothing except its turn.
    fn start(&mut self, step: u32) {
        let Step { kind, stream, bytes, .. } = self.step(step);
        match kind {
            Kind::Send => self.send(stream),
            Kind::Recv | Kind::RecvReduce => {
                self.grant(stream);
                self.take(stream, StartReason::Dependency);
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

    /// Schedules work of a step on its rank's processor as soon as it is free; returns the end. `begins`
    /// marks the first work of the step.
    fn occupy(&mut self, step: u32, seconds: f64, begins: bool) -> f64 {
        let (free, owner) = &mut self.processors[self.program.steps[step as usize].rank as usize];
        let start = free.max(self.now);
        if begins {
            let timing = &mut self.timings[step as usize];
            timing.begin = start;
            if start > self.now && *owner != NONE {
                (timing.reason, timing.cause) = (StartReason::Rank, *owner);
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
            match self.waits_for[dependent as usize] {
                0 => {
                    self.mark_ready(dependent, step);
                    self.start(dependent);
                }
                1 => self.advance_follower(dependent),
                _ => {}
            }
        }
    }

    /// Records that a step could begin from now on, because `cause` completed.
    fn mark_ready(&mut self, step: u32, cause: u32) {
        let timing = &mut self.timings[step as usize];
        if timing.ready.is_nan() {
            (timing.ready, timing.reason, timing.cause) = (self.now, StartReason::Dependency, cause);
        }
    }

    /// Resumes the steps that follow a receive, of which a piece has arrived.
    fn resume_followers(&mut self, recv: u32) {
        let range = self.program.starts[recv as usize]..self.program.starts[recv as usize + 1];
        for at in range {
            self.advance_follower(self.program.dependents[at as usize]);
        }
    }

    /// Advances a send that follows a receive by the pieces that the receive has processed.
    fn advance_follower(&mut self, step: u32) {
        if self.may_send(step, 0) {
            self.mark_ready(step, self.program.recvs[self.program.follows[step as usize] as usize]);
            self.send(self.program.steps[step as usize].stream);
        }
    }

    /// Whether the steps that a send comes after are complete, or all but the one that it follows, of which
    /// this piece has arrived.
    fn may_send(&self, step: u32, piece: u32) -> bool {
        let follows = self.program.follows[step as usize];
        match self.waits_for[step as usize] {
            0 => true,
            1 if follows != NONE => {
                let recv = self.step(self.program.recvs[follows as usize]);
                let takes = self.streams[recv.stream as usize].takes;
                takes.message == follows && takes.piece > piece
            }
            _ => false,
        }
    }
}

/// Returns the position after a piece.
fn next(place: Position, is_last: bool) -> Position {
    if is_last {
        Position { message: place.message + 1, piece: 0 }
    } else {
        Position { piece: place.piece + 1, ..place }
    }
}

/// Returns the bytes of a piece. Pieces of one message differ by at most one byte.
fn part(bytes: u64, pieces: u32, piece: u32) -> u64 {
    let upto =
        |pieces_before: u32| (u128::from(bytes) * u128::from(pieces_before) / u128::from(pieces)) as u64;
    upto(piece + 1) - upto(piece)
}
