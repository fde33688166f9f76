//! Groups and vector forms: fusion of calls, and errors when ranks or arguments disagree, on threads of this
//! process.
//!
//! `tests/reference` compares the results of all calls with their definitions, on processes too.

use std::{thread, time::Duration};
use tbccl::{Communicator, Config, Error, Numerics, Rank, ReduceOp, SelectionConfig, ShmConfig};

fn config() -> Config {
    // The rings are so small that messages are split and the rings wrap around.
    let shm = ShmConfig { piece_bytes: 512, staging_bytes: Some(2048), ..ShmConfig::default() };
    Config { slab_bytes: Some(64 << 20), shm, ..Config::default() }
}

/// Runs `body` on every rank of a job of threads; returns the results in rank order.
fn on_each_rank<R: Send>(
    ranks: u32,
    config: &Config,
    body: impl Fn(&mut Communicator) -> R + Sync,
) -> Vec<R> {
    thread::scope(|scope| {
        let ranks = Communicator::local(ranks, config).expect("memory for a test");
        let spawn = |mut comm: Communicator| {
            let body = &body;
            scope.spawn(move || body(&mut comm))
        };
        let threads: Vec<_> = ranks.into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Returns the element of a rank at an index.
fn value(rank: usize, index: usize) -> u32 {
    (rank as u32 + 1).wrapping_mul(0x9e37_79b9) ^ (index as u32).wrapping_mul(0x85eb_ca6b)
}

fn values(rank: usize, first: usize, count: usize) -> Vec<u32> {
    (first..first + count).map(|index| value(rank, index)).collect()
}

/// Returns block lengths: some 0, some 1, some much longer than others.
fn lengths(ranks: usize, turn: usize) -> Vec<usize> {
    (0..ranks).map(|rank| [0, 1, 700, 3, 65, 2048, 17][(rank * 3 + turn) % 7]).collect()
}

#[test]
fn blocks_of_unequal_lengths_arrive_where_they_belong() {
    for ranks in 1..=7usize {
        for algorithm in [None, Some("ring"), Some("direct"), Some("chain")] {
            let selection =
                SelectionConfig { algorithm: algorithm.map(str::to_owned), ..SelectionConfig::default() };
            let config = Config { selection, ..config() };
            on_each_rank(ranks as u32, &config, |comm| {
                let me = comm.rank().index();
                for turn in 0..4 {
                    let counts = lengths(ranks, turn);
                    let total: usize = counts.iter().sum();
                    let starts: Vec<usize> =
                        (0..ranks).map(|rank| counts[..rank].iter().sum::<usize>()).collect();
                    let root = Rank((turn % ranks) as u32);
                    let side_by_side: Vec<u32> = (0..ranks).flat_map(|r| values(r, 0, counts[r])).collect();

                    let mut all = vec![7; total];
                    comm.all_gather_v(&values(me, 0, counts[me]), &mut all, &counts).expect("gathered");
                    assert_eq!(all, side_by_side);

                    let mut all = vec![7; if me == root.index() { total } else { 2 }];
                    comm.gather_v(&values(me, 0, counts[me]), &mut all, &counts, root).expect("gathered");
                    assert_eq!(all, if me == root.index() { side_by_side } else { vec![7, 7] });

                    let mut own = vec![7; counts[me]];
                    let send = if me == root.index() { values(me, 0, total) } else { Vec::new() };
                    comm.scatter_v(&send, &mut own, &counts, root).expect("scattered");
                    assert_eq!(own, values(root.index(), starts[me], counts[me]));

                    let mut sum = vec![7; counts[me]];
                    comm.reduce_scatter_v(&values(me, 0, total), &mut sum, &counts, ReduceOp::Sum)
                        .expect("reduced");
                    let of = |index| (0..ranks).fold(0u32, |sum, rank| sum.wrapping_add(value(rank, index)));
                    let expected: Vec<u32> = (starts[me]..starts[me] + counts[me]).map(of).collect();
                    assert_eq!(sum, expected);
                }
            });
        }
    }
}

/// Returns the number of elements that rank `from` sends to rank `to`.
fn exchanged(from: usize, to: usize) -> usize {
    [0, 5, 1, 900, 33][(from * 3 + to * 2) % 5]
}

#[test]
fn everyone_exchanges_blocks_of_any_length_with_everyone() {
    for ranks in 1..=6usize {
        on_each_rank(ranks as u32, &config(), |comm| {
            let me = comm.rank().index();
            let send_counts: Vec<usize> = (0..ranks).map(|to| exchanged(me, to)).collect();
            let recv_counts: Vec<usize> = (0..ranks).map(|from| exchanged(from, me)).collect();
            let send: Vec<u32> = (0..ranks).flat_map(|to| values(me, 1000 * to, exchanged(me, to))).collect();
            let mut recv = vec![7; recv_counts.iter().sum()];
            comm.all_to_all_v(&send, &send_counts, &mut recv, &recv_counts).expect("exchanged");
            let expected: Vec<u32> =
                (0..ranks).flat_map(|from| values(from, 1000 * me, exchanged(from, me))).collect();
            assert_eq!(recv, expected);
        });
    }
}

#[test]
fn ranks_that_disagree_about_lengths_all_hear_of_it() {
    let errors = on_each_rank(3, &config(), |comm| {
        // The total, and each rank's own length, agree.
        let counts = if comm.rank().0 == 2 { [3, 1, 2] } else { [1, 3, 2] };
        let own = counts[comm.rank().index()];
        comm.all_gather_v(&vec![1u8; own], &mut [0; 6], &counts).expect_err("they differ")
    });
    for error in errors {
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        assert!(error.to_string().contains("lengths #"), "{error}");
    }
    let errors = on_each_rank(3, &config(), |comm| {
        let (send, recv) = ([1, 1, 1], if comm.rank().0 == 1 { [1, 1, 2] } else { [1, 1, 1] });
        let mut data = vec![0u8; recv.iter().sum()];
        comm.all_to_all_v(&[1u8; 3], &send, &mut data, &recv).err()
    });
    let messages: Vec<String> = errors.iter().flatten().map(ToString::to_string).collect();
    assert!(messages.iter().any(|error| error.contains("rank 2")), "{messages:?}");
}

#[test]
fn lengths_that_make_no_sense_are_refused_before_anything_moves() {
    on_each_rank(2, &config(), |comm| {
        let refused = |done: tbccl::Result<()>, message: &str| {
            let error = done.expect_err("refused").to_string();
            assert!(error.contains(message), "{error}");
        };
        let mut data = [0u8; 4];
        refused(comm.all_gather_v(&[1], &mut data, &[1, 2, 3]), "3 lengths");
        refused(comm.all_gather_v(&[1], &mut data, &[usize::MAX, 1]), "more elements than memory");
        let own = vec![1u8; 1 + comm.rank().index()];
        refused(comm.all_gather_v(&own, &mut data, &[1, 2]), "recv has 4");
        refused(comm.scatter_v(&[0; 4], &mut data, &[2, 2], Rank(9)), "root 9");
        comm.barrier().expect("still fine");
    });
}

#[test]
fn calls_of_a_group_are_what_they_are_alone() {
    for ranks in 1..=5usize {
        on_each_rank(ranks as u32, &config(), |comm| {
            let me = comm.rank().index();
            let root = Rank(ranks as u32 - 1);
            for len in [0, 1, 40, 3000] {
                let (a, b) = (values(me, 0, len), values(me, 5, 2 * len + 1));
                let blocks = values(me, 9, len * ranks);
                let (mut sum, mut most) = (vec![0; len], b.clone());
                let (mut all, mut part, mut turned) =
                    (vec![0; len * ranks], vec![0; len], vec![0; len * ranks]);
                let (mut given, mut at_root) = (a.clone(), vec![0; len]);
                let mut group = comm.group();
                group.all_reduce(&a, &mut sum, ReduceOp::Sum).expect("fits");
                group.all_reduce_in_place(&mut most, ReduceOp::Max).expect("fits");
                group.all_gather(&a, &mut all).expect("fits");
                group.reduce_scatter(&blocks, &mut part, ReduceOp::BitXor).expect("fits");
                group.broadcast(&mut given, root).expect("fits");
                group.reduce(&a, &mut at_root, ReduceOp::Sum, root).expect("fits");
                group.all_to_all(&blocks, &mut turned).expect("fits");
                group.run().expect("they run");

                let (mut other_sum, mut other_most) = (vec![0; len], b);
                comm.all_reduce(&a, &mut other_sum, ReduceOp::Sum).expect("alone");
                comm.all_reduce_in_place(&mut other_most, ReduceOp::Max).expect("alone");
                assert_eq!((&sum, most), (&other_sum, other_most));
                let (mut other_all, mut other_part, mut other_turned) =
                    (vec![0; len * ranks], vec![0; len], vec![0; len * ranks]);
                comm.all_gather(&a, &mut other_all).expect("alone");
                comm.reduce_scatter(&blocks, &mut other_part, ReduceOp::BitXor).expect("alone");
                comm.all_to_all(&blocks, &mut other_turned).expect("alone");
                assert_eq!((all, part, turned), (other_all, other_part, other_turned));
                assert_eq!(given, values(root.index(), 0, len));
                assert_eq!(at_root, if comm.rank() == root { sum } else { vec![0; len] });
            }
        });
    }
}

#[test]
fn everyone_sends_to_everyone_in_one_group() {
    for ranks in [2usize, 3, 5] {
        on_each_rank(ranks as u32, &config(), |comm| {
            let me = comm.rank().index();
            // Messages exceed a ring, so no send completes before its receive begins.
            let out: Vec<Vec<u32>> = (0..ranks).map(|to| values(me, 100 * to, 5000 + to)).collect();
            let mut back: Vec<Vec<u32>> = (0..ranks).map(|_| vec![0; 5000 + me]).collect();
            let mut sum = [1u64];
            let mut group = comm.group();
            for (peer, (out, back)) in out.iter().zip(&mut back).enumerate().filter(|(peer, _)| *peer != me) {
                group.send(out, Rank(peer as u32)).expect("fits");
                group.recv(back, Rank(peer as u32)).expect("fits");
            }
            group.all_reduce_in_place(&mut sum, ReduceOp::Sum).expect("fits");
            group.run().expect("all arrive");
            for (peer, back) in back.into_iter().enumerate().filter(|(peer, _)| *peer != me) {
                assert_eq!(back, values(peer, 100 * me, 5000 + me));
            }
            assert_eq!(sum, [ranks as u64]);
            comm.barrier().expect("in step");
        });
    }
}

#[test]
fn small_sums_in_a_row_are_one_call() {
    let calls = on_each_rank(2, &config(), |comm| {
        let before = comm.counters().sent_messages;
        let mut data = [[1.5f32; 3]; 20];
        let mut group = comm.group();
        for part in &mut data {
            group.all_reduce_in_place(part, ReduceOp::Sum).expect("fits");
        }
        group.run().expect("they run");
        assert_eq!(data, [[3.0; 3]; 20]);
        comm.counters().sent_messages - before
    });
    assert_eq!(calls, [1, 1]);
}

#[test]
fn a_group_that_differs_between_ranks_is_an_error_that_shows_both_calls() {
    let errors = on_each_rank(2, &config(), |comm| {
        let (mut a, mut b) = ([1u32; 3], vec![2u32; 9000]);
        let len = if comm.rank().0 == 0 { 9000 } else { 8000 };
        let mut group = comm.group();
        group.broadcast(&mut a, Rank(0)).expect("fits");
        group.all_reduce_in_place(&mut b[..len], ReduceOp::Sum).expect("fits");
        group.run().expect_err("they differ").to_string()
    });
    for error in errors {
        assert!(error.contains("9000") && error.contains("8000"), "{error}");
    }
}

#[test]
fn an_algorithm_with_an_order_of_its_own_is_refused_where_results_must_be_reproducible() {
    let selection = SelectionConfig { algorithm: Some("ring".into()), ..SelectionConfig::default() };
    let config = Config { selection, numerics: Numerics::Reproducible, ..config() };
    let errors = on_each_rank(4, &config, |comm| {
        comm.all_reduce_in_place(&mut [1.0f32; 10], ReduceOp::Sum).expect_err("ring").to_string()
    });
    assert!(errors[0].contains("choose mesh or rsag_mesh or recursive_doubling"), "{}", errors[0]);
}

#[test]
fn a_rank_without_memory_for_a_group_fails_on_all_ranks() {
    let config = Config { slab_bytes: Some(1 << 20), timeout: Duration::from_secs(20), ..config() };
    let errors = on_each_rank(3, &config, |comm| {
        // Fused sums take a buffer of this slab.
        let all_of_it =
            (comm.rank() == Rank(1)).then(|| comm.alloc::<u8>(1 << 20).expect("as much as there is"));
        let mut data = [[1u32; 8]; 2];
        let mut group = comm.group();
        for part in &mut data {
            group.all_reduce_in_place(part, ReduceOp::Sum).expect("fits");
        }
        let error = group.run().expect_err("rank 1 has no memory").to_string();
        drop(all_of_it);
        assert_eq!(comm.barrier().expect_err("it has failed").to_string(), error);
        error
    });
    for (rank, error) in errors.into_iter().enumerate() {
        assert!(error.contains("contiguous bytes are free in the slab"), "{error}");
        assert!(rank == 1 || error.contains("rank 1"), "{error}");
    }
}

#[test]
fn a_message_between_two_sums_on_some_ranks_sets_them_apart_from_nobody() {
    on_each_rank(4, &config(), |comm| {
        let me = comm.rank().index();
        let (mut a, mut b, mut got, mut late) = ([1u32; 4], [2u32; 4], [0u32; 4], [0u32; 4]);
        let mut group = comm.group();
        group.all_reduce_in_place(&mut a, ReduceOp::Sum).expect("fits");
        // Rank 3 issues its half of the second message in another order than rank 2.
        match me {
            0 => group.send(&[7u32; 4], Rank(1)).expect("fits"),
            1 => group.recv(&mut got, Rank(0)).expect("fits"),
            2 => group.send(&[7u32; 4], Rank(3)).expect("fits"),
            _ => {}
        }
        group.all_reduce_in_place(&mut b, ReduceOp::Sum).expect("fits");
        if me == 3 {
            group.recv(&mut late, Rank(2)).expect("fits");
        }
        group.run().expect("all make the same calls");
        assert_eq!((a, b), ([4; 4], [8; 4]));
        assert_eq!((got, late), ([[0, 7, 0, 0][me]; 4], [[0, 0, 0, 7][me]; 4]));
    });
}

#[test]
fn what_a_rank_sends_to_itself_it_receives_in_the_same_group_and_in_order() {
    for ranks in [1, 3] {
        on_each_rank(ranks, &config(), |comm| {
            let me = comm.rank();
            let (out, mut sum) = ([values(1, 0, 700), values(2, 0, 9)], [1u8]);
            let mut back = [vec![0; 700], vec![0; 9]];
            let [first, second] = &mut back;
            let mut group = comm.group();
            group.recv(first, me).expect("fits");
            group.send(&out[0], me).expect("fits");
            group.all_reduce_in_place(&mut sum, ReduceOp::Sum).expect("fits");
            group.send(&out[1], me).expect("fits");
            group.recv(second, me).expect("fits");
            group.run().expect("it arrives");
            assert_eq!((back, sum), (out, [ranks as u8]));
        });
    }
}

#[test]
fn a_message_to_oneself_that_is_not_received_as_it_is_sent_is_refused_before_anything_moves() {
    on_each_rank(2, &config(), |comm| {
        let me = comm.rank();
        let refused = |done: tbccl::Result<()>, message: &str| {
            let error = done.expect_err("refused").to_string();
            assert!(error.contains(message), "{error}");
        };
        refused(comm.send(&[1u8], me), "in one group");
        let (mut other_type, mut shorter, mut sum) = ([7i32; 3], [7u32; 2], [1u8]);
        let mut group = comm.group();
        group.all_reduce_in_place(&mut sum, ReduceOp::Sum).expect("fits");
        group.send(&[1u32; 3], me).expect("fits");
        refused(group.run(), "sends 1 messages to itself and receives 0");
        let mut group = comm.group();
        group.send(&[1u32; 3], me).expect("fits");
        group.recv(&mut other_type, me).expect("fits");
        refused(group.run(), "sends 3 u32 to itself, and receives 3 i32");
        let mut group = comm.group();
        group.send(&[1u32; 3], me).expect("fits");
        group.recv(&mut shorter, me).expect("fits");
        refused(group.run(), "sends 3 u32 to itself, and receives 2 u32");
        assert_eq!((other_type, shorter, sum), ([7; 3], [7; 2], [1]));
        comm.barrier().expect("still fine");
    });
}
