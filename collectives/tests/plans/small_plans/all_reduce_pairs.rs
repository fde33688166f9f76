//! All-reduce between all pairs, by doubling, and along trees.

use super::{check, in_place, spec};
use collectives::Collective;
use expect_test::expect;

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
           4: send output[0] to rank 1 following 3
           5: send output[0] to rank 2 following 3
           6: recv output[2] from rank 2
           7: recv output[1] from rank 1
        rank 1
           0: send input[2] to rank 2
           1: send input[0] to rank 0
           2: recv_reduce output[1] = input[1] + rank 0
           3: recv_reduce output[1] = output[1] + rank 2 last after 2
           4: send output[1] to rank 2 following 3
           5: send output[1] to rank 0 following 3
           6: recv output[0] from rank 0
           7: recv output[2] from rank 2
        rank 2
           0: send input[0] to rank 0
           1: send input[1] to rank 1
           2: recv_reduce output[2] = input[2] + rank 1
           3: recv_reduce output[2] = output[2] + rank 0 last after 2
           4: send output[2] to rank 0 following 3
           5: send output[2] to rank 1 following 3
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
               1: send scratch[0] to rank 2 following 0
               2: recv_reduce scratch[1] = scratch[0] + rank 2 after 0
               3: send scratch[1] to rank 3 following 2
               4: recv_reduce output[0] = scratch[1] + rank 3 last after 2
               5: send output[0] to rank 1 following 4
            rank 1
               0: send input[0] to rank 0
               1: recv output[0] from rank 0
            rank 2
               0: send input[0] to rank 0
               1: recv_reduce scratch[1] = input[0] + rank 0
               2: send scratch[1] to rank 4 following 1
               3: recv_reduce output[0] = scratch[1] + rank 4 last after 1
            rank 3
               0: send input[0] to rank 4
               1: recv_reduce scratch[1] = input[0] + rank 4
               2: send scratch[1] to rank 0 following 1
               3: recv_reduce output[0] = scratch[1] + rank 0 last after 1
            rank 4
               0: send input[0] to rank 3
               1: recv_reduce scratch[1] = input[0] + rank 3
               2: send scratch[1] to rank 2 following 1
               3: recv_reduce output[0] = scratch[1] + rank 2 last after 1
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
           3: send output[0] to rank 2 following 2
           4: recv output[1] from rank 2 after 1
           5: send output[0..2] to rank 1 after 2 4
        rank 1
           0: send input[0..2] to rank 0
           1: recv output[0..2] from rank 0
        rank 2
           0: send input[0] to rank 0
           1: recv_reduce output[1] = input[1] + rank 0 last
           2: send output[1] to rank 0 following 1
           3: recv output[0] from rank 0
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
           2: send output[1] to rank 1 lane 1 following 1
           3: send output[0] to rank 4 following 0
           4: recv output[1] from rank 1 lane 1 after 2
           5: send output[1] to rank 3 lane 1 following 4
        rank 1
           0: send input[0] to rank 2
           1: recv_reduce output[1] = input[1] + rank 0 lane 1 last
           2: recv output[0] from rank 2
           3: send output[1] to rank 0 lane 1 following 1
        rank 2
           0: recv_reduce output[0] = input[0] + rank 1
           1: recv_reduce output[0] = output[0] + rank 3 after 0
           2: send output[0] to rank 4 following 1
           3: send input[1] to rank 3 lane 1
           4: recv output[0] from rank 4 after 2
           5: send output[0] to rank 1 following 4
           6: send output[0] to rank 3 following 4
           7: recv output[1] from rank 3 lane 1
        rank 3
           0: send input[0] to rank 2
           1: recv_reduce output[1] = input[1] + rank 2 lane 1
           2: recv_reduce output[1] = output[1] + rank 4 lane 1 after 1
           3: send output[1] to rank 0 lane 1 following 2
           4: recv output[0] from rank 2
           5: recv output[1] from rank 0 lane 1 after 3
           6: send output[1] to rank 2 lane 1 following 5
           7: send output[1] to rank 4 lane 1 following 5
        rank 4
           0: recv_reduce output[0] = input[0] + rank 2
           1: send output[0] to rank 0 following 0
           2: send input[1] to rank 3 lane 1
           3: recv output[0] from rank 0 after 1
           4: send output[0] to rank 2 following 3
           5: recv output[1] from rank 3 lane 1
    "#]],
    );
}
