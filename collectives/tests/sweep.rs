//! Every plan verifies: every algorithm, every number of ranks up to 64, every root, in place and not.

use collectives::verify::{Credits, cases};

fn sweep(ranks: impl Iterator<Item = u32>, segments: &[u32], credits: u32) {
    for case in ranks.flat_map(|n| cases(n, segments)) {
        if let Err(error) = case.verify(Credits(credits)) {
            panic!("{error}");
        }
    }
}

#[test]
fn every_plan_is_right_with_zero_credits() {
    sweep(1..=64, &[1], 0);
}

#[test]
fn every_plan_is_right_with_one_credit() {
    sweep(1..=64, &[1], 1);
}

#[test]
fn every_segmented_plan_is_right() {
    sweep((1..=9).chain([12, 16, 17, 31]), &[2, 3], 0);
    sweep((1..=5).chain([8]), &[7, 64], 0);
}
