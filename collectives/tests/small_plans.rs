//! Small plans that a person can read.

use collectives::schedule::InPlace;
use collectives::{Collective, Hosts, Rank, Schedule, Spec, Weights, plan::plan};
use expect_test::{Expect, expect};

fn spec(collective: Collective, ranks: u32) -> Spec {
    Spec::new(collective, ranks).expect("a spec")
}

#[track_caller]
fn check(spec: Spec, algorithm: &str, expected: &Expect) {
    let schedule: Schedule = plan(&spec, algorithm).expect("a plan");
    expected.assert_eq(&schedule.to_string());
}

fn in_place(spec: Spec) -> Spec {
    spec.with_in_place(InPlace::Yes)
}

#[test]
fn one_shot_on_two_ranks_is_one_send_and_one_fused_receive() {
    check(
        spec(Collective::AllReduce, 2),
        "mesh",
        &expect![[r#"
        all_reduce mesh: 2 ranks, out of place, 1 chunk
        rank 0
           0: send input[0] to rank 1
           1: recv_reduce output[0] = input[0] + rank 1 last
        rank 1
           0: send input[0] to rank 0
           1: recv_reduce output[0] = input[0] + rank 0 last
    "#]],
    );
}

#[test]
fn one_shot_in_place_receives_beside_what_it_sends() {
    check(
        in_place(spec(Collective::AllReduce, 2)),
        "mesh",
        &expect![[r#"
        all_reduce mesh: 2 ranks, in place, 1 chunk, 1 block of scratch
        rank 0
           0: send input[0] to rank 1
           1: recv scratch[0] from rank 1
           2: reduce output[0] = input[0] + scratch[0] last after 0 1
        rank 1
           0: send input[0] to rank 0
           1: recv scratch[0] from rank 0
           2: reduce output[0] = input[0] + scratch[0] last after 0 1
    "#]],
    );
}

#[test]
fn one_shot_on_four_ranks_reduces_in_rank_order() {
    check(
        spec(Collective::AllReduce, 4),
        "mesh",
        &expect![[r#"
        all_reduce mesh: 4 ranks, out of place, 1 chunk
        rank 0
           0: send input[0] to rank 1
           1: send input[0] to rank 2
           2: send input[0] to rank 3
           3: recv_reduce output[0] = input[0] + rank 1
           4: recv_reduce output[0] = output[0] + rank 2 after 3
           5: recv_reduce output[0] = output[0] + rank 3 last after 4
        rank 1
           0: send input[0] to rank 2
           1: send input[0] to rank 3
           2: send input[0] to rank 0
           3: recv_reduce output[0] = input[0] + rank 0
           4: recv_reduce output[0] = output[0] + rank 2 after 3
           5: recv_reduce output[0] = output[0] + rank 3 last after 4
        rank 2
           0: send input[0] to rank 3
           1: send input[0] to rank 0
           2: send input[0] to rank 1
           3: recv output[0] from rank 0
           4: recv_reduce output[0] = output[0] + rank 1 after 3
           5: reduce output[0] = output[0] + input[0] after 4
           6: recv_reduce output[0] = output[0] + rank 3 last after 5
        rank 3
           0: send input[0] to rank 0
           1: send input[0] to rank 1
           2: send input[0] to rank 2
           3: recv output[0] from rank 0
           4: recv_reduce output[0] = output[0] + rank 1 after 3
           5: recv_reduce output[0] = output[0] + rank 2 after 4
           6: reduce output[0] = output[0] + input[0] last after 5
    "#]],
    );
}

#[test]
fn ring_on_two_ranks() {
    check(
        spec(Collective::AllReduce, 2),
        "ring",
        &expect![[r#"
        all_reduce ring: 2 ranks, out of place, 2 chunks
        rank 0
           0: send input[0] to rank 1
           1: recv_reduce output[1] = input[1] + rank 1 last
           2: send output[1] to rank 1 after 1
           3: recv output[0] from rank 1
        rank 1
           0: send input[1] to rank 0
           1: recv_reduce output[0] = input[0] + rank 0 last
           2: send output[0] to rank 0 after 1
           3: recv output[1] from rank 0
    "#]],
    );
}

#[test]
fn ring_on_four_ranks_in_place() {
    check(
        in_place(spec(Collective::AllReduce, 4)),
        "ring",
        &expect![[r#"
        all_reduce ring: 4 ranks, in place, 4 chunks
        rank 0
           0: send input[0] to rank 1
           1: recv_reduce output[3] = input[3] + rank 3
           2: send output[3] to rank 1 after 1
           3: recv_reduce output[2] = input[2] + rank 3
           4: send output[2] to rank 1 after 3
           5: recv_reduce output[1] = input[1] + rank 3 last
           6: send output[1] to rank 1 after 5
           7: recv output[0] from rank 3 after 0
           8: send output[0] to rank 1 after 7
           9: recv output[3] from rank 3 after 2
          10: send output[3] to rank 1 after 9
          11: recv output[2] from rank 3 after 4
        rank 1
           0: send input[1] to rank 2
           1: recv_reduce output[0] = input[0] + rank 0
           2: send output[0] to rank 2 after 1
           3: recv_reduce output[3] = input[3] + rank 0
           4: send output[3] to rank 2 after 3
           5: recv_reduce output[2] = input[2] + rank 0 last
           6: send output[2] to rank 2 after 5
           7: recv output[1] from rank 0 after 0
           8: send output[1] to rank 2 after 7
           9: recv output[0] from rank 0 after 2
          10: send output[0] to rank 2 after 9
          11: recv output[3] from rank 0 after 4
        rank 2
           0: send input[2] to rank 3
           1: recv_reduce output[1] = input[1] + rank 1
           2: send output[1] to rank 3 after 1
           3: recv_reduce output[0] = input[0] + rank 1
           4: send output[0] to rank 3 after 3
           5: recv_reduce output[3] = input[3] + rank 1 last
           6: send output[3] to rank 3 after 5
           7: recv output[2] from rank 1 after 0
           8: send output[2] to rank 3 after 7
           9: recv output[1] from rank 1 after 2
          10: send output[1] to rank 3 after 9
          11: recv output[0] from rank 1 after 4
        rank 3
           0: send input[3] to rank 0
           1: recv_reduce output[2] = input[2] + rank 2
           2: send output[2] to rank 0 after 1
           3: recv_reduce output[1] = input[1] + rank 2
           4: send output[1] to rank 0 after 3
           5: recv_reduce output[0] = input[0] + rank 2 last
           6: send output[0] to rank 0 after 5
           7: recv output[3] from rank 2 after 0
           8: send output[3] to rank 0 after 7
           9: recv output[2] from rank 2 after 2
          10: send output[2] to rank 0 after 9
          11: recv output[1] from rank 2 after 4
    "#]],
    );
}

#[test]
fn ring_on_two_ranks_in_two_segments() {
    check(
        spec(Collective::AllReduce, 2).with_segments(2).expect("few"),
        "ring",
        &expect![[r#"
        all_reduce ring: 2 ranks, out of place, 4 chunks
        rank 0
           0: send input[0] to rank 1
           1: recv_reduce output[2] = input[2] + rank 1 last
           2: send input[1] to rank 1
           3: recv_reduce output[3] = input[3] + rank 1 last
           4: send output[2] to rank 1 after 1
           5: recv output[0] from rank 1
           6: send output[3] to rank 1 after 3
           7: recv output[1] from rank 1
        rank 1
           0: send input[2] to rank 0
           1: recv_reduce output[0] = input[0] + rank 0 last
           2: send input[3] to rank 0
           3: recv_reduce output[1] = input[1] + rank 0 last
           4: send output[0] to rank 0 after 1
           5: recv output[2] from rank 0
           6: send output[1] to rank 0 after 3
           7: recv output[3] from rank 0
    "#]],
    );
}

#[test]
fn two_rings_on_two_ranks() {
    check(
        spec(Collective::AllReduce, 2),
        "bidirectional_ring",
        &expect![[r#"
        all_reduce bidirectional_ring: 2 ranks, out of place, 4 chunks, 2 lanes
        rank 0
           0: send input[0] to rank 1
           1: recv_reduce output[1] = input[1] + rank 1 last
           2: send input[3] to rank 1 lane 1
           3: recv_reduce output[2] = input[2] + rank 1 lane 1 last
           4: send output[1] to rank 1 after 1
           5: recv output[0] from rank 1
           6: send output[2] to rank 1 lane 1 after 3
           7: recv output[3] from rank 1 lane 1
        rank 1
           0: send input[1] to rank 0
           1: recv_reduce output[0] = input[0] + rank 0 last
           2: send input[2] to rank 0 lane 1
           3: recv_reduce output[3] = input[3] + rank 0 lane 1 last
           4: send output[0] to rank 0 after 1
           5: recv output[1] from rank 0
           6: send output[3] to rank 0 lane 1 after 3
           7: recv output[2] from rank 0 lane 1
    "#]],
    );
}

#[test]
fn direct_reduce_scatter_and_all_gather_on_three_ranks() {
    check(
        spec(Collective::AllReduce, 3),
        "rsag_mesh",
        &expect![[r#"
        all_reduce rsag_mesh: 3 ranks, out of place, 3 chunks
        rank 0
           0: send input[1] to rank 1
           1: send input[2] to rank 2
           2: recv_reduce output[0] = input[0] + rank 2
           3: recv_reduce output[0] = output[0] + rank 1 last after 2
           4: send output[0] to rank 1 after 3
           5: send output[0] to rank 2 after 3
           6: recv output[2] from rank 2
           7: recv output[1] from rank 1
        rank 1
           0: send input[2] to rank 2
           1: send input[0] to rank 0
           2: recv_reduce output[1] = input[1] + rank 0
           3: recv_reduce output[1] = output[1] + rank 2 last after 2
           4: send output[1] to rank 2 after 3
           5: send output[1] to rank 0 after 3
           6: recv output[0] from rank 0
           7: recv output[2] from rank 2
        rank 2
           0: send input[0] to rank 0
           1: send input[1] to rank 1
           2: recv_reduce output[2] = input[2] + rank 1
           3: recv_reduce output[2] = output[2] + rank 0 last after 2
           4: send output[2] to rank 0 after 3
           5: send output[2] to rank 1 after 3
           6: recv output[1] from rank 1
           7: recv output[0] from rank 0
    "#]],
    );
}

#[test]
fn recursive_doubling_on_five_ranks() {
    check(
        spec(Collective::AllReduce, 5),
        "recursive_doubling",
        &expect![[r#"
            all_reduce recursive_doubling: 5 ranks, out of place, 1 chunk, 2 blocks of scratch
            rank 0
               0: recv_reduce scratch[0] = input[0] + rank 1
               1: send scratch[0] to rank 2 after 0
               2: recv_reduce scratch[1] = scratch[0] + rank 2 after 0
               3: send scratch[1] to rank 3 after 2
               4: recv_reduce output[0] = scratch[1] + rank 3 last after 2
               5: send output[0] to rank 1 after 4
            rank 1
               0: send input[0] to rank 0
               1: recv output[0] from rank 0
            rank 2
               0: send input[0] to rank 0
               1: recv_reduce scratch[1] = input[0] + rank 0
               2: send scratch[1] to rank 4 after 1
               3: recv_reduce output[0] = scratch[1] + rank 4 last after 1
            rank 3
               0: send input[0] to rank 4
               1: recv_reduce scratch[1] = input[0] + rank 4
               2: send scratch[1] to rank 0 after 1
               3: recv_reduce output[0] = scratch[1] + rank 0 last after 1
            rank 4
               0: send input[0] to rank 3
               1: recv_reduce scratch[1] = input[0] + rank 3
               2: send scratch[1] to rank 2 after 1
               3: recv_reduce output[0] = scratch[1] + rank 2 last after 1
        "#]],
    );
}

#[test]
fn two_trees_on_five_ranks() {
    check(
        spec(Collective::AllReduce, 5),
        "double_binary_tree",
        &expect![[r#"
        all_reduce double_binary_tree: 5 ranks, out of place, 2 chunks, 2 lanes
        rank 0
           0: recv_reduce output[0] = input[0] + rank 4 last
           1: recv_reduce output[1] = input[1] + rank 3 lane 1
           2: send output[1] to rank 1 lane 1 after 1
           3: send output[0] to rank 4 after 0
           4: recv output[1] from rank 1 lane 1 after 2
           5: send output[1] to rank 3 lane 1 after 4
        rank 1
           0: send input[0] to rank 2
           1: recv_reduce output[1] = input[1] + rank 0 lane 1 last
           2: recv output[0] from rank 2
           3: send output[1] to rank 0 lane 1 after 1
        rank 2
           0: recv_reduce output[0] = input[0] + rank 1
           1: recv_reduce output[0] = output[0] + rank 3 after 0
           2: send output[0] to rank 4 after 1
           3: send input[1] to rank 3 lane 1
           4: recv output[0] from rank 4 after 2
           5: send output[0] to rank 1 after 4
           6: send output[0] to rank 3 after 4
           7: recv output[1] from rank 3 lane 1
        rank 3
           0: send input[0] to rank 2
           1: recv_reduce output[1] = input[1] + rank 2 lane 1
           2: recv_reduce output[1] = output[1] + rank 4 lane 1 after 1
           3: send output[1] to rank 0 lane 1 after 2
           4: recv output[0] from rank 2
           5: recv output[1] from rank 0 lane 1 after 3
           6: send output[1] to rank 2 lane 1 after 5
           7: send output[1] to rank 4 lane 1 after 5
        rank 4
           0: recv_reduce output[0] = input[0] + rank 2
           1: send output[0] to rank 0 after 0
           2: send input[1] to rank 3 lane 1
           3: recv output[0] from rank 0 after 1
           4: send output[0] to rank 2 after 3
           5: recv output[1] from rank 3 lane 1
    "#]],
    );
}

#[test]
fn all_gather_on_three_ranks() {
    check(
        spec(Collective::AllGather, 3),
        "ring",
        &expect![[r#"
        all_gather ring: 3 ranks, out of place, 1 chunk
        rank 0
           0: send input[0] to rank 1
           1: recv output[2] from rank 2
           2: send output[2] to rank 1 after 1
           3: recv output[1] from rank 2
           4: copy output[0] = input[0]
        rank 1
           0: send input[0] to rank 2
           1: recv output[0] from rank 0
           2: send output[0] to rank 2 after 1
           3: recv output[2] from rank 0
           4: copy output[1] = input[0]
        rank 2
           0: send input[0] to rank 0
           1: recv output[1] from rank 1
           2: send output[1] to rank 0 after 1
           3: recv output[0] from rank 1
           4: copy output[2] = input[0]
    "#]],
    );
}

#[test]
fn reduce_scatter_on_four_ranks() {
    check(
        spec(Collective::ReduceScatter, 4),
        "ring",
        &expect![[r#"
        reduce_scatter ring: 4 ranks, out of place, 1 chunk, 2 blocks of scratch
        rank 0
           0: send input[3] to rank 1
           1: recv_reduce scratch[0] = input[2] + rank 3
           2: send scratch[0] to rank 1 after 1
           3: recv_reduce scratch[1] = input[1] + rank 3
           4: send scratch[1] to rank 1 after 3
           5: recv_reduce output[0] = input[0] + rank 3 last
        rank 1
           0: send input[0] to rank 2
           1: recv_reduce scratch[0] = input[3] + rank 0
           2: send scratch[0] to rank 2 after 1
           3: recv_reduce scratch[1] = input[2] + rank 0
           4: send scratch[1] to rank 2 after 3
           5: recv_reduce output[0] = input[1] + rank 0 last
        rank 2
           0: send input[1] to rank 3
           1: recv_reduce scratch[0] = input[0] + rank 1
           2: send scratch[0] to rank 3 after 1
           3: recv_reduce scratch[1] = input[3] + rank 1
           4: send scratch[1] to rank 3 after 3
           5: recv_reduce output[0] = input[2] + rank 1 last
        rank 3
           0: send input[2] to rank 0
           1: recv_reduce scratch[0] = input[1] + rank 2
           2: send scratch[0] to rank 0 after 1
           3: recv_reduce scratch[1] = input[0] + rank 2
           4: send scratch[1] to rank 0 after 3
           5: recv_reduce output[0] = input[3] + rank 2 last
    "#]],
    );
}

#[test]
fn broadcast_on_six_ranks_from_rank_two() {
    check(
        spec(Collective::Broadcast, 6).with_root(Rank(2)).expect("a rank"),
        "binomial",
        &expect![[r#"
        broadcast binomial: 6 ranks, root 2, out of place, 1 chunk
        rank 0
           0: recv output[0] from rank 2
        rank 1
           0: recv output[0] from rank 3
        rank 2
           0: send input[0] to rank 3
           1: send input[0] to rank 4
           2: send input[0] to rank 0
           3: copy output[0] = input[0]
        rank 3
           0: recv output[0] from rank 2
           1: send output[0] to rank 5 after 0
           2: send output[0] to rank 1 after 0
        rank 4
           0: recv output[0] from rank 2
        rank 5
           0: recv output[0] from rank 3
    "#]],
    );
}

#[test]
fn broadcast_down_a_line_in_segments() {
    let spec = spec(Collective::Broadcast, 3).with_segments(3).expect("few");
    check(
        spec,
        "chain",
        &expect![[r#"
        broadcast chain: 3 ranks, root 0, out of place, 3 chunks
        rank 0
           0: send input[0] to rank 1
           1: copy output[0] = input[0]
           2: send input[1] to rank 1
           3: copy output[1] = input[1]
           4: send input[2] to rank 1
           5: copy output[2] = input[2]
        rank 1
           0: recv output[0] from rank 0
           1: recv output[1] from rank 0
           2: send output[0] to rank 2 after 0
           3: recv output[2] from rank 0
           4: send output[1] to rank 2 after 1
           5: send output[2] to rank 2 after 3
        rank 2
           0: recv output[0] from rank 1
           1: recv output[1] from rank 1
           2: recv output[2] from rank 1
    "#]],
    );
}

#[test]
fn all_to_all_in_place_on_three_ranks() {
    check(
        in_place(spec(Collective::AllToAll, 3)),
        "direct",
        &expect![[r#"
        all_to_all direct: 3 ranks, in place, 1 chunk, 2 blocks of scratch
        rank 0
           0: send input[1] to rank 1
           1: send input[2] to rank 2
           2: recv scratch[0] from rank 2
           3: copy output[2] = scratch[0] after 1 2
           4: recv scratch[1] from rank 1
           5: copy output[1] = scratch[1] after 0 4
        rank 1
           0: send input[2] to rank 2
           1: send input[0] to rank 0
           2: recv scratch[0] from rank 0
           3: copy output[0] = scratch[0] after 1 2
           4: recv scratch[1] from rank 2
           5: copy output[2] = scratch[1] after 0 4
        rank 2
           0: send input[0] to rank 0
           1: send input[1] to rank 1
           2: recv scratch[0] from rank 1
           3: copy output[1] = scratch[0] after 1 2
           4: recv scratch[1] from rank 0
           5: copy output[0] = scratch[1] after 0 4
    "#]],
    );
}

#[test]
fn shift_in_place_on_three_ranks() {
    check(
        in_place(spec(Collective::SendRecv, 3)),
        "shift",
        &expect![[r#"
        sendrecv shift: 3 ranks, in place, 1 chunk, 1 block of scratch
        rank 0
           0: send input[0] to rank 1
           1: recv scratch[0] from rank 2
           2: copy output[0] = scratch[0] after 0 1
        rank 1
           0: send input[0] to rank 2
           1: recv scratch[0] from rank 0
           2: copy output[0] = scratch[0] after 0 1
        rank 2
           0: send input[0] to rank 0
           1: recv scratch[0] from rank 1
           2: copy output[0] = scratch[0] after 0 1
    "#]],
    );
}

#[test]
fn barrier_on_three_ranks() {
    check(
        spec(Collective::Barrier, 3),
        "dissemination",
        &expect![[r#"
        barrier dissemination: 3 ranks, out of place, 1 chunk, 3 blocks of scratch
        rank 0
           0: send scratch[0] to rank 1
           1: recv_reduce scratch[1] = scratch[0] + rank 2
           2: send scratch[1] to rank 2 after 1
           3: recv_reduce scratch[2] = scratch[1] + rank 1 after 1
        rank 1
           0: send scratch[0] to rank 2
           1: recv_reduce scratch[1] = scratch[0] + rank 0
           2: send scratch[1] to rank 0 after 1
           3: recv_reduce scratch[2] = scratch[1] + rank 2 after 1
        rank 2
           0: send scratch[0] to rank 0
           1: recv_reduce scratch[1] = scratch[0] + rank 1
           2: send scratch[1] to rank 1 after 1
           3: recv_reduce scratch[2] = scratch[1] + rank 0 after 1
    "#]],
    );
}

#[test]
fn halving_and_doubling_on_three_ranks() {
    check(
        spec(Collective::AllReduce, 3),
        "rabenseifner",
        &expect![[r#"
        all_reduce rabenseifner: 3 ranks, out of place, 2 chunks
        rank 0
           0: recv_reduce output[0..2] = input[0..2] + rank 1
           1: send output[1] to rank 2 after 0
           2: recv_reduce output[0] = output[0] + rank 2 last after 0
           3: send output[0] to rank 2 after 2
           4: recv output[1] from rank 2 after 1
           5: send output[0..2] to rank 1 after 2 4
        rank 1
           0: send input[0..2] to rank 0
           1: recv output[0..2] from rank 0
        rank 2
           0: send input[0] to rank 0
           1: recv_reduce output[1] = input[1] + rank 0 last
           2: send output[1] to rank 0 after 1
           3: recv output[0] from rank 0
    "#]],
    );
}

#[test]
fn two_by_two_torus() {
    check(
        spec(Collective::AllReduce, 4),
        "torus",
        &expect![[r#"
        all_reduce torus: 4 ranks, out of place, 4 chunks
        rank 0
           0: send input[0..2] to rank 1
           1: recv_reduce output[2..4] = input[2..4] + rank 1
           2: send output[2] to rank 2 after 1
           3: recv_reduce output[3] = output[3] + rank 2 last after 1
           4: send output[3] to rank 2 after 3
           5: recv output[2] from rank 2 after 2
           6: send output[2] to rank 1 after 5
           7: recv output[0] from rank 1
           8: send output[3] to rank 1 after 3
           9: recv output[1] from rank 1
        rank 1
           0: send input[2..4] to rank 0
           1: recv_reduce output[0..2] = input[0..2] + rank 0
           2: send output[0] to rank 3 after 1
           3: recv_reduce output[1] = output[1] + rank 3 last after 1
           4: send output[1] to rank 3 after 3
           5: recv output[0] from rank 3 after 2
           6: send output[0] to rank 0 after 5
           7: recv output[2] from rank 0
           8: send output[1] to rank 0 after 3
           9: recv output[3] from rank 0
        rank 2
           0: send input[0..2] to rank 3
           1: recv_reduce output[2..4] = input[2..4] + rank 3
           2: send output[3] to rank 0 after 1
           3: recv_reduce output[2] = output[2] + rank 0 last after 1
           4: send output[2] to rank 0 after 3
           5: recv output[3] from rank 0 after 2
           6: send output[2] to rank 3 after 3
           7: recv output[0] from rank 3
           8: send output[3] to rank 3 after 5
           9: recv output[1] from rank 3
        rank 3
           0: send input[2..4] to rank 2
           1: recv_reduce output[0..2] = input[0..2] + rank 2
           2: send output[1] to rank 1 after 1
           3: recv_reduce output[0] = output[0] + rank 1 last after 1
           4: send output[0] to rank 1 after 3
           5: recv output[1] from rank 1 after 2
           6: send output[0] to rank 2 after 3
           7: recv output[2] from rank 2
           8: send output[1] to rank 2 after 5
           9: recv output[3] from rank 2
    "#]],
    );
}

#[test]
fn two_hosts_of_two_ranks() {
    check(
        spec(Collective::AllReduce, 4).with_hosts(Hosts::Blocks(2)).expect("any ranks"),
        "hierarchical",
        &expect![[r#"
        all_reduce hierarchical: 4 ranks, out of place, 4 chunks
        rank 0
           0: send input[2..4] to rank 1
           1: recv_reduce output[0..2] = input[0..2] + rank 1
           2: send output[0] to rank 2 after 1
           3: recv_reduce output[1] = output[1] + rank 2 last after 1
           4: send output[1] to rank 2 after 3
           5: recv output[0] from rank 2 after 2
           6: send output[0] to rank 1 after 5
           7: send output[1] to rank 1 after 3
           8: recv output[2] from rank 1
           9: recv output[3] from rank 1
        rank 1
           0: send input[0..2] to rank 0
           1: recv_reduce output[2..4] = input[2..4] + rank 0
           2: send output[2] to rank 3 after 1
           3: recv_reduce output[3] = output[3] + rank 3 last after 1
           4: send output[3] to rank 3 after 3
           5: recv output[2] from rank 3 after 2
           6: recv output[0] from rank 0
           7: recv output[1] from rank 0
           8: send output[2] to rank 0 after 5
           9: send output[3] to rank 0 after 3
        rank 2
           0: send input[2..4] to rank 3
           1: recv_reduce output[0..2] = input[0..2] + rank 3
           2: send output[1] to rank 0 after 1
           3: recv_reduce output[0] = output[0] + rank 0 last after 1
           4: send output[0] to rank 0 after 3
           5: recv output[1] from rank 0 after 2
           6: send output[0] to rank 3 after 3
           7: send output[1] to rank 3 after 5
           8: recv output[2] from rank 3
           9: recv output[3] from rank 3
        rank 3
           0: send input[0..2] to rank 2
           1: recv_reduce output[2..4] = input[2..4] + rank 2
           2: send output[3] to rank 1 after 1
           3: recv_reduce output[2] = output[2] + rank 1 last after 1
           4: send output[2] to rank 1 after 3
           5: recv output[3] from rank 1 after 2
           6: recv output[0] from rank 2
           7: recv output[1] from rank 2
           8: send output[2] to rank 2 after 3
           9: send output[3] to rank 2 after 5
    "#]],
    );
}

#[test]
fn aggregated_trees_on_five_ranks() {
    check(
        spec(Collective::AllGather, 5),
        "pat",
        &expect![[r#"
        all_gather pat: 5 ranks, out of place, 1 chunk, 5 blocks of scratch
        rank 0
           0: copy output[0] = input[0]
           1: copy scratch[3] = input[0]
           2: send scratch[3] to rank 4 after 1
           3: recv scratch[4] from rank 1
           4: copy output[1] = scratch[4] after 3
           5: send scratch[3] to rank 2 after 1
           6: recv scratch[2] from rank 3
           7: copy output[3] = scratch[2] after 6
           8: send scratch[2..4] to rank 1 after 1 6
           9: recv scratch[0..2] from rank 4
          10: copy output[2] = scratch[0] after 9
          11: copy output[4] = scratch[1] after 9
        rank 1
           0: copy output[1] = input[0]
           1: copy scratch[3] = input[0]
           2: send scratch[3] to rank 0 after 1
           3: recv scratch[4] from rank 2
           4: copy output[2] = scratch[4] after 3
           5: send scratch[3] to rank 3 after 1
           6: recv scratch[2] from rank 4
           7: copy output[4] = scratch[2] after 6
           8: send scratch[2..4] to rank 2 after 1 6
           9: recv scratch[0..2] from rank 0
          10: copy output[3] = scratch[0] after 9
          11: copy output[0] = scratch[1] after 9
        rank 2
           0: copy output[2] = input[0]
           1: copy scratch[3] = input[0]
           2: send scratch[3] to rank 1 after 1
           3: recv scratch[4] from rank 3
           4: copy output[3] = scratch[4] after 3
           5: send scratch[3] to rank 4 after 1
           6: recv scratch[2] from rank 0
           7: copy output[0] = scratch[2] after 6
           8: send scratch[2..4] to rank 3 after 1 6
           9: recv scratch[0..2] from rank 1
          10: copy output[4] = scratch[0] after 9
          11: copy output[1] = scratch[1] after 9
        rank 3
           0: copy output[3] = input[0]
           1: copy scratch[3] = input[0]
           2: send scratch[3] to rank 2 after 1
           3: recv scratch[4] from rank 4
           4: copy output[4] = scratch[4] after 3
           5: send scratch[3] to rank 0 after 1
           6: recv scratch[2] from rank 1
           7: copy output[1] = scratch[2] after 6
           8: send scratch[2..4] to rank 4 after 1 6
           9: recv scratch[0..2] from rank 2
          10: copy output[0] = scratch[0] after 9
          11: copy output[2] = scratch[1] after 9
        rank 4
           0: copy output[4] = input[0]
           1: copy scratch[3] = input[0]
           2: send scratch[3] to rank 3 after 1
           3: recv scratch[4] from rank 0
           4: copy output[0] = scratch[4] after 3
           5: send scratch[3] to rank 1 after 1
           6: recv scratch[2] from rank 2
           7: copy output[2] = scratch[2] after 6
           8: send scratch[2..4] to rank 0 after 1 6
           9: recv scratch[0..2] from rank 3
          10: copy output[1] = scratch[0] after 9
          11: copy output[3] = scratch[1] after 9
    "#]],
    );
}

#[test]
fn a_gather_up_a_tree_whose_blocks_start_anew() {
    check(
        spec(Collective::Gather, 5).with_root(Rank(2)).expect("a rank"),
        "binomial",
        &expect![[r#"
        gather binomial: 5 ranks, root 2, out of place, 1 chunk, 2 blocks of scratch
        rank 0
           0: send input[0] to rank 4
        rank 1
           0: send input[0] to rank 2
        rank 2
           0: copy output[2] = input[0]
           1: recv output[3] from rank 3
           2: recv output[4] from rank 4
           3: recv output[0] from rank 4
           4: recv output[1] from rank 1
        rank 3
           0: send input[0] to rank 2
        rank 4
           0: copy scratch[0] = input[0]
           1: recv scratch[1] from rank 0
           2: send scratch[0] to rank 2 after 0
           3: send scratch[1] to rank 2 after 1
    "#]],
    );
}

#[test]
fn a_broadcast_as_scatter_and_all_gather() {
    check(
        spec(Collective::Broadcast, 4),
        "scatter_all_gather",
        &expect![[r#"
        broadcast scatter_all_gather: 4 ranks, root 0, out of place, 4 chunks
        rank 0
           0: send input[2..4] to rank 2
           1: send input[1] to rank 1
           2: send input[0] to rank 1
           3: send input[3] to rank 1
           4: send input[2] to rank 1
           5: copy output[0..4] = input[0..4]
        rank 1
           0: recv output[1] from rank 0
           1: send output[1] to rank 2 after 0
           2: recv output[0] from rank 0
           3: send output[0] to rank 2 after 2
           4: recv output[3] from rank 0
           5: recv output[2] from rank 0
        rank 2
           0: recv output[2..4] from rank 0
           1: send output[3] to rank 3 after 0
           2: send output[2] to rank 3 after 0
           3: recv output[1] from rank 1
           4: send output[1] to rank 3 after 3
           5: recv output[0] from rank 1
           6: send output[0] to rank 3 after 5
        rank 3
           0: recv output[3] from rank 2
           1: recv output[2] from rank 2
           2: recv output[1] from rank 2
           3: recv output[0] from rank 2
    "#]],
    );
}

#[test]
fn an_exclusive_scan_by_doubling() {
    check(
        spec(Collective::ExclusiveScan, 4),
        "recursive_doubling",
        &expect![[r#"
        exclusive_scan recursive_doubling: 4 ranks, out of place, 1 chunk, 4 blocks of scratch
        rank 0
           0: send input[0] to rank 1
           1: send input[0] to rank 2
        rank 1
           0: send input[0] to rank 2
           1: recv scratch[0] from rank 0
           2: reduce scratch[2] = input[0] + scratch[0] after 1
           3: copy output[0] = scratch[0] after 1
           4: send scratch[2] to rank 3 after 2
        rank 2
           0: send input[0] to rank 3
           1: recv scratch[0] from rank 1
           2: copy output[0] = scratch[0] after 1
           3: recv scratch[1] from rank 0
           4: reduce output[0] = output[0] + scratch[1] after 2 3
        rank 3
           0: recv scratch[0] from rank 2
           1: copy output[0] = scratch[0] after 0
           2: recv scratch[1] from rank 1
           3: reduce output[0] = output[0] + scratch[1] after 1 2
    "#]],
    );
}

#[test]
fn a_broadcast_in_two_replicas() {
    check(
        spec(Collective::Broadcast, 2).with_replicas(2).expect("few"),
        "chain",
        &expect![[r#"
        broadcast chain: 2 ranks, root 0, out of place, 2 chunks, 2 lanes
        rank 0
           0: send input[0] to rank 1
           1: send input[1] to rank 1 lane 1
           2: copy output[0] = input[0]
           3: copy output[1] = input[1]
        rank 1
           0: recv output[0] from rank 0
           1: recv output[1] from rank 0 lane 1
    "#]],
    );
}

#[test]
fn an_all_reduce_striped_three_to_one() {
    let weights = Weights::new(&[3, 1]).expect("two lanes");
    check(
        in_place(spec(Collective::AllReduce, 2)).with_weights(weights),
        "mesh",
        &expect![[r#"
        all_reduce mesh: 2 ranks, in place, 4 chunks, 1 block of scratch, 2 lanes
        rank 0
           0: send input[0..3] to rank 1
           1: send input[3] to rank 1 lane 1
           2: recv scratch[0..3] from rank 1
           3: recv scratch[3] from rank 1 lane 1
           4: reduce output[0..4] = input[0..4] + scratch[0..4] last after 0 1 2 3
        rank 1
           0: send input[0..3] to rank 0
           1: send input[3] to rank 0 lane 1
           2: recv scratch[0..3] from rank 0
           3: recv scratch[3] from rank 0 lane 1
           4: reduce output[0..4] = input[0..4] + scratch[0..4] last after 0 1 2 3
    "#]],
    );
}
