//! Paths of connections, and the errors when no path works.

use crate::net::*;
use std::time::Duration;
use transport::{
    TransportError,
    driver::{
        Endpoint,
        tcp::{Bind, Security, TcpConfig},
    },
    secure::Secret,
};

#[test]
fn ranks_meet_on_an_interface_by_its_name_and_say_which_way_they_go() {
    let name = if cfg!(target_os = "linux") { "lo" } else { "lo0" };
    let config = TcpConfig { bind: Bind::Interface(name.into()), ..config() };
    let mut ends = connect_all(&config, 2, &Log::default());
    let rails = ends[0].rails(1);
    assert_eq!(rails.len(), 1);
    assert_eq!(rails[0].ours, name);
    assert!(rails[0].is_up && rails[0].gigabits.is_none(), "nobody says how fast it is: {rails:?}");
    assert!(rails[0].theirs.contains(['.', ':']), "{rails:?}");
    let [a, b] = &mut ends[..] else { panic!("two ranks") };
    echo(&mut *a.link(1, 0), &mut *b.link(0, 0), 3, 1000);
    // The network that the ranks met on is a rail, too.
    let (ours, theirs) = (&a.rails(1)[0], &b.rails(0)[0]);
    assert!(ours.sent_bytes.is_some_and(|bytes| bytes > 1000), "{ours:?}");
    assert_eq!((ours.sent_bytes, ours.received_bytes), (theirs.received_bytes, theirs.sent_bytes));
}

#[test]
fn without_a_secret_rank_0_makes_one() {
    let config = TcpConfig { secret: None, security: Security::Encrypt, ..config() };
    let mut ends = connect_all(&config, 3, &Log::default());
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let mut link = ends[from].link(to as u32, 1);
        let mut back = ends[to].link(from as u32, 1);
        echo(&mut *link, &mut *back, 1, 50_000);
    }
}

#[test]
fn ranks_of_different_secrets_do_not_meet_and_say_whom_they_could_not_reach() {
    let other = TcpConfig { secret: Some(Secret::from_bytes([8; 32])), ..config() };
    let log = Log::default();
    let mut text = String::new();
    for (rank, met) in try_connect_all(&[config(), other], &log).into_iter().enumerate() {
        let error = met.expect_err("another secret");
        let peer = 1 - rank as u32;
        assert!(matches!(error, TransportError::Unreachable { peer: of, .. } if of == peer), "{error}");
        text.push_str(&error.to_string());
    }
    // The rank that gives up first closes its connection to the other one.
    assert!(text.contains("secret"), "{text}");
    assert!(!log.lock().expect("no panics").is_empty());
}

#[test]
fn a_rank_that_does_not_answer_is_an_error_that_says_where_it_was_called() {
    // Rank 1 listens but never gets the message of rank 0, so it admits no caller.
    let config = TcpConfig { connect_timeout: Duration::from_millis(300), ..config() };
    let say = |_: &str| {};
    let open = |rank| {
        let say = transport::driver::tcp::WarningHandler::new(say);
        transport::driver::tcp::TcpEndpoint::open(&config, rank, say).expect("an endpoint")
    };
    let mut ends = [open(0), open(1)];
    let messages: Vec<Vec<u8>> =
        ends.iter_mut().map(|end| end.exchange(&[]).expect("a message").expect("a message")).collect();
    let error = ends[0].exchange(&messages).expect_err("nobody answers").to_string();
    let place = ends[1].listen_addresses()[0].to_string();
    assert!(
        error.contains("rank 1") && error.contains(&place) && error.contains("TBCCL_INTERFACE"),
        "{error}"
    );
}

#[test]
fn a_rank_that_is_gone_before_it_was_called_is_an_error_that_names_it() {
    let mut ends = connect_all(&config(), 3, &Log::default());
    drop(ends.remove(2));
    let mut link = ends[1].link(2, 1);
    let mut state = transport::RecvState::new(1, 10);
    let mut received = [0; 10];
    let began = std::time::Instant::now();
    let error = loop {
        match link.poll_recv(&mut state, &mut CopySink(&mut received)) {
            Err(error) => break error,
            Ok(_) => assert!(began.elapsed() < PATIENCE, "stuck"),
        }
    };
    assert!(matches!(error, TransportError::Unreachable { peer: 2, .. }), "{error}");
}
