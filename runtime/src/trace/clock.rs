//! The clock of events: ticks of the processor's counter, or nanoseconds where it is not usable.
//!
//! Ticks become nanoseconds of the host's monotonic clock when events are read. Pairs of both times relate
//! them: two at the start of a trace, one in the ring of events every second at most, and one at the end.
//! Between two pairs the rate is taken to be constant. A killed rank's ring has no pair of its end, so its
//! latest events take the rate of the latest two pairs.

use super::{counter, event::EventWords};
use bootstrap::monotonic_nanos;
use std::{thread::sleep, time::Duration};

/// Time between the two pairs at the start, from which the first rate follows.
const START: Duration = Duration::from_micros(500);

/// Nanoseconds between the first two pairs in the ring of events, and between later ones.
const FIRST_INTERVAL: u64 = 1_000_000;
const INTERVAL: u64 = 1_000_000_000;

/// Readings of a pair, of which the one that took the shortest time counts.
const READINGS: usize = 5;

/// One moment on the counter and on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockPair {
    pub(super) ticks: u64,
    pub(super) nanos: u64,
    /// Ticks by which `ticks` is off at most.
    pub(super) error: u64,
}

/// The clock of events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventClock {
    /// Whether times are those of the processor's counter.
    counts: bool,
    /// Ticks of a millisecond.
    ticks_per_ms: u64,
}

impl EventClock {
    /// Returns the best clock of this machine, and its first two pairs.
    pub(super) fn start() -> (EventClock, [ClockPair; 2]) {
        EventClock::new(counter::is_usable())
    }

    fn new(counts: bool) -> (EventClock, [ClockPair; 2]) {
        if !counts {
            let pair = |nanos| ClockPair { ticks: nanos, nanos, error: 0 };
            return (EventClock { counts, ticks_per_ms: 1_000_000 }, [0, 1].map(pair));
        }
        let first = pair();
        sleep(START);
        let second = pair();
        let nanos = (second.nanos - first.nanos).max(1);
        let ticks = second.ticks.saturating_sub(first.ticks);
        let ticks_per_ms = u128::from(ticks) * 1_000_000 / u128::from(nanos);
        (EventClock { counts, ticks_per_ms: ticks_per_ms as u64 }, [first, second])
    }

    /// Returns the time. It may be that of a moment before earlier loads have their values.
    #[inline]
    pub(crate) fn now(self) -> u64 {
        if self.counts { counter::read() } else { monotonic_nanos() }
    }

    /// Returns the time after earlier loads have their values: data that has arrived was sent before.
    #[inline]
    pub(super) fn now_after_loads(self) -> u64 {
        if self.counts { counter::read_after_loads() } else { monotonic_nanos() }
    }

    /// Returns the ticks of a duration.
    pub(super) fn ticks(self, nanos: u64) -> u64 {
        (u128::from(nanos) * u128::from(self.ticks_per_ms) / 1_000_000) as u64
    }

    /// Returns the pair of this moment; `None` if times are nanoseconds already.
    pub(super) fn pair(self) -> Option<ClockPair> {
        self.counts.then(pair)
    }
}

/// Reads both clocks.
fn pair() -> ClockPair {
    let reading = |_| {
        let before = counter::read_after_loads();
        let nanos = monotonic_nanos();
        let half = counter::read_after_loads().saturating_sub(before) / 2;
        ClockPair { ticks: before + half, nanos, error: half + 1 }
    };
    (0..READINGS).map(reading).min_by_key(|pair| pair.error).expect("readings")
}

/// The times at which pairs are due in the ring of events: soon after the start, then at longer intervals, so
/// that a rank which is killed early has some.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairTimer {
    due: u64,
    interval: u64,
}

impl PairTimer {
    pub(super) fn new(clock: EventClock) -> PairTimer {
        let due = if clock.counts { clock.now() + clock.ticks(FIRST_INTERVAL) } else { u64::MAX };
        PairTimer { due, interval: FIRST_INTERVAL }
    }

    /// Whether a pair is due.
    #[inline]
    pub(super) fn is_due(&self, now: u64) -> bool {
        now >= self.due
    }

    /// Returns the pair that is due.
    #[cold]
    pub(super) fn take(&mut self, clock: EventClock) -> Option<ClockPair> {
        let pair = clock.pair()?;
        self.interval = (2 * self.interval).min(INTERVAL);
        self.due = pair.ticks + clock.ticks(self.interval);
        Some(pair)
    }
}

impl ClockPair {
    /// Returns the words of the pair as an event with a tag, which has no end.
    pub(super) fn encode(&self, first: u64) -> EventWords {
        [first, self.ticks, self.error, 0, self.nanos, 0, 0]
    }

    pub(super) fn decode(words: &EventWords) -> ClockPair {
        let [_, ticks, error, _, nanos, ..] = *words;
        ClockPair { ticks, nanos, error }
    }
}

/// The relation of ticks to nanoseconds over the time of a trace.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    /// At least two, at different ticks, in their order.
    pairs: Vec<ClockPair>,
}

impl Timeline {
    /// Creates the relation by pairs in any order. Those at which a clock goes back are left out. Without two
    /// pairs, ticks are nanoseconds.
    pub(super) fn new(mut pairs: Vec<ClockPair>) -> Timeline {
        pairs.sort_unstable_by_key(|pair| pair.ticks);
        pairs.dedup_by(|next, kept| next.ticks == kept.ticks || next.nanos <= kept.nanos);
        if pairs.len() < 2 {
            pairs = [0, 1].map(|nanos| ClockPair { ticks: nanos, nanos, error: 0 }).to_vec();
        }
        Timeline { pairs }
    }

    /// Returns nanoseconds on the host's monotonic clock. 0, an unknown time, stays 0.
    pub(super) fn nanos(&self, ticks: u64) -> u64 {
        if ticks == 0 {
            return 0;
        }
        let [from, until] = self.around(ticks);
        let since = i128::from(ticks) - i128::from(from.ticks);
        let rate = (i128::from(until.nanos - from.nanos), i128::from(until.ticks - from.ticks));
        let nanos = i128::from(from.nanos) + since.saturating_mul(rate.0).div_euclid(rate.1);
        nanos.clamp(1, i128::from(u64::MAX)) as u64
    }

    /// Returns the pairs around a time, or the nearest two.
    fn around(&self, ticks: u64) -> [ClockPair; 2] {
        let after = self.pairs.partition_point(|pair| pair.ticks <= ticks);
        let after = after.clamp(1, self.pairs.len() - 1);
        [self.pairs[after - 1], self.pairs[after]]
    }

    /// Returns the nanoseconds by which a time up to `latest` is off at most, as far as the pairs show it:
    /// the errors of their readings, and the largest change of the rate between three of them.
    pub(super) fn error(&self, latest: u64) -> u64 {
        let [from, until] = self.around(latest);
        let ticks = self.pairs.iter().map(|pair| pair.error).max().unwrap_or(0);
        let beyond = latest.saturating_sub(until.ticks) as f64 / (until.ticks - from.ticks) as f64;
        let rate = (until.nanos - from.nanos) as f64 / (until.ticks - from.ticks) as f64;
        let bends = self.pairs.windows(3).map(bend).fold(0.0, f64::max);
        ((1.0 + 2.0 * beyond) * (ticks as f64 * rate + bends)).ceil() as u64
    }
}

/// Returns the nanoseconds by which the second of three pairs is off the line through the others.
fn bend(pairs: &[ClockPair]) -> f64 {
    let [first, second, third] = [pairs[0], pairs[1], pairs[2]];
    let line = Timeline { pairs: vec![first, third] };
    line.nanos(second.ticks).abs_diff(second.nanos) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Nanoseconds by which times may be off.
    const BOUND: u64 = 1_000;

    /// A time of the clock, and the monotonic times before and after it.
    struct Reading {
        ticks: u64,
        between: [u64; 2],
    }

    impl Reading {
        fn of(clock: EventClock) -> Reading {
            let before = monotonic_nanos();
            let ticks = clock.now_after_loads();
            Reading { ticks, between: [before, monotonic_nanos()] }
        }

        fn assert_close(&self, timeline: &Timeline) {
            let (nanos, [before, after]) = (timeline.nanos(self.ticks), self.between);
            assert!(nanos + BOUND >= before && nanos <= after + BOUND, "{before} {nanos} {after}");
        }
    }

    #[test]
    fn times_between_the_begin_and_the_end_of_a_trace_are_off_by_less_than_a_microsecond() {
        let (clock, start) = EventClock::start();
        let readings: Vec<Reading> = (0..200)
            .map(|_| {
                sleep(Duration::from_millis(1));
                Reading::of(clock)
            })
            .collect();
        let timeline = Timeline::new(start.into_iter().chain(clock.pair()).collect());
        readings.iter().for_each(|reading| reading.assert_close(&timeline));
        let error = timeline.error(readings[199].ticks);
        assert!(error < BOUND, "{error} ns: {timeline:?}");
    }

    #[test]
    fn times_after_the_latest_pair_of_a_killed_rank_are_off_by_less_than_a_microsecond() {
        let (clock, start) = EventClock::start();
        let mut timer = PairTimer::new(clock);
        let (mut pairs, mut after_pairs) = (start.to_vec(), Vec::new());
        let begin = clock.now();
        while clock.now() < begin + clock.ticks(200_000_000) {
            let reading = Reading::of(clock);
            // A thread that did not run for long has a time after its pair was due.
            if !timer.is_due(reading.ticks) {
                after_pairs.push(reading.ticks);
                reading.assert_close(&Timeline::new(pairs.clone()));
            } else {
                pairs.extend(timer.take(clock));
            }
            sleep(Duration::from_micros(100));
        }
        // The pairs are due after 1, 3, 7, 15, 31, 63 and 127 ms.
        assert!(!after_pairs.is_empty() && pairs.len() <= 9, "{pairs:?}");
        assert!(!clock.counts || pairs.len() > 2, "{pairs:?}");
    }

    #[test]
    fn without_a_counter_times_are_those_of_the_clock() {
        let (clock, start) = EventClock::new(false);
        let before = monotonic_nanos();
        let times = [clock.now(), clock.now_after_loads(), monotonic_nanos()];
        assert!(before <= times[0] && times.is_sorted());
        assert_eq!((clock.pair(), clock.ticks(77)), (None, 77));
        let timeline = Timeline::new(start.to_vec());
        assert_eq!(times.map(|time| timeline.nanos(time)), times);
        assert_eq!(timeline.error(times[2]), 0);
        assert!(!PairTimer::new(clock).is_due(times[2]));
    }

    #[test]
    fn a_change_of_the_rate_between_pairs_makes_the_stated_error_larger() {
        let pair = |ticks, nanos| ClockPair { ticks, nanos, error: 0 };
        let even = Timeline::new(vec![pair(0, 5), pair(2_000, 1_005), pair(4_000, 2_005)]);
        assert_eq!((even.nanos(1_000), even.nanos(3_000), even.error(4_000)), (505, 1_505, 0));
        let bent = Timeline::new(vec![pair(0, 5), pair(2_000, 1_045), pair(4_000, 2_005)]);
        assert_eq!((bent.nanos(2_000), bent.error(4_000)), (1_045, 40));
        assert_eq!(bent.error(6_000), 120, "the rate may go on changing after the latest pair");
    }

    proptest! {
        #[test]
        fn any_pairs_of_a_file_keep_the_order_of_times(
            pairs in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..9),
            mut times: [u64; 9],
        ) {
            let pair = |(ticks, nanos, error)| ClockPair { ticks, nanos, error };
            let timeline = Timeline::new(pairs.into_iter().map(pair).collect());
            times.sort_unstable();
            prop_assert!(times.map(|time| timeline.nanos(time)).is_sorted());
            timeline.error(times[8]);
        }
    }
}
