//! Who sends what to whom does not depend on whether a call is in place, since ranks may differ in that.

use collectives::schedule::{Direction, InPlace};
use collectives::verify::cases;
use collectives::{Rank, Schedule};
use std::collections::BTreeMap;

/// The messages of every FIFO in order: where each starts within its block, and its length.
type Pattern = BTreeMap<(usize, Rank, Direction, u8), Vec<(u32, u32)>>;

fn pattern(schedule: &Schedule) -> Pattern {
    let mut pattern = Pattern::new();
    for (rank, program) in schedule.programs.iter().enumerate() {
        for step in &program.steps {
            let (Some((peer, direction)), Some(range)) = (step.action.message(), step.action.payload())
            else {
                continue;
            };
            let fifo = pattern.entry((rank, peer, direction, step.lane)).or_default();
            fifo.push((range.first % schedule.chunks, range.len));
        }
    }
    pattern
}

#[test]
fn messages_are_the_same_in_place_and_not() {
    for n in 1..=24 {
        for case in cases(n, &[1, 3]).filter(|case| case.spec.in_place() == InPlace::No) {
            let in_place = case.algorithm.plan(&case.spec.with_in_place(InPlace::Yes)).expect("a plan");
            let out_of_place = case.plan().expect("a plan");
            assert_eq!(out_of_place.chunks, in_place.chunks, "{case}");
            assert_eq!(pattern(&out_of_place), pattern(&in_place), "{case}");
        }
    }
}
