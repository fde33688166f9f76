//! Collectives with a block per pair of ranks or per rank.

use super::{check, in_place, spec};
use collectives::Collective;
use expect_test::expect;

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
           2: send output[2] to rank 1 following 1
           3: recv output[1] from rank 2
           4: copy output[0] = input[0]
        rank 1
           0: send input[0] to rank 2
           1: recv output[0] from rank 0
           2: send output[0] to rank 2 following 1
           3: recv output[2] from rank 0
           4: copy output[1] = input[0]
        rank 2
           0: send input[0] to rank 0
           1: recv output[1] from rank 1
           2: send output[1] to rank 0 following 1
           3: recv output[0] from rank 1
           4: copy output[2] = input[0]
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
fn reduce_scatter_on_four_ranks() {
    check(
        spec(Collective::ReduceScatter, 4),
        "ring",
        &expect![[r#"
        reduce_scatter ring: 4 ranks, out of place, 1 chunk, 2 blocks of scratch
        rank 0
           0: send input[3] to rank 1
           1: recv_reduce scratch[0] = input[2] + rank 3
           2: send scratch[0] to rank 1 following 1
           3: recv_reduce scratch[1] = input[1] + rank 3
           4: send scratch[1] to rank 1 following 3
           5: recv_reduce output[0] = input[0] + rank 3 last
        rank 1
           0: send input[0] to rank 2
           1: recv_reduce scratch[0] = input[3] + rank 0
           2: send scratch[0] to rank 2 following 1
           3: recv_reduce scratch[1] = input[2] + rank 0
           4: send scratch[1] to rank 2 following 3
           5: recv_reduce output[0] = input[1] + rank 0 last
        rank 2
           0: send input[1] to rank 3
           1: recv_reduce scratch[0] = input[0] + rank 1
           2: send scratch[0] to rank 3 following 1
           3: recv_reduce scratch[1] = input[3] + rank 1
           4: send scratch[1] to rank 3 following 3
           5: recv_reduce output[0] = input[2] + rank 1 last
        rank 3
           0: send input[2] to rank 0
           1: recv_reduce scratch[0] = input[1] + rank 2
           2: send scratch[0] to rank 0 following 1
           3: recv_reduce scratch[1] = input[0] + rank 2
           4: send scratch[1] to rank 0 following 3
           5: recv_reduce output[0] = input[3] + rank 2 last
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
