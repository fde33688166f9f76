//! TCP over cables: hosts with a cable for each pair, rings, chains and doubled cables, beside a switch that
//! all hosts are at.

use crate::{
    TBCCL,
    hosts::job,
    network::{CableAddresses, Network, address, cable_address, network_or_return},
    pulled_cables::say,
};
use std::{collections::HashSet, net::Ipv4Addr, ops::RangeInclusive};
use support::rank_arguments_of;
use tbccl::{Communicator, DType, Numerics, ReduceOp};
use tbccl_cli::reference::{Call, Case, Kind, Way, exchange_of};

/// Operations that the tests run, with the bytes of their largest call.
const OPERATIONS: [&str; 3] = ["all_reduce", "all_to_all", "send_recv"];
const LARGEST: &str = "4M";

/// Addresses at the switch.
const SWITCHED: RangeInclusive<Ipv4Addr> = Ipv4Addr::new(10, 77, 0, 0)..=Ipv4Addr::new(10, 77, 255, 255);

/// Cables between each two of four hosts.
const MESH: [(usize, usize); 6] = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
/// Cables in a ring of five hosts.
const RING: [(usize, usize); 5] = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)];
/// Cables in a ring of five hosts, in another order than their numbers.
const TURNED_RING: [(usize, usize); 5] = [(0, 2), (2, 4), (4, 1), (1, 3), (3, 0)];
/// Cables in a chain of three hosts.
const CHAIN: [(usize, usize); 2] = [(0, 1), (1, 2)];
/// Cables in a ring of three hosts.
const TRIANGLE: [(usize, usize); 3] = [(0, 1), (1, 2), (2, 0)];
/// Two cables between two hosts.
const DOUBLED: [(usize, usize); 2] = [(0, 1), (0, 1)];

/// Returns the list of the first hosts.
fn names(hosts: usize) -> String {
    (0..hosts).map(|host| format!("h{host}")).collect::<Vec<_>>().join(",")
}

/// Runs operations over TCP on all hosts, and checks that they are right. Returns what was written to stderr.
fn run_all(network: &Network, hosts: usize, variables: &[&str]) -> String {
    let hosts = names(hosts);
    let mut written = String::new();
    for operation in OPERATIONS {
        let mut args = vec!["--hosts", &hosts, "-x", "TBCCL_TRANSPORT=tcp"];
        variables.iter().for_each(|variable| args.extend(["-x", variable]));
        args.extend([
            "--", TBCCL, "bench", operation, "-b", "4", "-e", LARGEST, "-f", "1024", "-n", "2", "-w", "1",
        ]);
        let done = job(network, &args).finish();
        assert_eq!(done.code(), 0, "{operation}: {}", done.stderr);
        written += &done.stderr;
    }
    written
}

/// Expects that the bytes of all operations went over cables, and next to none over the switch.
fn expect_cables_only(network: &Network, hosts: usize) {
    let over_cables: u64 = (0..hosts).flat_map(|host| network.cable_bytes(host)).sum();
    let over_switch = network.switched_bytes();
    // ssh and the rendezvous use the switch.
    assert!(over_cables > 50 << 20 && over_switch < over_cables / 20, "{over_cables} and {over_switch}");
}

#[test]
fn all_bytes_of_a_mesh_go_over_its_cables() {
    let network = network_or_return!(4, &MESH, CableAddresses::Networks);
    assert_eq!(run_all(&network, 4, &[]), "");
    expect_cables_only(&network, 4);
}

#[test]
fn all_bytes_of_a_ring_go_along_its_cables() {
    let network = network_or_return!(5, &RING, CableAddresses::Networks);
    assert_eq!(run_all(&network, 5, &[]), "");
    expect_cables_only(&network, 5);
}

#[test]
fn ports_that_nobody_has_set_up_are_told_apart_and_used() {
    let network = network_or_return!(3, &TRIANGLE, CableAddresses::LinkLocal);
    assert_eq!(run_all(&network, 3, &[]), "");
    expect_cables_only(&network, 3);
}

#[test]
fn both_of_two_cables_are_used() {
    let network = network_or_return!(2, &DOUBLED, CableAddresses::Networks);
    assert_eq!(run_all(&network, 2, &[]), "");
    expect_cables_only(&network, 2);
    let bytes = network.cable_bytes(0);
    assert!(bytes.iter().all(|one| *one > bytes.iter().sum::<u64>() / 3), "{bytes:?}");
}

#[test]
fn the_ends_of_a_chain_reach_each_other_over_the_switch_where_it_is_preferred_which_is_said() {
    let network = network_or_return!(3, &CHAIN, CableAddresses::Networks);
    let written = run_all(&network, 3, &["TBCCL_LAN=always"]);
    let line = "rank 0: no cable leads to rank 2; data for it goes over the network that the ranks met on";
    assert!(written.contains(line) && !written.contains("rank 1: "), "{written}");
    assert!(network.cable_bytes(0)[0] > 4 << 20 && network.switched_bytes() > 4 << 20);
}

/// Plays the role of this process, if it has one: calls of all collectives, every element compared.
#[test]
fn play() {
    let Ok(counts) = std::env::var("CABLES_COUNTS") else { return };
    let mut comm = Communicator::from_env().expect("a communicator");
    let mut cases = 0;
    for numerics in [Numerics::Fast, Numerics::Reproducible] {
        comm.set_numerics(numerics);
        for count in counts.split(',').map(|count| count.parse().expect("a number")) {
            cases += run_collectives(&mut comm, count).expect("all ranks take part");
        }
    }
    let connections = connections_over_switch();
    assert!(connections.len() <= 1, "rank {} has connections over the switch: {connections:#?}", comm.rank());
    say(&format!("@done {} {cases}", comm.rank()));
}

/// Runs all collectives, the vector forms too, in place and out of place. Returns the number of calls.
fn run_collectives(comm: &mut Communicator, count: usize) -> tbccl::Result<u32> {
    let mut cases = 0;
    for call in Call::all().into_iter().filter(|call| *call != Call::Messages) {
        for in_place in call.places().iter().copied() {
            let (dtype, op) = (DType::I32, ReduceOp::Sum);
            let kind = Kind { call, way: Way::Chosen, in_place, dtype, op };
            // Seeds select roots.
            for seed in 0..u64::from(comm.size()) {
                let case = Case { kind, count, seed };
                let mut exchange = exchange_of(case, comm)?;
                exchange.alone(comm)?;
                exchange.check().unwrap_or_else(|why| panic!("{case:?}: {why}"));
                cases += 1;
            }
        }
    }
    comm.barrier()?;
    Ok(cases)
}

/// Returns the TCP connections of this process with other hosts over the switch, as lines of `/proc/net/tcp`.
fn connections_over_switch() -> Vec<String> {
    let sockets: HashSet<String> = std::fs::read_dir("/proc/self/fd")
        .expect("a folder")
        .filter_map(|entry| {
            let target = std::fs::read_link(entry.ok()?.path()).ok()?;
            Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("a table");
    let is_over_switch = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, local, remote, state, ..] = words[..] else { return false };
        let host = |end: &str| u32::from_str_radix(&end[..8], 16).map(|ip| Ipv4Addr::from(ip.to_ne_bytes()));
        let [Ok(local), Ok(remote)] = [local, remote].map(host) else { return false };
        let is_established = state == "01";
        is_established
            && SWITCHED.contains(&local)
            && local != remote
            && words.get(9).is_some_and(|inode| sockets.contains(*inode))
    };
    table.lines().skip(1).filter(is_over_switch).map(str::to_owned).collect()
}

/// Runs all collectives on all hosts over cables. Expects that no rank has a connection over the switch but
/// that with the rendezvous, and that the switch carries next to nothing.
///
/// The limit for the switch follows the bytes on cables: traffic of the rendezvous grows with the time that
/// ranks wait for each other, and exceeded a limit of 1 MiB on a busy machine.
fn expect_all_along_cables(network: &Network, hosts: usize, options: &[&str]) {
    let rank = rank_arguments_of("cables::play");
    let (names, ranks) = (names(hosts), hosts * if options.contains(&"--per-host") { 2 } else { 1 });
    let run = |counts: &str| {
        let counts = format!("CABLES_COUNTS={counts}");
        let mut args = vec!["--hosts", &names, "-x", "TBCCL_TRANSPORT=tcp", "-x", &counts];
        args.extend(options);
        args.push("--");
        args.extend(rank.iter().map(String::as_str));
        let before = network.switched_bytes();
        let done = job(network, &args).finish();
        assert!(done.code() == 0 && done.all("done").len() == ranks, "{:?}\n{}", done.messages, done.stderr);
        assert_eq!(done.stderr, "");
        network.switched_bytes() - before
    };
    let short = run("1");
    let cables = |network: &Network| (0..hosts).flat_map(|host| network.cable_bytes(host)).sum::<u64>();
    let before = cables(network);
    let long = run("30000");
    let over_cables = cables(network) - before;
    let is_little = long < short + over_cables / 25;
    assert!(over_cables > 50 << 20 && is_little, "{over_cables}, {long} and {short}");
}

#[test]
fn all_collectives_of_a_chain_go_along_its_cables() {
    let network = network_or_return!(3, &CHAIN, CableAddresses::Networks);
    expect_all_along_cables(&network, 3, &[]);
}

#[test]
fn all_collectives_of_a_ring_go_along_its_cables() {
    let network = network_or_return!(5, &RING, CableAddresses::Networks);
    expect_all_along_cables(&network, 5, &[]);
}

/// Once such a ring was used as a tree of cables, of which one was idle.
#[test]
fn all_collectives_of_a_ring_whose_cables_are_not_in_the_order_of_ranks_use_all_of_its_cables() {
    let network = network_or_return!(5, &TURNED_RING, CableAddresses::Networks);
    expect_all_along_cables(&network, 5, &[]);
    let before: Vec<Vec<u64>> = (0..5).map(|host| network.cable_bytes(host)).collect();
    let options = ["--hosts", &names(5), "-x", "TBCCL_TRANSPORT=tcp"];
    let program = ["--", TBCCL, "bench", "all_reduce", "-b", LARGEST, "-e", LARGEST, "-n", "2", "-w", "1"];
    let done = job(&network, &[&options[..], &program].concat()).finish();
    assert_eq!((done.code(), done.stderr.as_str()), (0, ""));
    for (host, before) in before.iter().enumerate() {
        let after = network.cable_bytes(host);
        let carried: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        assert!(carried.len() == 2 && carried.iter().all(|bytes| *bytes > 4 << 20), "{host}: {carried:?}");
    }
}

/// The chain of the other cables begins at the second host, and not at the first.
#[test]
fn a_ring_without_one_of_its_cables_is_a_chain() {
    let network = network_or_return!(4, &[(1, 2), (2, 3), (3, 0)], CableAddresses::Networks);
    expect_all_along_cables(&network, 4, &["-x", "TBCCL_LAN=never"]);
}

#[test]
fn several_ranks_of_each_host_share_the_cables_of_a_chain() {
    let network = network_or_return!(3, &[(0, 1), (0, 1), (1, 2)], CableAddresses::Networks);
    expect_all_along_cables(&network, 3, &["--per-host", "2"]);
    let before = network.cable_bytes(0);
    let options = ["--hosts", &names(3), "--per-host", "2", "-x", "TBCCL_TRANSPORT=tcp"];
    let program = ["--", TBCCL, "bench", "all_reduce", "-b", LARGEST, "-e", LARGEST, "-n", "2", "-w", "1"];
    let done = job(&network, &[&options[..], &program].concat()).finish();
    assert_eq!((done.code(), done.stderr.as_str()), (0, ""));
    let bytes = network.cable_bytes(0);
    assert!(
        bytes.iter().zip(&before).all(|(after, before)| after - before > 1 << 20),
        "{bytes:?} {before:?}"
    );
}

#[test]
fn hosts_that_cables_leave_apart_are_an_error_where_the_switch_may_not_be_used() {
    let network = network_or_return!(3, &[(0, 1)], CableAddresses::Networks);
    let options = ["-x", "TBCCL_TRANSPORT=tcp", "-x", "TBCCL_LAN=never"];
    let program = ["--", TBCCL, "bench", "barrier"];
    let done = job(&network, &[&["--hosts", &names(3)], &options[..], &program].concat()).finish();
    let says = "no cable leads from rank 0 to rank 2, directly or along other ranks, and TBCCL_LAN is never";
    assert!(done.code() != 0 && done.stderr.contains(says), "{}", done.stderr);
}

/// The address of a hostfile tells where a host is reached. It once counted as an interface that the user had
/// named, so that hostfiles of `tbccl config` left the cables idle.
#[test]
fn cables_are_used_where_a_hostfile_has_addresses() {
    let network = network_or_return!(2, &DOUBLED, CableAddresses::Networks);
    let text = format!(
        "[[host]]\nssh = \"h0\"\naddresses = [\"{}\"]\n[[host]]\nssh = \"h1\"\naddresses = [\"{}\"]\n",
        address(0),
        address(1)
    );
    let file = network.write("hosts.toml", &text);
    let program = ["--", TBCCL, "bench", "all_reduce", "-b", LARGEST, "-e", LARGEST, "-n", "2", "-w", "1"];
    let options = ["--hostfile", &file, "-x", "TBCCL_TRANSPORT=tcp"];
    let done = job(&network, &[&options[..], &program].concat()).finish();
    assert_eq!((done.code(), done.stderr.as_str()), (0, ""));
    expect_cables_only(&network, 2);
    let before: u64 = network.cable_bytes(0).iter().sum();
    let done = job(&network, &[&options[..], &["-x", "TBCCL_CABLES=off"], &program].concat()).finish();
    assert_eq!(done.code(), 0, "{}", done.stderr);
    assert!(network.cable_bytes(0).iter().sum::<u64>() < before + (1 << 20));
}

/// Neither the names of the ports nor their networks tell that they are cables.
#[test]
fn the_further_addresses_of_a_hostfile_are_used_side_by_side() {
    let network = network_or_return!(2, &DOUBLED, CableAddresses::Unmarked);
    let host = |host: usize, further: &[String]| {
        let ips = [&[address(host)], further].concat();
        format!(r#"{{"ssh": "h{host}", "ips": {ips:?}}}"#)
    };
    let run = |further: &dyn Fn(usize) -> Vec<String>| {
        let hosts: Vec<String> = (0..2).map(|at| host(at, &further(at))).collect();
        let file = network.write("hosts.json", &format!("[{}]", hosts.join(",")));
        let program =
            ["--", TBCCL, "bench", "all_reduce", "-b", LARGEST, "-e", LARGEST, "-n", "4", "-w", "1"];
        let done =
            job(&network, &[&["--hostfile", &file, "-x", "TBCCL_TRANSPORT=tcp"], &program[..]].concat());
        let done = done.finish();
        assert_eq!(done.code(), 0, "{}", done.stderr);
        done.stderr
    };
    assert_eq!(run(&|_| Vec::new()), "");
    assert!(network.cable_bytes(0).iter().all(|bytes| *bytes < 1 << 20), "{:?}", network.cable_bytes(0));
    let before = network.switched_bytes();
    assert_eq!(run(&|end| vec![cable_address(0, end), cable_address(1, end)]), "");
    let bytes = network.cable_bytes(0);
    assert!(bytes.iter().all(|one| *one > 4 << 20), "{bytes:?}");
    assert!(network.switched_bytes() - before < 2 << 20, "{}", network.switched_bytes() - before);
    // Rank 1 has an address that its host has not.
    let warned = run(&|end| vec![cable_address(end, end), cable_address(1, 0)]);
    let line = "no interface that is up has the address 10.88.1.1, so no connection uses it; check the";
    assert!(
        warned.contains(&format!("rank 1: {line}")) && !warned.contains(&format!("rank 0: {line}")),
        "{warned}"
    );
}

#[test]
fn cables_are_left_alone_where_the_user_names_an_interface_or_none() {
    let network = network_or_return!(2, &DOUBLED, CableAddresses::Networks);
    assert_eq!(run_all(&network, 2, &["TBCCL_INTERFACE=eth0"]), "");
    assert_eq!(run_all(&network, 2, &["TBCCL_CABLES=off"]), "");
    assert!(network.cable_bytes(0).iter().all(|bytes| *bytes < 1 << 20));
}

/// Schedules leave hosts without a cable between them to those on the way, and a program's messages must not
/// fail for it.
#[test]
fn messages_between_hosts_without_a_cable_arrive_over_the_switch() {
    let network = network_or_return!(5, &RING, CableAddresses::Networks);
    let options =
        ["-x", "TBCCL_TRANSPORT=tcp", "--", TBCCL, "ping", "--size", "64K", "--time", "0.01", "--json"];
    let done = job(&network, &[&["--hosts", &names(5)], &options[..]].concat()).finish();
    assert_eq!(done.code(), 0, "{}", done.stderr);
    let says = |line: &&str| line.contains("the program's messages to it go over the network");
    let said = done.stderr.lines().filter(says).count();
    assert!((1..=5).contains(&said) && said == done.stderr.lines().count(), "{}", done.stderr);
    let lines = done.sorted_lines();
    // Each rank measures with the four others.
    assert!(lines.len() >= 20, "{lines:?}");
}
