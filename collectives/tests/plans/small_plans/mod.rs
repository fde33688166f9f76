//! Expected text of small plans, short enough to read.

mod all_reduce_pairs;
mod all_reduce_rings;
mod blocks;
mod order;
mod passes;
mod rooted;

use collectives::schedule::InPlace;
use collectives::{Collective, Schedule, Spec, plan::plan};
use expect_test::Expect;

fn spec(collective: Collective, ranks: u32) -> Spec {
    Spec::new(collective, ranks).expect("a spec")
}

#[track_caller]
fn check(spec: Spec, algorithm: &str, expected: &Expect) {
    let schedule: Schedule = plan(&spec, algorithm).expect("a plan");
    expected.assert_eq(&schedule.to_string());
}

fn in_place(spec: Spec) -> Spec {
    spec.with_in_place(InPlace::Yes)
}
