//! Hosts that vanish: the cable between two network namespaces is cut during transfers.

use crate::{hosts::Hosts, net::*};
use std::{
    sync::{Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};
use transport::{
    Link, Protocol, RecvState, SendState, TransportError,
    driver::{
        Endpoint, PEER_TIMEOUT_MIN,
        tcp::{Bind, Security, TcpConfig, TcpEndpoint, WarningHandler},
    },
    memory::Span,
};

/// Action of a rank after the cut, until it gets an error.
type Act = fn(&mut dyn Link) -> TransportError;

fn keeps_sending(link: &mut dyn Link) -> TransportError {
    let bytes = noise(1 << 20, 1);
    let began = Instant::now();
    let mut state = SendState::new(1, Protocol::Copy);
    loop {
        match link.poll_send(&mut state, Span::from(&*bytes)) {
            Err(error) => return error,
            Ok(transport::SendProgress::Complete) => state = SendState::new(1, Protocol::Copy),
            Ok(_) => thread::sleep(Duration::from_millis(1)),
        }
        assert!(began.elapsed() < PATIENCE, "no error");
    }
}

/// Waits for an answer to a sent message.
fn waits_for_an_answer(link: &mut dyn Link) -> TransportError {
    let began = Instant::now();
    let mut state = SendState::new(1, Protocol::Copy);
    let _ = link.poll_send(&mut state, Span::from(&[1; 8][..]));
    let (mut state, mut payload) = (RecvState::new(2, 8), [0; 8]);
    loop {
        match link.poll_recv(&mut state, &mut CopySink(&mut payload)) {
            Err(error) => return error,
            Ok(_) => thread::sleep(Duration::from_millis(1)),
        }
        assert!(began.elapsed() < PATIENCE, "no error");
    }
}

/// Two ranks exchange messages, the cable is cut, and both notice.
fn cut(hosts: &Hosts, security: Security, peer_timeout: Duration, acts: [Act; 2]) {
    let (messages, barrier) = (Mutex::new(vec![Vec::new(); 2]), Barrier::new(2));
    let rank = |rank: usize| {
        hosts.enter(rank);
        let address = Bind::Address([10, 77, 0, rank as u8 + 1].into());
        let config = TcpConfig { bind: address, security, sockets: Some(1), peer_timeout, ..config() };
        let mut end =
            TcpEndpoint::open(&config, rank as u32, WarningHandler::new(|_| ())).expect("an endpoint");
        let mut received = Vec::new();
        while let Some(message) = end.exchange(&received).expect("a message") {
            messages.lock().expect("no panics")[rank] = message;
            barrier.wait();
            received = messages.lock().expect("no panics").clone();
            barrier.wait();
        }
        let rails = end.rails(1 - rank as u32);
        assert_eq!((rails[0].ours.as_str(), &*rails[0].theirs), ("cable", &*format!("10.77.0.{}", 2 - rank)));
        let mut link = end.link(1 - rank as u32, 0);
        exchange(&mut *link);
        // Idle for longer than the peer timeout, which alone is no failure.
        thread::sleep(Duration::from_millis(2000));
        exchange(&mut *link);
        barrier.wait();
        if rank == 0 {
            hosts.ip(0, &["link", "set", "cable", "down"]);
        }
        barrier.wait();
        let began = Instant::now();
        let error = acts[rank](&mut *link);
        (error, began.elapsed())
    };
    let (rank, found) = (&rank, Mutex::new(Vec::new()));
    thread::scope(|scope| {
        let ranks = [0, 1].map(|number| scope.spawn(move || rank(number)));
        for (number, thread) in ranks.into_iter().enumerate() {
            let (error, after) = thread.join().expect("no panics");
            found.lock().expect("no panics").push((number, error, after));
        }
    });
    hosts.ip(0, &["link", "set", "cable", "up"]);
    for (number, error, after) in found.into_inner().expect("no panics") {
        let peer = 1 - number as u32;
        assert!(matches!(error, TransportError::Lost { peer: of, .. } if of == peer), "{error}");
        // The time before is the system's time to retransmit once and to report it.
        assert!(after + Duration::from_millis(400) > peer_timeout, "rank {number} after {after:?}: {error}");
        // The system alone would take a quarter of an hour.
        assert!(after < Duration::from_secs(10), "rank {number} after {after:?}: {error}");
        eprintln!("rank {number} after {after:?}: {error}");
    }
}

fn exchange(link: &mut dyn Link) {
    let bytes = noise(3000, 5);
    let (mut send, mut recv) = (SendState::new(9, Protocol::Copy), RecvState::new(9, 3000));
    let (mut sent, mut received, mut payload) = (false, false, vec![0; 3000]);
    let began = Instant::now();
    while !(sent && received) {
        assert!(began.elapsed() < PATIENCE, "stuck");
        let progress = link.poll_send_unless(sent, &mut send, &bytes);
        sent = progress;
        let progress = link.poll_recv_unless(received, &mut recv, &mut payload);
        received = progress;
        thread::yield_now();
    }
    assert!(payload == bytes);
}

/// Polls that skip complete messages.
trait PollUnlessDone {
    fn poll_send_unless(&mut self, done: bool, state: &mut SendState, bytes: &[u8]) -> bool;
    fn poll_recv_unless(&mut self, done: bool, state: &mut RecvState, to: &mut [u8]) -> bool;
}

impl PollUnlessDone for dyn Link + '_ {
    fn poll_send_unless(&mut self, done: bool, state: &mut SendState, bytes: &[u8]) -> bool {
        let complete = transport::SendProgress::Complete;
        done || self.poll_send(state, Span::from(bytes)).expect("send") == complete
    }

    fn poll_recv_unless(&mut self, done: bool, state: &mut RecvState, to: &mut [u8]) -> bool {
        let complete = transport::RecvProgress::Complete;
        done || self.poll_recv(state, &mut CopySink(to)).expect("recv") == complete
    }
}

#[test]
fn ranks_whose_cable_is_cut_find_out_while_something_is_under_way() {
    let Some(hosts) = Hosts::with_cable() else {
        support::missing("network namespaces, and `ip`");
        return;
    };
    cut(&hosts, Security::Authenticate, PEER_TIMEOUT_MIN, [keeps_sending, keeps_sending]);
    cut(&hosts, Security::Encrypt, PEER_TIMEOUT_MIN, [keeps_sending, waits_for_an_answer]);
    // A longer peer timeout delays the error.
    cut(&hosts, Security::Authenticate, PEER_TIMEOUT_MIN * 3, [waits_for_an_answer, waits_for_an_answer]);
}
