//! Ranks with too few cores, too little memory, too few descriptors or rights.

use crate::job;
use support::{TIMEOUT, missing};

/// Runs every collective on `ranks` ranks; returns the bytes that they copied.
fn sweep(ranks: u32, rounds: u32, env: &[(&str, &str)]) -> u64 {
    let done = job::start(ranks, &format!("sweep {rounds}"), env).finish();
    assert_eq!(done.code(), 0, "{env:?}: {}", done.stderr);
    let swept = done.all("swept");
    assert_eq!(swept.len() as u32, ranks, "{env:?}: {}", done.stderr);
    swept.iter().map(|said| said.rest.parse::<u64>().expect("a number")).sum()
}

#[test]
fn results_are_right_where_nothing_is_pulled() {
    sweep(3, 2, &[("TBCCL_PULL", "0"), ("TBCCL_PULL_MIN_BYTES", "1")]);
}

#[test]
fn results_are_right_where_reading_other_processes_is_forbidden() {
    // One process that others may not read is enough.
    for protected in ["0 1 2", "1"] {
        let env = [("PROTECTED", protected), ("TBCCL_PULL_MIN_BYTES", "1")];
        let done = job::start(3, "sweep 2", &env).finish();
        done.assert_success("swept", 3);
        let warning = "messages from unregistered memory are staged: rank ";
        let reason = "may not read the memory of rank ";
        let is_warning = |line: &&str| line.contains(warning) && line.contains(reason);
        assert_eq!(done.stderr.lines().filter(is_warning).count(), 1, "{protected}: {}", done.stderr);
    }
}

#[test]
fn results_are_right_where_everything_is_pulled() {
    for ranks in [2, 3, 5] {
        sweep(ranks, 2, &[("TBCCL_PULL_MIN_BYTES", "1")]);
    }
}

#[test]
fn results_are_right_where_no_memory_is_shared() {
    for ranks in [2, 3, 5] {
        sweep(ranks, 2, &[("TBCCL_TRANSPORT", "rehearsal")]);
    }
}

#[test]
fn results_are_right_in_the_smallest_rings() {
    sweep(3, 1, &[("TBCCL_PIECE_BYTES", "64"), ("TBCCL_STAGING_BYTES", "256")]);
}

#[test]
fn more_ranks_than_cores_get_through_every_collective() {
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get) as u32;
    let started = std::time::Instant::now();
    sweep((4 * cores).min(16), 3, &[]);
    assert!(started.elapsed().as_secs() < 30, "it took {:?}", started.elapsed());
}

#[test]
fn a_rank_that_waits_computes_little() {
    let done = job::start(2, "idle", &[]).finish();
    let computed: u32 = done.all("computed")[0].rest.parse().expect("milliseconds");
    assert!(computed < 300, "{computed} ms of computing in a second of waiting");
}

/// Runs ranks under a limit of the shell; asserts a failure with a single line that names the remedy.
fn limited(ranks: u32, limit: &str, remedy: &str) {
    let script = format!("ulimit {limit} || exit 9; exec \"$0\" \"$@\"");
    let done = job::start_under(&["/bin/sh", "-c", &script], ranks, "join", &[]).finish();
    assert_eq!(done.code(), 3, "{limit}: {:?} {}", done.messages, done.stderr);
    assert!(done.all("joined").is_empty(), "{limit}: {:?}", done.messages);
    let refused = done.all("refused");
    assert!(
        refused.iter().any(|said| said.rest.contains(remedy)),
        "{limit}: {:?}\n{}",
        done.messages,
        done.stderr
    );
}

#[test]
fn too_few_descriptors_are_an_error_with_a_remedy() {
    limited(8, "-n 10", "ulimit -n");
}

#[test]
fn too_little_address_space_is_an_error_with_a_remedy() {
    limited(2, "-v 4000000", "TBCCL_SLAB_BYTES");
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_with_a_remedy() {
    limited(2, "-f 1000", "ulimit -f");
}

#[test]
fn more_elements_than_31_bits_can_count_are_reduced() {
    let memory = std::fs::read_to_string("/proc/meminfo").expect("Linux");
    let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("Linux");
    let kib: u64 = available.trim().trim_end_matches(" kB").parse().expect("a number");
    if kib < 12 << 20 {
        missing("12 GiB of free memory");
        return;
    }
    // Takes ten seconds, most of them spent by the system to map the pages of the ranks.
    let done = job::start(2, "huge", &[]).finish_within(4 * TIMEOUT);
    assert_eq!(done.all("huge").len(), 2, "{}", done.stderr);
}
