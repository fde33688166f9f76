//! Listening sockets of a rank, at which other ranks can meet it to make another communicator.
//!
//! Each rank opens its sockets while the job starts, and all ranks learn all addresses. The sockets listen
//! without a thread, and most are never used. To make a communicator, one of its ranks serves its sockets
//! ([`ReconnectListener::serve`]) and the others connect to them ([`ReconnectListener::connect_spec`]); the
//! first rendezvous is not needed. A rank that connects early waits in the kernel's backlog, and a rank of
//! another job is told that the server is busy.
//!
//! Ranks of a job that may span hosts listen on TCP as well. All connections have the job's secret, if it has
//! one.

use super::{
    Secret,
    address::Address,
    connect::{ConnectSpec, RendezvousHost},
    interfaces::with_scopes,
    server::{PendingGroup, Server, Sockets},
    unix::local_address,
};
use crate::error::{Error, Result};
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// Listening sockets of a rank, for communicators made later.
#[derive(Debug)]
pub struct ReconnectListener {
    sockets: Sockets,
    secret: Option<Secret>,
    addresses: String,
}

impl ReconnectListener {
    /// Opens a Unix socket and, if there is a secret, a TCP socket at each of the given addresses.
    ///
    /// # Errors
    /// [`Error::System`] or [`Error::Rendezvous`] if the system refuses a socket.
    pub fn open(at: &[IpAddr], secret: Option<Secret>) -> Result<ReconnectListener> {
        let listen: Vec<SocketAddr> = match secret {
            Some(_) => at.iter().flat_map(|ip| with_scopes(SocketAddr::new(*ip, 0))).collect(),
            None => Vec::new(),
        };
        let sockets = Sockets::open(&listen)?;
        let mut addresses = local_address(sockets.name);
        for bound in sockets.addresses()? {
            addresses.push_str(&format!(",{}", Address::Tcp(bound.ip().to_string(), bound.port())));
        }
        Ok(ReconnectListener { sockets, secret, addresses })
    }

    /// Returns the addresses of these sockets as a list separated by commas.
    pub fn addresses(&self) -> &str {
        &self.addresses
    }

    /// Serves a job at these sockets until all of its ranks have joined, as its rank `host`. `labels` are the
    /// display labels of its ranks, by rank.
    ///
    /// # Errors
    /// [`Error::System`] if the system refuses descriptors or a thread.
    pub fn serve(&self, job: &str, labels: &[String], host: u32) -> Result<Server> {
        let sockets =
            self.sockets.duplicate().map_err(|e| Error::system("duplicating the listening sockets", e))?;
        Server::start_group(
            sockets,
            PendingGroup { job: job.to_owned(), labels: labels.to_vec(), host, secret: self.secret.clone() },
        )
    }

    /// Returns the connect spec of another rank's sockets, which that rank may serve up to `timeout` later.
    ///
    /// # Errors
    /// A sentence that quotes the malformed address.
    pub fn connect_spec(
        addresses: &str,
        secret: Option<&Secret>,
        rendezvous_host: RendezvousHost,
        timeout: Duration,
    ) -> Result<ConnectSpec, String> {
        let addresses = Address::parse_list(addresses)?;
        Ok(ConnectSpec {
            addresses,
            own: None,
            secret: secret.cloned(),
            timeout,
            rendezvous_host: Some(rendezvous_host),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::*, *};
    use std::{
        thread,
        time::{Duration, Instant},
    };

    const LONG: Duration = Duration::from_secs(20);

    fn hello(job: &str, rank: u32, size: u32, timeout: Duration) -> Hello {
        let member = Member {
            rank,
            pid: 0,
            host: String::new(),
            probe_address: 0,
            probe_value: 0,
            reconnect_addresses: String::new(),
            hosts_rendezvous: rank == 0,
        };
        let timeout_ms = timeout.as_millis() as u64;
        Hello { job: job.to_owned(), timeout_ms, peer_timeout_ms: 1400, ..Hello::new(size, member) }
    }

    fn listener() -> ReconnectListener {
        let secret = Secret::generate().expect("random numbers");
        ReconnectListener::open(&[[127, 0, 0, 1].into()], Some(secret)).expect("sockets")
    }

    /// Returns a spec with one address: the Unix socket (0) or the TCP socket (1).
    fn connect_spec(listener: &ReconnectListener, way: usize, timeout: Duration) -> ConnectSpec {
        let rendezvous_host = RendezvousHost::new(0, labels(3));
        let spec = ReconnectListener::connect_spec(
            listener.addresses(),
            listener.secret.as_ref(),
            rendezvous_host,
            timeout,
        );
        let mut spec = spec.expect("our own addresses");
        spec.addresses = vec![spec.addresses.remove(way)];
        spec
    }

    fn labels(ranks: u32) -> Vec<String> {
        (0..ranks).map(|rank| format!("{rank} ({} before)", rank + 1)).collect()
    }

    fn join(spec: &ConnectSpec, job: &str, rank: u32, size: u32, timeout: Duration) -> Result<Connection> {
        let Joined { mut connection, .. } = Connection::join(spec, &hello(job, rank, size, timeout), None)?;
        connection.start(None)?;
        Ok(connection)
    }

    #[test]
    fn a_rank_that_comes_before_the_rendezvous_host_is_let_in_when_it_serves() {
        for way in [0, 1] {
            let listener = listener();
            let spec = &connect_spec(&listener, way, LONG);
            thread::scope(|scope| {
                let early = scope.spawn(move || join(spec, "a", 1, 2, LONG).map(drop));
                // Longer than the handshake timeout of a server that is running.
                thread::sleep(Duration::from_millis(if way == 1 { 5500 } else { 300 }));
                let _server = listener.serve("a", &labels(2), 0).expect("a thread");
                let ours = join(spec, "a", 0, 2, LONG).expect("both are there");
                early.join().expect("no panic").expect("both are there");
                drop(ours);
            });
        }
    }

    #[test]
    fn one_job_after_the_other_meets_at_the_same_sockets() {
        for way in [0, 1] {
            let listener = listener();
            let spec = &connect_spec(&listener, way, LONG);
            let mut servers = Vec::new();
            for round in 0..20 {
                let job = &format!("job {round}");
                thread::scope(|scope| {
                    let others: Vec<_> =
                        (1..3).map(|rank| scope.spawn(move || join(spec, job, rank, 3, LONG))).collect();
                    servers.push(listener.serve(job, &labels(3), 0).expect("a thread"));
                    let mut all = vec![join(spec, job, 0, 3, LONG)];
                    all.extend(others.into_iter().map(|other| other.join().expect("no panic")));
                    for connection in all {
                        connection.expect("all are there").goodbye(Vec::new());
                    }
                });
            }
            assert!(
                servers.iter().all(|server| server.rejections() == RejectionCounts::default()),
                "way {way}"
            );
        }
    }

    #[test]
    fn who_comes_for_the_next_job_waits_until_this_one_is_over() {
        for way in [0, 1] {
            let listener = listener();
            let spec = &connect_spec(&listener, way, LONG);
            let first = listener.serve("first", &labels(3), 0).expect("a thread");
            thread::scope(|scope| {
                let ahead = scope.spawn(move || join(spec, "second", 1, 2, LONG).map(drop));
                thread::sleep(Duration::from_millis(200));
                assert!(!ahead.is_finished());
                drop(first);
                let _second = listener.serve("second", &labels(2), 0).expect("a thread");
                let ours = join(spec, "second", 0, 2, LONG).expect("both are there");
                ahead.join().expect("no panic").expect("both are there");
                drop(ours);
            });
        }
    }

    #[test]
    fn who_is_hung_up_on_by_a_job_that_is_just_over_comes_again() {
        for way in [0, 1] {
            let listener = listener();
            let spec = &connect_spec(&listener, way, LONG);
            thread::scope(|scope| {
                let other = scope.spawn(move || join(spec, "second", 1, 2, LONG).map(drop));
                while match way {
                    0 => listener.sockets.unix.accept().is_err(),
                    _ => listener.sockets.networks[0].accept().is_err(),
                } {
                    thread::sleep(Duration::from_millis(1));
                }
                let _second = listener.serve("second", &labels(2), 0).expect("a thread");
                let ours = join(spec, "second", 0, 2, LONG).expect("both are there");
                other.join().expect("no panic").expect("both are there");
                drop(ours);
            });
        }
    }

    #[test]
    fn who_does_not_come_in_time_is_named_as_people_know_it_and_by_number() {
        for way in [0, 1] {
            let listener = listener();
            let short = Duration::from_millis(500);
            let _server = listener.serve("a", &labels(3), 0).expect("a thread");
            let began = Instant::now();
            match join(&connect_spec(&listener, way, short), "a", 0, 3, short) {
                Err(Error::Absent { ranks, why }) => {
                    assert_eq!(ranks, [topology::Rank(1), topology::Rank(2)]);
                    assert!(why.contains("1 (2 before), 2 (3 before)"), "{why}");
                }
                other => panic!("{other:?}"),
            }
            assert!(began.elapsed() < Duration::from_secs(5));
        }
    }

    #[test]
    fn a_rendezvous_host_that_never_comes_and_one_that_is_gone_are_named() {
        for way in [0, 1] {
            let listener = listener();
            let short = Duration::from_millis(600);
            let spec = connect_spec(&listener, way, short);
            let absent = |what: &str| match join(&spec, "a", 1, 2, short) {
                Err(Error::Absent { ranks, why }) => {
                    assert_eq!(ranks, [topology::Rank(0)]);
                    assert!(why.contains("rank 0 (1 before)"), "{what}: {why}");
                }
                other => panic!("{what}: {other:?}"),
            };
            let began = Instant::now();
            absent("never serves");
            let server = listener.serve("b", &labels(2), 0).expect("a thread");
            match join(&spec, "a", 1, 2, short) {
                Err(Error::Rendezvous(why)) => assert!(why.contains("`b`") && why.contains("`a`"), "{why}"),
                other => panic!("{other:?}"),
            }
            drop(server);
            drop(listener);
            absent("gone");
            assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
        }
    }

    #[test]
    fn a_rendezvous_host_that_dies_while_others_wait_at_its_sockets_is_named_at_once() {
        for way in [0, 1] {
            let listener = listener();
            let spec = &connect_spec(&listener, way, LONG);
            thread::scope(|scope| {
                let waiting = scope.spawn(move || join(spec, "a", 1, 2, LONG).map(drop));
                thread::sleep(Duration::from_millis(300));
                let began = Instant::now();
                drop(listener);
                match waiting.join().expect("no panic") {
                    Err(Error::Absent { ranks, .. }) => assert_eq!(ranks, [topology::Rank(0)]),
                    other => panic!("{other:?}"),
                }
                assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
            });
        }
    }

    #[test]
    fn the_addresses_of_a_host_that_never_comes_share_one_time_limit() {
        let listener = listener();
        let limit = Duration::from_millis(1500);
        let mut spec = connect_spec(&listener, 0, limit);
        spec.addresses.extend(connect_spec(&listener, 1, limit).addresses);
        let began = Instant::now();
        match join(&spec, "a", 1, 2, limit) {
            Err(Error::Absent { ranks, .. }) => assert_eq!(ranks, [topology::Rank(0)]),
            other => panic!("{other:?}"),
        }
        let took = began.elapsed();
        assert!(took >= limit && took < limit * 17 / 10, "{took:?} at two addresses");
    }

    #[test]
    fn a_rank_that_has_waited_for_the_host_waits_for_others_in_the_rest_of_its_time() {
        for way in [0, 1] {
            let listener = listener();
            let limit = Duration::from_secs(2);
            let spec = &connect_spec(&listener, way, limit);
            thread::scope(|scope| {
                let began = Instant::now();
                let early = scope.spawn(move || join(spec, "a", 1, 3, limit).map(drop));
                thread::sleep(limit * 4 / 5);
                let _server = listener.serve("a", &labels(3), 0).expect("a thread");
                match early.join().expect("no panic") {
                    Err(Error::Absent { ranks, .. }) => assert_eq!(ranks, [0, 2].map(topology::Rank)),
                    other => panic!("{other:?}"),
                }
                let took = began.elapsed();
                assert!(took < limit * 8 / 5, "{took:?}, and the limit is {limit:?}");
            });
        }
    }

    #[test]
    fn a_host_that_fails_to_join_is_named_to_those_that_have() {
        for way in [0, 1] {
            let listener = listener();
            let spec = &connect_spec(&listener, way, LONG);
            let server = listener.serve("a", &labels(3), 0).expect("a thread");
            thread::scope(|scope| {
                let other = scope.spawn(move || join(spec, "a", 1, 3, LONG).map(drop));
                while server.wait_until(|_| true, Duration::ZERO).joined == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
                drop(server);
                match other.join().expect("no panic") {
                    Err(Error::Absent { ranks, why }) => {
                        assert_eq!(ranks, [topology::Rank(0)]);
                        assert!(why.contains("rank 0 (1 before) has failed to join"), "{why}");
                    }
                    other => panic!("{other:?}"),
                }
            });
        }
    }
}
