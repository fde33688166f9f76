//! Exhaustive check of both views: all interleavings of two streams that want the queues of a direction.
//!
//! The other direction has owners of its own. Control messages and relayed messages are sequenced, so they
//! arrive in order, and so do pieces. The order between both kinds is open.

use super::*;
use crate::driver::verbs::explore::{Model, explore};
use std::collections::VecDeque;

/// Bulk messages of each stream.
const MESSAGES: u32 = 3;

/// A message from the receiver to the sender.
#[derive(Clone, Copy, Hash)]
enum ToSender {
    Placed { stream: usize, from: u32 },
    Relay { stream: usize, number: u32 },
    Revoke { stream: usize },
}

/// A sequenced message from the sender to the receiver.
#[derive(Clone, Copy, Hash)]
enum ToReceiver {
    Revoked { stream: usize, until: u32 },
    Relayed { stream: usize, number: u32 },
}

#[derive(Clone, Hash)]
struct World {
    recv: RecvOwner,
    send: SendOwner,
    to_sender: VecDeque<ToSender>,
    to_receiver: VecDeque<ToReceiver>,
    /// Messages in pieces on their way.
    pieces: VecDeque<(usize, u32)>,
    /// The sender's present message of each stream, and its way once it has begun.
    present: [(u32, Option<Way>); 2],
    /// Messages that were announced, and the way of each.
    announced: [Vec<Way>; 2],
    /// Announced messages in pieces that have not been received, in order.
    expected: VecDeque<(usize, u32)>,
    /// Relayed messages that wait to be received, by stream.
    relayed: [u32; 2],
    /// Messages received of a stream.
    received: [u32; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Announce(usize),
    /// The sender begins the present message of a stream.
    Begin(usize),
    /// The sender has sent all of it.
    Send(usize),
    HearAtSender,
    HearAtReceiver,
    /// The receiver takes a message in.
    Receive(usize),
}

impl World {
    fn new() -> World {
        World {
            recv: RecvOwner::default(),
            send: SendOwner::default(),
            to_sender: VecDeque::new(),
            to_receiver: VecDeque::new(),
            pieces: VecDeque::new(),
            present: [(0, None); 2],
            announced: Default::default(),
            expected: VecDeque::new(),
            relayed: [0; 2],
            received: [0; 2],
        }
    }

    fn way(&self, stream: usize) -> Option<Way> {
        let (number, way) = self.present[stream];
        way.or_else(|| self.send.way(stream, number))
    }

    fn can_receive(&self, stream: usize) -> bool {
        match self.announced[stream].get(self.received[stream] as usize) {
            None => false,
            Some(Way::Relayed) => self.relayed[stream] > 0,
            Some(Way::Placed) => self.pieces.front() == Some(&(stream, self.received[stream])),
        }
    }

    fn is_possible(&self, step: Step) -> bool {
        match step {
            Step::Announce(stream) => self.announced[stream].len() < MESSAGES as usize,
            Step::Begin(stream) => {
                let (number, way) = self.present[stream];
                number < MESSAGES && way.is_none() && self.way(stream).is_some()
            }
            Step::Send(stream) => self.present[stream].1.is_some(),
            Step::HearAtSender => !self.to_sender.is_empty(),
            Step::HearAtReceiver => !self.to_receiver.is_empty(),
            Step::Receive(stream) => self.can_receive(stream),
        }
    }

    fn announce(&mut self, stream: usize) {
        let number = self.announced[stream].len() as u32;
        match self.recv.claim(stream, number) {
            Claim::Unknown => {}
            Claim::Relay => {
                self.to_sender.push_back(ToSender::Relay { stream, number });
                let is_idle = self.expected.is_empty();
                if let Some(owner) = is_idle.then(|| self.recv.revoke()).flatten() {
                    self.to_sender.push_back(ToSender::Revoke { stream: owner });
                }
                self.announced[stream].push(Way::Relayed);
            }
            claim => {
                if claim == Claim::NewOwner {
                    self.to_sender.push_back(ToSender::Placed { stream, from: number });
                }
                self.expected.push_back((stream, number));
                self.announced[stream].push(Way::Placed);
            }
        }
    }

    fn begin(&mut self, stream: usize) {
        self.present[stream].1 = self.way(stream);
        let both = self.present.map(|(_, way)| way == Some(Way::Placed));
        assert_ne!(both, [true; 2], "pieces of two streams would mix");
    }

    fn send(&mut self, stream: usize) {
        let (number, way) = &mut self.present[stream];
        match way.take() {
            Some(Way::Placed) => self.pieces.push_back((stream, *number)),
            _ => {
                self.to_receiver.push_back(ToReceiver::Relayed { stream, number: *number });
                self.send.relay_sent(stream, *number);
            }
        }
        *number += 1;
    }

    fn hear_at_sender(&mut self) {
        match self.to_sender.pop_front() {
            Some(ToSender::Placed { stream, from }) => self.send.give(stream, from),
            Some(ToSender::Relay { stream, number }) => self.send.relay(stream, number),
            Some(ToSender::Revoke { stream }) => {
                let (number, way) = self.present[stream];
                self.send.take(stream);
                let until = number + u32::from(way == Some(Way::Placed));
                self.to_receiver.push_back(ToReceiver::Revoked { stream, until });
            }
            None => {}
        }
    }

    fn hear_at_receiver(&mut self) {
        match self.to_receiver.pop_front() {
            Some(ToReceiver::Revoked { stream, until }) => {
                self.recv.revoked(stream, until);
                self.end();
            }
            Some(ToReceiver::Relayed { stream, number }) => {
                let way = self.announced[stream].get(number as usize);
                assert_eq!(way, Some(&Way::Relayed), "message {number} of stream {stream}");
                self.relayed[stream] += 1;
            }
            None => {}
        }
    }

    fn receive(&mut self, stream: usize) {
        let number = self.received[stream];
        self.received[stream] += 1;
        if self.announced[stream][number as usize] == Way::Relayed {
            self.relayed[stream] -= 1;
            return;
        }
        self.pieces.pop_front();
        assert_eq!(self.expected.pop_front(), Some((stream, number)));
        self.end();
    }

    fn end(&mut self) {
        if self.expected.is_empty() {
            self.recv.end(|stream| self.announced[stream].len() as u32);
        }
    }

    /// Takes the steps that are possible and allowed, until all messages have had the time to arrive.
    fn settle(&mut self, is_allowed: impl Fn(Step) -> bool) {
        for _ in 0..4 * MESSAGES {
            for step in ALL.into_iter().filter(|step| is_allowed(*step)) {
                while self.is_possible(step) {
                    self.take(step);
                    if matches!(step, Step::Announce(_)) {
                        break;
                    }
                }
            }
        }
    }
}

const ALL: [Step; 10] = [
    Step::Announce(0),
    Step::Announce(1),
    Step::HearAtSender,
    Step::Begin(0),
    Step::Begin(1),
    Step::Send(0),
    Step::Send(1),
    Step::HearAtReceiver,
    Step::Receive(0),
    Step::Receive(1),
];

impl Model for World {
    type Step = Step;

    fn steps(&self) -> Vec<Step> {
        ALL.into_iter().filter(|step| self.is_possible(*step)).collect()
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Announce(stream) => self.announce(stream),
            Step::Begin(stream) => self.begin(stream),
            Step::Send(stream) => self.send(stream),
            Step::HearAtSender => self.hear_at_sender(),
            Step::HearAtReceiver => self.hear_at_receiver(),
            Step::Receive(stream) => self.receive(stream),
        }
    }

    /// Checks that both ends agree and that all messages arrive, also those of one stream while an end
    /// neglects the other one.
    fn check(&self) {
        for stream in 0..2 {
            let (number, way) = self.present[stream];
            let announced = self.announced[stream].get(number as usize);
            assert!(way.is_none() || announced.is_none_or(|announced| way == Some(*announced)));
        }
        let wrong = self.pieces.iter().zip(&self.expected).find(|(sent, expected)| sent != expected);
        assert!(wrong.is_none(), "pieces of {wrong:?} meet receives of another message");
        let mut all = self.clone();
        all.settle(|_| true);
        assert_eq!(all.received, [MESSAGES; 2], "deadlock");
        for (stopped, other) in [(0, 1), (1, 0)] {
            let mut world = self.clone();
            world.settle(|step| step != Step::Announce(stopped));
            assert_eq!(world.received[other], MESSAGES, "stream {stopped} is not announced");
            assert_eq!(world.received[stopped] as usize, self.announced[stopped].len());
            let mut world = self.clone();
            world.settle(|step| step != Step::Begin(stopped) && step != Step::Send(stopped));
            assert_eq!(world.received[other], MESSAGES, "stream {stopped} is not sent");
        }
    }
}

#[test]
fn all_messages_of_two_streams_arrive_in_the_way_that_both_ends_know() {
    explore(28_000, World::new());
}
