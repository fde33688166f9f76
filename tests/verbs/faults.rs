//! Cables that lose and damage messages, and faults while ranks work.

use rustix::process::{Pid, Signal, kill_process};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};
use support::{FabricJob, Shape, Wiring, milliseconds};

/// Time limit within which an error must reach all ranks, in milliseconds.
const TWO_SECONDS: u128 = 2000;

/// Profiles with unreliable connections.
const UNRELIABLE: [&str; 3] = ["ib", "usb4", "apple-tb5"];

const BAD_CABLES: &str = "loss = 0.01\ncorruption = 0.01\nlatency_us = 3.0\njitter_us = 3.0\nseed = 7";

/// Runs many operations over cables that lose, damage and delay messages; all results must be right.
fn unreliable(profile: &'static str) {
    for (cables, operations) in [(1, 10_000), (2, 2_000)] {
        let env = [("TBCCL_RDMA_SERVICE", "uc"), ("SOFTRDMA_REMAP", "1")];
        let wiring = Wiring::pair(profile, cables);
        let mut job = FabricJob::start(&wiring, BAD_CABLES, &format!("operations {operations}"), &env);
        job.wait_for("took", 2);
        job.finish().assert_success("done", 2);
    }
}

#[test]
fn ten_thousand_operations_on_bad_infiniband_cables_are_right() {
    unreliable(UNRELIABLE[0]);
}

#[test]
fn ten_thousand_operations_on_bad_usb4_cables_are_right() {
    unreliable(UNRELIABLE[1]);
}

#[test]
fn ten_thousand_operations_on_bad_cables_of_macs_are_right() {
    unreliable(UNRELIABLE[2]);
}

/// The round trip is ten times the first timeout of a message. Some messages are repeated until it is
/// measured, and where ranks wait for a core. Each was repeated when the timeout did not follow the round
/// trip.
#[test]
fn few_messages_are_repeated_on_a_cable_that_is_longer_than_the_first_timeout() {
    for profile in UNRELIABLE {
        let env = [("TBCCL_RDMA_SERVICE", "uc"), ("SOFTRDMA_REMAP", "1")];
        let done = FabricJob::run(&Wiring::pair(profile, 1), "latency_us = 10000.0", "operations 150", &env);
        done.assert_success("done", 2);
        for message in done.all("repeated") {
            let repeated: u64 = message.rest.parse().expect("a number");
            assert!(repeated < 60, "{profile}: rank {} has repeated {repeated}", message.rank);
        }
    }
}

/// A job whose ranks work until `stop` is called.
pub(crate) struct BusyJob {
    pub(crate) job: FabricJob,
    ranks: u32,
    pub(crate) pids: Vec<String>,
}

fn start_busy_job(wiring: &Wiring, service: &str, env: &[(&str, &str)]) -> BusyJob {
    let mut all = vec![("TBCCL_RDMA_SERVICE", service), ("SOFTRDMA_REMAP", "1")];
    all.extend(env);
    BusyJob::wait_until_running(FabricJob::start(wiring, "", "until $HOME_OF_TEST/stop", &all), wiring.nodes)
}

impl BusyJob {
    /// Waits until a job in the role `until` is running.
    pub(crate) fn wait_until_running(mut job: FabricJob, ranks: u32) -> BusyJob {
        let pids = job.wait_for("running", ranks);
        BusyJob { job, ranks, pids }
    }

    fn stop(self) {
        std::fs::write(self.job.home.path().join("stop"), "").expect("our folder");
        self.job.finish().assert_success("done", self.ranks);
    }

    /// Asserts that every rank but `dead` fails in time after `since`; returns their errors.
    pub(crate) fn expect_errors(self, since: u128, dead: Option<u32>) -> Vec<String> {
        let done = self.job.finish();
        // A stopped rank that the launcher has continued to end it may report as well.
        let errors: Vec<_> = done.all("error").into_iter().filter(|error| Some(error.rank) != dead).collect();
        let expected = self.ranks as usize - usize::from(dead.is_some());
        assert_eq!(errors.len(), expected, "{:?}\n{}", done.messages, done.stderr);
        let text = |rest: &str| {
            let (at, text) = rest.split_once(' ').expect("the time first");
            let late = at.parse::<u128>().expect("a time").saturating_sub(since);
            assert!(late < TWO_SECONDS, "after {late} ms: {text}");
            text.to_owned()
        };
        errors.iter().map(|message| text(&message.rest)).collect()
    }

    /// Whether a cable carries traffic. Waits up to two seconds for some.
    fn carries_traffic(&self, cable: usize) -> bool {
        let before = self.job.bytes_per_cable()[cable];
        (0..100).any(|_| {
            sleep(Duration::from_millis(20));
            self.job.bytes_per_cable()[cable] > before + 1_000_000
        })
    }
}

/// Profiles with their services: one of each for those that support both, and UC on Macs.
const EACH: [(&str, &str); 4] = [("ib", "rc"), ("ib", "uc"), ("usb4", "rc"), ("apple-tb5", "uc")];

#[test]
fn with_two_cables_one_that_is_pulled_is_done_without_and_used_again_once_it_is_back() {
    for (profile, service) in EACH {
        let busy = start_busy_job(&Wiring::pair(profile, 2), service, &[]);
        assert!(
            busy.carries_traffic(0) && busy.carries_traffic(1),
            "{profile} {service}: both cables are used"
        );
        busy.job.fault(&["unplug", "0"]);
        sleep(Duration::from_millis(300));
        assert!(busy.carries_traffic(1), "{profile} {service}: the other one goes on");
        busy.job.fault(&["replug", "0"]);
        assert!(busy.carries_traffic(0), "{profile} {service}: it is used again");
        busy.job.fault(&["unplug", "1"]);
        sleep(Duration::from_millis(300));
        assert!(busy.carries_traffic(0), "{profile} {service}: and alone");
        busy.stop();
    }
}

#[test]
fn a_trace_has_each_time_in_which_a_rail_was_down() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("text");
    let env = [("TBCCL_TRACE", path), ("TBCCL_TRACE_EVENTS", "1000")];
    let busy = start_busy_job(&Wiring::pair("usb4", 2), "rc", &env);
    busy.job.fault(&["unplug", "0"]);
    sleep(Duration::from_millis(300));
    busy.job.fault(&["replug", "0"]);
    assert!(busy.carries_traffic(0), "it is used again");
    busy.stop();
    let mut outages = Vec::new();
    for entry in std::fs::read_dir(path).expect("traces") {
        let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("a file");
        let file: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let events = file["traceEvents"].as_array().expect("events").clone();
        outages.extend(events.into_iter().filter(|event| event["cat"] == "rail"));
    }
    let of = |rank: u32| outages.iter().filter(|outage| outage["pid"] == rank).collect::<Vec<_>>();
    for rank in [0, 1] {
        let [outage] = of(rank)[..] else { panic!("rank {rank}: {outages:?}") };
        assert_eq!((&outage["name"], &outage["args"]["peer"]), (&"rail is down".into(), &(1 - rank).into()));
        assert!(outage["dur"].as_f64().is_some_and(|us| us > 0.2e6), "{outage}");
    }
}

#[test]
fn the_log_tells_devices_rails_and_every_rail_that_goes_down_and_returns() {
    let env = [("TBCCL_LOG", "info"), ("TBCCL_LOG_FILE", "$HOME_OF_TEST/%r.log")];
    let busy = start_busy_job(&Wiring::pair("usb4", 2), "rc", &env);
    busy.job.fault(&["unplug", "0"]);
    sleep(Duration::from_millis(300));
    busy.job.fault(&["replug", "0"]);
    assert!(busy.carries_traffic(0), "it is used again");
    let logs = [0, 1].map(|rank| {
        std::fs::read_to_string(busy.job.home.path().join(format!("{rank}.log"))).expect("a log")
    });
    for (rank, log) in logs.iter().enumerate() {
        let (rail, peer) = (format!("d0 of rank {rank} to d0 of rank {}", 1 - rank), 1 - rank);
        for fact in [
            "INFO tbccl::verbs: device d0: GID ",
            "MTU 4096 B, reliable connections, remote write, ",
            "INFO tbccl::init: transport verbs: ",
            &format!("INFO tbccl::init: rails to rank {peer}: d0 to d0"),
            &format!("WARN tbccl::verbs: the rail {rail} is down: "),
            &format!("INFO tbccl::verbs: the rail {rail} is up again"),
        ] {
            assert!(log.contains(fact), "{fact} is missing:\n{log}");
        }
    }
    busy.stop();
}

/// Pieces that arrive while a rank is stopped are acknowledged, so their sender forgets them. The rank then
/// learns through the other cable that the first is gone, before it finds those pieces, and requests them
/// again. It must be told that it has them already.
#[test]
fn pieces_that_came_by_a_cable_that_is_gone_before_anyone_looked_are_not_asked_for_in_vain() {
    for (profile, service) in EACH {
        let busy = start_busy_job(&Wiring::pair(profile, 2), service, &[]);
        for round in 0..8 {
            let (rank, cable) = (round / 2 % 2, 1 - round % 2);
            let pid = busy.pids[rank].parse().ok().and_then(Pid::from_raw).expect("a process id");
            kill_process(pid, Signal::STOP).expect("it runs");
            sleep(Duration::from_millis(20));
            busy.job.fault(&["unplug", &cable.to_string()]);
            sleep(Duration::from_millis(20));
            kill_process(pid, Signal::CONT).expect("it waits");
            assert!(
                busy.carries_traffic(1 - cable),
                "{profile} {service}: round {round}: the other one goes on"
            );
            busy.job.fault(&["replug", &cable.to_string()]);
            assert!(busy.carries_traffic(cable), "{profile} {service}: round {round}: it is used again");
        }
        busy.stop();
    }
}

#[test]
fn with_one_cable_its_end_is_an_error_that_names_it_on_every_rank_in_time() {
    for (profile, service) in EACH {
        for ranks in [2, 3] {
            let wiring = Wiring { profile, shape: Shape::Mesh, nodes: ranks, cables: 1 };
            let busy = start_busy_job(&wiring, service, &[("TBCCL_CABLE_WAIT", "0.3")]);
            let since = milliseconds();
            busy.job.fault(&["unplug", "0"]);
            for text in busy.expect_errors(since, None) {
                let named = text.contains("d0 of rank 0 to d0 of rank 1")
                    || text.contains("d0 of rank 1 to d0 of rank 0");
                assert!(named && text.contains("no cable to rank"), "{profile} {service}: {text}");
            }
        }
    }
}

/// Returns the first line that `tbccl why` prints about the job of a process.
fn why(pid: &str) -> String {
    let output = support::tbccl().args(["why", "--wait", "0.5", "--job", pid]).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_lone_cable_that_is_pulled_for_good_is_the_knot_of_the_hang() {
    for (profile, service) in EACH {
        let env = [("TBCCL_CABLE_WAIT", "60"), ("TBCCL_TIMEOUT", "3")];
        let busy = start_busy_job(&Wiring::pair(profile, 1), service, &env);
        busy.job.fault(&["unplug", "0"]);
        let is_knot = |line: &str| {
            line.contains("no message gets from rank ") && line.contains("(the rail d0 to d0 is down): rank ")
        };
        let is_found = (0..20).any(|_| {
            sleep(Duration::from_millis(100));
            is_knot(&why(&busy.pids[0]))
        });
        assert!(is_found, "{profile} {service}: {}", why(&busy.pids[0]));
        let done = busy.job.finish();
        let errors = done.all("error");
        assert_eq!(errors.len(), 2, "{profile} {service}: {:?}\n{}", done.messages, done.stderr);
        assert!(errors.iter().all(|error| is_knot(&error.rest)), "{profile} {service}: {errors:?}");
    }
}

#[test]
fn a_lone_cable_that_is_pulled_and_put_back_costs_nobody_a_job() {
    for (profile, service) in EACH {
        let busy = start_busy_job(&Wiring::pair(profile, 1), service, &[]);
        for _ in 0..3 {
            busy.job.fault(&["unplug", "0"]);
            sleep(Duration::from_millis(300));
            busy.job.fault(&["replug", "0"]);
            assert!(busy.carries_traffic(0), "{profile} {service}: it is used again");
        }
        busy.stop();
    }
}

/// One end's queue pairs fail, and the other end hears of it only by the cable itself.
#[test]
fn failed_queue_pairs_of_a_lone_cable_are_made_new() {
    for (profile, service) in EACH {
        let busy = start_busy_job(&Wiring::pair(profile, 1), service, &[]);
        for end in ["n0/d0", "n1/d0"] {
            busy.job.fault(&["fail-qp", end]);
            assert!(busy.carries_traffic(0), "{profile} {service}: it is used again");
        }
        busy.stop();
    }
}

/// Connections that stop working without an error are made new, with a second cable and without.
#[test]
fn a_cable_that_falls_silent_is_used_again() {
    for (profile, service) in EACH {
        for cables in [1, 2] {
            let busy = start_busy_job(&Wiring::pair(profile, cables), service, &[]);
            busy.job.fault(&["sleep", "n0/d0"]);
            let is_used = (0..5).any(|_| busy.carries_traffic(0));
            assert!(is_used, "{profile} {service} {cables}: it is used again");
            busy.stop();
        }
    }
}

/// A rank that waits for nothing does not miss what a stopped queue pair would have brought. Only that rank
/// can make the queue pair new.
#[test]
fn a_rank_that_computes_notices_that_its_only_cable_has_fallen_silent() {
    let start = |(profile, service)| {
        let env = [("TBCCL_RDMA_SERVICE", service), ("TBCCL_CABLE_WAIT", "4")];
        let mut job = FabricJob::start(&Wiring::pair(profile, 1), "", "computes $HOME_OF_TEST", &env);
        job.wait_for("running", 2);
        job.fault(&["sleep", "n1/d0"]);
        std::fs::write(job.home.path().join("send"), "").expect("our folder");
        job
    };
    let jobs = EACH.map(start);
    sleep(Duration::from_secs(7));
    for job in jobs {
        std::fs::write(job.home.path().join("receive"), "").expect("our folder");
        job.finish().assert_success("done", 2);
    }
}

/// All messages counted as sent where no rail was up, and the last message of a rank that left was lost.
#[test]
fn what_a_rank_has_sent_before_it_left_arrives_although_its_only_cable_has_fallen_silent() {
    let start = |(profile, service)| {
        let env = [("TBCCL_RDMA_SERVICE", service)];
        let mut job = FabricJob::start(&Wiring::pair(profile, 1), "", "leaves $HOME_OF_TEST", &env);
        job.wait_for("running", 2);
        job.fault(&["sleep", "n0/d0"]);
        std::fs::write(job.home.path().join("send"), "").expect("our folder");
        job
    };
    let jobs = EACH.map(start);
    jobs.into_iter().for_each(|job| job.finish().assert_success("done", 2));
}

/// A device whose completion queues overflow is of no further use. Another one carries on.
#[test]
fn a_device_whose_completion_queues_overflow_is_done_without() {
    for (profile, service) in EACH {
        let busy = start_busy_job(&Wiring::pair(profile, 2), service, &[]);
        busy.job.fault(&["overflow-cq", "n1/d0"]);
        sleep(Duration::from_millis(300));
        assert!(busy.carries_traffic(1), "{profile} {service}: the other one goes on");
        busy.stop();
    }
}

#[test]
fn a_port_that_goes_down_is_named_too() {
    for (profile, service) in [("usb4", "rc"), ("apple-tb5", "uc")] {
        let busy = start_busy_job(&Wiring::pair(profile, 1), service, &[("TBCCL_CABLE_WAIT", "0.3")]);
        let since = milliseconds();
        busy.job.fault(&["port-down", "n1/d0"]);
        for text in busy.expect_errors(since, None) {
            assert!(text.contains("no cable to rank") && text.contains("d0"), "{profile}: {text}");
        }
        let busy = start_busy_job(&Wiring::pair(profile, 2), service, &[]);
        busy.job.fault(&["port-down", "n1/d1"]);
        sleep(Duration::from_millis(200));
        busy.job.fault(&["port-up", "n1/d1"]);
        assert!(busy.carries_traffic(1), "{profile}: it is used again");
        busy.stop();
    }
}

#[test]
fn a_killed_rank_is_named_with_its_process_on_every_other_one_in_time() {
    for (profile, service) in EACH {
        let wiring = Wiring { profile, shape: Shape::Mesh, nodes: 3, cables: 1 };
        let busy = start_busy_job(&wiring, service, &[]);
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

#[test]
fn failed_queue_pairs_are_made_new_while_the_other_cable_carries_on() {
    for (profile, service) in EACH {
        let busy = start_busy_job(&Wiring::pair(profile, 2), service, &[]);
        busy.job.fault(&["fail-qp", "n0/d0"]);
        assert!(
            busy.carries_traffic(1) && busy.carries_traffic(0),
            "{profile} {service}: both are used again"
        );
        busy.stop();
    }
}

#[test]
fn a_peer_that_stalls_for_less_than_the_time_limit_is_no_error() {
    for (profile, service) in EACH {
        let busy = start_busy_job(&Wiring::pair(profile, 1), service, &[("TBCCL_TIMEOUT", "20")]);
        busy.job.fault(&["stall", "n1"]);
        sleep(Duration::from_millis(1500));
        busy.job.fault(&["resume", "n1"]);
        assert!(busy.carries_traffic(0), "{profile} {service}: it goes on");
        busy.stop();
    }
}

#[test]
fn an_address_that_moves_does_not_end_connections() {
    for (profile, service) in EACH {
        let busy = start_busy_job(&Wiring::pair(profile, 1), service, &[]);
        busy.job.fault(&["gid", "n1/d0", "--index", "2"]);
        assert!(busy.carries_traffic(0), "{profile} {service}: it goes on");
        // A connection that is made anew is made from the address, wherever that is.
        busy.job.fault(&["fail-qp", "n1/d0"]);
        let is_used = (0..3).any(|_| busy.carries_traffic(0));
        assert!(is_used, "{profile} {service}: it is used again");
        busy.stop();
    }
}

/// Without checksums, damaged headers and grants are used as they are. The results may be wrong, but no rank
/// may crash or wait without end.
#[test]
fn damaged_messages_that_nothing_checks_end_in_errors_at_the_worst() {
    let mut failed = 0;
    for profile in UNRELIABLE {
        for seed in 1..=3 {
            let link = format!("corruption = 0.05\nseed = {seed}");
            let env = [
                ("TBCCL_RDMA_SERVICE", "uc"),
                ("TBCCL_CHECKSUM", "0"),
                ("TBCCL_TIMEOUT", "1"),
                ("SOFTRDMA_REMAP", "1"),
            ];
            let done = FabricJob::run(&Wiring::pair(profile, 1), &link, "survive", &env);
            let (right, errors) = (done.all("done").len(), done.all("error").len());
            assert_eq!(right + errors, 2, "{profile} {seed}: {:?}\n{}", done.messages, done.stderr);
            assert!(!done.stderr.contains("panicked"), "{profile} {seed}: {}", done.stderr);
            failed += errors;
        }
    }
    assert!(failed > 0, "nothing was damaged");
}

/// The second cable is four times as slow. Both are so slow that only their bandwidth counts, on a busy
/// machine too. The shares follow the bandwidth once enough has been measured.
#[test]
fn cables_carry_as_much_as_they_are_fast() {
    for (profile, service) in [("ib", "rc"), ("usb4", "uc"), ("apple-tb5", "uc")] {
        let wiring = Wiring::pair(profile, 2);
        let env =
            [("TBCCL_RDMA_SERVICE", service), ("SOFTRDMA_REMAP", "1"), ("TBCCL_RDMA_PIECE_BYTES", "16384")];
        let link = "bandwidth_gbps = 0.2";
        let mut job = FabricJob::start_with(&wiring, link, "until $HOME_OF_TEST/stop", &env, |home| {
            let file = home.join("fabric.toml");
            let text = std::fs::read_to_string(&file).expect("the fabric");
            std::fs::write(&file, text + "bandwidth_gbps = 0.05\n").expect("our folder");
        });
        job.wait_for("running", 2);
        let until = Instant::now() + Duration::from_secs(30);
        let mut shares = Vec::new();
        let mut before = job.bytes_per_cable();
        while Instant::now() < until && !shares.last().is_some_and(|percent| (8..=30).contains(percent)) {
            sleep(Duration::from_secs(1));
            let after = job.bytes_per_cable();
            let (fast, slow) = (after[0] - before[0], after[1] - before[1]);
            shares.push(slow * 100 / (fast + slow).max(1));
            before = after;
        }
        std::fs::write(job.home.path().join("stop"), "").expect("our folder");
        job.finish().assert_success("done", 2);
        let last = shares.last().copied().unwrap_or_default();
        assert!((8..=30).contains(&last), "{profile}: {shares:?} % by the slow cable, second by second");
    }
}

/// After a failed call the caller's memory is no longer accessed, though messages still arrive.
#[test]
fn memory_that_is_given_back_after_a_failure_is_let_alone() {
    for (profile, service) in [("ib", "rc"), ("ib", "uc"), ("usb4", "uc")] {
        for _ in 0..3 {
            let env = [("TBCCL_RDMA_SERVICE", service), ("SOFTRDMA_REMAP", "1")];
            let done = FabricJob::run(&Wiring::pair(profile, 2), "bandwidth_gbps = 10.0", "abandon", &env);
            let alive = done.all("alive");
            assert!(
                alive.iter().any(|message| message.rank == 0),
                "{profile}: {:?}\n{}",
                done.messages,
                done.stderr
            );
        }
    }
}
