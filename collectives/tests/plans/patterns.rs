//! Guarantees about messages, beyond correct results.

use crate::interpreter::use_lane_per_message;
use collectives::schedule::{Direction, InPlace};
use collectives::sweep::cases;
use collectives::verify::{Credits, Fault, verify};
use collectives::{Rank, Schedule};
use std::collections::BTreeMap;

/// The messages of every FIFO in order: the offset of each within its block, and its length.
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

/// Takes the program of each rank from one schedule or the other.
fn mixed(out_of_place: &Schedule, in_place: &Schedule, mask: u64) -> Schedule {
    let mut mixed = out_of_place.clone();
    mixed.scratch_blocks = mixed.scratch_blocks.max(in_place.scratch_blocks);
    for (rank, program) in in_place.programs.iter().enumerate().filter(|(rank, _)| mask >> rank & 1 == 1) {
        mixed.programs[rank] = program.clone();
    }
    mixed
}

#[test]
fn ranks_that_differ_in_whether_they_are_in_place_still_meet() {
    for n in 2..=12 {
        for case in cases(n, &[1, 2]).filter(|case| case.spec.in_place() == InPlace::No) {
            let in_place = case.algorithm.plan(&case.spec.with_in_place(InPlace::Yes)).expect("a plan");
            let out_of_place = case.plan().expect("a plan");
            for mask in [0x1, 0x2, 0x555, 0xaaa, 0x333, 0x0f0, 0xffe] {
                let mixed = mixed(&out_of_place, &in_place, mask);
                // Such a mixture is not one schedule, since ranks differ in memory, so its contents cannot be
                // checked. The verifier checks contents last: reaching that check means that every message
                // matches.
                let fault = verify(&mixed, Credits(0)).err();
                let contents = |fault: &Fault| {
                    use Fault::{Contents, Incomplete, Missing, Mixed, Undefined};
                    matches!(
                        fault,
                        Missing { .. }
                            | Contents { .. }
                            | Incomplete { .. }
                            | Undefined { .. }
                            | Mixed { .. }
                    )
                };
                assert!(
                    fault.as_ref().is_none_or(contents),
                    "{case}, mask {mask:x}: {}",
                    fault.expect("a fault")
                );
            }
        }
    }
}

#[test]
fn data_is_safe_even_if_messages_of_a_lane_overtake_each_other() {
    for case in (2..=16).flat_map(|n| cases(n, &[1, 2])) {
        let mut schedule = case.plan().expect("a plan");
        if use_lane_per_message(&mut schedule) {
            verify(&schedule, Credits(0)).unwrap_or_else(|fault| panic!("{case}: {fault}"));
        } else {
            // Around a ring every rank forwards the blocks of all others, which is more messages than there
            // are lanes.
            assert!(case.algorithm.name == "ring" || case.spec.segments() > 1, "{case}: too many messages");
        }
    }
}
