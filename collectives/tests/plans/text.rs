//! Schedules are read back as they were written, and their hash does not change.

use collectives::schedule::{Action, Buffer, ChunkRange, InPlace, Step};
use collectives::sweep::cases;
use collectives::{Collective, Rank, Schedule, Spec, plan::plan};
use expect_test::expect;
use proptest::prelude::*;

fn any_range() -> impl Strategy<Value = ChunkRange> {
    let buffer = prop::sample::select(vec![Buffer::Input, Buffer::Output, Buffer::Scratch, Buffer::Packed]);
    (buffer, 0..u32::MAX, 1u32..9).prop_map(|(buffer, first, len)| ChunkRange {
        buffer,
        first,
        len: len.min(u32::MAX - first),
    })
}

fn any_action() -> impl Strategy<Value = Action> {
    let parts = (0u32..5000, any_range(), any_range(), any_range(), any::<bool>(), 0..8);
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

/// Words of steps in any order.
const WORDS: &str = "(send|reduce|copy|output\\[[0-9.]{0,12}\\]|rank|to|=|\\+|[0-9]{1,11}|after|following|\
                     last|lane| ){0,20}";

proptest! {
    #[test]
    fn a_step_reads_back_as_it_was_written(
        action in any_action(), lane in any::<u8>(), after in prop::collection::vec(any::<u32>(), 0..4),
    ) {
        let step = Step { action, lane, after: after.into(), follows: None };
        prop_assert_eq!(step.to_string().parse::<Step>(), Ok(step));
    }

    #[test]
    fn a_send_that_follows_reads_back_as_it_was_written(
        range in any_range(), peer in 0u32..5000, lane in any::<u8>(),
        after in prop::collection::btree_set(any::<u32>(), 1..4), which in any::<prop::sample::Index>(),
    ) {
        let after: Vec<u32> = after.into_iter().collect();
        let follows = Some(*which.get(&after));
        let action = Action::Send { peer: Rank(peer), src: range };
        let step = Step { action, lane, after: after.into(), follows };
        prop_assert_eq!(step.to_string().parse::<Step>(), Ok(step));
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in "\\PC{0,80}", words in WORDS) {
        let _ = text.parse::<Step>();
        let _ = words.parse::<Step>();
        let _ = Schedule::from_toml(&text);
    }
}

#[test]
fn a_line_that_is_not_a_step_says_why() {
    let mut told = String::new();
    for line in [
        "",
        "sned input[0] to rank 1",
        "send input[0] rank 1",
        "send input[3..3] to rank 1",
        "send inputs[0] to rank 1",
        "send input[0] to rank x",
        "recv_reduce output[0] = input[0]",
        "copy output[0] = input[0] last",
        "reduce output[0] = input[0] + scratch[0] last lane 1",
        "send input[0] to rank 1 lane 256",
        "send input[0] to rank 1 after",
        "send input[0] to rank 1 after 1 then",
        "send input[0] to rank 1 following",
        "send input[0] to rank 1 following 1 2",
        "send input[0] to rank 1 following 1 after 0",
        "send input[0] to rank 1 after 0 1 following 1",
        "recv output[0] from rank 1 following 1",
    ] {
        told += &format!("{line}\n    {}\n", line.parse::<Step>().expect_err("not a step"));
    }
    expect![["

            expected `send`, `recv`, `recv_reduce`, `copy`, `reduce`, `encode`, `decode` or \
                `decode_reduce`, found the end of the line
        sned input[0] to rank 1
            expected `send`, `recv`, `recv_reduce`, `copy`, `reduce`, `encode`, `decode` or \
                `decode_reduce`, found `sned`
        send input[0] rank 1
            expected `to`, found `rank`
        send input[3..3] to rank 1
            expected chunks such as `output[2]` or `input[2..5]`, found `input[3..3]`
        send inputs[0] to rank 1
            expected chunks such as `output[2]` or `input[2..5]`, found `inputs[0]`
        send input[0] to rank x
            expected the number of a rank, found `x`
        recv_reduce output[0] = input[0]
            expected `+`, found the end of the line
        copy output[0] = input[0] last
            expected `lane`, `after`, in this order, found `last`
        reduce output[0] = input[0] + scratch[0] last lane 1
            expected `lane`, `last`, `after`, in this order, found `lane`
        send input[0] to rank 1 lane 256
            expected the number of a lane, up to 255, found `256`
        send input[0] to rank 1 after
            expected the number of a step, found the end of the line
        send input[0] to rank 1 after 1 then
            expected the number of a step, found `then`
        send input[0] to rank 1 following
            expected the number of a step, found the end of the line
        send input[0] to rank 1 following 1 2
            expected the end of the line, found `2`
        send input[0] to rank 1 following 1 after 0
            expected the end of the line, found `after`
        send input[0] to rank 1 after 0 1 following 1
            expected a step that is not named behind `after`, found `1`
        recv output[0] from rank 1 following 1
            expected `lane`, `after`, in this order, found `following`
    "]]
    .assert_eq(&told);
}

#[test]
fn every_plan_survives_toml() {
    for case in [1, 2, 3, 5].into_iter().flat_map(|n| cases(n, &[1, 2])) {
        let schedule = case.plan().expect("a plan");
        let read = Schedule::from_toml(&schedule.to_toml()).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(read, schedule);
    }
}

#[test]
fn toml_is_readable_and_its_errors_name_the_line() {
    let spec = Spec::new(Collective::AllReduce, 2).expect("a spec").with_in_place(InPlace::Yes);
    let text = plan(&spec, "mesh").expect("a plan").to_toml();
    expect![[r#"
        version = 1
        collective = "all_reduce"
        algorithm = "mesh"
        root = 0
        in_place = "yes"
        chunks = 1
        scratch_blocks = 1
        lanes = 1

        [[rank]]
        steps = [
            "send input[0] to rank 1",
            "recv scratch[0] from rank 1",
            "reduce output[0] = input[0] + scratch[0] last after 0 1",
        ]

        [[rank]]
        steps = [
            "send input[0] to rank 0",
            "recv scratch[0] from rank 0",
            "reduce output[0] = input[0] + scratch[0] last after 0 1",
        ]
    "#]]
    .assert_eq(&text);

    let mut told = String::new();
    for (old, new) in [
        ("version = 1", "version = 2"),
        ("all_reduce", "all_redcue"),
        ("chunks = 1", "chunks = 0"),
        ("lanes = 1", "lanes = 1\ncolour = \"red\""),
        ("recv scratch[0] from", "recv scratch[0] to"),
        ("root = 0", "root = zero"),
    ] {
        let error = Schedule::from_toml(&text.replacen(old, new, 1)).expect_err("not a schedule");
        told += &format!("{}: {error}\n", new.replace('\n', " "));
    }
    expect![["
        version = 2: line 1: version 2 is not known; this program reads 1
        all_redcue: line 2: unknown collective `all_redcue`, did you mean `all_reduce`?; known: all_reduce, \
            all_gather, reduce_scatter, broadcast, reduce, gather, scatter, all_to_all, scan, \
            exclusive_scan, sendrecv, barrier
        chunks = 0: line 6: a block has at least 1 chunk
        lanes = 1 colour = \"red\": line 9: unknown field `colour`, expected one of `version`, \
            `collective`, `algorithm`, `root`, `in_place`, `chunks`, `scratch_blocks`, `lanes`, `codec`, \
            `packed_blocks`, `rank`
        recv scratch[0] to: line 13: expected `from`, found `to`
        root = zero: line 4: string values must be quoted, expected literal string
    "]]
    .assert_eq(&told);
}

#[test]
fn hashes_do_not_change() {
    let hash = |collective, ranks, algorithm| {
        let spec = Spec::new(collective, ranks).expect("a spec");
        plan(&spec, algorithm).expect("a plan").stable_hash()
    };
    let hashes = format!(
        "{:016x}\n{:016x}\n",
        hash(Collective::AllReduce, 4, "ring"),
        hash(Collective::Barrier, 3, "dissemination")
    );
    expect![[r#"
        d06fcb2cc791f59f
        e78661754395b4a5
    "#]]
    .assert_eq(&hashes);
}

#[test]
fn different_plans_have_different_hashes() {
    let mut seen = std::collections::HashMap::new();
    for case in (1..=9).flat_map(|n| cases(n, &[1, 2, 3])) {
        let schedule = case.plan().expect("a plan");
        if let Some(other) = seen.insert(schedule.stable_hash(), schedule.clone()) {
            assert_eq!(other, schedule, "two plans, one hash");
        }
    }
}
