//! Every plan verifies: every algorithm and every number of ranks up to 64, in place and out of place.
//!
//! Up to 24 ranks all roots are verified, above that some of them. `tbccl plan verify --all --ranks 1..64`
//! verifies all.

use collectives::plan::ALGORITHMS;
use collectives::sweep::{Case, cases, verify_all};
use collectives::verify::{Credits, verify};
use collectives::{Collective, Numerics, Spec, Weights};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

fn check(case: &Case, credits: &[u32]) {
    let schedule = case.plan().unwrap_or_else(|error| panic!("{error}"));
    for credits in credits {
        let report = verify(&schedule, Credits(*credits)).unwrap_or_else(|fault| panic!("{case}: {fault}"));
        assert!(report.numerics >= case.spec.numerics(), "{case}: {}", report.numerics);
    }
}

fn sweep(ranks: impl IntoIterator<Item = u32>, segments: &[u32], credits: &[u32]) {
    for case in ranks.into_iter().flat_map(|n| cases(n, segments)) {
        check(&case, credits);
    }
}

/// Whether the root is the first, the second, the middle or the last rank.
fn has_chosen_root(case: &Case) -> bool {
    let (n, root) = (case.spec.ranks(), case.spec.root().0);
    [0, 1, n / 2, n - 1].contains(&root)
}

#[test]
fn every_plan_up_to_24_ranks_is_right_with_no_credit_and_with_one() {
    sweep(1..=24, &[1], &[0, 1]);
}

fn sweep_chosen_roots(ranks: RangeInclusive<u32>) {
    for case in ranks.flat_map(|n| cases(n, &[1])).filter(has_chosen_root) {
        check(&case, &[0]);
    }
}

// Three tests rather than one, so that they run on several cores.

#[test]
fn every_plan_up_to_44_ranks_is_right_with_some_roots() {
    sweep_chosen_roots(25..=44);
}

#[test]
fn every_plan_up_to_56_ranks_is_right_with_some_roots() {
    sweep_chosen_roots(45..=56);
}

#[test]
fn every_plan_up_to_64_ranks_is_right_with_some_roots() {
    sweep_chosen_roots(57..=64);
}

#[test]
fn every_segmented_plan_is_right_with_no_credit_and_with_one() {
    sweep((1..=9).chain([12, 16, 17]), &[2, 3], &[0, 1]);
    sweep([1, 2, 3, 4], &[7, 64], &[0, 1]);
}

#[test]
fn more_than_64_ranks_are_right_too() {
    for case in cases(65, &[1]).chain(cases(130, &[1])) {
        if case.spec.root().0 == 0 || case.spec.root().0 == case.spec.ranks() - 2 {
            check(&case, &[0]);
        }
    }
}

/// Returns the spec with the passes other than segmentation.
fn with_lane_passes(spec: Spec) -> [Spec; 4] {
    let weights = |shares: &[u8]| Weights::new(shares).expect("few");
    [
        spec.with_replicas(2).expect("few"),
        spec.with_weights(weights(&[3, 1])),
        spec.with_weights(weights(&[1, 2, 1])),
        spec.with_replicas(3).expect("few").with_weights(weights(&[1, 1])),
    ]
}

#[test]
fn every_plan_is_right_when_it_is_dealt_to_lanes() {
    for case in [1, 2, 3, 4, 6, 7, 8].into_iter().flat_map(|n| cases(n, &[1, 3])) {
        let lanes = case.plan().expect("a plan").lanes;
        for (spec, times) in with_lane_passes(case.spec).into_iter().zip([2, 2, 3, 6]) {
            // Packed chunks are not contiguous, so they are not split over lanes.
            if spec.codec().is_some() && spec.weights().lanes() > 1 {
                continue;
            }
            let with_lane_passes = Case { spec, ..case };
            check(&with_lane_passes, &[0, 1]);
            assert_eq!(with_lane_passes.plan().expect("a plan").lanes, lanes * times, "{with_lane_passes}");
        }
    }
}

#[test]
fn all_of_them_are_counted() {
    let mut progress = Vec::new();
    let count =
        verify_all(1..=3, &[1, 2], &mut |what| progress.push(what.to_owned())).expect("they are right");
    let all: Vec<Case> = (1..=3).flat_map(|n| cases(n, &[1, 2])).collect();
    assert_eq!(count, all.len() as u64);
    assert_eq!(all.iter().map(ToString::to_string).collect::<BTreeSet<_>>().len(), all.len());
    for algorithm in ALGORITHMS {
        let name = format!("{} {}", algorithm.collective, algorithm.name);
        let orders = if algorithm.collective.reduces() && algorithm.numerics == Numerics::Reproducible {
            2
        } else {
            1
        };
        let modes = orders + usize::from(algorithm.collective == Collective::AllReduce);
        let roots = if algorithm.collective.has_root() { 1 + 2 + 3 } else { 3 };
        let is_same_algorithm = |case: &&Case| {
            case.spec.collective() == algorithm.collective && case.algorithm.name == algorithm.name
        };
        let found = all.iter().filter(is_same_algorithm).count();
        // In place and out of place, with 1 and 2 segments.
        let minimum = roots * modes * 2 * 2;
        // On several hosts, along several trees, and along a ring in several orders.
        let has_more =
            ["hierarchical", "spanning_tree"].contains(&algorithm.name) || algorithm.takes_ring_order();
        assert!(found == minimum || (has_more && found > minimum), "{name}: {found}");
    }
    assert_eq!(progress, ["1 ranks", "2 ranks", "3 ranks"]);
}
