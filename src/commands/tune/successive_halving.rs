//! Successive halving: finds the fastest of many candidates with few measurements.
//!
//! In each heat all remaining candidates are measured in turn, and the slower half is dropped. The finalists
//! are measured anew, so that luck in earlier heats does not decide. Pinned candidates stay to the end.
//!
//! The score is the median ratio of a time to that of the reference in the same round, since a machine that
//! becomes busy slows down a whole round. Times and costs that are equal on all ranks lead all ranks to the
//! same decisions. The method is that of K. Jamieson and A. Talwalkar (2016), without its bounds: time is
//! divided evenly between heats.
//!
//! This module is independent of the measured operation.

/// Candidates in the final besides the pinned ones.
const FINALISTS: usize = 2;
/// Minimum and maximum rounds of a heat, and of the final.
const HEAT_ROUNDS: (usize, usize) = (2, 50);
const FINAL_ROUNDS: (usize, usize) = (5, 400);
/// Candidates whose best round exceeds this multiple of the best time are dropped at once.
const CUTOFF: f64 = 3.0;

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Measured time in microseconds.
    pub(super) us: f64,
    /// Cost of the measurement in microseconds.
    pub(super) cost_us: f64,
}

/// A candidate's result in the final.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Score {
    pub(super) candidate: usize,
    /// Median time in microseconds.
    pub(super) us: f64,
    /// Median ratio to the reference; less is better.
    pub(super) ratio: f64,
}

/// Finds the fastest of `count` candidates within about `budget_us` microseconds, half of them for the final.
///
/// All of `pinned`, which are distinct, reach the final; the first of them is the reference. The best
/// candidate comes first in the result.
///
/// # Errors
/// The first error of `sample`.
pub(super) fn find_fastest<E>(
    count: usize,
    pinned: &[usize],
    budget_us: f64,
    mut sample: impl FnMut(usize) -> Result<Sample, E>,
) -> Result<Vec<Score>, E> {
    let reference = pinned[0];
    let mut others: Vec<usize> = (0..count).filter(|candidate| !pinned.contains(candidate)).collect();
    let heats = f64::from((others.len().max(2) as u32).ilog2());
    let mut rounds = Rounds::new(count, reference);
    while others.len() > FINALISTS {
        let mut field = [pinned, &others].concat();
        let is_pinned = |candidate: usize| pinned.contains(&candidate);
        rounds.measure_rounds(&mut field, HEAT_ROUNDS, budget_us / 2.0 / heats, &is_pinned, &mut sample)?;
        others.retain(|candidate| field.contains(candidate));
        others.sort_by(|a, b| rounds.ratio(*a).total_cmp(&rounds.ratio(*b)));
        others.truncate(others.len().div_ceil(2).max(FINALISTS));
    }
    compare(&[pinned, &others].concat(), reference, budget_us / 2.0, sample)
}

/// Compares the candidates with new measurements. The best comes first.
///
/// # Errors
/// The first error of `sample`.
pub(super) fn compare<E>(
    field: &[usize],
    reference: usize,
    budget_us: f64,
    mut sample: impl FnMut(usize) -> Result<Sample, E>,
) -> Result<Vec<Score>, E> {
    let mut field = field.to_vec();
    let mut rounds = Rounds::new(field.iter().max().map_or(0, |last| last + 1), reference);
    rounds.measure_rounds(&mut field, FINAL_ROUNDS, budget_us, &|_| true, &mut sample)?;
    let score =
        |candidate| Score { candidate, us: median(&rounds.times[candidate]), ratio: rounds.ratio(candidate) };
    let mut scores: Vec<Score> = field.into_iter().map(score).collect();
    scores.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    Ok(scores)
}

/// Measurements so far; every remaining candidate has one per round.
#[derive(Debug)]
struct Rounds {
    reference: usize,
    /// Times by candidate and round.
    times: Vec<Vec<f64>>,
}

impl Rounds {
    fn new(count: usize, reference: usize) -> Rounds {
        Rounds { reference, times: vec![Vec::new(); count] }
    }

    /// Measures all candidates in turn until the budget is spent, in reverse order every other round.
    fn measure_rounds<E>(
        &mut self,
        field: &mut Vec<usize>,
        (fewest, most): (usize, usize),
        budget_us: f64,
        is_pinned: &dyn Fn(usize) -> bool,
        sample: &mut impl FnMut(usize) -> Result<Sample, E>,
    ) -> Result<(), E> {
        let mut spent = 0.0;
        for round in 0..most {
            if round >= fewest && spent >= budget_us {
                break;
            }
            for place in 0..field.len() {
                let place = if round % 2 == 0 { place } else { field.len() - 1 - place };
                let Sample { us, cost_us } = sample(field[place])?;
                self.times[field[place]].push(us);
                spent += cost_us;
            }
            let best = field.iter().map(|candidate| self.ratio(*candidate)).fold(f64::INFINITY, f64::min);
            field.retain(|candidate| is_pinned(*candidate) || self.best_ratio(*candidate) <= CUTOFF * best);
        }
        Ok(())
    }

    fn ratios(&self, candidate: usize) -> impl Iterator<Item = f64> {
        self.times[candidate]
            .iter()
            .zip(&self.times[self.reference])
            .map(|(time, other)| time / other.max(1e-9))
    }

    fn ratio(&self, candidate: usize) -> f64 {
        median(&self.ratios(candidate).collect::<Vec<_>>())
    }

    fn best_ratio(&self, candidate: usize) -> f64 {
        self.ratios(candidate).fold(f64::INFINITY, f64::min)
    }
}

/// Returns the median; infinity for an empty slice.
pub(super) fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::INFINITY,
        n => (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// A machine with the given candidate times, plus up to 5 %. One sample in ten takes up to four times as
    /// long. Counts the samples of each candidate.
    struct Machine {
        times: Vec<f64>,
        state: u64,
        samples: Vec<usize>,
    }

    impl Machine {
        fn new(times: &[f64]) -> Machine {
            Machine { times: times.to_vec(), state: 7, samples: vec![0; times.len()] }
        }

        /// Returns a number from 0 to 1.
        fn random(&mut self) -> f64 {
            self.state =
                self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.state >> 11) as f64 / (1u64 << 53) as f64
        }

        fn sample(&mut self, candidate: usize) -> Result<Sample, Infallible> {
            self.samples[candidate] += 1;
            let busy = if self.random() < 0.1 { 1.0 + 3.0 * self.random() } else { 1.0 };
            let us = self.times[candidate] * busy * (1.0 + 0.05 * self.random());
            Ok(Sample { us, cost_us: us })
        }

        fn find_fastest(&mut self, pinned: &[usize], budget_us: f64) -> Vec<Score> {
            let count = self.times.len();
            find_fastest(count, pinned, budget_us, |candidate| self.sample(candidate)).expect("never fails")
        }
    }

    #[test]
    fn the_fastest_of_many_is_found_on_a_noisy_machine() {
        let times: Vec<f64> = (0..24).map(|candidate| 10.0 + f64::from((candidate * 7 + 5) % 24)).collect();
        let fastest = times.iter().position(|time| *time == 10.0).expect("there is one");
        let mut machine = Machine::new(&times);
        let scores = machine.find_fastest(&[0], 50_000.0);
        assert_eq!(scores[0].candidate, fastest, "{scores:?}");
        assert!((scores[0].ratio - 10.0 / times[0]).abs() < 0.05, "{scores:?}");
    }

    #[test]
    fn most_of_the_time_goes_to_the_last_few() {
        let times: Vec<f64> = (0..32).map(|candidate| 10.0 + f64::from(candidate)).collect();
        let mut machine = Machine::new(&times);
        let scores = machine.find_fastest(&[5], 100_000.0);
        let finalists: usize = scores.iter().map(|score| machine.samples[score.candidate]).sum();
        assert_eq!(scores.len(), 1 + FINALISTS);
        assert!(2 * finalists > machine.samples.iter().sum(), "{:?}", machine.samples);
    }

    #[test]
    fn who_is_hopeless_is_measured_once_unless_it_is_kept() {
        let mut machine = Machine::new(&[10.0, 11.0, 12.0, 1000.0, 900.0, 13.0]);
        let scores = machine.find_fastest(&[0, 3], 20_000.0);
        assert_eq!(machine.samples[4], 1);
        assert!(machine.samples[3] > 4);
        let last = scores.last().expect("some");
        assert!(last.candidate == 3 && (80.0..125.0).contains(&last.ratio), "{scores:?}");
    }

    #[test]
    fn what_is_measured_costs_about_the_budget() {
        for (count, budget) in [(1, 3000.0), (3, 30_000.0), (20, 200_000.0)] {
            let mut spent = 0.0;
            let mut machine = Machine::new(&vec![10.0; count]);
            find_fastest::<Infallible>(count, &[0], budget, |candidate| {
                let sample = machine.sample(candidate)?;
                spent += sample.cost_us;
                Ok(sample)
            })
            .expect("never fails");
            assert!(spent < 1.5 * budget, "{count}: {spent} of {budget}");
        }
        // Without a budget every candidate has the minimum of rounds, and a decision is made.
        let mut machine = Machine::new(&[20.0, 10.0, 15.0, 18.0]);
        assert_eq!(machine.find_fastest(&[0], 0.0)[0].candidate, 1);
    }

    #[test]
    fn an_error_ends_it() {
        let mut left = 3;
        let result = find_fastest(9, &[0], 1000.0, |_| {
            left -= 1;
            if left == 0 { Err("gone") } else { Ok(Sample { us: 1.0, cost_us: 1.0 }) }
        });
        assert_eq!((result, left), (Err("gone"), 0));
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
        assert_eq!(median(&[]), f64::INFINITY);
    }
}
