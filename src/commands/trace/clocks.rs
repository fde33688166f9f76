//! Offset and drift of a host's clock beside the reference, from samples.
//!
//! A sample has a time of the reference between two local times, so the offset at the middle is known to half
//! of the round trip, whatever part of it each way took. The fit goes through the shortest round trips, and
//! its error follows from theirs: it assumes that the drift is constant, or at most [`DRIFT_LIMIT`] where the
//! samples are too close to each other to tell. A sample that contradicts the fit makes the error larger.

/// Bound of the drift between two clocks: each is off by 50 ppm at most.
const DRIFT_LIMIT: f64 = 100e-6;

/// A sample: local time before, time of the reference, local time after; nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) sent: u64,
    pub(super) server: u64,
    pub(super) received: u64,
}

impl Sample {
    fn middle(&self) -> u64 {
        self.sent + self.half() as u64
    }

    /// Half of the round trip.
    fn half(&self) -> f64 {
        self.received.saturating_sub(self.sent) as f64 / 2.0
    }

    /// Time of the reference minus local time.
    fn offset(&self) -> i128 {
        i128::from(self.server) - i128::from(self.middle())
    }
}

/// A linear relation of a host's clock to the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fit {
    /// Local time at which the offset holds.
    at: u64,
    offset: i128,
    /// Change of the offset per local nanosecond.
    pub(super) drift: f64,
    /// Largest error within the span, in nanoseconds.
    pub(super) error: f64,
}

impl Fit {
    /// Returns the fit of a clock that is the reference.
    pub(super) const EXACT: Fit = Fit { at: 0, offset: 0, drift: 0.0, error: 0.0 };

    /// Returns the time of the reference at a local time, in nanoseconds.
    pub(super) fn reference(&self, local: u64) -> i128 {
        i128::from(local) + self.offset_at(local)
    }

    /// Returns the time of the reference minus a local time.
    pub(super) fn offset_at(&self, local: u64) -> i128 {
        let since = (i128::from(local) - i128::from(self.at)) as f64;
        self.offset + (self.drift * since).round() as i128
    }

    /// Fits samples, for local times of the span. `None` without samples.
    pub(super) fn new(samples: &[Sample], (first, last): (u64, u64)) -> Option<Fit> {
        let best = shortest(samples.iter())?;
        let away = |local: u64| local.abs_diff(best.middle()) as f64;
        let constant = Fit {
            at: best.middle(),
            offset: best.offset(),
            drift: 0.0,
            error: best.half() + DRIFT_LIMIT * away(first).max(away(last)),
        };
        let linear = Fit::linear(samples, (first, last));
        let fit = linear.filter(|fit| fit.error < constant.error).unwrap_or(constant);
        // A nanosecond for the rounding of each end.
        Some(Fit { error: fit.error + fit.contradiction(samples) + 2.0, ..fit })
    }

    /// Returns the line through the shortest round trips of the earlier and of the later half.
    fn linear(samples: &[Sample], (first, last): (u64, u64)) -> Option<Fit> {
        let middles = || samples.iter().map(Sample::middle);
        let (from, until) = (middles().min()?, middles().max()?);
        let half = from + (until - from) / 2;
        let early = shortest(samples.iter().filter(|sample| sample.middle() <= half))?;
        let late = shortest(samples.iter().filter(|sample| sample.middle() > half))?;
        let (begin, end) = (early.middle(), late.middle());
        let between = (end - begin) as f64;
        // The errors at both ends of the line, carried on along it.
        let error = |local: u64| {
            let along = (i128::from(local) - i128::from(begin)) as f64 / between;
            (1.0 - along).abs() * early.half() + along.abs() * late.half()
        };
        let error = [first, last, begin, end].map(error).into_iter().fold(0.0, f64::max);
        let drift = (late.offset() - early.offset()) as f64 / between;
        Some(Fit { at: begin, offset: early.offset(), drift, error })
    }

    /// Returns by how much the fit is outside of what the samples allow, at most.
    fn contradiction(&self, samples: &[Sample]) -> f64 {
        let outside = |sample: &Sample| {
            let off = (sample.offset() - self.offset_at(sample.middle())).unsigned_abs() as f64;
            off - sample.half() - 1.0
        };
        samples.iter().map(outside).fold(0.0, f64::max)
    }
}

/// Returns the sample of the shortest round trip.
fn shortest<'s>(samples: impl Iterator<Item = &'s Sample>) -> Option<Sample> {
    samples.copied().min_by(|a, b| a.half().total_cmp(&b.half()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A clock with a true offset and drift.
    #[derive(Clone, Copy, Debug)]
    struct Truth {
        offset: i64,
        drift: f64,
    }

    const START: u64 = 5_000_000_000_000;

    impl Truth {
        fn reference(self, local: u64) -> i128 {
            let since = local as f64 - START as f64;
            i128::from(local) + i128::from(self.offset) + (self.drift * since) as i128
        }

        /// Returns a sample that begins at a local time; the two ways take these times.
        fn sample(self, sent: u64, there: u64, back: u64) -> Sample {
            let server = self.reference(sent + there).try_into().expect("positive");
            Sample { sent, server, received: sent + there + back }
        }
    }

    #[test]
    fn offset_and_drift_are_found_within_the_stated_error() {
        let truth = Truth { offset: -1_234_567_890, drift: 40e-6 };
        let second = 1_000_000_000;
        // Slow and asymmetric samples beside fast ones.
        let at = |time: u64| {
            [(1, 40_000, 900_000), (2, 21_000, 19_000), (3, 300_000, 25_000)]
                .map(|(nth, there, back)| truth.sample(START + time + nth * 1_000_000, there, back))
        };
        let samples: Vec<Sample> = at(0).into_iter().chain(at(60 * second)).collect();
        let fit = Fit::new(&samples, (START, START + 61 * second)).expect("samples");
        assert!((fit.drift - 40e-6).abs() < 1e-8, "{fit:?}");
        assert!(fit.error < 25_000.0, "{fit:?}");
        for time in [0, 1, 30, 60, 61] {
            let local = START + time * second;
            let off = (fit.reference(local) - truth.reference(local)).unsigned_abs() as f64;
            assert!(off <= fit.error, "{off} ns off after {time} s: {fit:?}");
        }
    }

    #[test]
    fn samples_of_one_moment_bound_the_error_by_the_largest_drift() {
        let truth = Truth { offset: 77_000_000, drift: 90e-6 };
        let fit =
            Fit::new(&[truth.sample(START, 10_000, 10_000)], (START, START + 1_000_000_000)).expect("one");
        assert_eq!(fit.drift, 0.0);
        let off =
            (fit.reference(START + 1_000_000_000) - truth.reference(START + 1_000_000_000)).unsigned_abs();
        assert!(off as f64 <= fit.error && fit.error < 111_000.0, "{off} {fit:?}");
    }

    #[test]
    fn a_clock_that_is_set_within_a_job_makes_the_error_larger() {
        let truth = Truth { offset: 0, drift: 0.0 };
        let later = Truth { offset: 1_000_000, drift: 0.0 };
        let samples = [
            truth.sample(START, 5_000, 5_000),
            later.sample(START + 50_000_000, 6_000, 6_000),
            truth.sample(START + 100_000_000, 5_000, 5_000),
        ];
        let fit = Fit::new(&samples, (START, START + 100_000_000)).expect("samples");
        assert!(fit.error >= 990_000.0, "{fit:?}");
    }

    #[test]
    fn without_samples_there_is_no_fit() {
        assert_eq!(Fit::new(&[], (0, 1)), None);
    }

    proptest! {
        #[test]
        fn no_time_is_off_by_more_than_the_stated_error(
            offset in -4_000_000_000_000_i64..4_000_000_000_000,
            drift in -90e-6..90e-6,
            span in 1_000_u64..1_000_000_000_000,
            noise in prop::collection::vec((0.0..1.0, 1_000_u64..5_000_000, 1_000_u64..5_000_000), 1..24),
        ) {
            let truth = Truth { offset, drift };
            let samples: Vec<Sample> = noise
                .iter()
                .map(|(part, there, back)| {
                    truth.sample(START + (part * span as f64) as u64, *there, *back)
                })
                .collect();
            let fit = Fit::new(&samples, (START, START + span)).expect("samples");
            for part in 0..=10 {
                let local = START + span / 10 * part;
                let off = (fit.reference(local) - truth.reference(local)).unsigned_abs() as f64;
                prop_assert!(off <= fit.error + 4.0, "{} ns off: {:?}", off, fit);
            }
        }
    }
}
