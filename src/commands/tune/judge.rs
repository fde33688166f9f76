//! The evaluation of a comparison: the best candidate for the file, or the regret of a choice.

use super::{field::Candidate, halving::Standing};

/// The automatic choice is kept unless another one takes less than this share of its time: the rest may be
/// noise.
const WORTH_IT: f64 = 0.96;

/// The place in the standings of what is to be chosen, where candidate 0 is the automatic choice.
pub(super) fn winner(standings: &[Standing]) -> usize {
    match standings.first() {
        Some(best) if best.ratio >= WORTH_IT => {
            standings.iter().position(|standing| standing.candidate == 0).unwrap_or(0)
        }
        _ => 0,
    }
}

/// How many times as long as the best a candidate takes; 1 is none worse.
pub(super) fn regret(standings: &[Standing], candidate: usize) -> f64 {
    let best = standings.iter().map(|standing| standing.ratio).fold(f64::INFINITY, f64::min);
    let own = standings.iter().find(|standing| standing.candidate == candidate);
    own.map_or(1.0, |own| own.ratio / best)
}

/// For people: `ring`, or `ring/4` in four segments.
pub(super) fn name(candidate: Candidate) -> String {
    match candidate.segments {
        1 => candidate.algorithm.to_owned(),
        segments => format!("{}/{segments}", candidate.algorithm),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standings(ratios: &[(usize, f64)]) -> Vec<Standing> {
        ratios
            .iter()
            .map(|(candidate, ratio)| Standing { candidate: *candidate, us: 1.0, ratio: *ratio })
            .collect()
    }

    #[test]
    fn what_may_be_noise_does_not_change_the_choice() {
        assert_eq!(winner(&standings(&[(4, 0.97), (0, 1.0), (2, 1.2)])), 1);
        assert_eq!(winner(&standings(&[(4, 0.90), (0, 1.0)])), 0);
        assert_eq!(winner(&standings(&[(0, 1.0)])), 0);
    }

    #[test]
    fn regret_is_the_ratio_to_the_best() {
        let all = standings(&[(4, 0.8), (0, 1.0), (2, 1.2)]);
        assert_eq!((regret(&all, 4), regret(&all, 0), regret(&all, 2)), (1.0, 1.25, 1.2 / 0.8));
    }
}
