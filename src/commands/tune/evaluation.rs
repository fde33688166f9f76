//! Evaluation of a comparison: the best candidate for the file, or the regret of a choice.

use super::{candidates::Candidate, successive_halving::Score};

/// Fraction of the automatic choice's time below which another candidate replaces it; smaller gains may be
/// noise.
const SWITCH_THRESHOLD: f64 = 0.96;

/// Returns the index in `scores` of the candidate to choose; candidate 0 is the automatic choice.
pub(super) fn winner(scores: &[Score]) -> usize {
    match scores.first() {
        Some(best) if best.ratio >= SWITCH_THRESHOLD => {
            scores.iter().position(|score| score.candidate == 0).unwrap_or(0)
        }
        _ => 0,
    }
}

/// Returns a candidate's time relative to the best; 1 if it is the best.
pub(super) fn regret(scores: &[Score], candidate: usize) -> f64 {
    let best = scores.iter().map(|score| score.ratio).fold(f64::INFINITY, f64::min);
    let found = scores.iter().find(|score| score.candidate == candidate);
    found.map_or(1.0, |found| found.ratio / best)
}

/// Returns a readable name: `ring`, or `ring/4` with four segments.
pub(super) fn candidate_name(candidate: Candidate) -> String {
    match candidate.segments {
        1 => candidate.algorithm.to_owned(),
        segments => format!("{}/{segments}", candidate.algorithm),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(ratios: &[(usize, f64)]) -> Vec<Score> {
        ratios
            .iter()
            .map(|(candidate, ratio)| Score { candidate: *candidate, us: 1.0, ratio: *ratio })
            .collect()
    }

    #[test]
    fn what_may_be_noise_does_not_change_the_choice() {
        assert_eq!(winner(&scores(&[(4, 0.97), (0, 1.0), (2, 1.2)])), 1);
        assert_eq!(winner(&scores(&[(4, 0.90), (0, 1.0)])), 0);
        assert_eq!(winner(&scores(&[(0, 1.0)])), 0);
    }

    #[test]
    fn regret_is_the_ratio_to_the_best() {
        let all = scores(&[(4, 0.8), (0, 1.0), (2, 1.2)]);
        assert_eq!((regret(&all, 4), regret(&all, 0), regret(&all, 2)), (1.0, 1.25, 1.2 / 0.8));
    }
}
