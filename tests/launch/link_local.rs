//! Jobs of two hosts that have nothing but a cable between them, whose ports nobody has set up: their only
//! addresses are link-local.

use crate::{
    TBCCL,
    network::{CableAddresses, Network, network_or_return},
    pulled_cables::say,
};
use std::process::Command;
use support::{Finished, Process, rank_arguments_of};
use tbccl::{Communicator, Config, ReduceOp};

/// Plays the role of this process, if it has one; not a test.
#[test]
fn play() {
    if std::env::var("LINK_LOCAL_PLAY").is_err() {
        return;
    }
    let mut world = Communicator::from_env().expect("a communicator");
    sum(&mut world);
    let config = Config::from_env().expect("options");
    let rank = world.rank().0;
    let mut group = world.split(Some(0), rank as i32, &config).expect("a group").expect("a color");
    sum(&mut group);
    say(&format!("@done {rank}"));
}

/// Reduces an array of 1.2 MB, and checks every element.
fn sum(comm: &mut Communicator) {
    let (rank, ranks) = (comm.rank().0, comm.size());
    let mut sum = vec![0u32; 300_000];
    comm.all_reduce(&vec![rank + 1; 300_000], &mut sum, ReduceOp::Sum).expect("a sum");
    assert!(sum.iter().all(|element| *element == (1..=ranks).sum::<u32>()), "{:?}", &sum[..4]);
}

/// Takes the hosts from the switch. Returns the ssh command that reaches host 1 over the cable.
fn cable_only(network: &Network) -> String {
    for host in 0..2 {
        let ns = network.namespace(&format!("h{host}"));
        let status = Command::new("ip").args(["-n", &ns, "link", "set", "eth0", "down"]).status();
        assert!(status.expect("ip").success());
    }
    let others = std::fs::read_to_string(network.path("ssh_config")).expect("our file");
    let text = format!("Host h1\n    HostName fe80::1:2%%thunderbolt0\n{others}");
    format!("ssh -F {}", network.write("cable_config", &text))
}

/// Runs a program with a rank on each host, which is reached over the cable only.
fn run(network: &Network, ssh: &str, variables: &[&str], program: &[&str]) -> Finished {
    let mut args = vec!["--ssh", ssh, "--hosts", "h0,h1"];
    variables.iter().for_each(|variable| args.extend(["-x", variable]));
    args.push("--");
    args.extend(program);
    Process::start(network.launcher(&args)).finish()
}

/// Ranks once failed to listen at the address of the way to the rendezvous, which lacked its scope.
#[test]
fn a_cable_with_link_local_addresses_is_all_that_two_hosts_need() {
    let network = network_or_return!(2, &[(0, 1)], CableAddresses::LinkLocal);
    let ssh = cable_only(&network);
    let rank = rank_arguments_of("link_local::play");
    let rank: Vec<&str> = rank.iter().map(String::as_str).collect();
    for transport in ["tcp", "shm+tcp", "shm+auto"] {
        for cables in ["auto", "off"] {
            let variables = [&format!("TBCCL_TRANSPORT={transport}"), &format!("TBCCL_CABLES={cables}")];
            let variables = [&variables.map(String::as_str)[..], &["LINK_LOCAL_PLAY=1"]].concat();
            let done = run(&network, &ssh, &variables, &rank);
            let what = format!("{transport}, {cables}: {}", done.stderr);
            assert!(done.code() == 0 && done.all("done").len() == 2, "{what}");
        }
    }
    let bytes = network.cable_bytes(0);
    assert!(bytes[0] > 6 << 20, "{bytes:?}");
}

#[test]
fn the_address_of_a_rendezvous_needs_no_interface_where_one_leads_there() {
    let network = network_or_return!(2, &[(0, 1)], CableAddresses::LinkLocal);
    cable_only(&network);
    let secret = "5a".repeat(32);
    let ranks = ["0", "1"].map(|rank| {
        let mut command = network.enter(rank.parse().expect("a number"), TBCCL);
        command.args(["bench", "all_reduce", "-b", "4", "-e", "1M", "-f", "512", "-n", "2", "-w", "1"]);
        command.envs([("TBCCL_RANK", rank), ("TBCCL_SIZE", "2"), ("TBCCL_TRANSPORT", "tcp")]);
        command.envs([("TBCCL_ROOT", "[fe80::1:1]:7777"), ("TBCCL_SECRET", &secret)]);
        Process::start(command)
    });
    for rank in ranks {
        let done = rank.finish();
        assert_eq!((done.code(), done.stderr.as_str()), (0, ""));
    }
}
