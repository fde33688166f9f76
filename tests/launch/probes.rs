//! Cables are probed by the first communicator of a process, and not by those that are made from it.

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
use support::{eventually, rank_arguments_of};
use tbccl::{Communicator, Config, ReduceOp};

/// Two cables between two hosts.
const DOUBLED: [(usize, usize); 2] = [(0, 1), (0, 1)];

/// Communicators that a rank makes one after the other.
const GROUPS: usize = 5;

/// A probe of link-local addresses waits at least so long for further hosts.
const PROBE: Duration = Duration::from_millis(200);

/// Plays the role of this process, if it has one; not a test.
#[test]
fn play() {
    let Ok(file) = std::env::var("PROBES_AFTER") else { return };
    let began = Instant::now();
    let mut world = Communicator::from_env().expect("a communicator");
    say("joined", &world, began.elapsed());
    let fastest = (0..GROUPS).map(|_| split(&mut world)).min().expect("some");
    say("split", &world, fastest);
    while !Path::new(&file).exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let again = split(&mut world);
    say("again", &world, again);
}

/// Makes a communicator of all ranks and uses it. Returns the time that making it took.
fn split(world: &mut Communicator) -> Duration {
    world.barrier().expect("all ranks");
    let (rank, ranks) = (world.rank().0, world.size());
    let began = Instant::now();
    let config = Config::from_env().expect("options");
    let mut group = world.split(Some(0), rank as i32, &config).expect("a group").expect("a color");
    let took = began.elapsed();
    let mut sum = vec![0u32; 300_000];
    group.all_reduce(&vec![rank + 1; 300_000], &mut sum, ReduceOp::Sum).expect("a sum");
    assert!(sum.iter().all(|element| *element == (1..=ranks).sum::<u32>()), "{:?}", &sum[..4]);
    took
}

fn say(what: &str, world: &Communicator, took: Duration) {
    let mut out = std::io::stdout();
    let _ = out.write_all(format!("\n@{what} {} {}\n", world.rank(), took.as_micros()).as_bytes());
    let _ = out.flush();
}

fn on_host(network: &Network, host: usize, args: &[&str]) {
    let mut command = Command::new("ip");
    let output = command.args(["-n", &network.namespace(&format!("h{host}"))]).args(args).output();
    let output = output.expect("ip");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Pulls a host's first cable, and puts it back: the port has its address again.
fn replug(network: &Network, host: usize) {
    let port = "thunderbolt0";
    on_host(network, host, &["link", "set", port, "down"]);
    on_host(network, host, &["link", "set", port, "up"]);
    let address = format!("fe80::1:{}/64", host + 1);
    on_host(network, host, &["addr", "add", &address, "dev", port, "nodad"]);
    let is_up = |host: usize| {
        let ns = network.namespace(&format!("h{host}"));
        let output = Command::new("ip").args(["-n", &ns, "-o", "link", "show", port]).output().expect("ip");
        String::from_utf8_lossy(&output.stdout).contains("state UP")
    };
    eventually("the cable is up", || is_up(0) && is_up(1));
}

#[test]
fn groups_of_a_job_are_made_without_a_probe_until_a_cable_is_pulled() {
    let network = network_or_return!(2, &DOUBLED, CableAddresses::LinkLocal);
    let after = network.path("after").to_str().expect("text").to_owned();
    let variable = format!("PROBES_AFTER={after}");
    let rank = rank_arguments_of("probes::play");
    let mut args = vec!["--hosts", "h0,h1", "-x", "TBCCL_TRANSPORT=tcp", "-x", &variable, "--"];
    args.extend(rank.iter().map(String::as_str));
    let mut job = job(&network, &args);
    let split = job.wait_for("split", 2);
    replug(&network, 0);
    network.write("after", "");
    let done = job.finish();
    assert_eq!(done.code(), 0, "{:?}\n{}", done.messages, done.stderr);
    let micros = |text: &str| text.split(' ').next_back().and_then(|word| word.parse().ok());
    let times = |lines: Vec<&str>| -> Vec<Duration> {
        lines.into_iter().filter_map(micros).map(Duration::from_micros).collect()
    };
    let of = |what: &str| times(done.all(what).iter().map(|line| line.rest.as_str()).collect());
    let (joined, split, again) =
        (of("joined"), times(split.iter().map(String::as_str).collect()), of("again"));
    eprintln!("joined {joined:?}, fastest split {split:?}, after a cable was pulled {again:?}");
    assert!(joined.len() == 2 && joined.iter().all(|took| *took >= PROBE), "{joined:?}");
    assert!(split.len() == 2 && split.iter().all(|took| *took < PROBE / 2), "{split:?}");
    assert!(again.len() == 2 && again.iter().all(|took| *took >= PROBE), "{again:?}");
    assert!(network.switched_bytes() < 4 << 20);
}
