//! Both ends request the same connection at the same time, or one end is late.

use crate::net::*;
use std::{sync::Barrier, thread};
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState,
    driver::{Endpoint, tcp::TcpConfig},
    memory::Span,
};

/// Sends and receives at the same time, as in an exchange.
fn exchange(link: &mut dyn Link, len: usize, ours: u64, theirs: u64) {
    let bytes = noise(len, ours);
    let (mut send, mut recv) = (SendState::new(5, Protocol::Copy), RecvState::new(5, len));
    let mut payload = vec![0; len];
    let (mut sent, mut received) = (false, false);
    let began = std::time::Instant::now();
    while !(sent && received) {
        assert!(began.elapsed() < PATIENCE, "stuck");
        sent =
            sent || link.poll_send(&mut send, Span::from(&*bytes)).expect("send") == SendProgress::Complete;
        let progress = link.poll_recv(&mut recv, &mut CopySink(&mut payload));
        received = received || progress.expect("recv") == RecvProgress::Complete;
        thread::yield_now();
    }
    assert!(payload == noise(len, theirs));
}

#[test]
fn ends_that_call_each_other_at_once_agree_on_a_connection() {
    for round in 0..10 {
        let log = Log::default();
        let config = TcpConfig { sockets: Some(1 + round % 3), stripe_bytes: 4096, ..config() };
        let mut ends = connect_all(&config, 2, &log);
        let [a, b] = &mut ends[..] else { panic!("two ranks") };
        for lane in [0, 1] {
            let (mut there, mut back) = (a.link(1, lane), b.link(0, lane));
            let start = Barrier::new(2);
            thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    exchange(&mut *there, 200_000, 1, 2);
                });
                start.wait();
                exchange(&mut *back, 200_000, 2, 1);
            });
        }
        assert_eq!((a.refused(), b.refused()), (0, 0), "{:?}", log.lock().expect("no panics"));
    }
}

#[test]
fn what_is_sent_goes_out_though_the_receiver_is_busy_elsewhere() {
    let mut ends = connect_all(&config(), 2, &Log::default());
    let [a, b] = &mut ends[..] else { panic!("two ranks") };
    let bytes = noise(5000, 1);
    let (mut link, mut state) = (b.link(0, 1), SendState::new(1, Protocol::Copy));
    // The other end has no link yet and polls nothing.
    let began = std::time::Instant::now();
    while link.poll_send(&mut state, Span::from(&*bytes)).expect("send") != SendProgress::Complete {
        assert!(began.elapsed() < PATIENCE, "stuck");
        thread::yield_now();
    }
    let (mut link, mut state, mut payload) = (a.link(1, 1), RecvState::new(1, 5000), vec![0; 5000]);
    while link.poll_recv(&mut state, &mut CopySink(&mut payload)).expect("recv") != RecvProgress::Complete {
        assert!(began.elapsed() < PATIENCE, "stuck");
        thread::yield_now();
    }
    assert!(payload == bytes);
}

#[test]
fn a_sleeping_rank_is_woken_by_a_message_and_by_a_connection() {
    let mut ends = connect_all(&config(), 2, &Log::default());
    let [a, b] = &mut ends[..] else { panic!("two ranks") };
    let sleeper = a.sleeper().expect("sockets wake");
    let (mut there, mut back) = (a.link(1, 1), b.link(0, 1));
    for digest in [1, 2] {
        let mut state = RecvState::new(digest, 8);
        let mut payload = [0; 8];
        assert_eq!(
            there.poll_recv(&mut state, &mut CopySink(&mut payload)).expect("recv"),
            RecvProgress::Idle
        );
        let began = std::time::Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut state = SendState::new(digest, Protocol::Copy);
                while back.poll_send(&mut state, Span::from(&[7; 8][..])).expect("send")
                    != SendProgress::Complete
                {
                    thread::yield_now();
                }
            });
            // Far fewer sleeps than if each one lasted its maximum.
            while there.poll_recv(&mut state, &mut CopySink(&mut payload)).expect("recv")
                != RecvProgress::Complete
            {
                sleeper.sleep(PATIENCE);
            }
        });
        assert!(began.elapsed() < PATIENCE, "it slept on");
        assert_eq!(payload, [7; 8]);
    }
}
