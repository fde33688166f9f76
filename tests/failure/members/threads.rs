//! Ranks that are threads of one process.

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};
use tbccl::{Communicator, Config, Error, Rank, ReduceOp, ShmConfig};

fn config() -> Config {
    Config { slab_bytes: Some(64 << 20), timeout: Duration::from_secs(20), ..Config::default() }
}

/// Runs `body` on every rank of a job of threads; returns the results in rank order.
fn on_each_rank<R: Send>(ranks: u32, config: &Config, body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let spawn = |comm: Communicator| {
            let body = &body;
            scope.spawn(move || body(comm))
        };
        let comms = Communicator::local(ranks, config).expect("memory for a test");
        let threads: Vec<_> = comms.into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Asserts that the communicator has the members of these names in this order, and works.
fn check(comm: &mut Communicator, name: u32, members: &[u32]) {
    assert_eq!(members[comm.rank().index()], name);
    let mut names = vec![0; members.len()];
    comm.all_gather(&[name], &mut names).expect("all take part");
    assert_eq!(names, members);
    let mut sum = [u64::from(name)];
    comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).expect("all take part");
    assert_eq!(sum, [members.iter().copied().map(u64::from).sum::<u64>()]);
}

#[test]
fn rows_and_columns_of_a_grid_are_communicators() {
    const SIDE: u32 = 4;
    on_each_rank(SIDE * SIDE, &config(), |mut comm| {
        let name = comm.rank().0;
        let (row, column) = (name / SIDE, name % SIDE);
        let mut along = comm.split(Some(row), column as i32, &config()).expect("all").expect("a row");
        let mut across = comm.split(Some(column), -(row as i32), &config()).expect("all").expect("a column");
        drop(comm);
        for _ in 0..3 {
            check(&mut along, name, &(0..SIDE).map(|c| row * SIDE + c).collect::<Vec<_>>());
            check(&mut across, name, &(0..SIDE).rev().map(|r| r * SIDE + column).collect::<Vec<_>>());
        }
        // A communicator of one rank, derived from a derived one.
        let mut alone = along.split(Some(name), 0, &config()).expect("all").expect("one");
        drop(along);
        check(&mut alone, name, &[name]);
    });
}

#[test]
fn a_rank_without_a_colour_takes_part_and_gets_none() {
    let got = on_each_rank(5, &config(), |mut comm| {
        let name = comm.rank().0;
        let part = comm.split((name % 2 == 0).then_some(9), 0, &config()).expect("all call it");
        let has_one = part.is_some();
        if let Some(mut part) = part {
            check(&mut part, name, &[0, 2, 4]);
        }
        check(&mut comm, name, &[0, 1, 2, 3, 4]);
        has_one
    });
    assert_eq!(got, [true, false, true, false, true]);
}

#[test]
fn options_that_differ_are_an_error_on_all_that_says_which() {
    let errors = on_each_rank(3, &config(), |mut comm| {
        let piece_bytes = if comm.rank() == Rank(1) { 4096 } else { 8192 };
        let shm = ShmConfig { piece_bytes, ..ShmConfig::default() };
        let config = Config { shm, timeout: Duration::from_secs(5), ..config() };
        comm.split(Some(0), 0, &config).err()
    });
    let said: Vec<String> = errors.iter().flatten().map(ToString::to_string).collect();
    assert!(!said.is_empty());
    for error in said {
        assert!(error.contains("PIECE_BYTES") || error.contains("not come in time"), "{error}");
    }
}

#[test]
fn survivors_that_do_not_come_are_named_by_their_old_ranks() {
    let impatient = Config { timeout: Duration::from_millis(300), ..config() };
    let errors = on_each_rank(5, &config(), |mut comm| match comm.rank().0 {
        0 | 3 => None,
        _ => comm.shrink(&[Rank(0)], &impatient).err(),
    });
    assert_eq!(errors.iter().flatten().count(), 3);
    for error in errors.into_iter().flatten() {
        let Error::Absent { ranks, why } = error else { panic!("{error}") };
        assert_eq!(ranks, [Rank(3)]);
        assert!(why.contains("2 (3 before)"), "{why}");
    }
}

#[test]
fn who_comes_again_after_it_was_in_vain_meets_the_others() {
    on_each_rank(3, &config(), |mut comm| {
        let name = comm.rank().0;
        if name > 0 {
            let impatient = Config { timeout: Duration::from_millis(100 * u64::from(name)), ..config() };
            let error = comm.shrink(&[], &impatient).expect_err("rank 0 is not there");
            assert!(matches!(error, Error::Absent { .. }), "{error}");
        } else {
            thread::sleep(Duration::from_millis(600));
        }
        let mut all = comm.shrink(&[], &config()).expect("now it is");
        check(&mut all, name, &[0, 1, 2]);
        check(&mut comm, name, &[0, 1, 2]);
    });
}

fn wait_until(holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(20), "it does not come");
        thread::sleep(Duration::from_micros(50));
    }
}

/// In each of 200 steps a rank leaves during an all_reduce of 64 MiB; all others fail and continue without
/// it.
#[test]
fn two_hundred_communicators_are_shrunk_when_a_rank_is_gone() {
    const COUNT: usize = 16 << 20;
    const RANKS: u32 = 5;
    for round in 0..50u32 {
        // Number of ranks that are done with the communicator of each step; a failure affects the others.
        let through: Vec<AtomicU32> = (0..RANKS).map(|_| AtomicU32::new(0)).collect();
        on_each_rank(RANKS, &config(), |mut comm| {
            let name = comm.rank().0;
            let mut members: Vec<u32> = (0..RANKS).collect();
            // The memory is zeroed, so its pages are mapped on first use.
            let (input, mut output) = (vec![0.0f32; COUNT], vec![0.0f32; COUNT]);
            // The leaving rank depends on the round, and is sometimes the first one.
            for step in 0..RANKS - 1 {
                let gone = Rank((round * 7 + step * 3) % comm.size());
                through[step as usize].fetch_add(1, Relaxed);
                if comm.rank() == gone {
                    wait_until(|| through[step as usize].load(Relaxed) == comm.size());
                    return;
                }
                let began = Instant::now();
                let error = comm.all_reduce(&input, &mut output, ReduceOp::Sum).expect_err("one is gone");
                assert!(began.elapsed() < Duration::from_secs(2), "{:?}: {error}", began.elapsed());
                comm = comm.shrink(&[gone], &config()).expect("the others come");
                members.remove(gone.index());
                check(&mut comm, name, &members);
            }
        });
    }
}

#[test]
fn threads_grow_into_ranks_of_processes() {
    let id_config = Config { slab_bytes: Some(16 << 20), ..config() };
    on_each_rank(2, &config(), |mut comm| {
        let name = comm.rank().0;
        let id = (name == 1).then(|| comm.grow_id().expect("a rendezvous"));
        thread::scope(|scope| {
            if let Some(id) = &id {
                let id_config = &id_config;
                scope.spawn(move || {
                    let mut grown = Communicator::from_unique_id(id, 2, 3, id_config).expect("all come");
                    check(&mut grown, 2, &[0, 1, 2]);
                });
            }
            let mut grown = comm.grow(id.as_ref(), 3, &id_config).expect("all come");
            check(&mut grown, name, &[0, 1, 2]);
        });
    });
}

#[test]
fn arguments_that_make_no_sense_are_refused_without_waiting() {
    on_each_rank(2, &config(), |mut comm| {
        let refused = |error: Option<Error>, what: &str| {
            let error = error.expect("refused");
            assert!(
                matches!(error, Error::InvalidArgument(_)) && error.to_string().contains(what),
                "{error}"
            );
        };
        let me = comm.rank();
        refused(comm.shrink(&[me], &config()).err(), "can't take part");
        refused(comm.shrink(&[Rank(2)], &config()).err(), "there are 2 ranks");
        refused(comm.grow(None, 2, &config()).err(), "can't grow to 2");
        refused(comm.grow(None, 3, &config()).err(), "exactly one rank");
        check(&mut comm, me.0, &[0, 1]);
    });
}
