//! Every call of the interface by every algorithm, on every element type and legal operation, compared bit by
//! bit with its definition: between threads of one process (`local`) and between processes (`shm`).
//!
//! Inputs are such that any order of reduction gives the same bits (`tbccl_cli::reference`). A case is a
//! call, in place or not, an algorithm with its segments (1 or 3, or the library's choice), an element type
//! and an operation, 1 to 9 ranks, and a count of 0, 1, n-1, n, n+1, 1000 or 65537 elements per block
//! (`case`). Roots, block lengths, and whether buffers are registered follow from the seed of the case. Of
//! these 836 thousand cases 18 thousand run over each transport (`choice`, where a test counts them):
//!
//! - all of: algorithm × in place or not × ranks × count, each with one type, operation and segmentation; but
//!   65537 elements on every third number of ranks only;
//! - all of: call × type × operation × ranks, by the library's choice, each with one count and place;
//! - all of: algorithm × type × operation, each with one number of ranks, count, place and segmentation;
//! - of all others a sample of one in 1024, and one in 8192 of those with 65537 elements.
//!
//! With `TBCCL_TEST_EVERYTHING` set all of them run, which takes about an hour; with `TBCCL_TEST_RANKS=9`
//! only those of nine ranks.
//!
//! `reproducible` has random floats. It runs the complete product of collectives that reduce, algorithms that
//! guarantee an order, segments, places, types and operations that round, for 2 to 9 ranks and both
//! transports. Its reference is the definition of the order, so equal results are also equal between
//! algorithms and transports. `groups` runs seeded groups of random calls. Over other transports the executor
//! and the plans are the same; their links have a test suite of their own.

mod case;
mod choice;
mod groups;
mod job;
mod reproducible;
mod work;

use choice::RANKS;
use job::{between_processes, between_threads};
use std::{
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    thread,
    time::Instant,
};
use tbccl::{Communicator, Config, SelectionConfig};
use work::Work;

/// Prints the time of a job.
fn timed(between: fn(Work, u32) -> usize, work: Work, ranks: u32) -> usize {
    let started = Instant::now();
    let cases = between(work, ranks);
    eprintln!("{work}, {ranks} ranks: {cases} cases in {:.1} s", started.elapsed().as_secs_f64());
    cases
}

#[test]
fn calls_between_threads_are_what_they_are_by_definition() {
    for ranks in choice::ranks() {
        let cases = [Work::Short, Work::Long].map(|work| timed(between_threads, work, ranks));
        assert_eq!(cases.iter().sum::<usize>(), choice::chosen(ranks).count());
    }
}

#[test]
fn calls_between_processes_are_what_they_are_by_definition() {
    for ranks in choice::ranks() {
        let cases = [Work::Short, Work::Long].map(|work| timed(between_processes, work, ranks));
        assert_eq!(cases.iter().sum::<usize>(), choice::chosen(ranks).count());
    }
}

#[test]
fn reproducible_sums_have_the_bits_of_their_definition_by_every_algorithm_over_both_transports() {
    for ranks in 2..=9 {
        for between in [between_threads, between_processes] {
            let cases = timed(between, Work::Reproducible, ranks);
            assert_eq!(cases, reproducible::cases(ranks).count());
        }
    }
}

#[test]
fn calls_in_groups_are_what_they_are_by_definition() {
    for ranks in RANKS {
        let [threads, processes] =
            [between_threads, between_processes].map(|between| timed(between, Work::Groups, ranks));
        assert_eq!(threads, processes);
    }
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    let algorithms = case::barriers();
    for (ranks, algorithm) in RANKS.flat_map(|ranks| algorithms.iter().map(move |name| (ranks, *name))) {
        let come = AtomicU32::new(0);
        let selection =
            SelectionConfig { algorithm: Some(algorithm.to_owned()), ..SelectionConfig::default() };
        let config = Config { slab_bytes: Some(64 << 20), selection, ..Config::default() };
        thread::scope(|scope| {
            for mut comm in Communicator::local(ranks, &config).expect("memory for a test") {
                let come = &come;
                scope.spawn(move || {
                    for round in 1..=50 {
                        come.fetch_add(1, SeqCst);
                        comm.barrier().expect("the call succeeds");
                        let here = come.load(SeqCst);
                        assert!(here >= round * ranks, "round {round} of {ranks} ranks by {algorithm}");
                    }
                });
            }
        });
    }
}
