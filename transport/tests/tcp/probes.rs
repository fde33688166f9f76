//! Cables are probed once per process: later endpoints of the same hosts use the result, until a path fails
//! or works again.

use crate::{
    failover::{carries, exchange_while, expect_right, hosts_or_return, silence, with},
    hosts::Hosts,
    net::*,
};
use std::{
    sync::{Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};
use transport::driver::{
    Endpoint,
    tcp::{Bind, Lan, Security, TcpConfig, TcpEndpoint, WarningHandler},
};

/// Messages of an endpoint in set-up: its information, the report of its probe, and the end.
const WITH_PROBE: usize = 3;
const WITHOUT_PROBE: usize = 2;

/// Opens and closes an endpoint on each host. Returns the number of messages that both have exchanged, and
/// the interfaces of rank 0's paths to rank 1.
fn open(hosts: &Hosts, config: &TcpConfig) -> (usize, Vec<String>) {
    let (messages, barrier) = (Mutex::new(vec![Vec::new(); 2]), Barrier::new(2));
    let rank = |rank: usize| {
        hosts.enter(rank);
        let bind = Bind::Address([10, 88, 0, rank as u8 + 1].into());
        let config = TcpConfig { bind, ..config.clone() };
        let ignored = WarningHandler::new(|_| ());
        let mut end = TcpEndpoint::open(&config, rank as u32, ignored).expect("an endpoint");
        let (mut received, mut rounds) = (Vec::new(), 0);
        while let Some(message) = end.exchange(&received).expect("a message") {
            messages.lock().expect("no panics")[rank] = message;
            barrier.wait();
            received = messages.lock().expect("no panics").clone();
            barrier.wait();
            rounds += 1;
        }
        let rails = end.rails(1 - rank as u32).into_iter().map(|rail| rail.ours).collect();
        barrier.wait();
        end.close(PATIENCE);
        (rounds, rails)
    };
    let rank = &rank;
    let began = Instant::now();
    let [first, second]: [(usize, Vec<String>); 2] = thread::scope(|scope| {
        [0, 1].map(|number| scope.spawn(move || rank(number))).map(|thread| thread.join().expect("no panics"))
    });
    assert_eq!(first.0, second.0, "both probe, or none does");
    eprintln!("{} messages in {:?}", first.0, began.elapsed());
    first
}

#[test]
fn a_second_endpoint_takes_the_cables_that_the_first_has_found() {
    let hosts = hosts_or_return!(2);
    let config = with(Security::Authenticate, Lan::Never);
    let both = ["cable0", "cable1"].map(str::to_owned).to_vec();
    assert_eq!(open(&hosts, &config), (WITH_PROBE, both.clone()));
    assert_eq!(open(&hosts, &config), (WITHOUT_PROBE, both.clone()));
    // Another address of a cable may mean another cable.
    hosts.ip(0, &["address", "add", "10.99.0.1/24", "dev", "cable1"]);
    assert_eq!(open(&hosts, &config), (WITH_PROBE, both.clone()));
    assert_eq!(open(&hosts, &config), (WITHOUT_PROBE, both));
}

#[test]
fn a_path_that_has_failed_is_not_taken_from_earlier_probes_and_one_that_works_again_is_found() {
    let hosts = hosts_or_return!(2);
    let config = with(Security::Authenticate, Lan::Never);
    let both = ["cable0", "cable1"].map(str::to_owned).to_vec();
    let reports = exchange_while(&hosts, &config, |hosts| {
        carries(hosts, 0);
        assert_eq!(open(hosts, &config), (WITHOUT_PROBE, both.clone()));
        for at in [0, 1] {
            hosts.run(at, "tc", &silence("cable0"));
        }
        until("the silent cable is no path", || open(hosts, &config).1 == both[1..]);
        assert_eq!(open(hosts, &config), (WITHOUT_PROBE, both[1..].to_vec()));
        for at in [0, 1] {
            hosts.run(at, "tc", &["qdisc", "del", "dev", "cable0", "root"]);
        }
        until("the cable is a path again", || open(hosts, &config).1 == both);
        assert_eq!(open(hosts, &config), (WITHOUT_PROBE, both.clone()));
    });
    expect_right(&reports, Duration::from_secs(8));
}
