//! Every plan verifies: every algorithm, every number of ranks up to 64, every root, in place and not.

use collectives::Numerics;
use collectives::plan::ALGORITHMS;
use collectives::verify::{Credits, cases, verify, verify_all};

fn sweep(ranks: impl IntoIterator<Item = u32>, segments: &[u32]) {
    for case in ranks.into_iter().flat_map(|n| cases(n, segments)) {
        let schedule = case.plan().unwrap_or_else(|error| panic!("{error}"));
        for credits in [0, 1] {
            let report =
                verify(&schedule, Credits(credits)).unwrap_or_else(|fault| panic!("{case}: {fault}"));
            assert!(report.numerics >= case.spec.numerics(), "{case}: {}", report.numerics);
        }
    }
}

#[test]
fn every_plan_up_to_44_ranks_is_right_with_no_credit_and_with_one() {
    sweep(1..=44, &[1]);
}

#[test]
fn every_plan_up_to_56_ranks_is_right_with_no_credit_and_with_one() {
    sweep(45..=56, &[1]);
}

#[test]
fn every_plan_up_to_64_ranks_is_right_with_no_credit_and_with_one() {
    sweep(57..=64, &[1]);
}

#[test]
fn every_segmented_plan_is_right_with_no_credit_and_with_one() {
    sweep((1..=9).chain([12, 16, 17]), &[2, 3]);
    sweep([1, 2, 3, 4, 8], &[7, 64]);
}

#[test]
fn more_than_64_ranks_are_right_too() {
    sweep([65, 130], &[1]);
}

#[test]
fn all_of_them_are_counted() {
    let mut heard = Vec::new();
    let count = verify_all(1..=3, &[1, 2], &mut |what| heard.push(what.to_owned())).expect("they are right");
    let with_root = ALGORITHMS.iter().filter(|a| a.collective.has_root());
    let (with_root, sums) = (with_root.count() as u64, ALGORITHMS.iter().filter(|a| a.collective.reduces()));
    let reproducible = sums.filter(|a| a.numerics == Numerics::Reproducible).collect::<Vec<_>>();
    let again = reproducible.iter().filter(|a| a.collective.has_root()).count() as u64;
    let rooted = with_root + again;
    let rootless = (ALGORITHMS.len() + reproducible.len()) as u64 - rooted;
    // In place and not; 1 and 2 segments.
    assert_eq!(count, (rootless * 3 + rooted * (1 + 2 + 3)) * 2 * 2);
    assert!(rooted > 3 && rootless > 18);
    assert_eq!(heard, ["1 ranks", "2 ranks", "3 ranks"]);
}
