//! TCP over two cables that are pulled, put back, slowed down and reset while a job runs: no element is
//! wrong, and the job goes on.

use crate::{
    hosts::job,
    network::{CableAddresses, Network, network_or_return},
};
use std::{
    io::Write,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};
use support::{Process, eventually, rank_arguments_of};
use tbccl::{Communicator, ReduceOp};

/// Two cables between two hosts.
const DOUBLED: [(usize, usize); 2] = [(0, 1), (0, 1)];
/// One cable between two hosts.
const SINGLE: [(usize, usize); 1] = [(0, 1)];

/// Elements of a round's calls, of 4 bytes.
const COUNTS: [usize; 6] = [1, 200, 5_000, 40_000, 300_000, 1_500_000];

/// Plays the role of this process, if it has one; not a test.
#[test]
fn play() {
    let Ok(file) = std::env::var("PULLED_CABLES_UNTIL") else { return };
    let mut comm = Communicator::from_env().expect("a communicator");
    let done = all_reduce_until(&mut comm, Path::new(&file));
    match done {
        Ok((rounds, gap)) => say(&format!("@done {} {rounds} {}", comm.rank(), gap.as_millis())),
        Err(error) => {
            say(&format!("@error {} {error}", comm.rank()));
            std::process::exit(1);
        }
    }
}

/// Prints a line in one write, so that lines of ranks do not mix.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(format!("\n{line}\n").as_bytes());
    let _ = out.flush();
}

/// Reduces arrays of all sizes and checks every element, until the file exists. Returns the number of rounds
/// and the longest time of a call.
fn all_reduce_until(comm: &mut Communicator, file: &Path) -> tbccl::Result<(u32, Duration)> {
    let (rank, ranks) = (comm.rank().0, comm.size());
    let (mut round, mut longest) = (0u32, Duration::ZERO);
    loop {
        for count in COUNTS {
            let element = |rank: u32, at: usize| (rank + 1) * (round % 1000 + 1) + at as u32 % 5_003;
            let send: Vec<u32> = (0..count).map(|at| element(rank, at)).collect();
            let mut recv = vec![0; count];
            let began = Instant::now();
            comm.all_reduce(&send, &mut recv, ReduceOp::Sum)?;
            longest = longest.max(began.elapsed());
            for (at, found) in recv.iter().enumerate() {
                let due: u32 = (0..ranks).map(|rank| element(rank, at)).sum();
                assert_eq!(*found, due, "element {at} of {count} in round {round}");
            }
        }
        round += 1;
        if round == 1 {
            say(&format!("@running {rank}"));
        }
        let mut stop = [0u32];
        comm.all_reduce(&[u32::from(file.exists())], &mut stop, ReduceOp::Max)?;
        if stop[0] > 0 {
            return Ok((round, longest));
        }
    }
}

/// A job that runs until it is stopped.
struct Running<'n> {
    network: &'n Network,
    job: Process,
}

impl Running<'_> {
    fn start<'n>(network: &'n Network, variables: &[&str]) -> Running<'n> {
        let stop = network.path("stop").to_str().expect("text").to_owned();
        let until = format!("PULLED_CABLES_UNTIL={stop}");
        let mut args = vec!["--hosts", "h0,h1", "-x", "TBCCL_TRANSPORT=tcp", "-x", &until];
        variables.iter().for_each(|variable| args.extend(["-x", variable]));
        let rank = rank_arguments_of("pulled_cables::play");
        args.push("--");
        args.extend(rank.iter().map(String::as_str));
        let mut job = job(network, &args);
        job.wait_for("running", 2);
        Running { network, job }
    }

    /// Stops the job, which must be right. Returns the longest time of a call, and the text on stderr.
    fn stop(self) -> (Duration, String) {
        self.network.write("stop", "");
        let done = self.job.finish();
        let ends = done.all("done");
        assert!(done.code() == 0 && ends.len() == 2, "{:?}\n{}", done.messages, done.stderr);
        let gap = |text: &str| text.split(' ').next_back().and_then(|word| word.parse().ok());
        let longest = ends.iter().filter_map(|end| gap(&end.rest)).max().expect("a time");
        (Duration::from_millis(longest), done.stderr)
    }

    /// Waits until a cable carries the job's data.
    fn carries(&self, cable: usize) {
        let bytes = || self.network.cable_bytes(0)[cable];
        let before = bytes();
        eventually("the cable carries data", || bytes() > before + (1 << 20));
    }
}

/// Runs a program of the system on a host.
fn on_host(network: &Network, host: usize, program: &str, args: &[&str]) {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &network.namespace(&format!("h{host}")), program]).args(args);
    let output = command.output().expect("ip");
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn set_link(network: &Network, host: usize, cable: usize, state: &str) {
    on_host(network, host, "ip", &["link", "set", &format!("thunderbolt{cable}"), state]);
}

#[test]
fn a_job_goes_on_when_either_of_two_cables_is_pulled_and_put_back() {
    let network = network_or_return!(2, &DOUBLED, CableAddresses::Networks);
    let running = Running::start(&network, &["TBCCL_LAN=never"]);
    for (cable, host) in [(0, 0), (1, 1), (0, 1)] {
        running.carries(cable);
        set_link(&network, host, cable, "down");
        running.carries(1 - cable);
        std::thread::sleep(Duration::from_millis(300));
        set_link(&network, host, cable, "up");
        running.carries(cable);
    }
    let (longest, stderr) = running.stop();
    assert!(longest < Duration::from_secs(4), "{longest:?}\n{stderr}");
    for says in ["cable thunderbolt0 to rank 1 does not work", "cable thunderbolt0 to rank 1 works again"] {
        assert!(stderr.contains(says), "{stderr}");
    }
    eprintln!("longest call {longest:?}");
    assert!(network.switched_bytes() < 4 << 20);
}

#[test]
fn a_job_goes_on_over_the_switch_while_its_only_cable_is_pulled() {
    let network = network_or_return!(2, &SINGLE, CableAddresses::Networks);
    let running = Running::start(&network, &["TBCCL_SECURITY=encrypt"]);
    running.carries(0);
    set_link(&network, 0, 0, "down");
    let before = network.switched_bytes();
    eventually("the switch carries data", || network.switched_bytes() > before + (1 << 20));
    set_link(&network, 0, 0, "up");
    running.carries(0);
    let (longest, stderr) = running.stop();
    assert!(longest < Duration::from_secs(4), "{longest:?}\n{stderr}");
    assert!(stderr.contains("its data takes the network that the ranks met on"), "{stderr}");
}

#[test]
fn connections_that_are_reset_again_and_again_lose_nothing() {
    let network = network_or_return!(2, &DOUBLED, CableAddresses::LinkLocal);
    for variables in [&["TBCCL_TCP_SOCKETS=3"][..], &["TBCCL_SECURITY=encrypt"]] {
        let running = Running::start(&network, variables);
        let mut state = 77u64;
        for round in 0..25 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(Duration::from_millis(20 + (state >> 40) % 100));
            let cable = (state >> 32) % 2 + 1;
            let peer = format!("[fe80::{cable:x}:{}]", 2 - round % 2);
            on_host(&network, round % 2, "ss", &["-K", "-t", "dst", &peer]);
        }
        let (longest, stderr) = running.stop();
        assert!(longest < Duration::from_secs(4), "{longest:?}\n{stderr}");
        eprintln!("longest call {longest:?}");
        std::fs::remove_file(network.path("stop")).expect("our file");
    }
}

/// Nobody is told of a cable that loses everything: it is detected by the missing answers.
#[test]
fn a_job_leaves_a_cable_that_is_silent() {
    let network = network_or_return!(2, &DOUBLED, CableAddresses::Networks);
    let running = Running::start(&network, &["TBCCL_LAN=never"]);
    running.carries(0);
    // A queue that lets next to nothing through.
    let silence = ["rate", "8bit", "burst", "1", "limit", "1"];
    for host in [0, 1] {
        let queue = ["qdisc", "replace", "dev", "thunderbolt0", "root", "tbf"];
        on_host(&network, host, "tc", &[&queue[..], &silence].concat());
    }
    running.carries(1);
    std::thread::sleep(Duration::from_secs(3));
    for host in [0, 1] {
        on_host(&network, host, "tc", &["qdisc", "del", "dev", "thunderbolt0", "root"]);
    }
    running.carries(0);
    let (longest, stderr) = running.stop();
    assert!(longest < Duration::from_secs(10), "{longest:?}\n{stderr}");
    assert!(stderr.contains("no answer for"), "{stderr}");
    eprintln!("longest call {longest:?}");
}

#[test]
fn a_job_that_loses_all_paths_ends_with_an_error_that_names_the_peer() {
    let network = network_or_return!(2, &DOUBLED, CableAddresses::Networks);
    let mut running = Running::start(&network, &["TBCCL_LAN=never", "TBCCL_SILENCE=2"]);
    for cable in [0, 1] {
        set_link(&network, 0, cable, "down");
    }
    eventually("the job ends", || running.job.has_ended());
    let done = running.job.finish();
    let errors = done.all("error");
    assert!(done.code() != 0 && !errors.is_empty(), "{:?}\n{}", done.messages, done.stderr);
    let says = "no path to its host has worked for 2.0 s";
    assert!(errors.iter().any(|error| error.rest.contains(says)), "{errors:?}");
}

/// Cables of unequal rates get parts of messages in proportion.
#[test]
fn a_slower_cable_gets_a_smaller_share() {
    let network = network_or_return!(2, &DOUBLED, CableAddresses::Networks);
    for host in [0, 1] {
        for (cable, rate) in [(0, "600mbit"), (1, "200mbit")] {
            let interface = format!("thunderbolt{cable}");
            let queue = ["qdisc", "add", "dev", &interface, "root", "tbf", "rate", rate];
            on_host(&network, host, "tc", &[&queue[..], &["burst", "128kb", "latency", "20ms"]].concat());
        }
    }
    let args = ["--hosts", "h0,h1", "-x", "TBCCL_TRANSPORT=tcp", "-x", "TBCCL_LAN=never", "--"];
    let bench = [crate::TBCCL, "bench", "all_reduce", "-b", "16M", "-e", "16M", "-n", "10", "-w", "2"];
    let done = job(&network, &[&args[..], &bench].concat()).finish();
    assert_eq!(done.code(), 0, "{}", done.stderr);
    let bytes = network.cable_bytes(0);
    let share = bytes[0] as f64 / (bytes[0] + bytes[1]) as f64;
    eprintln!("share of the faster cable: {share:.3}");
    // The first messages are split in halves.
    assert!((0.65..0.85).contains(&share), "{share:.3} of {bytes:?}");
}
