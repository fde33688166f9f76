//! Several ranks on each node: shared memory within a node, RDMA between nodes.

use crate::faults::BusyJob;
use rustix::process::{Pid, Signal, kill_process};
use support::{FabricJob, Finished, KINDS, Shape, Wiring, milliseconds};

const PER_NODE: u32 = 2;

fn mesh(profile: &'static str, nodes: u32) -> Wiring {
    Wiring { profile, shape: Shape::Mesh, nodes, cables: 1 }
}

/// Starts two ranks on each node. On Macs only successive ranks use the cables, since more would need too
/// many queue pairs.
fn start(
    wiring: &Wiring,
    service: &str,
    role: &str,
    transport: &str,
    variables: &[(&str, &str)],
) -> FabricJob {
    let mut env = vec![
        ("TBCCL_TRANSPORT", transport),
        ("TBCCL_RDMA_SERVICE", service),
        ("TBCCL_CABLE_WAIT", "0.3"),
        ("SOFTRDMA_REMAP", "1"),
    ];
    env.extend(variables);
    if wiring.profile == "apple-tb5" {
        env.push(("TBCCL_IBV_DEVICES", "$HOME_OF_TEST/matrix.json"));
    }
    let matrix = wiring.ring_matrix(PER_NODE);
    FabricJob::start_several((wiring, PER_NODE), "", role, &env, |home| {
        std::fs::write(home.join("matrix.json"), matrix).expect("our folder");
    })
}

/// Starts one rank on each node.
fn start_on_nodes(wiring: &Wiring, service: &str, role: &str, variables: &[(&str, &str)]) -> FabricJob {
    let mut env = vec![("TBCCL_RDMA_SERVICE", service), ("SOFTRDMA_REMAP", "1")];
    env.extend(variables);
    FabricJob::start(wiring, "", role, &env)
}

fn run(wiring: &Wiring, service: &str, role: &str, transport: &str) -> Finished {
    start(wiring, service, role, transport, &[]).finish()
}

/// Registered memory is not copied: a rank of the same node reads it in place, and devices send it from its
/// place.
#[test]
fn all_collectives_between_two_nodes_of_two_ranks() {
    for (profile, service) in KINDS {
        let done = run(&mesh(profile, 2), service, "collectives", "shm+verbs");
        assert!(done.code() == 0, "{profile} {service}: {:?}\n{}", done.messages, done.stderr);
        done.assert_success("done", 4);
    }
}

#[test]
fn all_collectives_between_four_nodes_of_two_ranks() {
    for (profile, service) in [("ib", "rc"), ("usb4", "uc"), ("apple-tb5", "uc")] {
        let done = run(&mesh(profile, 4), service, "collectives", "shm+verbs");
        assert!(done.code() == 0, "{profile} {service}: {:?}\n{}", done.messages, done.stderr);
        done.assert_success("done", 8);
    }
}

#[test]
fn memory_of_the_programs_own_goes_to_another_node_from_where_it_is() {
    for (profile, devices) in [("ib", "know it"), ("usb4", "know it")] {
        let role = format!("far_memory {devices}");
        run(&mesh(profile, 2), "", &role, "shm+verbs").assert_success("done", 4);
    }
}

/// Profiles with their services: one of each for those that support both, and UC on Macs.
const EACH: [(&str, &str); 4] = [("ib", "rc"), ("ib", "uc"), ("usb4", "rc"), ("apple-tb5", "uc")];

fn start_busy_job(wiring: &Wiring, service: &str, variables: &[(&str, &str)]) -> BusyJob {
    let job = start(wiring, service, "until $HOME_OF_TEST/stop", "shm+verbs", variables);
    BusyJob::wait_until_running(job, wiring.nodes * PER_NODE)
}

#[test]
fn a_killed_rank_is_named_on_its_own_node_and_on_others_in_time() {
    for nodes in [2, 4] {
        for (profile, service) in EACH {
            let busy = start_busy_job(&mesh(profile, nodes), service, &[]);
            let pid = busy.pids[1].clone();
            let since = milliseconds();
            kill_process(pid.parse().ok().and_then(Pid::from_raw).expect("a process"), Signal::KILL)
                .expect("it runs");
            for text in busy.expect_errors(since, Some(1)) {
                let who = format!("rank 1 (process {pid} on ");
                assert!(
                    text.contains(&who) && text.contains("was killed by SIGKILL"),
                    "{profile} {service}: {text}"
                );
            }
        }
    }
}

#[test]
fn a_stopped_rank_is_a_timeout_on_its_own_node_and_on_others() {
    for (profile, service) in EACH {
        let busy = start_busy_job(&mesh(profile, 2), service, &[("TBCCL_TIMEOUT", "1")]);
        // A process that is stopped at any time may hold a lock for which its peers wait.
        busy.job.fault(&["freeze", &busy.pids[1]]);
        for text in busy.expect_errors(milliseconds(), Some(1)) {
            assert!(text.contains("no progress within the time limit"), "{profile} {service}: {text}");
        }
    }
}

#[test]
fn a_communicator_is_closed_without_a_wait_for_a_rank_that_has_died() {
    for (profile, service) in EACH {
        let done = start_on_nodes(&mesh(profile, 2), service, "close_after_kill", &[]).finish();
        let took = done.all("closed").first().and_then(|said| said.rest.parse::<u32>().ok());
        assert!(
            took.is_some_and(|took| took < 1500),
            "{profile} {service}: {:?}\n{}",
            done.messages,
            done.stderr
        );
    }
}

/// The cables to the stopped rank are given up while the report of the hang waits for its rendezvous.
#[test]
fn cables_that_fall_after_the_time_limit_do_not_delay_the_error() {
    for (profile, service) in EACH {
        let variables = [("TBCCL_TIMEOUT", "1.5"), ("TBCCL_CABLE_WAIT", "0.8")];
        let done = start_on_nodes(&mesh(profile, 2), service, "hosted", &variables).finish();
        let (took, text) = done.all("failed")[0].rest.split_once(' ').expect("the time first");
        let took: u32 = took.parse().expect("milliseconds");
        assert!((1500..3500).contains(&took), "{profile} {service}: after {took} ms: {text}");
        assert!(text.contains("no progress within the time limit"), "{profile} {service}: {text}");
    }
}

#[test]
fn an_abort_ends_the_calls_of_ranks_on_its_own_node_and_on_others_in_time() {
    for (profile, service) in EACH {
        let done = run(&mesh(profile, 2), service, "abort", "shm+verbs");
        let (aborted, errors) = (done.all("aborted"), done.all("error"));
        assert_eq!((aborted.len(), errors.len()), (1, 4), "{:?}\n{}", done.messages, done.stderr);
        let since: u128 = aborted[0].rest.parse().expect("a time");
        for error in errors {
            let (at, text) = error.rest.split_once(' ').expect("the time first");
            let late = at.parse::<u128>().expect("a time").saturating_sub(since);
            assert!(late < 2000, "{profile} {service}: rank {} took {late} ms: {text}", error.rank);
            let says =
                if error.rank == 1 { "the program aborted" } else { "rank 1 failed: the program aborted" };
            assert!(text.starts_with(says), "{profile} {service}: rank {}: {text}", error.rank);
        }
    }
}

#[test]
fn ranks_that_reduce_different_counts_all_see_both_calls() {
    for (profile, service) in EACH {
        let done = run(&mesh(profile, 2), service, "disagree", "shm+verbs");
        let errors = done.all("error");
        assert_eq!(errors.len(), 4, "{:?}\n{}", done.messages, done.stderr);
        for error in errors {
            let calls = ["the ranks disagree on call", "all_reduce of 1000 i32", "all_reduce of 999 i32"];
            assert!(calls.iter().all(|part| error.rest.contains(part)), "{profile} {service}: {error:?}");
        }
    }
}

#[test]
fn the_end_of_a_cable_is_an_error_that_names_ranks_at_both_ends_on_every_rank_in_time() {
    for (profile, service) in EACH {
        let busy = start_busy_job(&mesh(profile, 2), service, &[]);
        let since = milliseconds();
        busy.job.fault(&["unplug", "0"]);
        for text in busy.expect_errors(since, None) {
            let is_named = (0..2).any(|a| {
                (2..4).any(|b| {
                    text.contains(&format!("d0 of rank {a} to d0 of rank {b}"))
                        || text.contains(&format!("d0 of rank {b} to d0 of rank {a}"))
                })
            });
            assert!(is_named && text.contains("no cable to rank"), "{profile} {service}: {text}");
        }
    }
}

/// Two ranks on each of two nodes make four rails, which share ten queue pairs; three make nine rails. With
/// four ranks on each there are too many. All ranks get the error before any queue pair is created.
#[test]
fn the_queue_pairs_of_all_ranks_of_a_node_are_counted_before_any_is_made() {
    let run = |per_node: u32, operations: &str| {
        let env = [("TBCCL_TRANSPORT", "shm+verbs")];
        let nodes = mesh("apple-tb5", 2);
        FabricJob::start_several((&nodes, per_node), "", operations, &env, |_| ()).finish()
    };
    run(2, "operations 200").assert_success("done", 4);
    run(3, "operations 50").assert_success("done", 6);
    let done = run(4, "operations 1");
    let refused = done.all("refused");
    assert!(done.code() != 0 && refused.len() == 8, "{:?}\n{}", done.messages, done.stderr);
    for message in refused {
        let ranks = if message.rank < 4 { "0, 1, 2, 3" } else { "4, 5, 6, 7" };
        let expected_text = format!(
            "d0 would need 16 queue pairs, 1 for each of its 16 rails (of ranks {ranks}, which share it), \
             and has 10; use fewer ranks per host"
        );
        assert!(
            message.rest.contains(&format!("rank {}: ", message.rank))
                && message.rest.contains(&expected_text),
            "{message:?}"
        );
    }
}

/// The slab of each rank needs 64 regions; a Mac's device has 100 for both ranks.
#[test]
fn the_regions_of_all_ranks_of_a_node_are_counted_before_any_is_made() {
    let env = |slab| {
        [
            ("TBCCL_TRANSPORT", "shm+verbs"),
            ("TBCCL_IBV_DEVICES", "$HOME_OF_TEST/matrix.json"),
            ("TBCCL_SEGMENT_BYTES", "1M"),
            ("TBCCL_SLAB_BYTES", slab),
        ]
    };
    let wiring = mesh("apple-tb5", 2);
    let run = |slab| {
        let matrix = wiring.ring_matrix(PER_NODE);
        let job = FabricJob::start_several((&wiring, PER_NODE), "", "operations 20", &env(slab), |home| {
            std::fs::write(home.join("matrix.json"), matrix).expect("our folder");
        });
        job.finish()
    };
    run("50M").assert_success("done", 4);
    let done = run("64M");
    let refused = done.all("refused");
    assert!(!refused.is_empty(), "{:?}\n{}", done.messages, done.stderr);
    for message in refused {
        let expected_text =
            "the slab is 64 segments, those of the 2 ranks of this host 128, and d0 has 100 regions";
        assert!(
            message.rest.contains(expected_text) && message.rest.contains("TBCCL_SEGMENT_BYTES"),
            "{message:?}"
        );
    }
}

#[test]
fn where_nobody_chooses_rdma_is_taken_if_it_connects_all_and_rank_0_says_so_once() {
    let assert_transport_line = |done: &Finished, what: &str| {
        let lines: Vec<&str> =
            done.stderr.lines().filter(|line| line.contains("hosts are connected by")).collect();
        assert!(lines.len() == 1 && lines[0].contains(what), "{what}: {}", done.stderr);
    };
    let done = run(&mesh("usb4", 2), "rc", "operations 50", "shm+auto");
    done.assert_success("done", 4);
    assert_transport_line(&done, "by RDMA (shm+verbs)");
    // The ring matrix leaves some pairs of ranks without a cable.
    let done = run(&mesh("apple-tb5", 2), "uc", "relayed", "shm+auto");
    done.assert_success("done", 4);
    assert_transport_line(&done, "by RDMA (shm+verbs), collectives along other ranks where no cable");
    let env = [("TBCCL_TRANSPORT", "shm+auto")];
    let job = FabricJob::start_several((&mesh("apple-tb5", 2), 4), "", "operations 10", &env, |_| ());
    let done = job.finish();
    done.assert_success("done", 8);
    assert_transport_line(&done, "not by RDMA: rank 0: d0 would need 16 queue pairs");
}
