//! Handshake of a rail, by which both ends learn that both have new queue pairs.
//!
//! Queue pairs of a rail that has failed are reset and connected again, at both ends. Each reset begins a new
//! *life* of that end, which has a number. Every message with a header carries the life of its sender's end,
//! and the life of the receiver's end as the sender knows it. Messages of other lives are ignored. An end
//! whose queue pairs are new repeats a `Hello` by the rail itself until it knows that the peer's queue pairs
//! are new too. A rail thus comes back without the help of another one.
//!
//! Lives only grow, so an old message that arrives late has no effect.
//!
//! This module is pure.

/// State of one end of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// The queue pairs are dead.
    Down,
    /// The queue pairs of this end are new; those of the peer's end may not be.
    Opening,
    /// The queue pairs of both ends are new, and both know it.
    Up,
}

/// Lives of both ends of a rail, as one of them knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Handshake {
    phase: Phase,
    ours: u8,
    theirs: u8,
}

/// Consequence of a message that has arrived by the rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The message is of another life, or brings nothing new.
    Ignore,
    /// The message is of the present lives.
    Accept,
    /// The rail is up as of this message.
    Opened,
    /// The peer's end is new and does not know that this end is. The answer is a `Hello`, or any message if
    /// this end is up.
    Answer,
    /// The peer's end is new, and this end must be reset.
    Restart,
}

impl Handshake {
    /// Both ends are new and know it, because ranks have exchanged that by other means.
    pub(super) fn started() -> Handshake {
        Handshake { phase: Phase::Up, ours: 0, theirs: 0 }
    }

    /// Life of this end.
    #[inline]
    pub(super) fn life(&self) -> u8 {
        self.ours
    }

    /// Life of the peer's end, as far as it is known.
    #[inline]
    pub(super) fn their_life(&self) -> u8 {
        self.theirs
    }

    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Whether the queue pairs of this end are alive.
    #[inline]
    pub(super) fn is_alive(&self) -> bool {
        self.phase != Phase::Down
    }

    /// Whether a `Hello` must be repeated.
    pub(super) fn is_opening(&self) -> bool {
        self.phase == Phase::Opening
    }

    /// Notes that the queue pairs of this end are dead.
    pub(super) fn fall(&mut self) {
        self.phase = Phase::Down;
    }

    /// Notes that the queue pairs of this end are new, which begins a life.
    pub(super) fn renew(&mut self) {
        self.phase = Phase::Opening;
        self.ours = self.ours.wrapping_add(1);
    }

    /// Takes in the lives that a message carries: `theirs`, and `ours` as the peer knows it.
    #[inline]
    pub(super) fn hear(&mut self, is_hello: bool, theirs: u8, ours: u8) -> Heard {
        let knows_us = ours == self.ours;
        match self.phase {
            Phase::Up if theirs == self.theirs && knows_us => {
                if is_hello {
                    Heard::Answer
                } else {
                    Heard::Accept
                }
            }
            Phase::Up if is_later(theirs, self.theirs) => Heard::Restart,
            Phase::Up if theirs == self.theirs && is_hello => Heard::Answer,
            Phase::Opening if !is_later(self.theirs, theirs) => {
                self.theirs = theirs;
                if knows_us {
                    self.phase = Phase::Up;
                    return Heard::Opened;
                }
                if is_hello { Heard::Answer } else { Heard::Ignore }
            }
            _ => Heard::Ignore,
        }
    }

    /// Whether the death of the peer's end in its life `theirs` ends a life in which this end is up.
    pub(super) fn is_ended_by(&self, theirs: u8) -> bool {
        self.phase == Phase::Up && !is_later(self.theirs, theirs)
    }
}

/// Whether life `a` came after life `b`, for numbers that wrap.
fn is_later(a: u8, b: u8) -> bool {
    (a.wrapping_sub(b) as i8) > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashSet, VecDeque};

    /// Both ends of a rail, and the messages in flight to each: whether a hello, and the two lives.
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct World {
        ends: [Handshake; 2],
        in_flight: [Vec<(bool, u8, u8)>; 2],
        falls: u8,
    }

    impl World {
        fn send(&mut self, from: usize, is_hello: bool) {
            let end = self.ends[from];
            let to = &mut self.in_flight[1 - from];
            if to.len() < 3 {
                to.push((is_hello, end.life(), end.their_life()));
            }
        }

        /// Delivers the first message to an end. A message never reaches an end that is down.
        fn deliver(&mut self, to: usize) {
            let (is_hello, theirs, ours) = self.in_flight[to].remove(0);
            if !self.ends[to].is_alive() {
                return;
            }
            match self.ends[to].hear(is_hello, theirs, ours) {
                Heard::Ignore | Heard::Accept => {}
                Heard::Answer => self.send(to, !self.ends[to].is_up()),
                Heard::Opened => self.send(to, false),
                Heard::Restart => {
                    self.ends[to].fall();
                    self.ends[to].renew();
                    self.send(to, true);
                }
            }
        }

        fn steps(&self) -> Vec<World> {
            let mut steps = Vec::new();
            for end in 0..2 {
                if !self.in_flight[end].is_empty() {
                    let mut next = self.clone();
                    next.deliver(end);
                    steps.push(next);
                    let mut lost = self.clone();
                    lost.in_flight[end].remove(0);
                    steps.push(lost);
                }
                if self.falls > 0 && self.ends[end].is_alive() {
                    let mut next = self.clone();
                    next.falls -= 1;
                    next.ends[end].fall();
                    steps.push(next);
                }
                if !self.ends[end].is_alive() {
                    let mut next = self.clone();
                    next.ends[end].renew();
                    next.send(end, true);
                    steps.push(next);
                }
            }
            steps
        }

        /// Repeats hellos and delivers all messages without further failures. The end of a rail in use pings,
        /// which an end of other lives ignores.
        fn settle(mut self) -> World {
            for _ in 0..40 {
                for end in 0..2 {
                    if !self.ends[end].is_alive() {
                        self.ends[end].renew();
                    }
                    if self.ends[end].is_opening() {
                        self.send(end, true);
                    }
                    while !self.in_flight[end].is_empty() {
                        self.deliver(end);
                    }
                }
            }
            self
        }
    }

    #[test]
    fn every_order_of_falls_and_losses_ends_with_both_ends_up_in_lives_that_both_know() {
        let start = World { ends: [Handshake::started(); 2], in_flight: [vec![], vec![]], falls: 3 };
        let (mut seen, mut open) = (HashSet::new(), VecDeque::from([start]));
        while let Some(world) = open.pop_front() {
            for next in world.steps() {
                if seen.insert(next.clone()) {
                    open.push_back(next);
                }
            }
        }
        assert!(seen.len() > 1000, "{} states", seen.len());
        for world in seen {
            let [a, b] = world.settle().ends;
            assert!(a.is_up() && b.is_up(), "{a:?} {b:?}");
            assert_eq!((a.life(), a.their_life()), (b.their_life(), b.life()), "{a:?} {b:?}");
        }
    }

    #[test]
    fn an_ordinary_message_of_another_life_is_ignored() {
        let mut end = Handshake::started();
        assert_eq!(end.hear(false, 0, 0), Heard::Accept);
        assert_eq!(end.hear(false, 0, 255), Heard::Ignore);
        assert_eq!(end.hear(false, 255, 0), Heard::Ignore);
        assert_eq!(end.hear(true, 1, 0), Heard::Restart);
        assert_eq!(end.hear(false, 1, 0), Heard::Restart, "whatever the message is");
    }

    #[test]
    fn lives_wrap() {
        assert!(is_later(0, 255) && is_later(1, 0) && !is_later(255, 0) && !is_later(7, 7));
    }
}
