//! Ranks on two hosts, which are network namespaces with a cable: strangers on one of them, cables that are
//! cut, and the report of a hang.
//!
//! Where cables are cut data moves over shared memory, so ranks learn of each other only through the
//! rendezvous.

use super::job::{self, secret};
use super::roles::now;
use bootstrap::{Secret, Server, ServerSpec};
use rustix::{
    fd::AsFd,
    process::{Pid, Signal, kill_process},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use support::{Process, as_another_user, missing};

/// The shortest time that a host may be silent.
const SHORT: [(&str, &str); 1] = [("TBCCL_SILENCE", "1.4")];

/// Two hosts with a cable. Dropping it removes them.
struct Hosts([Child; 2]);

fn is_run(program: &str, args: &[&str]) -> bool {
    let done = Command::new(program).args(args).stdin(Stdio::null()).output();
    done.is_ok_and(|done| {
        if !done.status.success() {
            eprintln!("{program} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
        }
        done.status.success()
    })
}

impl Hosts {
    /// Returns `None` if this process may not create namespaces.
    fn new() -> Option<Hosts> {
        if !is_run("unshare", &["--net", "true"]) || !is_run("ip", &["-V"]) {
            return None;
        }
        let host = |_| {
            let mut command = Command::new("unshare");
            command.args(["--net", "sleep", "300"]).stdin(Stdio::null());
            command.spawn().expect("a process")
        };
        let hosts = Hosts([0, 1].map(host));
        let until = Instant::now() + Duration::from_secs(20);
        let ours = std::fs::read_link("/proc/self/ns/net").expect("our own");
        for child in &hosts.0 {
            let theirs = || std::fs::read_link(format!("/proc/{}/ns/net", child.id())).ok();
            while theirs().is_none_or(|theirs| theirs == ours) {
                assert!(Instant::now() < until, "no namespace");
                sleep(Duration::from_millis(5));
            }
        }
        let second = hosts.0[1].id().to_string();
        hosts.ip(0, &["link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", &second]);
        for at in 0..2 {
            hosts.ip(at, &["link", "set", "lo", "up"]);
            hosts.ip(at, &["address", "add", &format!("10.77.0.{}/24", at + 1), "dev", "cable"]);
            hosts.ip(at, &["link", "set", "cable", "up"]);
        }
        Some(hosts)
    }

    fn within(&self, at: usize) -> Vec<String> {
        vec!["-t".into(), self.0[at].id().to_string(), "-n".into(), "--".into()]
    }

    fn ip(&self, at: usize, args: &[&str]) {
        let all =
            [self.within(at), vec!["ip".into()], args.iter().map(|arg| (*arg).to_owned()).collect()].concat();
        assert!(is_run("nsenter", &all.iter().map(String::as_str).collect::<Vec<_>>()), "{args:?}");
    }

    /// Runs `act` in a thread on one of the hosts.
    fn on<T: Send>(&self, at: usize, act: impl FnOnce() -> T + Send) -> T {
        let space = std::fs::File::open(format!("/proc/{}/ns/net", self.0[at].id())).expect("a namespace");
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).expect("we may");
                act()
            });
            inside.join().expect("no panic")
        })
    }

    /// Starts a rank on one of the hosts; rank 0 must be on the first.
    fn rank(&self, at: usize, rank: u32, size: u32, secret: &str, role: &str) -> Process {
        self.rank_with(at, rank, size, secret, role, &[])
    }

    fn rank_with(
        &self,
        at: usize,
        rank: u32,
        size: u32,
        secret: &str,
        role: &str,
        variables: &[(&str, &str)],
    ) -> Process {
        let (rank, size) = (rank.to_string(), size.to_string());
        let env = [
            ("TBCCL_RANK", &*rank),
            ("TBCCL_SIZE", &*size),
            ("TBCCL_ROOT", "10.77.0.1:7777"),
            ("TBCCL_SECRET", secret),
            ("TBCCL_TRANSPORT", "rehearsal"),
        ];
        let plain = job::command(role, &[&env, variables].concat());
        let mut command = Command::new("nsenter");
        command.args(self.within(at)).arg(plain.get_program()).args(plain.get_args());
        command.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
        Process::start(command)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &mut self.0 {
            let _ = host.kill();
            let _ = host.wait();
        }
    }
}

/// Returns the milliseconds from `since` to a rank's error, and the error.
fn error_of(rank: &mut Process, since: u128) -> (u128, String) {
    let error = rank.next_after("@error ");
    let (at, text) = error.split_once(' ').expect("the time first");
    let late = at.parse::<u128>().expect("a time") - since;
    eprintln!("after {late} ms: {text}");
    (late, text.to_owned())
}

#[test]
fn another_user_of_a_host_that_has_taken_the_local_name_of_the_rendezvous_hears_nothing() {
    use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr, unix::net::UnixListener};
    let Some(hosts) = Hosts::new() else { return missing("network namespaces") };
    let secret = Secret::generate().expect("random numbers");
    let spec = ServerSpec::network(2, vec![([10, 77, 0, 1], 7777).into()], secret.clone());
    let server = hosts.on(0, || Server::start(&spec).expect("a port"));
    let name = server.address().strip_prefix("unix-abstract:").expect("an abstract name");
    let listen = || {
        let name = SocketAddr::from_abstract_name(name).expect("a name");
        UnixListener::bind_addr(&name).expect("the name is free on the other host")
    };
    let Some(stranger) = hosts.on(1, || as_another_user(listen)) else { return missing("another user") };
    let addresses = format!("{},tcp://10.77.0.1:7777", server.address());
    let variables = [("TBCCL_BOOTSTRAP", &*addresses), ("TBCCL_TRANSPORT", "tcp")];
    let mut ranks =
        [0, 1].map(|rank| hosts.rank_with(rank as usize, rank, 2, &secret.to_hex(), "sum", &variables));
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.next_after("@sum "), "1"));
    stranger.set_nonblocking(true).expect("a socket");
    assert!(stranger.accept().is_err(), "a rank has connected to it");
}

#[test]
fn a_host_that_vanishes_while_its_rank_computes_is_known_everywhere_within_two_seconds() {
    let Some(hosts) = Hosts::new() else { return missing("network namespaces") };
    let secret = secret();
    let mut waiting = [0, 1].map(|rank| hosts.rank_with(0, rank, 3, &secret, "barrier", &SHORT));
    let computing = hosts.rank_with(1, 2, 3, &secret, "compute", &SHORT);
    computing.next_after("@going");
    // After this time only keep-alive messages travel between the hosts.
    sleep(Duration::from_millis(1300));
    hosts.ip(0, &["link", "set", "cable", "down"]);
    let cut = now();
    for rank in &mut waiting {
        let (late, text) = error_of(rank, cut);
        assert!(late < 2000, "after {late} ms: {text}");
        assert!(text.contains("rank 2 (process ") && text.contains("its host has not answered"), "{text}");
    }
}

#[test]
fn a_host_that_vanishes_is_borne_with_for_as_long_as_was_asked_for() {
    let Some(hosts) = Hosts::new() else { return missing("network namespaces") };
    let secret = secret();
    let mut waiting = hosts.rank_with(0, 0, 2, &secret, "barrier", &[("TBCCL_SILENCE", "4")]);
    let computing = hosts.rank_with(1, 1, 2, &secret, "compute", &[("TBCCL_SILENCE", "4")]);
    computing.next_after("@going");
    sleep(Duration::from_millis(1300));
    hosts.ip(0, &["link", "set", "cable", "down"]);
    let cut = now();
    let (late, text) = error_of(&mut waiting, cut);
    // The last answer arrived up to a second before the cut.
    assert!(late > 2500, "after {late} ms: {text}");
    assert!(text.contains("its host has not answered for 4s"), "{text}");
}

#[test]
fn a_cable_that_is_out_for_five_seconds_costs_no_job() {
    let Some(hosts) = Hosts::new() else { return missing("network namespaces") };
    let secret = secret();
    for transport in ["tcp", "rehearsal"] {
        let variables = [("TBCCL_TRANSPORT", transport), ("TBCCL_ROOT", "10.77.0.1:7778")];
        let mut ranks =
            [0, 1].map(|rank| hosts.rank_with(rank as usize, rank, 2, &secret, "barrier", &variables));
        ranks.iter_mut().for_each(|rank| drop(rank.next_after("@going")));
        hosts.ip(0, &["link", "set", "cable", "down"]);
        sleep(Duration::from_secs(5));
        hosts.ip(0, &["link", "set", "cable", "up"]);
        // The system may repeat what was lost more than a second later.
        sleep(Duration::from_secs(4));
        for rank in &mut ranks {
            (0..8).for_each(|_| drop(rank.next_after("@going")));
        }
        // The death of a process is noticed at once all the same.
        ranks[1].signal(Signal::KILL);
        let killed = now();
        let (late, text) = error_of(&mut ranks[0], killed);
        assert!(late < 2000, "after {late} ms: {text}");
    }
}

/// `tbccl why` runs where rank 0 has the rendezvous. A rank of the other host looks at the stopped process.
#[test]
fn a_rank_that_is_stopped_on_another_host_is_the_knot() {
    let Some(hosts) = Hosts::new() else { return missing("network namespaces") };
    let secret = secret();
    let ranks = [(0, 0), (1, 1), (1, 2)].map(|(host, rank)| {
        hosts.rank_with(host, rank, 3, &secret, "barrier", &[("TBCCL_TRANSPORT", "tcp")])
    });
    ranks.iter().for_each(|rank| drop(rank.next_after("@going")));
    let stopped = Pid::from_raw(ranks[2].id() as i32).expect("a process");
    kill_process(stopped, Signal::STOP).expect("it runs");
    sleep(Duration::from_millis(1500));
    let why = || {
        let began = Instant::now();
        let output = support::tbccl().args(["why", "--wait", "0.5"]).output().expect("it runs");
        (began.elapsed(), output)
    };
    let (took, output) = hosts.on(0, why);
    kill_process(stopped, Signal::CONT).expect("it is stopped");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let expected = format!("rank 2 (process {} on ", ranks[2].id());
    assert!(text.starts_with(&expected) && text.contains(") is stopped (state T; "), "{output:?}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    // Nothing of the job is to be seen on the other host, which has a network of its own.
    let (_, output) = hosts.on(1, why);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no job of this user"), "{output:?}");
}

#[test]
fn rank_0_that_opens_the_rendezvous_listens_for_ranks_of_other_hosts_too() {
    let Some(hosts) = Hosts::new() else { return missing("network namespaces") };
    let secret = secret();
    let over_tcp = [("TBCCL_TRANSPORT", "tcp")];
    let mut ranks = [0, 1].map(|rank| hosts.rank_with(rank as usize, rank, 2, &secret, "sum", &over_tcp));
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.next_after("@sum "), "1"));
}

#[test]
fn a_rank_whose_way_to_the_rendezvous_is_cut_knows_it_within_two_seconds() {
    let Some(hosts) = Hosts::new() else { return missing("network namespaces") };
    let secret = secret();
    let computing = hosts.rank_with(0, 0, 2, &secret, "compute", &SHORT);
    let mut waiting = hosts.rank_with(1, 1, 2, &secret, "barrier", &SHORT);
    computing.next_after("@going");
    sleep(Duration::from_millis(700));
    hosts.ip(0, &["link", "set", "cable", "down"]);
    let cut = now();
    let (late, text) = error_of(&mut waiting, cut);
    assert!(late < 2000, "after {late} ms: {text}");
    assert!(text.contains("gone"), "{text}");
}

#[test]
fn a_process_that_is_stopped_is_not_dead_over_tcp_either() {
    let Some(hosts) = Hosts::new() else { return missing("network namespaces") };
    let secret = secret();
    let mut ranks = [0, 1].map(|rank| hosts.rank(rank as usize, rank, 2, &secret, "barrier"));
    ranks[1].next_after("@going");
    let stopped = Pid::from_raw(ranks[1].id() as i32).expect("a process");
    kill_process(stopped, Signal::STOP).expect("it runs");
    sleep(Duration::from_secs(4));
    kill_process(stopped, Signal::CONT).expect("it is stopped");
    // The rank prints a line each second while it is connected.
    for _ in 0..3 {
        ranks[1].next_after("@going");
    }
    ranks[0].signal(Signal::KILL);
    let (_, text) = error_of(&mut ranks[1], now());
    assert!(text.contains("gone") || text.contains("rank 0"), "{text}");
}
