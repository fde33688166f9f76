//! Faults that the verifier reports for wrong schedules.

use collectives::schedule::{InPlace, RankProgram, Schedule};
use collectives::verify::{Credits, DeviceRules, Fault, verify, verify_on_device};
use collectives::{Collective, PlanError, Rank, Spec, plan::plan, rebuild};
use expect_test::{Expect, expect};

/// Returns an out-of-place schedule with one chunk per block, two lanes and one block of scratch.
fn schedule(collective: Collective, programs: &[&[&str]]) -> Schedule {
    let program = |steps: &&[&str]| {
        let steps = steps.iter().map(|line| line.parse().unwrap_or_else(|error| panic!("{line}: {error}")));
        RankProgram { steps: steps.collect() }
    };
    Schedule {
        collective,
        algorithm: "by_hand".to_owned(),
        root: Rank(0),
        in_place: InPlace::No,
        chunks: 1,
        scratch_blocks: 1,
        lanes: 2,
        packing: None,
        programs: programs.iter().map(program).collect(),
    }
}

fn fault(schedule: &Schedule, credits: u32) -> Fault {
    verify(schedule, Credits(credits)).expect_err("it is wrong")
}

#[track_caller]
fn says(schedule: &Schedule, expected: &Expect) {
    expected.assert_eq(&fault(schedule, 0).to_string());
}

#[test]
fn neighbours_that_wait_for_each_other_need_a_credit() {
    let in_place = Schedule {
        in_place: InPlace::Yes,
        ..schedule(
            Collective::SendRecv,
            &[
                &["send input[0] to rank 1", "recv output[0] from rank 2 after 0"],
                &["send input[0] to rank 2", "recv output[0] from rank 0 after 0"],
                &["send input[0] to rank 0", "recv output[0] from rank 1 after 0"],
            ],
        )
    };
    says(
        &in_place,
        &expect![[r#"
            deadlock with 0 credits:
              rank 0 step 0 `send input[0] to rank 1`
              waits for rank 1 step 1 `recv output[0] from rank 0 after 0`
              waits for rank 1 step 0 `send input[0] to rank 2`
              waits for rank 2 step 1 `recv output[0] from rank 1 after 0`
              waits for rank 2 step 0 `send input[0] to rank 0`
              waits for rank 0 step 1 `recv output[0] from rank 2 after 0`
              waits for rank 0 step 0"#]],
    );
    verify(&in_place, Credits(1)).expect("with a credit the message waits at the receiver");
}

#[test]
fn two_lanes_do_not_order_each_other_but_one_does() {
    let crossed = |lane: u8| {
        let second = format!("send input[1] to rank 1 lane {lane} after 0").replace(" lane 0", "");
        let first = format!("recv output[0] from rank 0 lane {lane}").replace(" lane 0", "");
        let mut crossed = schedule(
            Collective::Broadcast,
            &[
                &[
                    "send input[0] to rank 1",
                    &second,
                    "copy output[0] = input[0]",
                    "copy output[1] = input[1]",
                ],
                &[&first.replace("output[0]", "output[1]"), "recv output[0] from rank 0 after 0"],
            ],
        );
        crossed.chunks = 2;
        crossed
    };
    assert!(matches!(fault(&crossed(1), 0), Fault::Deadlock { .. }));
    assert!(matches!(fault(&crossed(0), 0), Fault::Unequal { .. }));
    verify(&crossed(1), Credits(1)).expect("the first send completes, and so the second can start");
}

#[test]
fn a_race_names_both_steps() {
    let race = schedule(
        Collective::AllReduce,
        &[
            &["send input[0] to rank 1", "recv_reduce output[0] = input[0] + rank 1 last"],
            &[
                "send input[0] to rank 0",
                "recv scratch[0] from rank 0",
                "reduce output[0] = input[0] + scratch[0] last after 0",
            ],
        ],
    );
    says(
        &race,
        &expect![[
            "race on scratch[0] of rank 1: rank 1 step 1 `recv scratch[0] from rank 0` and rank 1 step 2 \
             `reduce output[0] = input[0] + scratch[0] last after 0` have no order"
        ]],
    );
}

#[test]
fn contents_are_told_apart() {
    let exchange = ["send input[0] to rank 1", "recv output[0] from rank 1"];
    let answer = ["send input[0] to rank 0", "recv output[0] from rank 0"];
    says(
        &schedule(Collective::AllReduce, &[&exchange, &answer]),
        &expect![[r#"chunk 0 of rank 0 lacks the contribution of rank 0"#]],
    );
    says(
        &schedule(Collective::Broadcast, &[&exchange, &answer]),
        &expect![[r#"chunk 0 of rank 0 should be chunk 0 of the input of rank 0, but is chunk 0 of rank 1"#]],
    );
    says(
        &schedule(Collective::AllGather, &[&exchange, &answer]),
        &expect![[r#"chunk 0 of rank 0 should be chunk 0 of the input of rank 0, but is chunk 0 of rank 1"#]],
    );
    verify(&schedule(Collective::SendRecv, &[&exchange, &answer]), Credits(0)).expect("that is what it is");
}

#[test]
fn steps_that_make_no_sense_are_refused() {
    let idle: &[&str] = &[];
    let alone = |line: &str| schedule(Collective::AllReduce, &[&[line], idle]);
    let mut told = String::new();
    for line in [
        "send input[0] to rank 0",
        "send input[0] to rank 2",
        "send input[0] to rank 1 lane 2",
        "copy output[0] = input[0] lane 1",
        "send input[0] to rank 1",
        "send input[1] to rank 1",
        "send input[4294967295] to rank 1",
        "copy input[0] = output[0]",
        "copy output[0] = output[0]",
        "copy output[0] = scratch[0]",
        "copy output[0] = input[0] after 0",
    ] {
        told += &format!("{}\n", fault(&alone(line), 0));
    }
    let uneven = Schedule { chunks: 2, ..alone("copy output[0] = input[1]") };
    told += &format!("{}\n", fault(&uneven, 0));
    expect![["
        rank 0 step 0 `send input[0] to rank 0`: rank 0 has no peer 0
        rank 0 step 0 `send input[0] to rank 2`: rank 0 has no peer 2
        rank 0 step 0 `send input[0] to rank 1 lane 2`: lane 2 on a step that can use 2
        rank 0 step 0 `copy output[0] = input[0] lane 1`: lane 1 on a step that can use 1
        rank 0 step 0 `send input[0] to rank 1`: no step of rank 1 meets it
        rank 0 step 0 `send input[1] to rank 1`: input[1] is outside of the buffer, whose chunks are 1
        rank 0 step 0 `send input[4294967295] to rank 1`: input[4294967295] is outside of the buffer, whose \
            chunks are 1
        rank 0 step 0 `copy input[0] = output[0]`: input[0] is input that is not part of the output, and \
            may not be written
        rank 0 step 0 `copy output[0] = output[0]`: the destination overlaps output[0]
        rank 0 step 0 `copy output[0] = scratch[0]`: scratch[0] is read before anything is written there
        rank 0 step 0 `copy output[0] = input[0] after 0`: `after` and `following` must name earlier steps \
            in ascending order, and 0 is not
        rank 0 step 0 `copy output[0] = input[1]`: output[0] and input[1] differ in length, or may when the \
            count is not a multiple of the chunks
    "]]
    .assert_eq(&told);
}

#[test]
fn a_step_that_cannot_follow_another_is_refused() {
    // A chain of three ranks; rank 1 forwards the data it receives.
    let line = |middle: &[&str]| {
        let first = ["send input[0] to rank 1", "send input[1] to rank 1", "copy output[0..2] = input[0..2]"];
        let last = ["recv output[0] from rank 1", "recv output[1] from rank 1"];
        Schedule { chunks: 2, ..schedule(Collective::Broadcast, &[&first, middle, &last]) }
    };
    let receives = ["recv output[0] from rank 0", "recv output[1] from rank 0"];
    let middle = |rest: &[&'static str]| line(&[&receives, rest].concat());
    let good = ["send output[0] to rank 2 following 0", "send output[1] to rank 2 following 1"];
    verify(&middle(&good), Credits(0)).expect("each sends what the one that it follows receives");
    let mut told = String::new();
    for spoiled in [
        ["send output[0] to rank 2 following 1", "send output[1] to rank 2 following 1"],
        ["send output[0] to rank 2 after 0 following 1", "send output[1] to rank 2 following 1"],
        ["send output[0] to rank 2 after 0", "send output[1] to rank 2 after 1 following 2"],
        ["send output[0] to rank 2 following 3", "send output[1] to rank 2 after 1"],
    ] {
        told += &format!("{}\n", fault(&middle(&spoiled), 0));
    }
    let mut nowhere = middle(&good);
    nowhere.programs[1].steps[2].after = [1].into_iter().collect();
    told += &format!("{}\n", fault(&nowhere, 0));
    let mut no_send = middle(&good);
    no_send.programs[1].steps[1].follows = Some(0);
    told += &format!("{}\n", fault(&no_send, 0));
    // Data is received, overwritten with equal data, and sent. This is right in sequence, but not if the send
    // follows the receive.
    let twice = [
        "recv output[0] from rank 0",
        "recv scratch[1] from rank 0",
        "copy scratch[0] = output[0] after 0",
        "copy output[0] = scratch[0] after 2",
        "send output[0] to rank 2 after 3 following 0",
        "send scratch[1] to rank 2 following 1",
    ];
    told += &format!("{}\n", fault(&line(&twice), 0));
    expect![["
        rank 1 step 2 `send output[0] to rank 2 following 1`: it cannot follow step 1: it sends other \
            chunks than that step receives
        rank 1 step 2 `send output[0] to rank 2 after 0 following 1`: it cannot follow step 1: it sends \
            other chunks than that step receives
        rank 1 step 3 `send output[1] to rank 2 after 1 following 2`: it cannot follow step 2: that step \
            receives nothing
        rank 1 step 2 `send output[0] to rank 2 following 3`: `after` and `following` must name earlier \
            steps in ascending order, and 3 is not
        rank 1 step 2 `send output[0] to rank 2 after 1 following 0`: it cannot follow step 0: it does not \
            come after that step
        rank 1 step 1 `recv output[1] from rank 0 following 0`: it cannot follow step 0: only a send can \
            follow
        rank 1 step 4 `send output[0] to rank 2 after 3 following 0`: it cannot follow step 0: what that \
            step receives is overwritten before it is sent
    "]]
    .assert_eq(&told);
}

#[test]
fn shapes_that_make_no_sense_are_refused() {
    let good = plan(&Spec::new(Collective::AllReduce, 2).expect("a spec"), "ring").expect("a plan");
    let mut told = String::new();
    for wrong in [
        Schedule { chunks: 0, ..good.clone() },
        Schedule { chunks: u32::MAX, ..good.clone() },
        Schedule { chunks: 1 << 29, ..good.clone() },
        Schedule { root: Rank(1), ..good.clone() },
        Schedule { programs: Vec::new(), ..good },
    ] {
        told += &format!("{}\n", fault(&wrong, 0));
    }
    expect![[r#"
        a block has at least 1 chunk
        4294967295 chunks in each of 2 blocks are too many
        rank 0 has 1073741824 chunks, which is too many
        rank 1 cannot be the root of all_reduce on 2 ranks
        0 ranks; a schedule has 1 to 4096
    "#]]
    .assert_eq(&told);
}

#[test]
fn a_message_that_is_too_long_says_how_many_segments_would_do() {
    let spec = Spec::new(Collective::AllReduce, 2).expect("a spec");
    let rules = DeviceRules { max_message_bytes: 16_773_120, frame_bytes: 4096, queue_depth: 4095 };
    let count = 100_000_003;
    let whole = plan(&spec, "ring").expect("a plan");
    let layout = whole.layout(count, 4).expect("it fits");
    let fault = verify_on_device(&whole, &layout, 4, rules).expect_err("200 MB in one message");
    expect![
        "rank 0 step 0 `send input[0] to rank 1`: 200000064 bytes in one message, and the device takes \
             16773120; cut chunks into 12 segments"
    ]
    .assert_eq(&fault.to_string());
    let Fault::MessageTooLong { segments, .. } = fault else { unreachable!() };
    let cut = rebuild::segment(&whole, segments as u32).expect("it can be cut");
    let layout = cut.layout(count, 4).expect("it fits");
    verify_on_device(&cut, &layout, 4, rules).expect("short enough");
}

#[test]
fn a_report_counts_what_moves() {
    let spec = Spec::new(Collective::AllReduce, 4).expect("a spec");
    let mut told = String::new();
    for algorithm in ["ring", "rsag_mesh", "mesh", "recursive_doubling", "double_binary_tree"] {
        let whole = verify(&plan(&spec, algorithm).expect("a plan"), Credits(0)).expect("it is right");
        let cut = spec.with_segments(8).expect("few");
        let cut = verify(&plan(&cut, algorithm).expect("a plan"), Credits(0)).expect("it is right");
        told += &format!("{algorithm}: {whole}\n    in 8 segments: {cut}\n");
    }
    expect![["
        ring: 48 steps, 24 messages, 6 stages, up to 5 in flight per lane, up to 1.50 blocks sent per rank
            in 8 segments: 384 steps, 192 messages, 48 stages, up to 28 in flight per lane, up to 1.50 \
                blocks sent per rank
        rsag_mesh: 48 steps, 24 messages, 4 stages, up to 2 in flight per lane, up to 1.50 blocks sent per \
            rank
            in 8 segments: 384 steps, 192 messages, 18 stages, up to 16 in flight per lane, up to 1.50 \
                blocks sent per rank
        mesh: 26 steps, 12 messages, 4 stages, up to 1 in flight per lane, up to 3.00 blocks sent per rank
            in 8 segments: 208 steps, 96 messages, 11 stages, up to 8 in flight per lane, up to 3.00 blocks \
                sent per rank
        recursive_doubling: 16 steps, 8 messages, 2 stages, up to 1 in flight per lane, up to 2.00 blocks \
            sent per rank
            in 8 segments: 128 steps, 64 messages, 9 stages, up to 8 in flight per lane, up to 2.00 blocks \
                sent per rank
        double_binary_tree: 24 steps, 12 messages, 5 stages, up to 1 in flight per lane, up to 2.00 blocks \
            sent per rank
            in 8 segments: 192 steps, 96 messages, 12 stages, up to 8 in flight per lane, up to 2.00 blocks \
                sent per rank
    "]]
    .assert_eq(&told);
}

#[test]
fn a_range_of_chunks_is_cut_chunk_by_chunk() {
    let mut whole = schedule(
        Collective::Broadcast,
        &[
            &["send input[0..2] to rank 1", "copy output[0..2] = input[0..2]"],
            &["recv output[0..2] from rank 0"],
        ],
    );
    whole.chunks = 2;
    verify(&whole, Credits(0)).expect("it is right");
    let cut = rebuild::segment(&whole, 2).expect("it can be cut");
    verify(&cut, Credits(0)).expect("it is still right");
    expect![[r#"
        broadcast by_hand: 2 ranks, root 0, out of place, 4 chunks, 1 block of scratch, 2 lanes
        rank 0
           0: send input[0] to rank 1
           1: send input[2] to rank 1
           2: copy output[0] = input[0]
           3: copy output[2] = input[2]
           4: send input[1] to rank 1
           5: send input[3] to rank 1
           6: copy output[1] = input[1]
           7: copy output[3] = input[3]
        rank 1
           0: recv output[0] from rank 0
           1: recv output[2] from rank 0
           2: recv output[1] from rank 0
           3: recv output[3] from rank 0
    "#]]
    .assert_eq(&cut.to_string());
}

#[test]
fn what_is_malformed_or_would_be_huge_is_not_cut() {
    let malformed = schedule(Collective::AllReduce, &[&["send input[7] to rank 9 after 3"]]);
    assert!(matches!(rebuild::segment(&malformed, 2), Err(PlanError::Unsegmentable { .. })));
    let whole = plan(&Spec::new(Collective::AllReduce, 64).expect("a spec"), "ring").expect("a plan");
    assert!(matches!(rebuild::segment(&whole, 0), Err(PlanError::Segments { .. })));
    assert!(matches!(rebuild::segment(&whole, u32::MAX), Err(PlanError::TooLarge { .. })));
}

#[test]
fn refusals_name_the_remedy() {
    let spec = |ranks| Spec::new(Collective::AllReduce, ranks).expect("a spec");
    let mut told = String::new();
    for error in [
        plan(&spec(2), "rign").expect_err("no such algorithm"),
        plan(&spec(2000), "mesh").expect_err("too many for a mesh"),
        Spec::new(Collective::Barrier, 0).expect_err("no ranks"),
        spec(4).with_root(Rank(1)).expect_err("no root"),
        spec(4).with_root(Rank(4)).expect_err("no such rank"),
        spec(4).with_segments(1025).expect_err("too many"),
    ] {
        told += &format!("{error}\n");
    }
    expect![["
        no such plan for all_reduce: unknown algorithm `rign`, did you mean `ring`?; known: ring, \
            bidirectional_ring, mesh, rsag_mesh, recursive_doubling, double_binary_tree, rabenseifner, \
            reduce_broadcast, multi_ring, torus, hierarchical, spanning_tree
        mesh plans all_reduce for at most 256 ranks, not for 2000; choose one of recursive_doubling, \
            double_binary_tree, rabenseifner, reduce_broadcast
        barrier cannot be planned for 0 ranks; a plan has 1 to 4096
        all_reduce has no root, so rank 1 cannot be it; leave the root at 0
        rank 4 cannot be the root of all_reduce on 4 ranks; the last one is 3
        all_reduce cannot be cut into 1025 segments; ask for 1 (whole) to 1024
    "]]
    .assert_eq(&told);
}

#[test]
fn a_schedule_file_that_is_wrong_is_refused_with_the_step_named() {
    let answer: &[&str] = &["send input[0] to rank 0", "recv_reduce output[0] = input[0] + rank 0 last"];
    let circle: &[&str] =
        &["recv_reduce output[0] = input[0] + rank 0 last", "send input[0] to rank 0 after 0"];
    for (chunks, first, second, says) in [
        (
            1,
            &["recv_reduce output[0] = input[0] + rank 1 last", "send input[0] to rank 1 after 0"][..],
            circle,
            &["deadlock with 0 credits", "rank 0 step 1 `send input[0] to rank 1 after 0`"][..],
        ),
        (
            1,
            &["send input[0] to rank 1", "recv_reduce output[0] = input[0] + rank 1 last after 9"],
            answer,
            &[
                "rank 0 step 1 `recv_reduce",
                "`after` and `following` must name earlier steps in ascending order, and 9 is not",
            ],
        ),
        (
            1,
            &["send input[0] to rank 1", "recv_reduce output[0] = input[0] + rank 1 lane 1 last"],
            answer,
            &["rank 0 step 1 `recv_reduce", "no step of rank 1 meets it"],
        ),
        (
            2,
            &["send input[0..2] to rank 1", "recv_reduce output[0] = input[0] + rank 1 last"],
            answer,
            &["rank 0 step 0 `send input[0..2] to rank 1` meets rank 1 step 1", "lengths differ"],
        ),
        (
            1,
            &["send input[0] to rank 1", "recv_reduce output[7] = input[0] + rank 1 last"],
            answer,
            &["rank 0 step 1 `recv_reduce", "output[7] is outside of the buffer, whose chunks are 1"],
        ),
        (
            1,
            &[
                "send input[0] to rank 1",
                "recv scratch[0] from rank 1",
                "reduce output[0] = input[0] + scratch[0] last",
            ],
            answer,
            &["race on scratch[0] of rank 0", "rank 0 step 2 `reduce", "have no order"],
        ),
    ] {
        let file = Schedule { chunks, ..schedule(Collective::AllReduce, &[first, second]) }.to_toml();
        let read = Schedule::from_toml(&file).expect("well-formed");
        let told = fault(&read, 0).to_string();
        assert!(says.iter().all(|part| told.contains(part)), "{says:?}: {told}");
    }
}
