//! All-reduce around rings, on tori, and within and between hosts.

use super::{check, in_place, spec};
use collectives::{Collective, Hosts};
use expect_test::expect;

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
           2: send output[1] to rank 1 following 1
           3: recv output[0] from rank 1
        rank 1
           0: send input[1] to rank 0
           1: recv_reduce output[0] = input[0] + rank 0 last
           2: send output[0] to rank 0 following 1
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
           2: send output[3] to rank 1 following 1
           3: recv_reduce output[2] = input[2] + rank 3
           4: send output[2] to rank 1 following 3
           5: recv_reduce output[1] = input[1] + rank 3 last
           6: send output[1] to rank 1 following 5
           7: recv output[0] from rank 3 after 0
           8: send output[0] to rank 1 following 7
           9: recv output[3] from rank 3 after 2
          10: send output[3] to rank 1 following 9
          11: recv output[2] from rank 3 after 4
        rank 1
           0: send input[1] to rank 2
           1: recv_reduce output[0] = input[0] + rank 0
           2: send output[0] to rank 2 following 1
           3: recv_reduce output[3] = input[3] + rank 0
           4: send output[3] to rank 2 following 3
           5: recv_reduce output[2] = input[2] + rank 0 last
           6: send output[2] to rank 2 following 5
           7: recv output[1] from rank 0 after 0
           8: send output[1] to rank 2 following 7
           9: recv output[0] from rank 0 after 2
          10: send output[0] to rank 2 following 9
          11: recv output[3] from rank 0 after 4
        rank 2
           0: send input[2] to rank 3
           1: recv_reduce output[1] = input[1] + rank 1
           2: send output[1] to rank 3 following 1
           3: recv_reduce output[0] = input[0] + rank 1
           4: send output[0] to rank 3 following 3
           5: recv_reduce output[3] = input[3] + rank 1 last
           6: send output[3] to rank 3 following 5
           7: recv output[2] from rank 1 after 0
           8: send output[2] to rank 3 following 7
           9: recv output[1] from rank 1 after 2
          10: send output[1] to rank 3 following 9
          11: recv output[0] from rank 1 after 4
        rank 3
           0: send input[3] to rank 0
           1: recv_reduce output[2] = input[2] + rank 2
           2: send output[2] to rank 0 following 1
           3: recv_reduce output[1] = input[1] + rank 2
           4: send output[1] to rank 0 following 3
           5: recv_reduce output[0] = input[0] + rank 2 last
           6: send output[0] to rank 0 following 5
           7: recv output[3] from rank 2 after 0
           8: send output[3] to rank 0 following 7
           9: recv output[2] from rank 2 after 2
          10: send output[2] to rank 0 following 9
          11: recv output[1] from rank 2 after 4
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
           4: send output[1] to rank 1 following 1
           5: recv output[0] from rank 1
           6: send output[2] to rank 1 lane 1 following 3
           7: recv output[3] from rank 1 lane 1
        rank 1
           0: send input[1] to rank 0
           1: recv_reduce output[0] = input[0] + rank 0 last
           2: send input[2] to rank 0 lane 1
           3: recv_reduce output[3] = input[3] + rank 0 lane 1 last
           4: send output[0] to rank 0 following 1
           5: recv output[1] from rank 0
           6: send output[3] to rank 0 lane 1 following 3
           7: recv output[2] from rank 0 lane 1
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
           4: send output[3] to rank 2 following 3
           5: recv output[2] from rank 2 after 2
           6: send output[2] to rank 1 following 5
           7: recv output[0] from rank 1
           8: send output[3] to rank 1 following 3
           9: recv output[1] from rank 1
        rank 1
           0: send input[2..4] to rank 0
           1: recv_reduce output[0..2] = input[0..2] + rank 0
           2: send output[0] to rank 3 after 1
           3: recv_reduce output[1] = output[1] + rank 3 last after 1
           4: send output[1] to rank 3 following 3
           5: recv output[0] from rank 3 after 2
           6: send output[0] to rank 0 following 5
           7: recv output[2] from rank 0
           8: send output[1] to rank 0 following 3
           9: recv output[3] from rank 0
        rank 2
           0: send input[0..2] to rank 3
           1: recv_reduce output[2..4] = input[2..4] + rank 3
           2: send output[3] to rank 0 after 1
           3: recv_reduce output[2] = output[2] + rank 0 last after 1
           4: send output[2] to rank 0 following 3
           5: recv output[3] from rank 0 after 2
           6: send output[2] to rank 3 following 3
           7: recv output[0] from rank 3
           8: send output[3] to rank 3 following 5
           9: recv output[1] from rank 3
        rank 3
           0: send input[2..4] to rank 2
           1: recv_reduce output[0..2] = input[0..2] + rank 2
           2: send output[1] to rank 1 after 1
           3: recv_reduce output[0] = output[0] + rank 1 last after 1
           4: send output[0] to rank 1 following 3
           5: recv output[1] from rank 1 after 2
           6: send output[0] to rank 2 following 3
           7: recv output[2] from rank 2
           8: send output[1] to rank 2 following 5
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
           4: send output[1] to rank 2 following 3
           5: recv output[0] from rank 2 after 2
           6: send output[0] to rank 1 following 5
           7: send output[1] to rank 1 following 3
           8: recv output[2] from rank 1
           9: recv output[3] from rank 1
        rank 1
           0: send input[0..2] to rank 0
           1: recv_reduce output[2..4] = input[2..4] + rank 0
           2: send output[2] to rank 3 after 1
           3: recv_reduce output[3] = output[3] + rank 3 last after 1
           4: send output[3] to rank 3 following 3
           5: recv output[2] from rank 3 after 2
           6: recv output[0] from rank 0
           7: recv output[1] from rank 0
           8: send output[2] to rank 0 following 5
           9: send output[3] to rank 0 following 3
        rank 2
           0: send input[2..4] to rank 3
           1: recv_reduce output[0..2] = input[0..2] + rank 3
           2: send output[1] to rank 0 after 1
           3: recv_reduce output[0] = output[0] + rank 0 last after 1
           4: send output[0] to rank 0 following 3
           5: recv output[1] from rank 0 after 2
           6: send output[0] to rank 3 following 3
           7: send output[1] to rank 3 following 5
           8: recv output[2] from rank 3
           9: recv output[3] from rank 3
        rank 3
           0: send input[0..2] to rank 2
           1: recv_reduce output[2..4] = input[2..4] + rank 2
           2: send output[3] to rank 1 after 1
           3: recv_reduce output[2] = output[2] + rank 1 last after 1
           4: send output[2] to rank 1 following 3
           5: recv output[3] from rank 1 after 2
           6: recv output[0] from rank 2
           7: recv output[1] from rank 2
           8: send output[2] to rank 2 following 3
           9: send output[3] to rank 2 following 5
    "#]],
    );
}
