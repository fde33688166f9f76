//! Collectives in which the order of ranks counts, and the barrier.

use super::{check, spec};
use collectives::Collective;
use expect_test::expect;

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
