//! Collectives with a root.

use super::{check, spec};
use collectives::{Collective, Rank};
use expect_test::expect;

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
           1: send output[0] to rank 5 following 0
           2: send output[0] to rank 1 following 0
        rank 4
           0: recv output[0] from rank 2
        rank 5
           0: recv output[0] from rank 3
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
           1: send output[1] to rank 2 following 0
           2: recv output[0] from rank 0
           3: send output[0] to rank 2 following 2
           4: recv output[3] from rank 0
           5: recv output[2] from rank 0
        rank 2
           0: recv output[2..4] from rank 0
           1: send output[3] to rank 3 after 0
           2: send output[2] to rank 3 after 0
           3: recv output[1] from rank 1
           4: send output[1] to rank 3 following 3
           5: recv output[0] from rank 1
           6: send output[0] to rank 3 following 5
        rank 3
           0: recv output[3] from rank 2
           1: recv output[2] from rank 2
           2: recv output[1] from rank 2
           3: recv output[0] from rank 2
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
           3: send scratch[1] to rank 2 following 1
    "#]],
    );
}
