//! Plans compute the right numbers in every order in which their steps may run.

use crate::interpreter::{Op, Sends, check_many, run};
use collectives::sweep::{Case, cases};
use collectives::{Collective, Schedule};

fn counts(n: usize, collective: Collective) -> Vec<usize> {
    if collective == Collective::Barrier { vec![0, 1] } else { vec![0, 1, n, 2 * n + 1] }
}

#[test]
fn every_plan_computes_the_right_numbers() {
    for n in [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16] {
        // With many ranks a few roots are enough: plans for other roots are rotations of these.
        let is_chosen = |case: &Case| n < 6 || [0, 1, n - 2].contains(&case.spec.root().0);
        for case in cases(n, if n < 9 { &[1, 3] } else { &[1] }).filter(is_chosen) {
            let schedule = case.plan().expect("a plan");
            for count in counts(n as usize, schedule.collective) {
                let seeds = if n < 7 { 0..4 } else { 0..1 };
                if let Err(error) = check_many(&schedule, count, seeds) {
                    panic!("{case}, count {count}: {error}");
                }
            }
        }
    }
}

/// An operation that is commutative but not associative, like the addition of floats.
fn mix(a: i64, b: i64) -> i64 {
    a.wrapping_add(b) ^ (a.wrapping_mul(b) >> 9)
}

fn results(schedule: &Schedule, op: Op, seed: u64) -> Vec<Vec<i64>> {
    run(schedule, 33, op, Sends::Buffered, seed).unwrap_or_else(|error| panic!("{error}")).outputs
}

#[test]
fn all_ranks_get_the_same_bits_from_an_operation_that_is_not_associative() {
    for n in 1..=20 {
        for case in cases(n, &[1, 2]).filter(|c| c.spec.collective() == Collective::AllReduce) {
            let schedule = case.plan().expect("a plan");
            let outputs = results(&schedule, mix, 1);
            assert!(outputs.iter().all(|output| *output == outputs[0]), "{case}");
            assert_eq!(outputs, results(&schedule, mix, 2), "{case}: depends on the order of steps");
        }
    }
}
