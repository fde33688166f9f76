//! Round trip time to a peer, from which the first timeout of a message follows (RFC 6298).
//!
//! Nothing is measured on the path of a message. At each look the latest message and the latest
//! acknowledgement are compared with those of the look before: a message that is acknowledged has taken no
//! longer than the time since the look before it was sent. A message that was repeated is not measured
//! (Karn's algorithm), and timeouts that have grown stay so until one is. A question makes the peer
//! acknowledge at once, so the message is measured from the question: a peer that has no reason to
//! acknowledge does not make the timeout grow.
//!
//! This module is pure: time is passed in.

use super::{
    attempts::{FIRST_TIMEOUT, LAST_TIMEOUT},
    wire::is_before,
};
use std::time::{Duration, Instant};

/// Time between two looks above which nothing is measured between them, since this rank did not run.
const LONGEST_GAP: Duration = Duration::from_millis(2);
/// Accuracy of the measurement.
const GRANULARITY: Duration = Duration::from_micros(200);

/// Round trip time to a peer.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    /// Smoothed time, and its variation, once there is a measurement.
    smoothed: Option<(Duration, Duration)>,
    /// Message that is measured, and the time from which it is.
    measured: Option<(u32, Instant)>,
    /// Latest message at the last look, and the time of that look.
    last: Option<(u32, Instant)>,
    /// Timeout of the latest repeat since which nothing was measured.
    backed_off: Duration,
}

impl RoundTrip {
    /// Takes in the number of the latest message, and of the first one that is not acknowledged.
    pub(super) fn look(&mut self, now: Instant, latest: u32, unacknowledged: u32) {
        let Some((earlier, looked)) = self.last.replace((latest, now)) else { return };
        if now.saturating_duration_since(looked) > LONGEST_GAP {
            self.measured = None;
            return;
        }
        if self.measured.is_none() && is_before(earlier, latest) {
            self.measured = Some((latest, looked));
        }
        if let Some((_, since)) = self.measured.take_if(|(number, _)| is_before(*number, unacknowledged)) {
            self.measure(now.saturating_duration_since(since));
        }
    }

    /// Notes that the peer has been asked for an acknowledgement.
    pub(super) fn asked(&mut self, now: Instant) {
        self.measured = self.measured.map(|(number, _)| (number, now));
    }

    /// Notes that messages are repeated after a timeout.
    pub(super) fn repeated(&mut self, timeout: Duration) {
        self.measured = None;
        self.backed_off = timeout.min(LAST_TIMEOUT);
    }

    fn measure(&mut self, sample: Duration) {
        self.backed_off = Duration::ZERO;
        self.smoothed = Some(match self.smoothed {
            None => (sample, sample / 2),
            Some((smoothed, variation)) => {
                ((smoothed * 7 + sample) / 8, (variation * 3 + smoothed.abs_diff(sample)) / 4)
            }
        });
    }

    /// First timeout of a message.
    pub(super) fn timeout(&self) -> Duration {
        let timeout = self.smoothed.map(|(smoothed, variation)| smoothed + (variation * 4).max(GRANULARITY));
        timeout.unwrap_or(FIRST_TIMEOUT).clamp(FIRST_TIMEOUT, LAST_TIMEOUT).max(self.backed_off)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_micros(200);

    /// A link on which every message is acknowledged after a time, and its sender.
    struct Link {
        round_trip: RoundTrip,
        now: Instant,
        takes: Duration,
        /// Whether the peer acknowledges when it is asked only.
        is_lazy: bool,
        sent: u32,
    }

    impl Link {
        fn new(takes: Duration, is_lazy: bool) -> Link {
            Link { round_trip: RoundTrip::default(), now: Instant::now(), takes, is_lazy, sent: 0 }
        }

        /// Sends a message as `Peer::retry` does, and returns the number of repeats until it is acknowledged.
        fn send(&mut self) -> u32 {
            let before = self.sent;
            self.round_trip.look(self.now, before, before + 1);
            self.sent += 1;
            let (began, mut due) = (self.now, self.now + self.round_trip.timeout());
            let (mut timeout, mut timeouts) = (self.round_trip.timeout(), 0);
            let mut acknowledged = (!self.is_lazy).then_some(began + self.takes);
            loop {
                self.now += TICK;
                let is_acknowledged = acknowledged.is_some_and(|at| at <= self.now);
                self.round_trip.look(self.now, self.sent, self.sent + u32::from(is_acknowledged));
                if is_acknowledged {
                    return timeouts.max(1) - 1;
                }
                if self.now >= due {
                    timeouts += 1;
                    timeout = (timeout * 2).min(LAST_TIMEOUT);
                    due = self.now + timeout;
                    match timeouts {
                        1 => self.round_trip.asked(self.now),
                        _ => self.round_trip.repeated(timeout),
                    }
                    acknowledged.get_or_insert(self.now + self.takes);
                }
            }
        }
    }

    #[test]
    fn a_link_that_is_longer_than_the_first_timeout_repeats_a_few_messages_and_no_more() {
        for millis in [1, 3, 10, 30, 80] {
            let mut link = Link::new(Duration::from_millis(millis), false);
            (0..5).for_each(|_| _ = link.send());
            let repeats: u32 = (0..100).map(|_| link.send()).sum();
            assert_eq!(repeats, 0, "{millis} ms");
            let timeout = link.round_trip.timeout();
            assert!(timeout < Duration::from_millis(2 * millis + 2), "{millis} ms: {timeout:?}");
        }
    }

    #[test]
    fn a_peer_that_acknowledges_only_when_it_is_asked_does_not_make_the_timeout_grow() {
        let mut link = Link::new(Duration::from_micros(100), true);
        (0..100).for_each(|_| assert_eq!(link.send(), 0));
        assert_eq!(link.round_trip.timeout(), FIRST_TIMEOUT);
    }

    #[test]
    fn timeouts_that_have_grown_are_short_again_after_a_message_that_was_not_repeated() {
        let mut link = Link::new(Duration::from_micros(100), false);
        link.round_trip.repeated(Duration::from_secs(1));
        assert_eq!(link.round_trip.timeout(), LAST_TIMEOUT);
        link.send();
        assert_eq!(link.round_trip.timeout(), FIRST_TIMEOUT);
    }

    #[test]
    fn a_link_that_has_become_short_has_a_short_timeout_again() {
        let mut link = Link::new(Duration::from_millis(30), false);
        (0..100).for_each(|_| _ = link.send());
        link.takes = Duration::from_micros(100);
        (0..50).for_each(|_| _ = link.send());
        assert_eq!(link.round_trip.timeout(), FIRST_TIMEOUT);
    }

    #[test]
    fn time_in_which_this_rank_did_not_run_is_not_measured() {
        let mut link = Link::new(Duration::from_micros(100), false);
        link.round_trip.look(link.now, 0, 1);
        link.round_trip.look(link.now + TICK, 1, 1);
        link.round_trip.look(link.now + Duration::from_secs(1), 1, 2);
        assert_eq!(link.round_trip.timeout(), FIRST_TIMEOUT);
    }
}
