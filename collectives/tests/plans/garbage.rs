//! Random schedules: the verifier and the passes answer for any input, and schedules that the verifier
//! accepts are right.

use crate::interpreter::check_many;
use collectives::schedule::{Action, Buffer, ChunkRange, InPlace, RankProgram, Schedule, Step};
use collectives::sweep::cases;
use collectives::verify::{Credits, DeviceRules, verify, verify_on_device};
use collectives::{BlockLayout, Codec, Collective, Packing, Rank, rebuild};
use proptest::prelude::*;
use proptest::sample::{Index, select};

fn any_number() -> impl Strategy<Value = u32> {
    prop_oneof![9 => 0u32..4, 1 => select(vec![u32::MAX, u32::MAX - 1, 1 << 31, 1 << 16])]
}

fn any_range() -> impl Strategy<Value = ChunkRange> {
    let buffer = select(vec![Buffer::Input, Buffer::Output, Buffer::Scratch, Buffer::Packed]);
    (buffer, any_number(), prop_oneof![9 => Just(1u32), 1 => any_number()])
        .prop_map(|(buffer, first, len)| ChunkRange { buffer, first, len })
}

fn any_action() -> impl Strategy<Value = Action> {
    let parts = (any_number(), any_range(), any_range(), any_range(), any::<bool>(), 0..8);
    parts.prop_map(|(peer, a, b, dst, last, kind)| match kind {
        0 => Action::Send { peer: Rank(peer), src: a },
        1 => Action::Recv { peer: Rank(peer), dst },
        2 => Action::RecvReduce { peer: Rank(peer), local: a, dst, last },
        3 => Action::Copy { src: a, dst },
        4 => Action::Reduce { a, b, dst, last },
        5 => Action::Encode { src: a, dst },
        6 => Action::Decode { src: a, dst },
        _ => Action::DecodeReduce { local: a, src: b, dst, last },
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    let after = prop::collection::vec(any_number(), 0..2);
    let follows = prop::option::weighted(0.2, any_number());
    (any_action(), 0u8..2, after, follows).prop_map(|(action, lane, after, follows)| Step {
        action,
        lane,
        after: after.into(),
        follows,
    })
}

fn any_schedule() -> impl Strategy<Value = Schedule> {
    let program = prop::collection::vec(any_step(), 0..6).prop_map(|steps| RankProgram { steps });
    let programs = prop::collection::vec(program, 0..4);
    let numbers = (any_number(), any_number(), any_number(), 0u8..3);
    (select(Collective::ALL.to_vec()), numbers, any::<bool>(), programs).prop_map(
        |(collective, (root, chunks, scratch_blocks, lanes), in_place, programs)| Schedule {
            collective,
            algorithm: "garbage".to_owned(),
            root: Rank(root),
            in_place: if in_place { InPlace::Yes } else { InPlace::No },
            chunks,
            scratch_blocks,
            lanes,
            packing: (lanes > 0).then_some(Packing { codec: Codec::Bf16, blocks: u32::from(lanes) }),
            programs,
        },
    )
}

/// A plan with some of its steps replaced.
fn mutated_plan() -> impl Strategy<Value = Schedule> {
    let changes = prop::collection::vec((any::<Index>(), any::<Index>(), any_step()), 1..3);
    (2u32..5, any::<Index>(), changes).prop_map(|(ranks, which, changes)| {
        let all: Vec<_> = cases(ranks, &[1, 2]).collect();
        let mut schedule = which.get(&all).plan().expect("a plan");
        for (rank, index, step) in changes {
            let steps = &mut schedule.programs[rank.index(ranks as usize)].steps;
            if !steps.is_empty() {
                let index = index.index(steps.len());
                steps[index] = Step { after: steps[index].after.clone(), ..step };
            }
        }
        schedule
    })
}

fn check_verifier(schedule: &Schedule) -> Result<(), TestCaseError> {
    let verdict = verify(schedule, Credits(0));
    if let Err(fault) = &verdict {
        prop_assert!(!fault.to_string().is_empty());
    }
    let _ = verify(schedule, Credits(1));
    let _ = (schedule.to_string(), schedule.stable_hash());
    // A right schedule stays right. A wrong one may become right: passes list the steps anew by stage, which
    // may move a step behind the one it must come after.
    if let Ok(cut) = rebuild::segment(schedule, 3)
        && verdict.is_ok()
    {
        prop_assert!(verify(&cut, Credits(0)).is_ok());
    }
    if verdict.is_ok() {
        let rules = DeviceRules { max_message_bytes: 100, frame_bytes: 0, queue_depth: 1 };
        let layout: BlockLayout = schedule.layout(1000, 4).expect("it fits");
        let _ = verify_on_device(schedule, &layout, 4, rules);
        check_many(schedule, 2 * schedule.chunks as usize + 1, 0..10).map_err(TestCaseError::fail)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn garbage_is_answered(schedule in any_schedule()) {
        check_verifier(&schedule)?;
    }

    #[test]
    fn spoiled_plans_are_refused_or_right(schedule in mutated_plan()) {
        check_verifier(&schedule)?;
    }
}
