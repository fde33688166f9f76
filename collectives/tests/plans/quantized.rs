//! Plans with packed messages: their steps, their number of encodings, and the refused specs.

use collectives::plan::{algorithms, plan};
use collectives::schedule::{Action, Direction, InPlace};
use collectives::sweep::cases;
use collectives::verify::{Credits, Fault, verify};
use collectives::{BlockLen, Codec, Collective, Numerics, PlanError, Schedule, Spec};
use expect_test::expect;

/// The representative algorithms whose numbers are shown.
const SHOWN: [&str; 6] =
    ["ring", "bidirectional_ring", "mesh", "rsag_mesh", "recursive_doubling", "double_binary_tree"];

fn spec(ranks: u32) -> Spec {
    Spec::new(Collective::AllReduce, ranks).expect("a spec").with_codec(Some(Codec::Bf16))
}

#[test]
fn every_message_is_packed_and_every_rank_proved_to_have_the_same() {
    let ranks = (1..=17).chain([24, 31, 32, 33]);
    let cases = ranks.flat_map(|n| cases(n, &[1, 2, 5])).filter(|case| case.spec.codec().is_some());
    let mut seen = 0;
    for case in cases {
        let schedule = case.plan().expect("a plan");
        let report = verify(&schedule, Credits(0)).unwrap_or_else(|fault| panic!("{case}: {fault}"));
        let steps = schedule.programs.iter().flat_map(|program| &program.steps);
        let packed = steps.filter_map(|step| step.action.payload()).all(|range| range.is_packed());
        assert!(packed, "{case}");
        assert_eq!(report.encodings > 0, case.spec.ranks() > 1, "{case}");
        seen += 1;
    }
    assert!(seen > 700, "only {seen}");
}

#[test]
fn no_plan_packs_more_often_than_it_must() {
    let mut messages = String::new();
    for algorithm in algorithms(Collective::AllReduce).filter(|a| SHOWN.contains(&a.name)) {
        let encodings = [2, 3, 4, 5, 8, 16].map(|ranks| {
            let schedule = algorithm.plan(&spec(ranks)).expect("a plan");
            verify(&schedule, Credits(0)).expect("right").encodings
        });
        messages += &format!("{}: {encodings:?}\n", algorithm.name);
    }
    expect![[r#"
        ring: [2, 3, 4, 5, 8, 16]
        bidirectional_ring: [2, 3, 4, 5, 8, 16]
        mesh: [1, 1, 1, 1, 1, 1]
        rsag_mesh: [2, 2, 2, 2, 2, 2]
        recursive_doubling: [1, 3, 2, 4, 3, 4]
        double_binary_tree: [2, 3, 3, 4, 4, 5]
    "#]]
    .assert_eq(&messages);
}

/// An unchanged value is packed once, however many ranks receive it, and forwarded in packed form.
#[test]
fn what_does_not_change_is_packed_once() {
    let count = |schedule: &Schedule, kind: fn(&Action) -> bool| {
        let program = &schedule.programs[1];
        program.steps.iter().filter(|step| kind(&step.action)).count()
    };
    let encodes = |schedule: &Schedule| count(schedule, |action| matches!(action, Action::Encode { .. }));
    let sends =
        |schedule: &Schedule| count(schedule, |action| matches!(action.message(), Some((_, Direction::Out))));
    let mesh = plan(&spec(8), "mesh").expect("a plan");
    assert_eq!((encodes(&mesh), sends(&mesh)), (1, 7));
    // Seven partial sums and a result are packed; in the second half, six chunks are forwarded as received.
    let ring = plan(&spec(8), "ring").expect("a plan");
    assert_eq!((encodes(&ring), sends(&ring)), (8, 14));
    // Seven chunks for other ranks, and the result of the rank's own chunk.
    let direct = plan(&spec(8), "rsag_mesh").expect("a plan");
    assert_eq!((encodes(&direct), sends(&direct)), (8, 14));
}

#[test]
fn packed_memory_stays_small() {
    let blocks = |algorithm: &str, ranks| {
        plan(&spec(ranks), algorithm).expect("a plan").packing.expect("packed").blocks
    };
    let all = SHOWN.map(|name| blocks(name, 16));
    expect!["[2, 2, 3, 2, 5, 3]"].assert_eq(&format!("{all:?}"));
}

#[test]
fn a_ring_of_three_can_be_read() {
    let plan = plan(&spec(3).with_in_place(InPlace::Yes), "ring").expect("a plan").to_string();
    let rank_0: Vec<&str> = plan.lines().take_while(|line| *line != "rank 1").collect();
    expect![[r#"
        all_reduce ring: 3 ranks, in place, 3 chunks, 2 blocks packed as bf16
        rank 0
           0: encode packed[0] = input[0]
           1: send packed[0] to rank 1 after 0
           2: recv packed[2] from rank 2
           3: decode_reduce output[2] = input[2] + packed[2] after 2
           4: encode packed[2] = output[2] after 3
           5: send packed[2] to rank 1 after 4
           6: recv packed[1] from rank 2
           7: decode_reduce output[1] = input[1] + packed[1] last after 6
           8: encode packed[1] = output[1] after 7
           9: decode output[1] = packed[1] after 8
          10: send packed[1] to rank 1 after 8
          11: recv packed[3] from rank 2
          12: decode output[0] = packed[3] after 0 11
          13: send packed[3] to rank 1 following 11
          14: recv packed[5] from rank 2
          15: decode output[2] = packed[5] after 4 14"#]]
    .assert_eq(&rank_0.join("\n"));
}

#[test]
fn other_plans_are_refused() {
    let codec = Some(Codec::Int8(BlockLen::B64));
    let gather = Spec::new(Collective::AllGather, 4).expect("a spec").with_codec(codec);
    let error = plan(&gather, "ring").expect_err("only all_reduce");
    assert!(
        matches!(error, PlanError::Unpackable { .. }) && error.to_string().contains("int8/64"),
        "{error}"
    );
    let error = plan(&spec(4).with_numerics(Numerics::Reproducible), "mesh").expect_err("not reproducible");
    assert!(error.to_string().contains("ask for fast numerics"), "{error}");
}

fn mutant(old: &str, new: &str) -> Fault {
    let toml = plan(&spec(2), "mesh").expect("a plan").to_toml();
    assert!(toml.contains(old), "{toml}");
    let schedule = Schedule::from_toml(&toml.replacen(old, new, 1)).expect("a schedule");
    verify(&schedule, Credits(0)).expect_err("spoiled")
}

#[test]
fn packed_chunks_are_not_mistaken_for_elements() {
    let messages = [
        mutant("encode packed[0] = input[0]", "copy packed[0] = input[0]"),
        mutant("send packed[0] to rank 1", "send input[0] to rank 1"),
        mutant("decode_reduce output[0] = output[0] + packed[1]", "reduce output[0] = output[0] + packed[1]"),
        mutant("decode output[0] = packed[0]", "decode packed[0] = packed[0]"),
        mutant("decode output[0] = packed[0]", "copy output[0] = input[0]"),
        mutant("recv packed[1] from rank 1", "recv packed[9] from rank 1"),
    ];
    let messages: Vec<String> = messages.iter().map(ToString::to_string).collect();
    expect![["
        rank 0 step 0 `copy packed[0] = input[0]`: packed[0] cannot stand here; packed chunks are encoded, \
            sent, received and decoded, one by one
        rank 0 step 1 `send input[0] to rank 1 after 0` meets rank 1 step 2 `recv packed[1] from rank 0`: \
            lengths differ, or may when the count is not a multiple of the chunks
        rank 0 step 4 `reduce output[0] = output[0] + packed[1] last after 2 3`: packed[1] cannot stand \
            here; packed chunks are encoded, sent, received and decoded, one by one
        rank 0 step 3 `decode packed[0] = packed[0] after 0`: packed[0] cannot stand here; packed chunks \
            are encoded, sent, received and decoded, one by one
        chunk 0 is added up in one order on rank 0 and in another one on rank 1
        rank 0 step 2 `recv packed[9] from rank 1`: packed[9] is outside of the buffer, whose chunks are 2"]]
    .assert_eq(&messages.join("\n"));
}

#[test]
fn the_bound_grows_with_encodings_and_magnitudes() {
    let codec = Codec::Int8(BlockLen::B128);
    let bound = |encodings, magnitudes| codec.error_bound(encodings, 4, magnitudes);
    assert!((bound(1, 254.0) - 1.0).abs() < 0.01);
    assert!(bound(2, 1.0) > bound(1, 1.0) * 2.0);
    assert!(codec.error_bound(3, 4, 0.0) < 1e-25);
    assert!(Codec::Bf16.error_bound(1, 4, 1.0) < bound(1, 1.0));
}
