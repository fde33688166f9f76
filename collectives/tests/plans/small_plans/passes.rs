//! Effects of the passes on plans: segments, replicas and stripes.

use super::{check, in_place, spec};
use collectives::{Collective, Weights};
use expect_test::expect;

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
           4: send output[2] to rank 1 following 1
           5: recv output[0] from rank 1
           6: send output[3] to rank 1 following 3
           7: recv output[1] from rank 1
        rank 1
           0: send input[2] to rank 0
           1: recv_reduce output[0] = input[0] + rank 0 last
           2: send input[3] to rank 0
           3: recv_reduce output[1] = input[1] + rank 0 last
           4: send output[0] to rank 0 following 1
           5: recv output[2] from rank 0
           6: send output[1] to rank 0 following 3
           7: recv output[3] from rank 0
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
           2: send output[0] to rank 2 following 0
           3: recv output[2] from rank 0
           4: send output[1] to rank 2 following 1
           5: send output[2] to rank 2 following 3
        rank 2
           0: recv output[0] from rank 1
           1: recv output[1] from rank 1
           2: recv output[2] from rank 1
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
