//! Detection of rails that do not answer.
//!
//! A rail may stop working without notice: no completion fails, and nothing arrives. Apple's device does so
//! after a long idle time. So a rail from which nothing has been received for a while, although something is
//! expected, is pinged, and the peer answers by the same rail. A rail that leaves a ping unanswered is
//! silent, and is given up, if the peer has answered a ping by another rail that was sent no earlier. Without
//! another rail, a silent rail and a busy peer look the same. The answer is waited for longer then, and each
//! time longer than before.
//!
//! An end that expects nothing pings too, if less often: the other end may wait for what can't arrive here,
//! and only the end whose queue pair has stopped can make it new.
//!
//! This module is pure: time is passed in.

use std::time::{Duration, Instant};

/// Silence after which a rail is pinged: while something is expected, and otherwise.
const QUIET: Duration = Duration::from_millis(30);
const IDLE_QUIET: Duration = Duration::from_millis(400);
/// Time for an answer when the peer has answered by another rail.
const ANSWER: Duration = Duration::from_millis(70);
/// Time for an answer by the only rail, at first and at most.
const LONE_ANSWER: Duration = Duration::from_millis(1000);
const LONGEST_ANSWER: Duration = Duration::from_secs(8);

/// Latest signs that one rail answers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pulse {
    /// Messages received so far, and their number at the last look.
    received: u32,
    received_at_look: u32,
    /// Time at which something was last received, to the nearest look.
    last: Option<Instant>,
    /// Time of the ping that is not answered.
    pinged: Option<Instant>,
    /// Time of the latest ping that was answered.
    answered: Option<Instant>,
}

impl Pulse {
    /// Notes that a message has arrived.
    #[inline]
    pub(super) fn beat(&mut self) {
        self.received = self.received.wrapping_add(1);
    }

    /// Takes the time of what was received since the last look; returns whether a ping is due.
    pub(super) fn look(&mut self, now: Instant, is_expected: bool) -> bool {
        if self.received != self.received_at_look || self.last.is_none() {
            self.received_at_look = self.received;
            self.last = Some(now);
            // Any message counts as an answer.
            if let Some(pinged) = self.pinged.take() {
                self.answered = Some(pinged);
            }
        }
        let quiet = if is_expected { QUIET } else { IDLE_QUIET };
        self.pinged.is_none() && self.last.is_some_and(|last| now.saturating_duration_since(last) >= quiet)
    }

    /// Notes that a ping has been sent.
    pub(super) fn ping(&mut self, now: Instant) {
        self.pinged = Some(now);
    }

    /// Whether a ping has been answered.
    pub(super) fn has_answered(&self) -> bool {
        self.answered.is_some()
    }

    /// Whether the rail is silent. `others` are the other rails to the same peer, and `failures` the number
    /// of times that it was found silent before without an answer in between.
    pub(super) fn is_silent<'a>(
        &self,
        now: Instant,
        mut others: impl Iterator<Item = &'a Pulse>,
        failures: u32,
    ) -> bool {
        let Some(pinged) = self.pinged else { return false };
        let waited = now.saturating_duration_since(pinged);
        let is_peer_alive = others.any(|other| other.answered.is_some_and(|answered| answered >= pinged));
        let lone = (LONE_ANSWER * 2u32.saturating_pow(failures.min(8))).min(LONGEST_ANSWER);
        waited >= if is_peer_alive { ANSWER } else { lone }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(began: Instant, millis: u64) -> Instant {
        began + Duration::from_millis(millis)
    }

    #[test]
    fn a_rail_is_silent_if_the_peer_answers_by_another_one() {
        let (began, mut pulses) = (Instant::now(), [Pulse::default(); 2]);
        assert!(!pulses.iter_mut().any(|pulse| pulse.look(began, true)));
        for pulse in &mut pulses {
            assert!(pulse.look(after(began, 31), true), "a ping is due");
            pulse.ping(after(began, 31));
            assert!(!pulse.look(after(began, 32), true), "one ping at a time");
        }
        pulses[1].beat();
        pulses[1].look(after(began, 40), true);
        let [silent, alive] = pulses;
        assert!(!silent.is_silent(after(began, 60), [alive].iter(), 0));
        assert!(silent.is_silent(after(began, 110), [alive].iter(), 0));
        assert!(!alive.is_silent(after(began, 110), [silent].iter(), 0));
    }

    #[test]
    fn a_peer_that_answers_by_no_rail_is_busy_for_a_while() {
        let (began, mut pulse) = (Instant::now(), Pulse::default());
        pulse.look(began, true);
        pulse.ping(began);
        assert!(!pulse.is_silent(after(began, 900), [pulse].iter(), 0));
        assert!(pulse.is_silent(after(began, 1100), [].iter(), 0));
        assert!(!pulse.is_silent(after(began, 1100), [].iter(), 1), "longer each time");
        assert!(pulse.is_silent(after(began, 9000), [].iter(), 60));
    }

    #[test]
    fn a_rail_of_which_nothing_is_expected_is_pinged_less_often() {
        let (began, mut pulse) = (Instant::now(), Pulse::default());
        pulse.look(began, false);
        assert!(!pulse.look(after(began, 390), false));
        assert!(pulse.look(after(began, 390), true));
        assert!(pulse.look(after(began, 410), false));
        pulse.ping(after(began, 410));
        pulse.beat();
        assert!(!pulse.look(after(began, 420), false), "it has answered");
        assert!(!pulse.look(after(began, 800), false));
        assert!(pulse.look(after(began, 830), false));
    }
}
