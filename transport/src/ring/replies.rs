//! The first poll for a reply: it comes when the reply is likely to be there.
//!
//! A poll that comes before the sender's store takes the line from the sender, whose store then has to fetch
//! it back. [`ReplyTimer`] therefore puts off the first poll for a reply.
//!
//! # Safety
//! There is no unsafe code here.

use super::{
    costs::{HAS_TICKS, ticks},
    fences::Fences,
    polls::end_speculation,
};
use crate::is_intel;

/// Longest delay of a first poll, in ticks of the processor's clock: 0.8 us at 2.6 GHz.
const MOST_TICKS: u32 = 2048;
/// Shortest time of replies for which the first poll is put off. Between cores with a common cache it is
/// less, and what a learned delay saves there is less than what it costs to keep it.
const FAR_TICKS: u32 = 768;
/// Fences before the first poll for a reply between near cores: for one in a cell, and for one whose bytes
/// are copied. On a Zen 4 a fence takes 5 ns. A reply takes at least twice as long as a message, and what it
/// takes the peer to receive, to return and to send.
///
/// Half a round trip between cores with a common cache, in ns, without and with them: 85 and 59 for 4 bytes,
/// 94 and 63 for 64, 142 and 106 for 256, 164 and 156 for 1 KiB. Two to six fences took 58 to 64 for 4 bytes.
/// A message that is no reply took longer with a single fence.
const CELL_FENCES: u32 = 3;
const PIECE_FENCES: u32 = 14;
/// Replies of which the time of one is taken while first polls are not put off by their time.
const SAMPLED: u32 = 16;
/// The part of the time by which a reply was late that is added to the delay.
const LATE_PART: u32 = 8;
/// The part of the delay that is taken off after a reply that was there at the first poll. It is small, so
/// that most first polls find the reply while the time that it takes stays the same.
const EARLY_PART: u32 = 256;

/// Learns how long the replies of a peer take, and puts off the first poll for the next one as long.
///
/// A reply is a message that is waited for after this end has sent one, and has received none since. It takes
/// at least as long as two messages. Between two ranks that send in turns, with the line of the next message
/// fetched while its sender waits, half a round trip of 4 bytes takes 0.31 us with polls from the start and
/// 0.22 us with delays, on two cores of a Zen 5 without a common cache. Processors of Intel have a way of
/// their own ([`super::fences`]): delays that are learned from times of replies gained nothing there.
#[derive(Debug, Default)]
pub(crate) struct ReplyTimer {
    /// Ticks from the start of a wait to the first poll; 0 if it is not put off.
    delay: u32,
    /// Estimated time of replies that are polled from the start.
    typical: u32,
    replies: u32,
    /// Whether this end has sent a message since it last received one.
    is_due: bool,
    phase: Phase,
    /// How first polls are put off on processors of Intel, instead of all this.
    fences: Option<Fences>,
}

/// Progress of the wait for a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Nobody waits, the wait is not for a reply, or nothing is to be learned from it.
    #[default]
    Other,
    /// The time of the reply is taken since this tick.
    Sampled(u64),
    /// The first poll was put off, and is about to come.
    Put,
    /// The first poll was put off until this tick, and found nothing.
    Late(u64),
}

impl ReplyTimer {
    /// Returns the timer of a peer.
    pub(crate) fn here() -> ReplyTimer {
        ReplyTimer { fences: is_intel().then(Fences::default), ..ReplyTimer::default() }
    }

    /// Notes that this end has sent a message.
    #[inline]
    pub(crate) fn sent(&mut self) {
        self.is_due = true;
    }

    /// Waits before the first poll, if the next message is a reply, of `len` bytes in a cell: as long as
    /// replies take where the peer is far, some fences where it is near. Calls `meanwhile` before the longer
    /// wait.
    #[inline]
    pub(crate) fn wait(&mut self, len: usize, meanwhile: impl FnOnce()) {
        if !HAS_TICKS || !self.is_due {
            return;
        }
        if let Some(fences) = &mut self.fences {
            fences.wait(len);
            return;
        }
        self.replies = self.replies.wrapping_add(1);
        if self.delay > 0 {
            meanwhile();
            let began = ticks();
            while ticks().wrapping_sub(began) < u64::from(self.delay) {
                end_speculation();
            }
            end_speculation();
            self.phase = Phase::Put;
        } else {
            if self.replies.is_multiple_of(SAMPLED) {
                self.phase = Phase::Sampled(ticks());
            }
            (0..CELL_FENCES).for_each(|_| end_speculation());
        }
    }

    /// Waits for a part of the time that a reply of `len` bytes takes which are not in its cell.
    #[inline]
    pub(crate) fn wait_for_piece(&mut self, len: usize) {
        if !HAS_TICKS || !self.is_due {
            return;
        }
        match &mut self.fences {
            Some(fences) => fences.wait(len),
            None => (0..PIECE_FENCES).for_each(|_| end_speculation()),
        }
    }

    /// Notes whether a poll has found anything.
    #[inline]
    pub(crate) fn polled(&mut self, found: bool) {
        if let Some(fences) = &mut self.fences {
            fences.polled(found);
        } else if self.phase != Phase::Other {
            self.learn(found);
        }
        self.is_due &= !found;
    }

    fn learn(&mut self, found: bool) {
        let since = |tick| u32::try_from(ticks().wrapping_sub(tick)).unwrap_or(u32::MAX);
        match (self.phase, found) {
            (Phase::Put, false) => self.phase = Phase::Late(ticks()),
            (_, false) => {}
            (phase, true) => {
                self.phase = Phase::Other;
                match phase {
                    Phase::Sampled(began) => self.took(since(began)),
                    Phase::Late(began) => self.was_late(since(began)),
                    Phase::Put | Phase::Other => self.was_there(),
                }
            }
        }
    }

    /// Notes the time of a reply that was polled from the start.
    fn took(&mut self, time: u32) {
        // A longer one came after something else that the peer did.
        if time > 2 * MOST_TICKS {
            return;
        }
        self.typical = (3 * self.typical + time) / 4;
        if self.typical > FAR_TICKS {
            self.delay = self.typical / 2;
        }
    }

    /// Makes the delay longer, unless the peer has done something else before it replied.
    fn was_late(&mut self, by: u32) {
        if by <= 2 * MOST_TICKS {
            self.delay = (self.delay + by / LATE_PART).min(MOST_TICKS);
        }
    }

    /// Makes the delay a little shorter, or ends it if the peer is not far by now.
    fn was_there(&mut self) {
        self.delay -= self.delay / EARLY_PART + 1;
        if self.delay < FAR_TICKS / 4 {
            (self.delay, self.typical) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays replies that take `ticks`, and returns the part of them that the first poll finds in the end.
    fn part_found(timer: &mut ReplyTimer, takes: u32) -> f64 {
        let mut reply = || {
            let is_there = timer.delay >= takes;
            match (timer.delay, is_there) {
                (0, _) => timer.took(takes),
                (_, true) => timer.was_there(),
                // The early poll delays the reply, by the time of a line.
                (_, false) => timer.was_late(takes - timer.delay + 300),
            }
            is_there
        };
        (0..4000).for_each(|_| _ = reply());
        (0..1000).filter(|_| reply()).count() as f64 / 1000.0
    }

    #[test]
    fn most_first_polls_find_the_reply_of_a_peer_that_is_far() {
        for takes in [800, 1000, 1500] {
            let mut timer = ReplyTimer::default();
            let found = part_found(&mut timer, takes);
            assert!(found > 0.8 && timer.delay < takes + takes / 8, "{found}, {} of {takes}", timer.delay);
        }
    }

    #[test]
    fn a_peer_that_is_near_is_polled_from_the_start() {
        let mut timer = ReplyTimer::default();
        assert_eq!((part_found(&mut timer, 300), timer.delay), (0.0, 0));
        part_found(&mut timer, 1200);
        assert_ne!(timer.delay, 0);
        part_found(&mut timer, 100);
        assert_eq!(timer.delay, 0, "the cores are near by now");
    }

    #[test]
    fn a_peer_that_does_something_else_first_teaches_nothing() {
        let mut timer = ReplyTimer::default();
        assert_eq!((part_found(&mut timer, 1_000_000), timer.delay), (0.0, 0));
        let mut timer = ReplyTimer { delay: 900, ..ReplyTimer::default() };
        timer.was_late(1_000_000);
        assert_eq!(timer.delay, 900);
    }

    #[test]
    fn first_polls_are_put_off_by_fences_that_are_learned_on_processors_of_intel() {
        let is_intel =
            std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|info| info.contains("GenuineIntel"));
        let mut timer = ReplyTimer { delay: 1, ..ReplyTimer::here() };
        assert_eq!(timer.fences.is_some(), is_intel);
        timer.sent();
        let mut waits = 0;
        timer.wait(4, || waits += 1);
        assert_eq!(waits, u32::from(HAS_TICKS && !is_intel));
    }

    #[test]
    fn only_a_message_after_a_sent_one_is_a_reply() {
        let mut timer = ReplyTimer { delay: 1, ..ReplyTimer::default() };
        timer.wait(4, || panic!("nothing was sent"));
        timer.sent();
        timer.polled(false);
        let mut waits = 0;
        timer.wait(4, || waits += 1);
        timer.polled(true);
        assert_eq!(waits, u32::from(HAS_TICKS));
        timer.delay = 1;
        timer.wait(4, || panic!("the reply has come"));
    }
}
