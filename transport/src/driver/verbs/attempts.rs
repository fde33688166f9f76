//! Times of attempts that are repeated after growing waits: to open a rail, and to be acknowledged.
//!
//! This module is pure: time is passed in.

use std::time::{Duration, Instant};

/// Shortest and longest wait for an acknowledgement.
pub(super) const FIRST_TIMEOUT: Duration = Duration::from_millis(2);
pub(super) const LAST_TIMEOUT: Duration = Duration::from_millis(100);
/// First and longest time between attempts to open a rail.
const FIRST_ATTEMPT: Duration = Duration::from_millis(2);
const LAST_ATTEMPT: Duration = Duration::from_millis(200);
/// Attempts to open a rail in one life. Its queue pairs are reset once more after them.
const HELLOS: u32 = 20;
/// Time after which a silence of a rail does not count any more.
const SILENCE_COUNTS_FOR: Duration = Duration::from_secs(30);

/// A wait for an acknowledgement or a counter, which is repeated with growing timeouts.
#[derive(Debug)]
pub(super) struct Retry {
    /// Begin of the wait, and its timeout.
    present: Option<(Instant, Duration)>,
    /// Timeouts so far.
    timeouts: u32,
}

impl Retry {
    /// A wait that has not begun.
    pub(super) const NEW: Retry = Retry { present: None, timeouts: 0 };

    /// Returns whether the wait has timed out, and begins the next one if so. `first` is the timeout of the
    /// first one.
    pub(super) fn is_due(&mut self, now: Instant, first: Duration) -> bool {
        let (since, timeout) = self.present.get_or_insert((now, first));
        let is_due = now.saturating_duration_since(*since) >= *timeout;
        if is_due {
            (*since, *timeout) = (now, (*timeout * 2).min(LAST_TIMEOUT));
            self.timeouts += 1;
        }
        is_due
    }

    /// The present timeout; zero before the wait has begun.
    pub(super) fn timeout(&self) -> Duration {
        self.present.map_or(Duration::ZERO, |(_, timeout)| timeout)
    }

    /// Number of timeouts so far.
    pub(super) fn timeouts(&self) -> u32 {
        self.timeouts
    }
}

/// Attempts to open a rail.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempts {
    next: Option<Instant>,
    made: u32,
    /// Number of times that the rail was silent since it last answered a ping, and the last of these times.
    silences: u32,
    silent_at: Option<Instant>,
}

impl Attempts {
    /// Returns whether it is time for the next attempt, and counts it if so.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        if self.next.is_some_and(|next| now < next) {
            return false;
        }
        self.next = Some(now + (FIRST_ATTEMPT * 2u32.saturating_pow(self.made.min(10))).min(LAST_ATTEMPT));
        self.made += 1;
        true
    }

    /// Whether the attempts in this life are used up.
    pub(super) fn is_exhausted(&self) -> bool {
        self.made.is_multiple_of(HELLOS)
    }

    /// Begins anew after the rail was up. The number of silences stays.
    pub(super) fn restart(&mut self) {
        *self = Attempts { next: None, made: 0, ..*self };
    }

    /// Notes that the rail was silent.
    pub(super) fn note_silence(&mut self, now: Instant) {
        self.silences = self.silences(now) + 1;
        self.silent_at = Some(now);
    }

    /// Notes that the rail has answered a ping.
    pub(super) fn note_answer(&mut self) {
        self.silences = 0;
    }

    /// Number of times that the rail was silent since it last answered a ping. 0 a while after the last one,
    /// since a rail in use is never pinged.
    pub(super) fn silences(&self, now: Instant) -> u32 {
        let counts = |at: Instant| now.saturating_duration_since(at) < SILENCE_COUNTS_FOR;
        if self.silent_at.is_some_and(counts) { self.silences } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_is_waited_for_longer_each_time() {
        let (mut retry, mut now) = (Retry::NEW, Instant::now());
        let mut is_due = |now| retry.is_due(now, FIRST_TIMEOUT);
        assert!(!is_due(now), "the wait begins");
        for millis in [2, 4, 8, 16, 32, 64, 100, 100] {
            assert!(!is_due(now + Duration::from_millis(millis - 1)), "{millis} ms");
            now += Duration::from_millis(millis);
            assert!(is_due(now), "{millis} ms");
        }
        assert_eq!((retry.timeouts(), retry.timeout()), (8, LAST_TIMEOUT));
    }

    #[test]
    fn a_rail_is_tried_at_once_and_then_less_and_less_often() {
        let (mut attempts, mut now) = (Attempts::default(), Instant::now());
        attempts.note_silence(now);
        assert!(attempts.is_due(now) && !attempts.is_due(now));
        for millis in [2, 4, 8, 16, 32, 64, 128, 200, 200] {
            assert!(!attempts.is_due(now + Duration::from_millis(millis - 1)), "{millis} ms");
            now += Duration::from_millis(millis);
            assert!(attempts.is_due(now), "{millis} ms");
        }
        attempts.restart();
        assert!(attempts.is_due(now), "the rail was up");
        assert_eq!(attempts.silences(now), 1);
        attempts.note_answer();
        assert_eq!(attempts.silences(now), 0);
    }

    /// A busy rail is not pinged, so it answers no ping between two silences that are hours apart.
    #[test]
    fn a_rail_that_was_silent_long_ago_is_not_waited_for_longer() {
        let (mut attempts, now) = (Attempts::default(), Instant::now());
        attempts.note_silence(now);
        attempts.note_silence(now + Duration::from_secs(2));
        assert_eq!(attempts.silences(now + Duration::from_secs(10)), 2);
        assert_eq!(attempts.silences(now + Duration::from_secs(40)), 0);
        attempts.note_silence(now + Duration::from_secs(40));
        assert_eq!(attempts.silences(now + Duration::from_secs(41)), 1);
    }
}
