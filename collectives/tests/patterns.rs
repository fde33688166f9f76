//! What plans promise about messages, beyond being right.

use collectives::schedule::{Direction, InPlace};
use collectives::verify::{Credits, cases, verify};
use collectives::{Rank, Schedule};
use std::collections::{BTreeMap, HashMap};

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

#[test]
fn data_is_safe_even_if_messages_of_a_lane_overtake_each_other() {
    for case in (2..=16).flat_map(|n| cases(n, &[1, 2])) {
        let mut schedule = case.plan().expect("a plan");
        let mut used: HashMap<_, u8> = HashMap::new();
        for (rank, program) in schedule.programs.iter_mut().enumerate() {
            for step in &mut program.steps {
                let Some((peer, direction)) = step.action.message() else { continue };
                let lane = used.entry((rank, peer, direction, step.lane)).or_default();
                // Room for 120 messages on each of the two lanes that plans use.
                step.lane = step.lane * 120 + *lane;
                *lane += 1;
                assert!(*lane <= 120, "{case}: more messages than this test has lanes for");
            }
        }
        schedule.lanes = 240;
        verify(&schedule, Credits(0)).unwrap_or_else(|fault| panic!("{case}: {fault}"));
    }
}
