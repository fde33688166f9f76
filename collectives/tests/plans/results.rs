//! Steps that write results which no step reads.

use collectives::plan::plan;
use collectives::schedule::{Action, Buffer, InPlace};
use collectives::sweep::cases;
use collectives::{Collective, Schedule, Spec};
use topology::Rank;

fn planned(collective: Collective, algorithm: &str, ranks: u32, in_place: InPlace) -> Schedule {
    let spec = Spec::new(collective, ranks).expect("in range").with_in_place(in_place);
    plan(&spec, algorithm).expect("a plan")
}

/// Returns how many steps of rank 0 write results, of those that are chosen.
fn results(schedule: &Schedule, chosen: impl Fn(&Action) -> bool) -> usize {
    let steps = schedule.programs[0].steps.iter().zip(schedule.writes_results(Rank(0)));
    steps.filter(|(step, writes)| *writes && chosen(&step.action)).count()
}

fn receives(action: &Action) -> bool {
    matches!(action, Action::Recv { .. })
}

#[test]
fn what_is_passed_on_is_no_result_yet() {
    let direct = planned(Collective::AllGather, "direct", 3, InPlace::No);
    assert_eq!(results(&direct, receives), 2, "both blocks stay here");
    assert_eq!(results(&direct, |action| matches!(action, Action::Copy { .. })), 1);
    let ring = planned(Collective::AllGather, "ring", 3, InPlace::No);
    assert_eq!(results(&ring, receives), 1, "the first block is passed on");
}

#[test]
fn memory_that_a_call_in_place_reads_is_no_result() {
    let reductions = |action: &Action| matches!(action, Action::RecvReduce { .. } | Action::Reduce { .. });
    let spread = |in_place| planned(Collective::ReduceScatter, "direct", 2, in_place);
    assert_eq!(results(&spread(InPlace::No), reductions), 1);
    assert_eq!(results(&spread(InPlace::Yes), reductions), 0, "it combines into its own operand");
}

#[test]
fn no_step_of_any_plan_reads_a_result() {
    let mut counted = 0;
    for case in (1..=6).flat_map(|ranks| cases(ranks, &[1, 3])) {
        let schedule = case.plan().expect("a plan");
        for (rank, program) in (0..).map(Rank).zip(&schedule.programs) {
            let read: Vec<_> = program.steps.iter().flat_map(|step| step.action.reads()).flatten().collect();
            for (step, is_result) in program.steps.iter().zip(schedule.writes_results(rank)) {
                let written = step.action.writes().filter(|range| range.buffer == Buffer::Output);
                let expected = written
                    .is_some_and(|range| !read.iter().any(|other| schedule.overlap(rank, range, *other)));
                assert_eq!(is_result, expected, "{case}, rank {rank}: {}", step.action);
                counted += usize::from(is_result);
            }
        }
    }
    assert!(counted > 1000, "{counted} results");
}
