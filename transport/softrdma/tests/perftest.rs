//! Debian's perftest, unmodified, on the software device.

mod common;

use common::Fabric;

/// Programs and arguments, separated by spaces: shared and multiple queues, events, inline data, lists of
/// requests. `-F` is added because the clock of a shared machine is not steady.
const RUNS: &[&str] = &[
    "ib_write_lat -c RC",
    "ib_write_lat -c UC",
    "ib_write_lat -s 64 -I 64",
    "ib_write_lat -c UC -s 64 -I 64",
    "ib_write_bw -c RC",
    "ib_write_bw -c UC",
    "ib_write_bw -q 8",
    "ib_write_bw -b",
    "ib_write_bw -l 8",
    "ib_write_bw -s 64 -I 64",
    "ib_write_bw -c UC -q 4 -l 4",
    "ib_send_lat -c RC",
    "ib_send_lat -c UC",
    "ib_send_lat -c UD",
    "ib_send_lat -e",
    "ib_send_lat -c UC -e",
    "ib_send_lat -c UD -e",
    "ib_send_lat -s 64 -I 64",
    "ib_send_lat -c UD -s 64 -I 64",
    "ib_send_lat --use-srq",
    "ib_send_bw -c RC",
    "ib_send_bw -c UC",
    "ib_send_bw -c UD",
    "ib_send_bw -e",
    "ib_send_bw -q 4",
    "ib_send_bw -b",
    "ib_send_bw -l 8",
    "ib_send_bw -s 64 -I 64",
    "ib_send_bw -c UC -l 4 -q 2",
    "ib_send_bw -c UD -l 8 -q 4",
    "ib_read_lat",
    "ib_read_lat -e",
    "ib_read_bw",
    "ib_read_bw -e",
    "ib_read_bw -q 4 -l 8",
    "ib_atomic_lat -A CMP_AND_SWAP",
    "ib_atomic_lat -A FETCH_AND_ADD",
    "ib_atomic_bw",
    "ib_atomic_bw -e",
    "ib_atomic_bw -q 4 -l 8",
];

fn run_all(fabric: &Fabric, runs: &[&str]) {
    for run in runs {
        let mut words = run.split(' ');
        let program = words.next().expect("a program");
        let arguments: Vec<&str> = words.chain(["-F", "-n", "200"]).collect();
        fabric.expect_success(program, &arguments);
    }
    fabric.assert_clean();
}

/// Returns the first run of each program.
fn each_program() -> Vec<&'static str> {
    let mut runs: Vec<&str> = Vec::new();
    let program = |run: &str| run.split(' ').next().map(str::to_owned);
    for run in RUNS {
        if runs.last().is_none_or(|last| program(last) != program(run)) {
            runs.push(run);
        }
    }
    runs
}

#[test]
fn everything_runs_preloaded_and_through_the_kernel() {
    run_all(&Fabric::new(None), RUNS);
}

#[test]
fn everything_runs_by_library_path_over_a_cable_with_shared_pages() {
    run_all(&Fabric::new(Some("ib-pair.toml")).by_library_path().with_shared_pages(), RUNS);
}

#[test]
fn each_program_runs_preloaded_with_shared_pages() {
    run_all(&Fabric::new(None).with_shared_pages(), &each_program());
}

#[test]
fn each_program_runs_by_library_path_through_the_kernel() {
    run_all(&Fabric::new(Some("ib-pair.toml")).by_library_path(), &each_program());
}
