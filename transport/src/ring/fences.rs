//! The first poll for a reply on processors of Intel: it comes after as many fences as replies take.
//!
//! A core that reads a line which another core has stored takes the line over, and can store to it at once.
//! So can a receiver, which replies in the line of the message that it has read. A peer that polls this line
//! before the reply is stored takes it back: the store has to fetch the line, and the peer has to read it
//! again. Replies of a peer that polls from the start take twice as long in most launches, and the shorter
//! time in some.
//!
//! [`Fences`] therefore puts off the first poll. A poll that came too early makes the delay longer by half a
//! fence, one that found the reply makes it shorter by a little. So about one in ten comes too early.
//!
//! Two ranks on two cores of an Intel Xeon (Emerald Rapids), in nanoseconds, without and with these fences;
//! medians of 5 to 7 launches in turns:
//!
//! | | 4 B | 64 B | 128 B | 256 B | 512 B | 1 K |
//! |---|---:|---:|---:|---:|---:|---:|
//! | half a round trip | 194 / 121 | 254 / 149 | 252 / 199 | 269 / 229 | 275 / 268 | 373 / 361 |
//! | `broadcast`, roots in turns | 189 / 149 | 240 / 184 | 273 / 240 | 272 / 257 | 292 / 300 | 392 / 364 |
//!
//! Messages of 1.5 to 4 KiB took 3 to 15 % longer with them. Where both ranks computed before they sent, for
//! a random time of up to 200 ns, half a round trip of 4 bytes took 278 and 224; up to 400 ns, as long as
//! before. Ranks that exchange messages gain nothing by waiting: both poll at the time at which the other one
//! stores.
//!
//! # Safety
//! There is no unsafe code here.

use super::{costs::ticks, polls::end_speculation};

/// Longest message whose first poll is put off.
const MOST_BYTES: usize = 1024;
/// Parts of a fence in which the delay is kept.
const PARTS: u32 = 64;
/// Longest delay, in fences: some 250 ns.
const MOST: u32 = 32;
/// Parts of a fence that are added for a reply that was not there yet. 16 and 48 took about as long.
const LATE: u32 = 32;
/// The part of the delay that is taken off after a reply that was there.
const EARLY_PART: u32 = 256;
/// Ticks after an early poll until which a reply is taken to be as late as replies are: 0.4 us at 2.3 GHz.
/// The peer has done something else before a later one.
const LATE_TICKS: u64 = 1024;

/// The learned delay of first polls.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// The delay in parts of a fence.
    parts: u32,
    phase: Phase,
}

/// Progress of the wait for a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Nobody waits, or nothing is to be learned from the wait.
    #[default]
    Other,
    /// The first poll is about to come.
    Put,
    /// The first poll found nothing at this tick.
    Late(u64),
}

impl Fences {
    /// Waits before the first poll for a message of `len` bytes.
    #[inline]
    pub(super) fn wait(&mut self, len: usize) {
        if len > MOST_BYTES {
            return;
        }
        (0..self.parts / PARTS).for_each(|_| end_speculation());
        self.phase = Phase::Put;
    }

    /// Notes whether a poll has found the reply.
    #[inline]
    pub(super) fn polled(&mut self, found: bool) {
        if self.phase != Phase::Other {
            self.learn(found, ticks);
        }
    }

    #[inline]
    fn learn(&mut self, found: bool, now: impl FnOnce() -> u64) {
        match (self.phase, found) {
            (Phase::Put, false) => self.phase = Phase::Late(now()),
            (Phase::Put, true) => {
                self.parts -= self.parts / EARLY_PART + u32::from(self.parts > 0);
                self.phase = Phase::Other;
            }
            (Phase::Late(since), true) => {
                if now().wrapping_sub(since) <= LATE_TICKS {
                    self.parts = (self.parts + LATE).min(MOST * PARTS);
                }
                self.phase = Phase::Other;
            }
            (Phase::Late(_) | Phase::Other, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks of a fence.
    const FENCE: u64 = 18;

    /// Plays replies that take `ticks`, and returns the part of them that the first poll finds in the end.
    fn part_found(fences: &mut Fences, takes: u64) -> f64 {
        let mut reply = || {
            let delay = u64::from(fences.parts / PARTS) * FENCE;
            fences.wait(4);
            let is_there = delay >= takes;
            if !is_there {
                fences.learn(false, || delay);
            }
            fences.learn(true, || takes.max(delay));
            is_there
        };
        (0..4000).for_each(|_| _ = reply());
        (0..1000).filter(|_| reply()).count() as f64 / 1000.0
    }

    #[test]
    fn most_first_polls_find_the_reply_and_come_little_later() {
        for takes in [0, 50, 180, 400] {
            let mut fences = Fences::default();
            let found = part_found(&mut fences, takes);
            let delay = u64::from(fences.parts / PARTS) * FENCE;
            assert!(found > 0.8 && delay < takes + 2 * FENCE, "{found}, {delay} of {takes}");
        }
    }

    #[test]
    fn a_delay_ends_with_the_longer_replies() {
        let mut fences = Fences::default();
        part_found(&mut fences, 500);
        let longer = fences.parts;
        part_found(&mut fences, 50);
        assert!(longer > 20 * PARTS && fences.parts < 5 * PARTS, "{longer}, {}", fences.parts);
    }

    #[test]
    fn a_peer_that_does_something_else_first_teaches_nothing() {
        let mut fences = Fences::default();
        assert_eq!((part_found(&mut fences, LATE_TICKS + 1), fences.parts), (0.0, 0));
    }

    #[test]
    fn replies_that_always_come_a_little_later_end_no_wait_beyond_the_longest_delay() {
        let mut fences = Fences::default();
        part_found(&mut fences, u64::from(MOST) * FENCE + 300);
        assert_eq!(fences.parts, MOST * PARTS);
    }

    #[test]
    fn longer_messages_are_polled_from_the_start_and_teach_nothing() {
        let mut fences = Fences { parts: 100, ..Fences::default() };
        fences.wait(MOST_BYTES + 1);
        assert_eq!(fences.phase, Phase::Other);
        fences.polled(false);
        fences.polled(true);
        assert_eq!(fences.parts, 100);
    }
}
