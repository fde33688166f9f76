//! Groups, vector forms, and reproducible results: against their definitions, on threads of this process and on processes
//! that share memory alike (the executor knows no difference; the drivers' own suite has that).

use std::thread;
use tbccl::{Communicator, Config, Error, Numerics, Rank, ReduceOp};

fn config() -> Config {
    // Small enough that messages are in pieces, and lap the rings.
    Config { slab_bytes: Some(64 << 20), piece_bytes: 512, staging_bytes: 2048, ..Config::default() }
}

/// Runs `body` on every rank of a job of threads; what each says, in rank order.
fn on_ranks<R: Send>(ranks: u32, config: &Config, body: impl Fn(&mut Communicator) -> R + Sync) -> Vec<R> {
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

/// What rank `rank` has at an index.
fn value(rank: usize, index: usize) -> u32 {
    (rank as u32 + 1).wrapping_mul(0x9e37_79b9) ^ (index as u32).wrapping_mul(0x85eb_ca6b)
}

fn values(rank: usize, first: usize, count: usize) -> Vec<u32> {
    (first..first + count).map(|index| value(rank, index)).collect()
}

/// Lengths of blocks: some empty, some one element, some much longer than others.
fn lengths(ranks: usize, turn: usize) -> Vec<usize> {
    (0..ranks).map(|rank| [0, 1, 700, 3, 65, 2048, 17][(rank * 3 + turn) % 7]).collect()
}

#[test]
fn blocks_of_unequal_lengths_arrive_where_they_belong() {
    for ranks in 1..=7usize {
        for algorithm in [None, Some("ring"), Some("direct"), Some("chain")] {
            let config = Config { algorithm: algorithm.map(str::to_owned), ..config() };
            on_ranks(ranks as u32, &config, |comm| {
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
                    let wanted: Vec<u32> = (starts[me]..starts[me] + counts[me]).map(of).collect();
                    assert_eq!(sum, wanted);
                }
            });
        }
    }
}

/// How many elements rank `from` has for rank `to`.
fn exchanged(from: usize, to: usize) -> usize {
    [0, 5, 1, 900, 33][(from * 3 + to * 2) % 5]
}

#[test]
fn everyone_exchanges_blocks_of_any_length_with_everyone() {
    for ranks in 1..=6usize {
        on_ranks(ranks as u32, &config(), |comm| {
            let me = comm.rank().index();
            let send_counts: Vec<usize> = (0..ranks).map(|to| exchanged(me, to)).collect();
            let recv_counts: Vec<usize> = (0..ranks).map(|from| exchanged(from, me)).collect();
            let send: Vec<u32> = (0..ranks).flat_map(|to| values(me, 1000 * to, exchanged(me, to))).collect();
            let mut recv = vec![7; recv_counts.iter().sum()];
            comm.all_to_all_v(&send, &send_counts, &mut recv, &recv_counts).expect("exchanged");
            let wanted: Vec<u32> =
                (0..ranks).flat_map(|from| values(from, 1000 * me, exchanged(from, me))).collect();
            assert_eq!(recv, wanted);
        });
    }
}

#[test]
fn ranks_that_disagree_about_lengths_all_hear_of_it() {
    let errors = on_ranks(3, &config(), |comm| {
        // The same in all, and the same of one's own.
        let counts = if comm.rank().0 == 2 { [3, 1, 2] } else { [1, 3, 2] };
        let own = counts[comm.rank().index()];
        comm.all_gather_v(&vec![1u8; own], &mut [0; 6], &counts).expect_err("they differ")
    });
    for error in errors {
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        assert!(error.to_string().contains("lengths #"), "{error}");
    }
    let errors = on_ranks(3, &config(), |comm| {
        let (send, recv) = ([1, 1, 1], if comm.rank().0 == 1 { [1, 1, 2] } else { [1, 1, 1] });
        let mut data = vec![0u8; recv.iter().sum()];
        comm.all_to_all_v(&[1u8; 3], &send, &mut data, &recv).err()
    });
    let said: Vec<String> = errors.iter().flatten().map(ToString::to_string).collect();
    assert!(said.iter().any(|error| error.contains("rank 2")), "{said:?}");
}

#[test]
fn lengths_that_make_no_sense_are_refused_before_anything_moves() {
    on_ranks(2, &config(), |comm| {
        let refused = |done: tbccl::Result<()>, word: &str| {
            let error = done.expect_err("refused").to_string();
            assert!(error.contains(word), "{error}");
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
        on_ranks(ranks as u32, &config(), |comm| {
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
        on_ranks(ranks as u32, &config(), |comm| {
            let me = comm.rank().index();
            // Longer than what a ring holds, so that nobody's send ends before it is received.
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
    let calls = on_ranks(2, &config(), |comm| {
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
    let errors = on_ranks(2, &config(), |comm| {
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

/// Numbers whose sum depends on the order.
fn rough(rank: usize, index: usize) -> f32 {
    let bits = value(rank, index);
    f32::from_bits((bits & 0x807f_ffff) | (100 + bits % 50) << 23)
}

#[test]
fn reproducible_results_have_the_same_bits_by_every_algorithm() {
    for ranks in [2usize, 3, 4, 5, 6, 8] {
        let mut seen: Option<Vec<Vec<u32>>> = None;
        let names = ["", "mesh", "rsag_mesh", "recursive_doubling"];
        for (name, segments) in names.into_iter().flat_map(|name| [(name, 0), (name, 3)]) {
            let algorithm = (!name.is_empty()).then(|| name.to_owned());
            let config = Config { algorithm, segments, numerics: Numerics::Reproducible, ..config() };
            let bits = on_ranks(ranks as u32, &config, |comm| {
                let me = comm.rank().index();
                let mut data: Vec<f32> = (0..1031).map(|index| rough(me, index)).collect();
                comm.all_reduce_in_place(&mut data, ReduceOp::Sum).expect("summed");
                let mut part = vec![0.0; 100];
                let blocks: Vec<f32> = (0..100 * ranks).map(|index| rough(me, index)).collect();
                comm.reduce_scatter(&blocks, &mut part, ReduceOp::Sum).expect("summed");
                // What was scattered is part of what everyone has.
                assert!(
                    part.iter()
                        .map(|x| x.to_bits())
                        .eq(data[100 * me..].iter().take(100).map(|x| x.to_bits()))
                );
                data.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
            });
            assert!(bits.iter().all(|rank| *rank == bits[0]), "{ranks} ranks, {name}");
            assert_eq!(
                seen.get_or_insert_with(|| bits.clone()),
                &bits,
                "{ranks} ranks, {name}, {segments} segments"
            );
        }
    }
}

#[test]
fn an_algorithm_with_an_order_of_its_own_is_refused_where_results_must_be_reproducible() {
    let config = Config { algorithm: Some("ring".into()), numerics: Numerics::Reproducible, ..config() };
    let errors = on_ranks(4, &config, |comm| {
        comm.all_reduce_in_place(&mut [1.0f32; 10], ReduceOp::Sum).expect_err("ring").to_string()
    });
    assert!(errors[0].contains("choose mesh or rsag_mesh or recursive_doubling"), "{}", errors[0]);
}
