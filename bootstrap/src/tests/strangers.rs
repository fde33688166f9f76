//! Tests of Unix sockets that other users, hosts or programs have opened or connect to.

use super::*;
use crate::{
    connect::open_connection,
    unix::{connect_to_name, listen_unix, local_address, name_here, random_name},
};
use rustix::fd::OwnedFd;
use std::{
    io::{Read, Write},
    os::unix::net::UnixListener,
};

/// Returns all that a listener hears until the next peer disconnects; `None` if nobody connects.
fn hear(listener: &UnixListener) -> Option<Vec<u8>> {
    listener.set_nonblocking(true).expect("a socket");
    let until = Instant::now() + SECOND;
    while Instant::now() < until {
        if let Ok((mut stream, _)) = listener.accept() {
            stream.set_nonblocking(false).expect("a socket");
            stream.set_read_timeout(Some(SECOND)).expect("a socket");
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard);
            return Some(heard);
        }
        thread::sleep(SECOND / 100);
    }
    None
}

/// Returns a spec with one address, the Unix socket of this name.
pub(super) fn at(name: u128, secret: Option<&Secret>) -> ConnectSpec {
    let addresses = Address::parse_list(&local_address(name)).expect("an address");
    ConnectSpec {
        addresses,
        own: None,
        secret: secret.cloned(),
        timeout: Duration::ZERO,
        rendezvous_host: None,
    }
}

#[test]
fn another_user_that_has_taken_the_name_of_the_rendezvous_hears_nothing() {
    let secret = Secret::generate().expect("random numbers");
    for secret in [Some(&secret), None] {
        let name = random_name().expect("random numbers");
        let Some((listener, _folder)) = support::as_another_user(|| listen_unix(name).expect("free")) else {
            return support::missing("another user, whom only root can become");
        };
        let error = join(&at(name, secret), &hello(0, 2, 5000)).expect_err("a stranger").to_string();
        assert!(error.contains("belongs to another user"), "{error}");
        let heard = hear(&listener).expect("it was connected to");
        assert!(heard.is_empty(), "{} bytes; a secret: {}", heard.len(), secret.is_some());
    }
}

#[test]
fn another_user_that_connects_is_turned_away_and_counted() {
    for secret in [Some(Secret::generate().expect("random numbers")), None] {
        let server = Server::start(&ServerSpec::local(2, secret)).expect("a socket");
        let Some(mut stream) =
            support::as_another_user(|| connect_to_name(server.name()).expect("it listens"))
        else {
            return support::missing("another user, whom only root can become");
        };
        stream.set_read_timeout(Some(SECOND * 5)).expect("a socket");
        let closed = stream.read(&mut [0]);
        assert!(!matches!(closed, Ok(1..)), "{closed:?}");
        // It is counted after its connection is closed.
        let until = Instant::now() + SECOND * 5;
        while server.rejections().strangers == 0 && Instant::now() < until {
            thread::sleep(SECOND / 1000);
        }
        assert_eq!(server.rejections().strangers, 1);
    }
}

#[test]
fn a_program_of_this_user_that_has_taken_the_name_hears_no_greeting_in_the_clear() {
    let secret = Secret::generate().expect("random numbers");
    let name = random_name().expect("random numbers");
    let (listener, _folder) = listen_unix(name).expect("free");
    thread::scope(|scope| {
        let heard = scope.spawn(|| hear(&listener).expect("it was connected to"));
        join(&at(name, Some(&secret)), &hello(0, 2, 500)).expect_err("it has not the secret");
        let heard = heard.join().expect("no panic");
        assert!(!heard.is_empty() && heard.len() < 200, "a handshake of {} bytes", heard.len());
        assert!(!heard.windows(5).any(|part| part == b"tbccl"), "the greeting");
    });
}

#[test]
fn a_program_of_this_user_without_the_secret_gets_no_answer_and_no_place() {
    let (server, secret) = open(2);
    let without = ConnectSpec { secret: None, ..rendezvous(&server, &secret, Way::Unix) };
    let error = join(&without, &hello(0, 2, 5000)).expect_err("no secret").to_string();
    assert!(error.contains("TBCCL_SECRET"), "{error}");
    let other = Secret::generate().expect("random numbers");
    let error = join(&rendezvous(&server, &other, Way::Unix), &hello(0, 2, 5000)).expect_err("another");
    assert!(error.to_string().contains("another secret"), "{error}");
    let mut stream = connect_to_name(server.name()).expect("it listens");
    stream.write_all(&[0; 300]).expect("sent");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{answer:?}");
    assert_eq!(server.wait_until(|_| true, SECOND).joined, 0);
    assert!(server.rejections().strangers >= 3, "{:?}", server.rejections());
}

#[cfg(target_os = "linux")]
#[test]
fn a_name_of_another_host_boot_or_network_namespace_is_not_tried() {
    let here = name_here(7);
    let elsewhere = here ^ 1;
    let (listener, _folder) = listen_unix(elsewhere).expect("free");
    let error = open_connection(&at(elsewhere, None)).expect_err("elsewhere");
    assert!(error.contains("another host, boot or network namespace"), "{error}");
    assert_eq!(hear(&listener), None, "it was connected to");
    assert_eq!(name_here(7), here, "it is the same at all times");
}

#[test]
fn descriptors_of_arenas_reach_all_ranks_with_a_secret_and_without() {
    for secret in [Some(Secret::generate().expect("random numbers")), None] {
        let server = Server::start(&ServerSpec::local(3, secret.clone())).expect("a socket");
        let spec = &at(server.name(), secret.as_ref());
        thread::scope(|scope| {
            let ranks: Vec<_> = (0..3)
                .map(|rank| {
                    scope.spawn(move || {
                        let mut file = tempfile::tempfile().expect("a file");
                        write!(file, "rank {rank}").expect("room");
                        let greeting = Hello { arena: true, ..hello(rank, 3, 20_000) };
                        let arena = OwnedFd::from(file);
                        let Joined { mut connection, arenas, .. } =
                            Connection::join(spec, &greeting, Some(&arena)).expect("all join");
                        connection.start(None).expect("all start");
                        connection.goodbye(Vec::new());
                        arenas
                    })
                })
                .collect();
            for arenas in ranks.into_iter().map(|rank| rank.join().expect("no panic")) {
                let texts = arenas.into_iter().map(|arena| {
                    let mut text = [0; 6];
                    rustix::io::pread(&arena, &mut text, 0).expect("a file");
                    String::from_utf8_lossy(&text).into_owned()
                });
                assert_eq!(texts.collect::<Vec<_>>(), ["rank 0", "rank 1", "rank 2"]);
            }
        });
    }
}
