//! Two hosts with two cables, which are pulled, put back, slowed down, silenced and reset while messages are
//! exchanged: every message arrives once, whole and in order.

use crate::{hosts::Hosts, net::*};
use rustix::net::sockopt;
use std::{
    net::{TcpListener, TcpStream},
    sync::{
        Barrier, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, TransportError,
    driver::{
        Endpoint, RailInfo,
        tcp::{Bind, CableSelection, Lan, Resume, Security, TcpConfig, TcpEndpoint, WarningHandler},
        unanswered_for,
    },
    memory::Span,
};

/// Bytes of the messages of a round, short and long ones.
const LENS: [usize; 7] = [1, 1000, 30_000, 65_536, 70_000, 900_000, 5_000_000];

/// Options of a test's endpoints.
pub(crate) fn with(security: Security, lan: Lan) -> TcpConfig {
    TcpConfig { cables: CableSelection::Auto, security, lan, ..config() }
}

/// Results of a rank: the longest time of an exchange, and the warnings and rails of its endpoint.
#[derive(Debug)]
pub(crate) struct Report {
    longest: Duration,
    warnings: Vec<String>,
    error: Option<TransportError>,
    rails: Vec<RailInfo>,
}

/// Stops the exchange when dropped, also if an assertion fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Opens both endpoints, and exchanges messages between them until `act` has returned.
pub(crate) fn exchange_while(hosts: &Hosts, config: &TcpConfig, act: impl FnOnce(&Hosts)) -> [Report; 2] {
    let (messages, barrier) = (Mutex::new(vec![Vec::new(); 2]), Barrier::new(2));
    let (stop, is_running) = (AtomicBool::new(false), AtomicBool::new(false));
    let rank = |rank: usize| {
        hosts.enter(rank);
        let log = Log::default();
        let (bind, said) = (Bind::Address([10, 88, 0, rank as u8 + 1].into()), Log::clone(&log));
        let on_warning = WarningHandler::new(move |what| said.lock().expect("no panics").push(what.into()));
        let config = TcpConfig { bind, ..config.clone() };
        let mut end = TcpEndpoint::open(&config, rank as u32, on_warning).expect("an endpoint");
        let mut received = Vec::new();
        while let Some(message) = end.exchange(&received).expect("a message") {
            messages.lock().expect("no panics")[rank] = message;
            barrier.wait();
            received = messages.lock().expect("no panics").clone();
            barrier.wait();
        }
        let mut links = [0, 1].map(|lane| end.link(1 - rank as u32, lane));
        let mut report =
            Report { longest: Duration::ZERO, warnings: Vec::new(), error: None, rails: Vec::new() };
        let mut round = 0;
        let error = loop {
            let began = Instant::now();
            let is_last = round > 0 && stop.load(Relaxed);
            match exchange_round(&mut links, rank, round, is_last) {
                Ok(true) => break None,
                Ok(false) => round += 1,
                Err(error) => break Some(error),
            }
            is_running.store(true, Relaxed);
            report.longest = report.longest.max(began.elapsed());
        };
        if error.is_none() {
            end.close(PATIENCE);
        }
        report.error = error;
        report.rails = end.rails(1 - rank as u32);
        report.warnings.append(&mut log.lock().expect("no panics"));
        report
    };
    let rank = &rank;
    thread::scope(|scope| {
        let ranks = [0, 1].map(|number| scope.spawn(move || rank(number)));
        until("the exchange has begun", || is_running.load(Relaxed));
        {
            let _stop = StopAtEnd(&stop);
            act(hosts);
        }
        ranks.map(|thread| thread.join().expect("no panics"))
    })
}

/// Exchanges messages of all lengths, on both lanes in turn. Returns whether rank 0 has said that this round
/// is the last one.
fn exchange_round(
    links: &mut [Box<dyn Link>; 2],
    rank: usize,
    round: u64,
    is_last: bool,
) -> Result<bool, TransportError> {
    let mut is_over = false;
    for (number, len) in LENS.into_iter().enumerate() {
        let digest = round * 100 + number as u64;
        let ours = message(rank, digest, len, is_last);
        let link = &mut *links[(round as usize + number) % 2];
        let theirs = exchange(link, digest, &ours)?;
        // The first byte of rank 0's first message tells.
        let verdict = [&ours, &theirs][rank][0] & 1 == 1;
        is_over |= number == 0 && verdict;
        let expected = message(1 - rank, digest, len, theirs[0] & 1 == 1);
        assert!(theirs == expected, "rank {rank}: message {number} of round {round} has other bytes");
    }
    Ok(is_over)
}

fn message(rank: usize, digest: u64, len: usize, is_last: bool) -> Vec<u8> {
    let mut bytes = noise(len, digest * 2 + rank as u64 + 1);
    bytes[0] = bytes[0] & !1 | u8::from(is_last);
    bytes
}

/// Sends and receives a message at the same time.
fn exchange(link: &mut dyn Link, digest: u64, ours: &[u8]) -> Result<Vec<u8>, TransportError> {
    let mut theirs = vec![0; ours.len()];
    let (mut send, mut recv) = (SendState::new(digest, Protocol::Copy), RecvState::new(digest, ours.len()));
    let (mut sent, mut received) = (false, false);
    let began = Instant::now();
    while !(sent && received) {
        assert!(began.elapsed() < PATIENCE, "stuck with {} bytes: {sent} {received}", ours.len());
        sent = sent || link.poll_send(&mut send, Span::from(ours))? == SendProgress::Complete;
        received =
            received || link.poll_recv(&mut recv, &mut CopySink(&mut theirs))? == RecvProgress::Complete;
        thread::yield_now();
    }
    Ok(theirs)
}

/// Waits until a cable carries data.
pub(crate) fn carries(hosts: &Hosts, cable: usize) {
    let bytes = || hosts.received_bytes(0, &format!("cable{cable}"));
    let before = bytes();
    until("the cable carries no data", || bytes() > before + (1 << 20));
}

fn set(hosts: &Hosts, at: usize, cable: usize, state: &str) {
    hosts.ip(at, &["link", "set", &format!("cable{cable}"), state]);
}

/// Asserts that both ranks were right, and that no exchange took longer than `limit`.
pub(crate) fn expect_right(reports: &[Report; 2], limit: Duration) {
    for report in reports {
        assert!(report.error.is_none() && report.longest < limit, "{report:?}");
    }
    eprintln!("longest rounds: {:?} and {:?}", reports[0].longest, reports[1].longest);
}

macro_rules! hosts_or_return {
    ($cables:expr) => {
        match Hosts::with_cables($cables) {
            Some(hosts) => hosts,
            None => {
                support::missing("network namespaces, and `ip`");
                return;
            }
        }
    };
}
pub(crate) use hosts_or_return;

#[test]
fn either_of_two_cables_may_be_pulled_and_put_back() {
    let hosts = hosts_or_return!(2);
    for security in [Security::Authenticate, Security::Encrypt] {
        let reports = exchange_while(&hosts, &with(security, Lan::Never), |hosts| {
            for (cable, at) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
                carries(hosts, cable);
                set(hosts, at, cable, "down");
                carries(hosts, 1 - cable);
                thread::sleep(Duration::from_millis(300));
                set(hosts, at, cable, "up");
                carries(hosts, cable);
            }
        });
        expect_right(&reports, Duration::from_secs(5));
        for report in &reports {
            for says in ["does not work", "works again"] {
                assert!(report.warnings.iter().any(|warning| warning.contains(says)), "{report:?}");
            }
        }
    }
}

#[test]
fn the_bytes_of_each_cable_are_counted_at_both_ends() {
    let hosts = hosts_or_return!(2);
    for security in [Security::Authenticate, Security::Encrypt] {
        let before = [0, 1].map(|cable| hosts.received_bytes(0, &format!("cable{cable}")));
        let reports = exchange_while(&hosts, &with(security, Lan::Never), |hosts| {
            for cable in [0, 1, 0, 1] {
                carries(hosts, cable);
            }
        });
        expect_right(&reports, Duration::from_secs(5));
        for (cable, before) in before.into_iter().enumerate() {
            let name = format!("cable{cable}");
            let bytes = |report: &Report| {
                let rail = report.rails.iter().find(|rail| rail.ours == name).expect("a rail per cable");
                (rail.sent_bytes.expect("counted"), rail.received_bytes.expect("counted"))
            };
            let [(_, received), (sent, _)] = [0, 1].map(|rank| bytes(&reports[rank]));
            // The interface also counts headers of packets, probes and handshakes.
            let on_cable = hosts.received_bytes(0, &name) - before;
            assert!(
                received <= sent && sent - received < 1 << 16,
                "{name}: {sent} sent, {received} received"
            );
            assert!(
                received < on_cable && received as f64 > 0.9 * on_cable as f64,
                "{received} of {on_cable}"
            );
        }
    }
}

#[test]
fn connections_may_be_reset_at_any_time() {
    let hosts = hosts_or_return!(2);
    let mut state = 77u64;
    for (sockets, security) in [(Some(3), Security::Authenticate), (None, Security::Encrypt)] {
        let config = TcpConfig { sockets, ..with(security, Lan::Never) };
        let reports = exchange_while(&hosts, &config, |hosts| {
            for round in 0..40 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                thread::sleep(Duration::from_millis(5 + (state >> 40) % 80));
                let (at, cable) = (round % 2, (state >> 33) % 2);
                hosts.run(at, "ss", &["-K", "-t", "dst", &format!("10.88.{cable}.{}", 2 - at)]);
            }
        });
        expect_right(&reports, Duration::from_secs(5));
    }
}

/// Nobody is told of a cable that loses everything: the missing answers tell.
#[test]
fn a_cable_that_is_silent_is_left_and_taken_again() {
    let hosts = hosts_or_return!(2);
    let reports = exchange_while(&hosts, &with(Security::Authenticate, Lan::Never), |hosts| {
        carries(hosts, 0);
        for at in [0, 1] {
            hosts.run(at, "tc", &silence("cable0"));
        }
        thread::sleep(Duration::from_secs(2));
        carries(hosts, 1);
        for at in [0, 1] {
            hosts.run(at, "tc", &["qdisc", "del", "dev", "cable0", "root"]);
        }
        carries(hosts, 0);
    });
    expect_right(&reports, Duration::from_secs(8));
    let says = |report: &Report| report.warnings.iter().any(|warning| warning.contains("no answer for"));
    assert!(reports.iter().any(says), "{reports:?}");
}

#[test]
fn a_peer_that_no_path_leads_to_is_an_error_that_names_it() {
    let hosts = hosts_or_return!(2);
    let config =
        TcpConfig { peer_timeout: Duration::from_secs(2), ..with(Security::Authenticate, Lan::Never) };
    let began = Instant::now();
    let reports = exchange_while(&hosts, &config, |hosts| {
        set(hosts, 0, 0, "down");
        set(hosts, 1, 1, "down");
    });
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    for (rank, report) in (0u32..).zip(&reports) {
        let error = report.error.as_ref().expect("no path is left");
        assert!(matches!(error, TransportError::Lost { peer, .. } if *peer == 1 - rank), "{error}");
        let says = [
            format!("the connection to rank {} is lost: no path to its host has worked for 2.0 s", 1 - rank),
            format!("cable cable{rank} to 10.88.{rank}.{}", 2 - rank),
            "the interface is down".to_owned(),
            "check the cables and the host".to_owned(),
        ];
        assert!(says.iter().all(|says| error.to_string().contains(says)), "{error}");
    }
}

/// Both ends name the cable that is silent, and the remedy.
#[test]
fn a_peer_that_all_paths_to_are_silent_is_an_error_that_names_them() {
    let hosts = hosts_or_return!(2);
    let config =
        TcpConfig { peer_timeout: Duration::from_secs(3), ..with(Security::Authenticate, Lan::Never) };
    let began = Instant::now();
    let reports = exchange_while(&hosts, &config, |hosts| {
        for (at, cable) in [(0, "cable0"), (0, "cable1"), (1, "cable0"), (1, "cable1")] {
            hosts.run(at, "tc", &silence(cable));
        }
    });
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    for (rank, report) in (0u32..).zip(&reports) {
        let error = report.error.as_ref().expect("no path is left").to_string();
        for cable in [0, 1] {
            let says = format!("cable cable{cable} to 10.88.{cable}.{}", 2 - rank);
            assert!(error.contains(&says) && error.contains("no answer"), "{error}");
        }
        assert!(error.contains("check the cables and the host"), "{error}");
    }
}

/// Linux does not count probes that the queue of the host itself drops. A rank that only received, and had
/// nothing unacknowledged, waited without an error.
#[test]
fn an_idle_connection_whose_probes_do_not_leave_the_host_is_overdue() {
    let hosts = hosts_or_return!(1);
    let listens = || {
        hosts.enter(1);
        TcpListener::bind("10.88.0.2:0").expect("a port")
    };
    let listener = thread::scope(|scope| scope.spawn(listens).join().expect("no panics"));
    let address = listener.local_addr().expect("bound");
    let connects = || {
        hosts.enter(0);
        TcpStream::connect_timeout(&address, PATIENCE).expect("it listens")
    };
    let ours = thread::scope(|scope| scope.spawn(connects).join().expect("no panics"));
    let theirs = listener.accept().expect("ours").0;
    sockopt::set_socket_keepalive(&ours, true).expect("set");
    sockopt::set_tcp_keepidle(&ours, Duration::from_secs(1)).expect("set");
    sockopt::set_tcp_keepintvl(&ours, Duration::from_secs(1)).expect("set");
    thread::sleep(Duration::from_millis(3200));
    assert_eq!(unanswered_for(&ours), None, "the peer has answered the probes");
    hosts.run(0, "tc", &silence("cable0"));
    until("the answer is overdue", || unanswered_for(&ours).is_some());
    drop(theirs);
}

/// Returns the arguments for a queue that lets next to nothing through.
pub(crate) fn silence(cable: &str) -> [&str; 12] {
    ["qdisc", "replace", "dev", cable, "root", "tbf", "rate", "8bit", "burst", "1", "limit", "1"]
}

#[test]
fn a_single_cable_may_be_out_for_less_than_the_peer_timeout() {
    let hosts = hosts_or_return!(1);
    let config = TcpConfig { resume: Resume::Always, ..with(Security::Authenticate, Lan::Never) };
    let reports = exchange_while(&hosts, &config, |hosts| {
        carries(hosts, 0);
        hosts.run(0, "ss", &["-K", "-t", "dst", "10.88.0.2"]);
        carries(hosts, 0);
        set(hosts, 0, 0, "down");
        thread::sleep(Duration::from_secs(3));
        set(hosts, 0, 0, "up");
        carries(hosts, 0);
    });
    expect_right(&reports, Duration::from_secs(8));
}

#[test]
fn a_slower_cable_gets_a_smaller_share() {
    let hosts = hosts_or_return!(2);
    for (cable, rate) in [("cable0", "400mbit"), ("cable1", "100mbit")] {
        for at in [0, 1] {
            let queue = ["qdisc", "add", "dev", cable, "root", "tbf", "rate", rate];
            hosts.run(at, "tc", &[&queue[..], &["burst", "64kb", "latency", "20ms"]].concat());
        }
    }
    let mut share = 0.0;
    let reports = exchange_while(&hosts, &with(Security::Authenticate, Lan::Never), |hosts| {
        let bytes = || [0, 1].map(|cable| hosts.received_bytes(0, &format!("cable{cable}")) as f64);
        let sum = |bytes: [f64; 2]| bytes[0] + bytes[1];
        // The first messages are split evenly, and shares are adjusted step by step.
        let first = bytes();
        until("no data", || sum(bytes()) > sum(first) + 100e6);
        let before = bytes();
        until("no data", || sum(bytes()) > sum(before) + 60e6);
        let after = bytes();
        share = (after[0] - before[0]) / (sum(after) - sum(before));
    });
    expect_right(&reports, Duration::from_secs(10));
    eprintln!("share of the faster cable: {share:.3}");
    // Without measured shares it would be 0.5.
    assert!((share - 0.8).abs() < 0.12, "{share:.3}");
}
