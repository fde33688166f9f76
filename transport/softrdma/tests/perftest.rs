//! Debian's perftest, unmodified, on the software device.

mod common;

use common::Fabric;

/// What is run, as words between blanks. `-F` because the clock of a shared machine is not steady.
const RUNS: &[&str] = &[
    "ib_write_lat -c RC",
    "ib_write_lat -c UC",
    "ib_write_lat -s 64 -I 64",
    "ib_write_bw -c RC",
    "ib_write_bw -c UC",
    "ib_write_bw -q 8",
    "ib_write_bw -b",
    "ib_write_bw -l 8",
    "ib_send_lat -c RC",
    "ib_send_lat -c UC",
    "ib_send_lat -c UD",
    "ib_send_lat -e",
    "ib_send_lat -s 64 -I 64",
    "ib_send_lat --use-srq",
    "ib_send_bw -c RC",
    "ib_send_bw -c UC",
    "ib_send_bw -c UD",
    "ib_send_bw -e",
    "ib_send_bw -q 4",
    "ib_send_bw -b",
    "ib_read_lat",
    "ib_read_bw",
    "ib_read_bw -q 4",
    "ib_atomic_lat -A CMP_AND_SWAP",
    "ib_atomic_lat -A FETCH_AND_ADD",
    "ib_atomic_bw",
];

fn run_all(fabric: &Fabric) {
    for run in RUNS {
        let mut words = run.split(' ');
        let program = words.next().expect("a program");
        let arguments: Vec<&str> = words.chain(["-F", "-n", "200"]).collect();
        fabric.passes(program, &arguments);
    }
    fabric.is_tidy();
}

#[test]
fn everything_runs_through_the_kernel() {
    run_all(&Fabric::new(None));
}

#[test]
fn everything_runs_over_a_cable_with_shared_pages() {
    run_all(&Fabric::new(Some("ib-pair.toml")).remapped());
}
