//! Collectives over threads of one process, compared with their definitions.

use std::thread;
use tbccl::{Communicator, Config, Element, Rank, ReduceOp, SelectionConfig};

/// Runs `body` as each rank of a job of threads.
fn on_each_rank(ranks: u32, config: &Config, body: impl Fn(&mut Communicator) + Sync) {
    let communicators = Communicator::local(ranks, config).expect("memory for a test");
    thread::scope(|scope| {
        for mut communicator in communicators {
            let body = &body;
            scope.spawn(move || body(&mut communicator));
        }
    });
}

fn small() -> Config {
    Config { slab_bytes: Some(64 << 20), ..Config::default() }
}

fn value(rank: u32, index: usize) -> f32 {
    ((index * 7 + rank as usize * 13) % 64) as f32
}

fn filled(rank: u32, count: usize) -> Vec<f32> {
    (0..count).map(|i| value(rank, i)).collect()
}

fn sums(ranks: u32, count: usize) -> Vec<f32> {
    (0..count).map(|i| (0..ranks).map(|r| value(r, i)).sum()).collect()
}

const COUNTS: [usize; 9] = [0, 1, 2, 3, 5, 63, 1000, 4097, 100_003];

#[test]
fn all_reduce_by_every_algorithm_gives_every_rank_the_sum() {
    for algorithm in
        ["ring", "bidirectional_ring", "mesh", "rsag_mesh", "recursive_doubling", "double_binary_tree"]
    {
        for segments in [0, 3] {
            let selection =
                SelectionConfig { algorithm: Some(algorithm.into()), segments, ..SelectionConfig::default() };
            let config = Config { selection, ..small() };
            for ranks in 1..=5 {
                on_each_rank(ranks, &config, |comm| {
                    for count in COUNTS {
                        let rank = comm.rank().0;
                        let mut out = vec![-1.0; count];
                        comm.all_reduce(&filled(rank, count), &mut out, ReduceOp::Sum).expect(algorithm);
                        assert_eq!(out, sums(ranks, count), "{algorithm} on {ranks} ranks, {count} elements");
                        let mut data = filled(rank, count);
                        comm.all_reduce_in_place(&mut data, ReduceOp::Sum).expect(algorithm);
                        assert_eq!(data, out, "{algorithm} on {ranks} ranks, {count} elements in place");
                    }
                });
            }
        }
    }
}

#[test]
fn the_other_collectives_do_what_they_say() {
    for ranks in 1..=5u32 {
        on_each_rank(ranks, &small(), |comm| {
            let rank = comm.rank().0;
            let n = ranks as usize;
            for count in COUNTS {
                let gathered: Vec<f32> = (0..ranks).flat_map(|r| filled(r, count)).collect();
                let mut out = vec![-1.0; count * n];
                comm.all_gather(&filled(rank, count), &mut out).expect("all_gather");
                assert_eq!(out, gathered);
                out.fill(-1.0);
                out[rank as usize * count..][..count].copy_from_slice(&filled(rank, count));
                comm.all_gather_in_place(&mut out).expect("all_gather in place");
                assert_eq!(out, gathered);

                let mut block = vec![-1.0; count];
                comm.reduce_scatter(&filled(rank, count * n), &mut block, ReduceOp::Sum)
                    .expect("reduce_scatter");
                let mine = rank as usize * count..(rank as usize + 1) * count;
                assert_eq!(block, sums(ranks, count * n)[mine.clone()]);
                let mut all = filled(rank, count * n);
                comm.reduce_scatter_in_place(&mut all, ReduceOp::Sum).expect("reduce_scatter in place");
                assert_eq!(all[mine], block);

                for root in 0..ranks {
                    let mut data = filled(rank + 100, count);
                    comm.broadcast(&mut data, Rank(root)).expect("broadcast");
                    assert_eq!(data, filled(root + 100, count));
                }
                comm.send_recv(&filled(rank, count), &mut block).expect("send_recv");
                assert_eq!(block, filled((rank + ranks - 1) % ranks, count));

                comm.all_to_all(&filled(rank, count * n), &mut out).expect("all_to_all");
                for from in 0..ranks {
                    let theirs = filled(from, count * n);
                    assert_eq!(
                        out[from as usize * count..][..count],
                        theirs[rank as usize * count..][..count]
                    );
                }
                comm.barrier().expect("barrier");
            }
        });
    }
}

#[test]
fn registered_memory_is_not_copied() {
    fn check<T: Element + PartialEq + std::fmt::Debug>(comm: &mut Communicator, one: T, sum: T) {
        let mut input = comm.alloc::<T>(5000).expect("memory");
        let mut output = comm.alloc::<T>(5000).expect("memory");
        input.fill(one);
        let before = comm.counters();
        for _ in 0..3 {
            comm.all_reduce(&input, &mut output, ReduceOp::Sum).expect("all_reduce");
        }
        let done = comm.counters() - before;
        assert_eq!(done.copied_bytes, 0);
        assert!(done.moved_bytes > 0);
        assert!(output.iter().all(|value| *value == sum));
    }
    for algorithm in ["ring", "mesh", "rsag_mesh", "double_binary_tree", "recursive_doubling"] {
        let selection = SelectionConfig { algorithm: Some(algorithm.into()), ..SelectionConfig::default() };
        let config = Config { selection, ..small() };
        on_each_rank(4, &config, |comm| {
            check(comm, 1.5f32, 6.0);
            check(comm, 3u64, 12);
        });
    }
}

#[test]
fn messages_between_two_ranks_arrive_in_order() {
    on_each_rank(3, &small(), |comm| {
        let rank = comm.rank();
        for round in 0..200u32 {
            let count = (round * 37) as usize % 5000;
            if rank == Rank(0) {
                comm.send(&vec![round; count], Rank(2)).expect("send");
            } else if rank == Rank(2) {
                let mut got = vec![0; count];
                comm.recv(&mut got, Rank(0)).expect("recv");
                assert!(got.iter().all(|v| *v == round));
            }
        }
        comm.barrier().expect("barrier");
    });
}
