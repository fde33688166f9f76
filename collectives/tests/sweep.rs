//! Every plan verifies: every algorithm, every number of ranks up to 64, in place and not; all roots of up to 24 ranks, and
//! some of more. `tbccl plan verify --all --ranks 1..64` goes through all.

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

/// The first and the last root, and two between them.
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

// In three parts, that more than one core may be at it.

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

/// What may be done to a plan beside segmenting it.
fn dealt(spec: Spec) -> [Spec; 4] {
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
        for (spec, times) in dealt(case.spec).into_iter().zip([2, 2, 3, 6]) {
            // Packed chunks do not lie side by side, so they are not split over lanes.
            if spec.codec().is_some() && spec.weights().lanes() > 1 {
                continue;
            }
            let dealt = Case { spec, ..case };
            check(&dealt, &[0, 1]);
            assert_eq!(dealt.plan().expect("a plan").lanes, lanes * times, "{dealt}");
        }
    }
}

#[test]
fn all_of_them_are_counted() {
    let mut heard = Vec::new();
    let count = verify_all(1..=3, &[1, 2], &mut |what| heard.push(what.to_owned())).expect("they are right");
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
        let ways = orders + usize::from(algorithm.collective == Collective::AllReduce);
        let roots = if algorithm.collective.has_root() { 1 + 2 + 3 } else { 3 };
        let mine = |case: &&Case| {
            case.spec.collective() == algorithm.collective && case.algorithm.name == algorithm.name
        };
        let found = all.iter().filter(mine).count();
        // In place and not; 1 and 2 segments.
        let least = roots * ways * 2 * 2;
        assert!(found == least || (algorithm.name == "hierarchical" && found > least), "{name}: {found}");
    }
    assert_eq!(heard, ["1 ranks", "2 ranks", "3 ranks"]);
}
