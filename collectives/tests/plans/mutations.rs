//! The verifier refuses mutated plans with the right fault.
//!
//! Most mutations must be refused wherever they are applied. Where a mutation may produce another right
//! program, the verifier may accept it only if the interpreter, which shares no code with the verifier,
//! computes the right numbers under many orders of steps.

use crate::interpreter::check_many;
use collectives::schedule::{Action, Buffer, ChunkRange, InPlace, Step};
use collectives::sweep::{Case, cases};
use collectives::verify::{Credits, Fault, verify};
use collectives::{Collective, Rank, Schedule};

/// Returns the plans to mutate: small, with every algorithm, some segmented.
fn plans_to_mutate() -> impl Iterator<Item = (Case, Schedule)> {
    let all = (2..=8).flat_map(|n| cases(n, if n == 3 { &[1, 2][..] } else { &[1] }));
    let some_roots = all.filter(|case| case.spec.root().0 % 3 != 2);
    some_roots.map(|case| (case, case.plan().expect("a plan")))
}

/// Returns every step of a schedule as rank and index.
fn places(schedule: &Schedule) -> Vec<(usize, usize)> {
    let of_rank = |(rank, program): (usize, &collectives::schedule::RankProgram)| {
        (0..program.steps.len()).map(move |index| (rank, index)).collect::<Vec<_>>()
    };
    schedule.programs.iter().enumerate().flat_map(of_rank).collect()
}

fn step_mut(schedule: &mut Schedule, (rank, index): (usize, usize)) -> &mut Step {
    &mut schedule.programs[rank].steps[index]
}

fn step(schedule: &Schedule, (rank, index): (usize, usize)) -> &Step {
    &schedule.programs[rank].steps[index]
}

/// Asserts that the verifier refuses the mutant with a fault of the right kind, at zero credits.
#[track_caller]
fn assert_fault(case: &Case, mutant: &Schedule, what: &str, kind: fn(&Fault) -> bool) {
    match verify(mutant, Credits(0)) {
        Ok(_) => panic!("{case}: {what} is accepted\n{mutant}"),
        Err(fault) => assert!(kind(&fault), "{case}: {what} is called: {fault}"),
    }
}

/// Asserts that the verifier refuses the mutant or that it is right. Returns whether it was refused.
#[track_caller]
fn assert_fault_or_correct(case: &Case, mutant: &Schedule, what: &str) -> bool {
    let Err(fault) = verify(mutant, Credits(0)) else {
        if let Err(error) = check_many(mutant, 5 * mutant.chunks as usize + 1, 0..20) {
            panic!("{case}: {what} is accepted, but {error}\n{mutant}");
        }
        return false;
    };
    assert!(!matches!(fault, Fault::Shape(_)), "{case}: {what} is called: {fault}");
    true
}

#[test]
fn a_dropped_step_is_noticed() {
    for (case, schedule) in plans_to_mutate() {
        for memory_range @ (rank, index) in places(&schedule) {
            let mut mutant = schedule.clone();
            let dropped = mutant.programs[rank].steps.remove(index);
            for step in &mut mutant.programs[rank].steps[index..] {
                // Steps that waited for the dropped step wait for its dependencies.
                if step.after.contains(&(index as u32)) {
                    step.after.extend_from_slice(&dropped.after);
                }
                step.after.retain(|before| *before != index as u32);
                step.after
                    .iter_mut()
                    .filter(|before| **before > index as u32)
                    .for_each(|before| *before -= 1);
                step.after.sort_unstable();
                step.after.dedup();
                step.follows = follows_without(step.follows, index as u32);
            }
            let kind = match dropped.action.message() {
                Some(_) => |fault: &Fault| matches!(fault, Fault::Unmatched { .. } | Fault::Unequal { .. }),
                None => |fault: &Fault| {
                    use Fault::{Contents, Disagreement, Incomplete, Last, Missing, Mixed, Twice, Undefined};
                    matches!(
                        fault,
                        Missing { .. }
                            | Contents { .. }
                            | Incomplete { .. }
                            | Undefined { .. }
                            | Last { .. }
                            | Disagreement { .. }
                            | Twice { .. }
                            | Mixed { .. }
                    )
                },
            };
            assert_fault(&case, &mutant, &format!("dropping {memory_range:?} `{dropped}`"), kind);
        }
    }
}

/// Returns the step to follow after the step `dropped` is removed.
fn follows_without(follows: Option<u32>, dropped: u32) -> Option<u32> {
    follows.filter(|step| *step != dropped).map(|step| if step > dropped { step - 1 } else { step })
}

#[test]
fn every_dependency_is_needed() {
    for (case, schedule) in plans_to_mutate() {
        for memory_range in places(&schedule) {
            for nth in 0..step(&schedule, memory_range).after.len() {
                let mut mutant = schedule.clone();
                let removed = step_mut(&mut mutant, memory_range).after.remove(nth);
                step_mut(&mut mutant, memory_range).follows = None;
                let what = format!("{memory_range:?} no longer after {removed}");
                // The dependency may be needed only where messages overtake each other.
                if verify(&mutant, Credits(0)).is_ok() {
                    assert!(
                        crate::interpreter::use_lane_per_message(&mut mutant),
                        "{case}: too many messages"
                    );
                }
                assert_fault(&case, &mutant, &what, |fault| matches!(fault, Fault::Race { .. }));
            }
        }
    }
}

#[test]
fn a_wrong_mark_is_noticed() {
    for (case, schedule) in plans_to_mutate() {
        for memory_range in places(&schedule) {
            let Some(last) = step(&schedule, memory_range).action.last() else { continue };
            let mut mutant = schedule.clone();
            let step = step_mut(&mut mutant, memory_range);
            step.action = step.action.with_last(!last);
            let kind = if last {
                |fault: &Fault| matches!(fault, Fault::Last { expected: true, .. })
            } else {
                |fault: &Fault| matches!(fault, Fault::Last { expected: false, .. })
            };
            assert_fault(&case, &mutant, &format!("flipping `last` of {memory_range:?}"), kind);
        }
    }
}

/// Tries every step with every mark: at most one mark per step is right.
#[test]
fn a_wrong_step_to_follow_is_noticed() {
    let mut marks = 0;
    for (case, schedule) in plans_to_mutate().filter(|(case, _)| case.spec.ranks() <= 4) {
        for memory_range @ (rank, index) in places(&schedule) {
            let right = step(&schedule, memory_range).follows;
            marks += usize::from(right.is_some());
            for wrong in (0..schedule.programs[rank].steps.len() as u32).filter(|step| Some(*step) != right) {
                let mut mutant = schedule.clone();
                step_mut(&mut mutant, memory_range).follows = Some(wrong);
                let what = format!("following {wrong} instead of {right:?}");
                let kind = |fault: &Fault| matches!(fault, Fault::Follows { .. });
                if case.spec.collective() == Collective::Barrier && wrong < index as u32 {
                    // A barrier's messages have no bytes, so the planner omits marks that would do no harm.
                    assert_fault_or_correct(&case, &mutant, &what);
                } else {
                    assert_fault(&case, &mutant, &what, kind);
                }
            }
        }
    }
    assert!(marks > 1000, "{marks} marks");
}

/// A plan without its marks is right, and so is one with some of them.
#[test]
fn marks_may_be_left_out() {
    for (case, schedule) in plans_to_mutate() {
        for memory_range in places(&schedule) {
            let mut fewer = schedule.clone();
            if step_mut(&mut fewer, memory_range).follows.take().is_some() {
                assert!(verify(&fewer, Credits(0)).is_ok(), "{case}: {memory_range:?}");
            }
        }
        let without = collectives::pass::unfuse(schedule.clone());
        assert_eq!(verify(&without, Credits(0)), verify(&schedule, Credits(0)), "{case}");
        assert_eq!(collectives::pass::fuse(without), schedule, "{case}: other marks than the planner's");
    }
}

fn with_peer(action: Action, new: Rank) -> Action {
    match action {
        Action::Send { src, .. } => Action::Send { peer: new, src },
        Action::Recv { dst, .. } => Action::Recv { peer: new, dst },
        Action::RecvReduce { local, dst, last, .. } => Action::RecvReduce { peer: new, local, dst, last },
        local => local,
    }
}

#[test]
fn a_wrong_peer_or_lane_is_noticed() {
    for (case, schedule) in plans_to_mutate() {
        let n = schedule.ranks();
        for memory_range @ (rank, _) in places(&schedule) {
            let Some((peer, _)) = step(&schedule, memory_range).action.message() else { continue };
            for wrong in (0..=n).map(Rank).filter(|wrong| *wrong != peer) {
                let mut mutant = schedule.clone();
                let step = step_mut(&mut mutant, memory_range);
                step.action = with_peer(step.action, wrong);
                let kind = if wrong.index() == rank || wrong.0 == n {
                    |fault: &Fault| matches!(fault, Fault::Peer { .. })
                } else {
                    |fault: &Fault| matches!(fault, Fault::Unmatched { .. } | Fault::Unequal { .. })
                };
                assert_fault(&case, &mutant, &format!("peer {wrong} of {memory_range:?}"), kind);
            }
            for lane in (0..=schedule.lanes).filter(|lane| *lane != step(&schedule, memory_range).lane) {
                let mut mutant = schedule.clone();
                step_mut(&mut mutant, memory_range).lane = lane;
                let kind = if lane == schedule.lanes {
                    |fault: &Fault| matches!(fault, Fault::Lane { .. })
                } else {
                    |fault: &Fault| matches!(fault, Fault::Unmatched { .. } | Fault::Unequal { .. })
                };
                assert_fault(&case, &mutant, &format!("lane {lane} of {memory_range:?}"), kind);
            }
        }
    }
}

#[test]
fn a_contribution_that_is_added_twice_is_noticed() {
    for (case, schedule) in plans_to_mutate().filter(|(case, _)| case.spec.collective().reduces()) {
        for memory_range in places(&schedule) {
            let again = match step(&schedule, memory_range).action {
                Action::RecvReduce { peer, dst, .. } => {
                    Action::RecvReduce { peer, local: dst, dst, last: false }
                }
                Action::Reduce { b, dst, .. } => Action::Reduce { a: dst, b, dst, last: false },
                Action::DecodeReduce { src, dst, .. } => {
                    Action::DecodeReduce { local: dst, src, dst, last: false }
                }
                _ => continue,
            };
            let mut mutant = schedule.clone();
            insert_after(&mut mutant, memory_range, again);
            if let Some((peer, _)) = again.message() {
                let send = sender(&schedule, memory_range, peer);
                let action = step(&schedule, send).action;
                insert_after(&mut mutant, send, action);
            }
            let what = format!("adding again what {memory_range:?} adds");
            assert_fault(&case, &mutant, &what, |fault| matches!(fault, Fault::Twice { .. }));
        }
    }
}

/// Returns the send that a receive matches.
fn sender(schedule: &Schedule, (rank, index): (usize, usize), peer: Rank) -> (usize, usize) {
    let lane = step(schedule, (rank, index)).lane;
    let steps = &schedule.programs[rank].steps[..index];
    let from_peer = |step: &&Step| {
        let receives = matches!(step.action, Action::Recv { .. } | Action::RecvReduce { .. });
        receives && step.lane == lane && step.action.message().is_some_and(|(p, _)| p == peer)
    };
    let nth = steps.iter().filter(from_peer).count();
    let sends = schedule.programs[peer.index()].steps.iter().enumerate().filter(|(_, step)| {
        matches!(step.action, Action::Send { peer, .. } if peer.index() == rank) && step.lane == lane
    });
    (peer.index(), sends.map(|(index, _)| index).nth(nth).expect("a matched schedule"))
}

/// Inserts `action` right after a step; steps that waited for that step wait for the new one.
fn insert_after(schedule: &mut Schedule, (rank, index): (usize, usize), action: Action) {
    let steps = &mut schedule.programs[rank].steps;
    for step in steps.iter_mut() {
        let names = step.after.iter_mut().chain(&mut step.follows);
        names.filter(|before| **before >= index as u32).for_each(|before| *before += 1);
    }
    let lane = steps[index].lane;
    steps
        .insert(index + 1, Step { action, lane, after: [index as u32].into_iter().collect(), follows: None });
}

/// The mutations that give another right program: those of barriers, in which some tokens are
/// interchangeable, and exchanges of two partial sums in scratch or of two packed chunks.
fn assert_only_barriers(accepted: &[String]) {
    let equivalent = |case: &&String| {
        !(case.starts_with("barrier")
            || case.contains("in place, reproducible")
            || case.contains("int8")
            || case.contains("spanning_tree") && case.contains("reproducible")
            || case.starts_with("reduce direct")
            || case.starts_with("exclusive_scan recursive_doubling"))
    };
    let strange: Vec<_> = accepted.iter().filter(equivalent).collect();
    assert!(strange.is_empty(), "accepted, and right: {strange:#?}");
}

#[test]
fn a_shifted_reference_is_noticed() {
    let mut accepted = Vec::new();
    for (case, schedule) in plans_to_mutate() {
        for memory_range in places(&schedule) {
            for nth in 0..step(&schedule, memory_range).action.ranges().count() {
                for shift in [-1, 1] {
                    let mut mutant = schedule.clone();
                    let step = step_mut(&mut mutant, memory_range);
                    let Some(action) = shifted(step.action, nth, shift) else { continue };
                    step.action = action;
                    if !assert_fault_or_correct(
                        &case,
                        &mutant,
                        &format!("range {nth} of {memory_range:?} moved {shift}"),
                    ) {
                        accepted.push(format!("{case}: range {nth} of {memory_range:?} moved {shift}"));
                    }
                }
            }
        }
    }
    assert_only_barriers(&accepted);
}

/// Returns the action with its `nth` range moved.
fn shifted(action: Action, nth: usize, by: i32) -> Option<Action> {
    let mut valid = true;
    let mut at = 0;
    let action = action.map_ranges(|range| {
        at += 1;
        if at != nth + 1 {
            return range;
        }
        let first = range.first.checked_add_signed(by);
        valid = first.is_some();
        ChunkRange { first: first.unwrap_or(0), ..range }
    });
    valid.then_some(action)
}

#[test]
fn swapped_references_are_noticed() {
    let mut accepted = Vec::new();
    for (case, schedule) in plans_to_mutate().filter(|(case, _)| case.spec.ranks() <= 5) {
        for (rank, program) in schedule.programs.iter().enumerate() {
            for first in 0..program.steps.len() {
                for second in first + 1..program.steps.len() {
                    let actions = [program.steps[first].action, program.steps[second].action];
                    for mutant in swaps(actions, |range| canonical(&schedule, rank, range)) {
                        let mut schedule = schedule.clone();
                        step_mut(&mut schedule, (rank, first)).action = mutant[0];
                        step_mut(&mut schedule, (rank, second)).action = mutant[1];
                        let what = format!("rank {rank}: swapping between {first} and {second}");
                        if !assert_fault_or_correct(&case, &schedule, &what) {
                            accepted.push(format!("{case}: {what}"));
                        }
                    }
                }
            }
        }
    }
    assert_only_barriers(&accepted);
}

/// Returns the two actions with their reads swapped, and with their writes swapped, if these are different
/// memory.
fn swaps([a, b]: [Action; 2], canonical: impl Fn(ChunkRange) -> ChunkRange) -> Vec<[Action; 2]> {
    let mut found = Vec::new();
    if let ([Some(x), _], [Some(y), _]) = (a.reads(), b.reads())
        && canonical(x) != canonical(y)
    {
        found.push([replaced(a, x, y, Part::Read), replaced(b, y, x, Part::Read)]);
    }
    if let (Some(x), Some(y)) = (a.writes(), b.writes())
        && canonical(x) != canonical(y)
    {
        found.push([replaced(a, x, y, Part::Write), replaced(b, y, x, Part::Write)]);
    }
    found
}

/// Returns one name for chunks that have two names in place: that of the larger buffer.
fn canonical(schedule: &Schedule, rank: usize, range: ChunkRange) -> ChunkRange {
    let own_block = rank as u32 * schedule.chunks;
    match (schedule.in_place, schedule.collective, range.buffer) {
        (InPlace::No, ..) => range,
        (_, Collective::AllGather, Buffer::Input) => {
            ChunkRange { buffer: Buffer::Output, first: range.first + own_block, ..range }
        }
        (_, Collective::ReduceScatter, Buffer::Output) => {
            ChunkRange { buffer: Buffer::Input, first: range.first + own_block, ..range }
        }
        (_, Collective::AllGather | Collective::ReduceScatter, _) => range,
        (_, _, Buffer::Input) => ChunkRange { buffer: Buffer::Output, ..range },
        _ => range,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Read,
    Write,
}

/// Returns the action with its first read or its write replaced.
fn replaced(action: Action, old: ChunkRange, new: ChunkRange, part: Part) -> Action {
    let read = |range: ChunkRange| if range == old && part == Part::Read { new } else { range };
    let write = |range: ChunkRange| if part == Part::Write { new } else { range };
    match action {
        Action::Send { peer, src } => Action::Send { peer, src: read(src) },
        Action::Recv { peer, dst } => Action::Recv { peer, dst: write(dst) },
        Action::RecvReduce { peer, local, dst, last } => {
            Action::RecvReduce { peer, local: read(local), dst: write(dst), last }
        }
        Action::Copy { src, dst } => Action::Copy { src: read(src), dst: write(dst) },
        Action::Reduce { a, b, dst, last } => Action::Reduce { a: read(a), b, dst: write(dst), last },
        Action::Encode { src, dst } => Action::Encode { src: read(src), dst: write(dst) },
        Action::Decode { src, dst } => Action::Decode { src: read(src), dst: write(dst) },
        Action::DecodeReduce { local, src, dst, last } => {
            Action::DecodeReduce { local: read(local), src, dst: write(dst), last }
        }
    }
}

#[test]
fn a_wrong_root_is_noticed() {
    for (case, schedule) in
        plans_to_mutate().filter(|(case, _)| case.spec.collective() == Collective::Broadcast)
    {
        let root = schedule.root.ahead(1, schedule.ranks());
        let mutant = Schedule { root, ..schedule };
        assert_fault(&case, &mutant, "another root", |fault| matches!(fault, Fault::Contents { .. }));
    }
}
