//! The choice between RDMA and TCP where Thunderbolt ports that are up have no IPv4 address yet.

use std::time::Duration;
use support::{FabricJob, Finished, Wiring};

/// Longest time of a job that waits for no address, on a busy machine.
const QUICK: Duration = Duration::from_secs(20);

/// A device of a fabric file as [`Wiring::text`] writes it, and as a test wants it.
type Change<'a> = (&'a str, &'a str);

/// Runs a job of two ranks on each of two nodes, which choose between RDMA and TCP. Changes the fabric file.
fn run(role: &str, env: &[(&str, &str)], changes: &[Change<'_>]) -> Finished {
    let env = [&[("TBCCL_TRANSPORT", "shm+auto")], env].concat();
    let job = FabricJob::start_several((&Wiring::pair("apple-tb5", 1), 2), "", role, &env, |home| {
        let file = home.join("fabric.toml");
        let mut text = std::fs::read_to_string(&file).expect("a file");
        for (before, after) in changes {
            assert!(text.contains(before), "{before} in {text}");
            text = text.replace(before, after);
        }
        std::fs::write(file, text).expect("our folder");
    });
    job.finish()
}

/// Returns the lines on stderr about the wait, and about the choice.
fn lines(done: &Finished) -> (Vec<&str>, Vec<&str>) {
    let about = |what: &str| done.stderr.lines().filter(|line| line.contains(what)).collect();
    (about("waiting for an IPv4 address"), about("hosts are connected by"))
}

#[test]
fn addresses_of_ports_that_come_up_are_waited_for_which_a_rank_of_each_host_says_once() {
    let late = [("name = \"d0\" }", "name = \"d0\", gid = 'late', gid_after_ms = 4000 }")];
    let done = run("operations 50", &[], &late);
    done.assert_success("done", 4);
    let (waits, choice) = lines(&done);
    assert_eq!(waits.len(), 2, "{}", done.stderr);
    for rank in [0, 2] {
        let says =
            format!("rank {rank}: d0: waiting for an IPv4 address to be assigned to its port, for 30 s");
        let is_told = |line: &&str| line.contains(&says) && line.ends_with("(TBCCL_ADDRESS_WAIT)");
        assert!(waits.iter().any(is_told), "{waits:?}");
    }
    assert!(choice.len() == 1 && choice[0].contains("by RDMA (shm+verbs)"), "{choice:?}");
    assert!(done.took >= Duration::from_secs(4), "{:?}", done.took);
}

/// Later communicators of the job make no pause again.
#[test]
fn after_the_wait_for_an_address_the_job_goes_over_tcp_and_says_why() {
    let missing = [("name = \"d0\" }", "name = \"d0\", gid = 'missing' }")];
    let done = run("many_groups", &[("TBCCL_ADDRESS_WAIT", "2")], &missing);
    done.assert_success("done", 4);
    let (waits, choice) = lines(&done);
    assert_eq!(waits.len(), 2, "{}", done.stderr);
    let says = "tbccl: hosts are connected by TCP (shm+tcp), not by RDMA: rank ";
    assert!(choice.len() == 1 && choice[0].contains(says), "{choice:?}");
    assert!(choice[0].contains(": d0/1: no address after 2.0 s"), "{choice:?}");
    assert!(done.took >= Duration::from_secs(2) && done.took < QUICK, "{:?}", done.took);
}

#[test]
fn nobody_waits_for_an_address_where_a_rank_can_not_use_rdma_at_all() {
    let changes = [
        ("name = \"d0\" }", "name = \"d0\", gid = 'missing' }"),
        // Another name of the second node's device, which is not selected.
        ("name = \"n1\"\ndevice = [{ name = \"d0\"", "name = \"n1\"\ndevice = [{ name = \"x0\""),
        ("n1/d0", "n1/x0"),
    ];
    let done = run("operations 50", &[("TBCCL_RDMA_DEVICES", "d0")], &changes);
    done.assert_success("done", 4);
    let choice = lines(&done).1;
    let says = "not by RDMA: rank 2: TBCCL_RDMA_DEVICES=d0 selects none of the RDMA devices x0";
    assert!(choice.len() == 1 && choice[0].contains(says), "{choice:?}");
    assert!(done.took < QUICK, "{:?}", done.took);
}
