//! Random mutations: plans of every algorithm, mutated in every known way, at random positions.
//!
//! The verifier must refuse a mutant, or the mutant must be right: then the interpreter, which shares no code
//! with the verifier, computes the right numbers under many orders of steps. The seed is fixed, so every run
//! has the same mutants.

use crate::interpreter::{Random, check_many};
use collectives::schedule::{Action, Buffer, ChunkRange, InPlace, RankProgram, Step};
use collectives::sweep::{Case, cases};
use collectives::verify::{Credits, verify};
use collectives::{Rank, Schedule, Weights};
use std::collections::BTreeMap;

/// A way to mutate a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mutation {
    DropStep,
    DuplicateStep,
    SwapSteps,
    SwapActions,
    MoveStep,
    ChangePeer,
    ChangeLane,
    MoveRange,
    ResizeRange,
    ChangeBuffer,
    DropDependency,
    AddDependency,
    ChangeMark,
    FollowOther,
    FollowNone,
    FollowAndOverwrite,
    OtherAction,
    SwapRanks,
    ChangeRoot,
    ChangeChunks,
    ChangeScratch,
    FlipInPlace,
}

const KINDS: [Mutation; 22] = [
    Mutation::DropStep,
    Mutation::DuplicateStep,
    Mutation::SwapSteps,
    Mutation::SwapActions,
    Mutation::MoveStep,
    Mutation::ChangePeer,
    Mutation::ChangeLane,
    Mutation::MoveRange,
    Mutation::ResizeRange,
    Mutation::ChangeBuffer,
    Mutation::DropDependency,
    Mutation::AddDependency,
    Mutation::ChangeMark,
    Mutation::FollowOther,
    Mutation::FollowNone,
    Mutation::FollowAndOverwrite,
    Mutation::OtherAction,
    Mutation::SwapRanks,
    Mutation::ChangeRoot,
    Mutation::ChangeChunks,
    Mutation::ChangeScratch,
    Mutation::FlipInPlace,
];

/// Returns plans of every algorithm on 2 to 6 ranks: whole, in segments and distributed over lanes.
fn plans_to_mutate() -> impl Iterator<Item = Case> {
    let all = (2..=6).flat_map(|n| cases(n, if n == 3 { &[1, 2] } else { &[1] }));
    let whole = all.filter(|case| case.spec.root().0 == 0 || case.spec.root().0 == case.spec.ranks() - 1);
    whole.flat_map(|case| {
        let small = case.spec.ranks() < 4 && case.spec.segments() == 1 && case.spec.root().0 == 0;
        let weights = Weights::new(&[2, 1]).expect("few");
        // Packed chunks are not contiguous, so they are not split over lanes.
        let spec = if case.spec.ranks() == 2 || case.spec.codec().is_some() {
            case.spec.with_replicas(2).expect("few")
        } else {
            case.spec.with_weights(weights)
        };
        [Some(case), small.then_some(Case { spec, ..case })].into_iter().flatten()
    })
}

/// Returns the rank and index of a step to mutate.
fn random_step(schedule: &Schedule, random: &mut Random) -> Option<(usize, usize)> {
    let busy: Vec<usize> =
        (0..schedule.programs.len()).filter(|rank| !schedule.programs[*rank].steps.is_empty()).collect();
    let rank = *busy.get(random.below(busy.len().max(1)))?;
    Some((rank, random.below(schedule.programs[rank].steps.len())))
}

/// Reorders the steps of a rank, including their dependencies.
fn reorder(program: &mut RankProgram, order: &[usize]) {
    let mut new_number = vec![0; order.len()];
    for (new, old) in order.iter().enumerate() {
        new_number[*old] = new as u32;
    }
    let old = std::mem::take(&mut program.steps);
    program.steps = order
        .iter()
        .map(|number| {
            let mut step: Step = old[*number].clone();
            let names = step.after.iter_mut().chain(&mut step.follows);
            names.for_each(|before| *before = new_number[*before as usize]);
            step.after.sort_unstable();
            step
        })
        .collect();
}

/// Returns the action with one of its ranges changed.
fn with_range(action: Action, nth: usize, change: impl Fn(ChunkRange) -> ChunkRange) -> Action {
    let mut at = 0;
    action.map_ranges(|range| {
        at += 1;
        if at == nth + 1 { change(range) } else { range }
    })
}

fn with_peer(action: Action, new: Rank) -> Action {
    match action {
        Action::Send { src, .. } => Action::Send { peer: new, src },
        Action::Recv { dst, .. } => Action::Recv { peer: new, dst },
        Action::RecvReduce { local, dst, last, .. } => Action::RecvReduce { peer: new, local, dst, last },
        local => local,
    }
}

/// Returns the action with another destination.
fn with_write(action: Action, new: ChunkRange) -> Option<Action> {
    action.writes()?;
    Some(match action {
        Action::Recv { peer, .. } => Action::Recv { peer, dst: new },
        Action::RecvReduce { peer, local, last, .. } => Action::RecvReduce { peer, local, dst: new, last },
        Action::Copy { src, .. } => Action::Copy { src, dst: new },
        Action::Reduce { a, b, last, .. } => Action::Reduce { a, b, dst: new, last },
        Action::Encode { src, .. } => Action::Encode { src, dst: new },
        Action::Decode { src, .. } => Action::Decode { src, dst: new },
        Action::DecodeReduce { local, src, last, .. } => Action::DecodeReduce { local, src, dst: new, last },
        Action::Send { .. } => return None,
    })
}

/// Returns another kind of action with as many of the operands as it can have.
fn with_other_kind(action: Action) -> Action {
    match action {
        Action::Send { peer, src } => Action::Recv { peer, dst: src },
        Action::Recv { peer, dst } => Action::RecvReduce { peer, local: dst, dst, last: false },
        Action::RecvReduce { peer, dst, .. } => Action::Recv { peer, dst },
        Action::Copy { src, dst } => Action::Reduce { a: dst, b: src, dst, last: false },
        Action::Reduce { b, dst, .. } => Action::Copy { src: b, dst },
        Action::Encode { src, dst } => Action::Decode { src: dst, dst: src },
        Action::Decode { src, dst } => Action::DecodeReduce { local: dst, src, dst, last: false },
        Action::DecodeReduce { src, dst, .. } => Action::Decode { src, dst },
    }
}

/// Applies one mutation and describes it, or returns `None` if the schedule has no place for it.
fn mutate(schedule: &mut Schedule, kind: Mutation, random: &mut Random) -> Option<String> {
    let random_step @ (rank, index) = random_step(schedule, random)?;
    let n = schedule.ranks();
    let lanes = schedule.lanes;
    let program = &mut schedule.programs[rank];
    let len = program.steps.len();
    let step = &mut program.steps[index];
    let nth = random.below(step.action.ranges().count());
    match kind {
        Mutation::DropStep => drop_step(program, index),
        Mutation::DuplicateStep => {
            let mut order: Vec<usize> = (0..len).collect();
            let twin =
                Step { after: step.after.iter().copied().chain([index as u32]).collect(), ..step.clone() };
            program.steps.push(twin);
            order.insert(index + 1, len);
            reorder(program, &order);
        }
        Mutation::SwapSteps | Mutation::MoveStep => {
            let mut order: Vec<usize> = (0..len).collect();
            let other = random.below(len);
            if kind == Mutation::SwapSteps {
                order.swap(index, other);
            } else {
                let moved = order.remove(index);
                order.insert(other, moved);
            }
            reorder(program, &order);
        }
        Mutation::SwapActions => {
            let other = random.below(len);
            let (a, b) = (program.steps[index].action, program.steps[other].action);
            (program.steps[index].action, program.steps[other].action) = (b, a);
        }
        Mutation::ChangePeer => {
            step.action = with_peer(step.action, Rank(random.below(n as usize + 1) as u32));
        }
        Mutation::ChangeLane => step.lane = random.below(usize::from(lanes) + 2) as u8,
        Mutation::MoveRange => {
            let by = [-2, -1, 1, 2][random.below(4)];
            step.action = with_range(step.action, nth, |range| ChunkRange {
                first: range.first.saturating_add_signed(by),
                ..range
            });
        }
        Mutation::ResizeRange => {
            let longer = random.below(2) == 0;
            step.action = with_range(step.action, nth, |range| ChunkRange {
                len: if longer { range.len + 1 } else { range.len - 1 },
                ..range
            });
        }
        Mutation::ChangeBuffer => {
            let new = [Buffer::Input, Buffer::Output, Buffer::Scratch, Buffer::Packed][random.below(4)];
            step.action = with_range(step.action, nth, |range| ChunkRange { buffer: new, ..range });
        }
        Mutation::DropDependency => {
            let nth = random.below(step.after.len().max(1));
            (nth < step.after.len()).then(|| step.after.remove(nth))?;
        }
        Mutation::AddDependency => {
            step.after.push(random.below(len) as u32);
            step.after.sort_unstable();
            step.after.dedup();
        }
        Mutation::ChangeMark => step.action = step.action.with_last(!step.action.last()?),
        Mutation::FollowOther => step.follows = Some(random.below(len) as u32),
        Mutation::FollowNone => drop(step.follows.take()?),
        // The sent range is written by another step than the one that the send follows.
        Mutation::FollowAndOverwrite => {
            let followed = program.steps.iter().find_map(|step| step.follows)? as usize;
            let dst = program.steps[followed].action.writes()?;
            let action = &mut program.steps[index].action;
            *action = with_write(*action, dst)?;
        }
        Mutation::OtherAction => step.action = with_other_kind(step.action),
        Mutation::SwapRanks => schedule.programs.swap(rank, (rank + 1) % n as usize),
        Mutation::ChangeRoot => schedule.root = Rank(random.below(n as usize + 1) as u32),
        Mutation::ChangeChunks => {
            schedule.chunks =
                [schedule.chunks + 1, schedule.chunks - 1, schedule.chunks * 2][random.below(3)];
        }
        Mutation::ChangeScratch => {
            let more = random.below(2) == 0;
            schedule.scratch_blocks =
                if more { schedule.scratch_blocks + 1 } else { schedule.scratch_blocks.checked_sub(1)? };
        }
        Mutation::FlipInPlace => {
            schedule.in_place = if schedule.in_place == InPlace::Yes { InPlace::No } else { InPlace::Yes };
        }
    }
    Some(format!("{kind:?} at {random_step:?}"))
}

/// Steps that waited for the dropped step wait for its dependencies.
fn drop_step(program: &mut RankProgram, index: usize) {
    let dropped = program.steps.remove(index);
    for step in &mut program.steps[index..] {
        if step.after.contains(&(index as u32)) {
            step.after.extend_from_slice(&dropped.after);
        }
        step.after.retain(|before| *before != index as u32);
        step.after.iter_mut().filter(|before| **before > index as u32).for_each(|before| *before -= 1);
        step.after.sort_unstable();
        step.after.dedup();
        step.follows = step.follows.filter(|step| *step != index as u32);
        step.follows.iter_mut().filter(|step| **step > index as u32).for_each(|step| *step -= 1);
    }
}

#[test]
fn every_mutant_is_refused_or_right() {
    let mut random = Random(0x0074_6263_636c);
    // The refused and the right mutants of each kind.
    let mut counts: BTreeMap<Mutation, [u64; 2]> = BTreeMap::new();
    for case in plans_to_mutate() {
        let schedule = case.plan().expect("a plan");
        for kind in KINDS {
            let mut mutant = schedule.clone();
            let Some(what) = mutate(&mut mutant, kind, &mut random) else { continue };
            if mutant == schedule {
                continue;
            }
            let right = verify(&mutant, Credits(0)).is_ok();
            counts.entry(kind).or_default()[usize::from(right)] += 1;
            if right && let Err(error) = check_many(&mutant, 2 * mutant.chunks as usize + 1, 0..6) {
                panic!("{case}: {what} is accepted, but {error}\n{mutant}");
            }
        }
    }
    let sum = |which: usize| counts.values().map(|count| count[which]).sum::<u64>();
    let (refused, right) = (sum(0), sum(1));
    eprintln!("{} mutants: {refused} refused, {right} right, 0 wrong and accepted", refused + right);
    for (kind, [refused, right]) in &counts {
        eprintln!("{kind:?}: {refused} refused, {right} right");
    }
    assert!(refused + right >= 10_000 && counts.len() == KINDS.len(), "{counts:?}");
    // Most mutations do harm.
    assert!(refused > 3 * right, "{refused} refused, {right} right");
}
