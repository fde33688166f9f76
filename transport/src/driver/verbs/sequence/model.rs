//! Exhaustive check of both halves: all orders of loss, delivery, repetition and a rail's fall, for a few
//! messages.
//!
//! The model loses no acknowledgements, since a lost one leaves the same state as one that was never sent.

use super::*;
use crate::driver::verbs::explore::{Model, explore};

/// Number of the first message, so that numbers wrap on the way.
const START: u32 = u32::MAX;

/// Both halves, and everything between them. A message is its number.
#[derive(Clone, Hash)]
struct World {
    send: SendSequence<u32>,
    recv: RecvSequence<u32>,
    /// Messages in flight, by rail and queue pair.
    queues: [[VecDeque<u32>; 2]; 2],
    rails: u8,
    is_up: [bool; 2],
    /// Acknowledgements in flight: counter and selective bits. They may overtake each other.
    acks: Vec<(u32, [u64; 2])>,
    /// Number of acknowledgements in flight, at most.
    max_acks: usize,
    /// Messages that are not pushed yet.
    left: u32,
    /// Timeouts and falls that may still happen.
    timeouts: u8,
    falls: u8,
    /// Whether no message was repeated while an earlier copy of it could still arrive.
    is_exact: bool,
    /// Whether a message arrives unless its rail falls.
    is_reliable: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Sends the next message.
    Transmit(Route),
    Deliver(Route),
    Lose(Route),
    /// The receiver sends an acknowledgement.
    Acknowledge,
    /// The sender takes in an acknowledgement: its counter, and its selective bits if messages are missing.
    Hear {
        ack: usize,
        is_missing: bool,
    },
    /// The last messages are repeated, or all.
    Timeout {
        all: bool,
    },
    Fall(u8),
    Return(u8),
}

const ROUTES: [Route; 4] = [
    Route { rail: 0, queue: 0 },
    Route { rail: 0, queue: 1 },
    Route { rail: 1, queue: 0 },
    Route { rail: 1, queue: 1 },
];

impl World {
    fn new(messages: u32, timeouts: u8, falls: u8) -> World {
        let mut send = SendSequence::new();
        let mut recv = RecvSequence::new();
        (send.first, send.unsent_from, recv.expected) = (START, START, START);
        World {
            send,
            recv,
            queues: Default::default(),
            rails: 2,
            is_up: [true; 2],
            acks: Vec::new(),
            max_acks: 2,
            left: messages,
            timeouts,
            falls,
            is_exact: true,
            is_reliable: false,
        }
    }

    fn queue(&mut self, route: Route) -> &mut VecDeque<u32> {
        &mut self.queues[usize::from(route.rail)][usize::from(route.queue)]
    }

    fn in_flight(&self, route: Route) -> &VecDeque<u32> {
        &self.queues[usize::from(route.rail)][usize::from(route.queue)]
    }

    /// Whether a route carries, or has carried, an unacknowledged message.
    fn is_used(&self, route: Route) -> bool {
        let carried = |entry: &Entry<u32>| entry.sent.is_some_and(|(other, _)| other == route);
        !self.in_flight(route).is_empty() || self.send.entries.iter().any(carried)
    }

    /// Returns routes for the next message: one of several routes that are alike.
    fn routes(&self) -> Vec<Route> {
        let used = ROUTES.map(|route| self.is_used(route));
        let are_alike = self.is_up[0] && used == [false; 4];
        let is_allowed = |route: &Route| {
            let first = usize::from(route.rail) * 2;
            let is_twin = route.queue == 1 && !used[first] && !used[first + 1];
            self.is_up[usize::from(route.rail)] && !is_twin && !(are_alike && route.rail == 1)
        };
        ROUTES.into_iter().filter(is_allowed).collect()
    }

    fn transmit(&mut self, route: Route) {
        if self.send.unsent().is_none() {
            let number = self.send.first.wrapping_add(self.send.len());
            assert_eq!(self.send.push(number), number);
            self.left -= 1;
        }
        let (number, message) =
            self.send.unsent().map(|(number, message)| (number, *message)).expect("unsent");
        assert_eq!(number, message);
        self.send.sent(number, route);
        self.queue(route).push_back(number);
    }

    fn deliver(&mut self, route: Route) {
        let Some(number) = self.queue(route).pop_front() else { return };
        assert_ne!(self.recv.accept(number, number), Acceptance::Invalid);
        let mut expected = self.recv.expected();
        while let Some(message) = self.recv.pop() {
            assert_eq!(message, expected, "messages are handed out in order, once");
            expected = expected.wrapping_add(1);
        }
        assert!(self.recv.has(number));
    }

    fn hear(&mut self, (ack, selective): (u32, [u64; 2]), is_missing: bool) {
        let handed_out = self.recv.expected();
        self.send.acknowledge(ack, |message| assert!(is_before(message, handed_out), "freed too early"));
        if !is_missing {
            return;
        }
        let before = self.send.entries.clone();
        let count = self.send.lose(ack, selective);
        let mut lost = 0;
        for (was, is) in before.iter().zip(&self.send.entries) {
            let Some((route, _)) = was.sent.filter(|_| is.sent.is_none()) else { continue };
            let is_in_flight = self.in_flight(route).contains(&was.message);
            assert!(!self.is_exact || !is_in_flight, "message {} is not lost", was.message);
            self.is_exact &= !is_in_flight;
            lost += 1;
        }
        assert_eq!(count, lost);
    }

    fn time_out(&mut self, all: bool) {
        if all {
            self.send.forget_all()
        } else {
            self.send.forget_last()
        };
        self.is_exact = false;
    }

    /// Lets nothing fail any more, and checks that all messages arrive and are acknowledged.
    fn settle(mut self) {
        let end = self.send.first.wrapping_add(self.send.len() + self.left);
        for rail in 0..2 {
            if !self.is_up[rail] {
                self.take(Step::Return(rail as u8));
            }
        }
        for _ in 0..3 {
            for ack in std::mem::take(&mut self.acks) {
                self.hear(ack, true);
            }
            while self.left > 0 || self.send.unsent().is_some() {
                self.transmit(ROUTES[1]);
            }
            for route in ROUTES {
                (0..self.in_flight(route).len()).for_each(|_| self.deliver(route));
            }
            self.hear((self.recv.expected(), self.recv.selective()), true);
            if !self.is_reliable {
                self.time_out(true);
            }
        }
        assert!(self.recv.expected() == end && self.send.is_empty(), "messages do not arrive");
    }

    /// Renumbers transmissions: only their order matters.
    fn normalize(&mut self) {
        let mut all: Vec<u64> = self.send.entries.iter().filter_map(|entry| Some(entry.sent?.1)).collect();
        all.sort_unstable();
        for (_, at) in self.send.entries.iter_mut().filter_map(|entry| entry.sent.as_mut()) {
            *at = all.partition_point(|other| *other < *at) as u64;
        }
        self.send.transmissions = all.len() as u64;
        self.acks.sort_unstable();
    }
}

impl Model for World {
    type Step = Step;

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let must_be_sent = |entry: &Entry<u32>| entry.sent.is_none() && !entry.is_received;
        if self.left > 0 || self.send.entries.iter().any(must_be_sent) {
            steps.extend(self.routes().into_iter().map(Step::Transmit));
        }
        for route in ROUTES.into_iter().filter(|route| !self.in_flight(*route).is_empty()) {
            steps.push(Step::Deliver(route));
            // The loss of a message matters once another one arrives behind it.
            let is_lossy = !self.is_reliable || !self.is_up[usize::from(route.rail)];
            if is_lossy && self.in_flight(route).len() > 1 {
                steps.push(Step::Lose(route));
            }
        }
        let ack = (self.recv.expected(), self.recv.selective());
        if self.acks.len() < self.max_acks
            && !self.acks.contains(&ack)
            && (ack.0 != self.send.first || ack.1 != [0; 2])
        {
            steps.push(Step::Acknowledge);
        }
        for ack in 0..self.acks.len() {
            steps.extend([false, true].map(|is_missing| Step::Hear { ack, is_missing }));
        }
        if self.timeouts > 0 && !self.send.is_empty() {
            steps.extend([false, true].map(|all| Step::Timeout { all }));
        }
        for rail in 0..self.rails {
            if !self.is_up[usize::from(rail)] {
                steps.push(Step::Return(rail));
            } else if self.falls > 0 {
                steps.push(Step::Fall(rail));
            }
        }
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Transmit(route) => self.transmit(route),
            Step::Deliver(route) => self.deliver(route),
            Step::Lose(route) => drop(self.queue(route).pop_front()),
            Step::Acknowledge => self.acks.push((self.recv.expected(), self.recv.selective())),
            Step::Hear { ack, is_missing } => {
                let ack = self.acks.remove(ack);
                self.hear(ack, is_missing);
            }
            Step::Timeout { all } => {
                self.timeouts -= 1;
                self.time_out(all);
            }
            // Messages of the rail may still arrive until the other end knows.
            Step::Fall(rail) => {
                self.falls -= 1;
                self.is_up[usize::from(rail)] = false;
                self.send.forget_rail(rail);
                self.is_exact = false;
            }
            Step::Return(rail) => {
                self.is_up[usize::from(rail)] = true;
                self.queues[usize::from(rail)] = Default::default();
            }
        }
        self.normalize();
    }

    /// Checks that all messages arrive in the end, both if those in flight arrive and if they are lost.
    fn check(&self) {
        for (index, entry) in self.send.entries.iter().enumerate() {
            let number = self.send.first.wrapping_add(index as u32);
            assert_eq!(entry.message, number);
            assert!(
                !entry.is_received || self.recv.has(number),
                "{number} is not repeated, and not received"
            );
        }
        self.clone().settle();
        if !self.is_reliable {
            let mut world = self.clone();
            world.queues = Default::default();
            world.settle();
        }
    }
}

#[test]
fn messages_arrive_once_and_in_order_whatever_is_lost_and_repeated() {
    explore(23_000, World { rails: 1, is_up: [true, false], max_acks: 1, ..World::new(3, 1, 0) });
    explore(59_000, World::new(2, 2, 0));
}

#[test]
fn messages_arrive_once_and_in_order_whatever_rail_falls() {
    explore(48_000, World::new(2, 1, 1));
}

#[test]
fn reliable_messages_need_no_timeout() {
    explore(117_000, World { is_reliable: true, ..World::new(3, 0, 1) });
}

#[test]
fn only_lost_messages_are_repeated_while_no_timeout_and_no_fall_repeats_any() {
    explore(56_000, World { max_acks: 1, ..World::new(4, 0, 0) });
    explore(2_900, World::new(3, 0, 0));
}
