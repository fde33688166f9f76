//! Pairs of ranks over connections, and cases for connections only.

use crate::fixture::*;
use std::{
    sync::{Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, TransportError,
    driver::{
        Endpoint,
        tcp::{Bind, Resume, Security, TcpConfig, TcpEndpoint, WarningHandler},
    },
    memory::Span,
    secure::Secret,
};

pub(crate) use transport::driver::tcp::TcpConfig as Config;

/// Socket buffer size, small enough that every test fills the buffers. Below a few of a host's internal
/// packets, the kernel would drop and retransmit.
const BUFFER_BYTES: usize = 256 << 10;

pub(crate) fn config(address: &str, sockets: u32, security: Security) -> TcpConfig {
    TcpConfig {
        bind: address.parse::<Bind>().expect("an address"),
        secret: Some(Secret::from_bytes([9; 32])),
        security,
        sockets: Some(sockets),
        stripe_bytes: PIECE,
        slab_bytes: 32 << 20,
        buffer_bytes: Some(BUFFER_BYTES),
        connect_timeout: PATIENCE,
        ..TcpConfig::default()
    }
}

pub(crate) fn open(config: &TcpConfig, rank: usize) -> TcpEndpoint {
    let say = WarningHandler::new(|what| eprintln!("{what}"));
    TcpEndpoint::open(config, rank as u32, say).expect("an endpoint")
}

/// Returns connected endpoints.
pub(crate) fn endpoints(config: &TcpConfig, ranks: usize) -> Vec<TcpEndpoint> {
    connect_all(ranks, |rank| open(config, rank))
}

/// Opens endpoints of any kind and connects them.
pub(crate) fn connect_all<E: Endpoint>(ranks: usize, open: impl Fn(usize) -> E + Sync) -> Vec<E> {
    let (messages, barrier) = (Mutex::new(vec![Vec::new(); ranks]), Barrier::new(ranks));
    let exchange = |rank: usize| {
        let mut end = open(rank);
        let mut received = Vec::new();
        while let Some(message) = end.exchange(&received).expect("a message") {
            messages.lock().expect("no panics")[rank] = message;
            barrier.wait();
            received = messages.lock().expect("no panics").clone();
            barrier.wait();
        }
        end
    };
    let exchange = &exchange;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || exchange(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the endpoints are connected")).collect()
    })
}

/// Expected value of [`Pair::copied`] for these connections.
pub(crate) fn copied(endpoint: &TcpEndpoint, len: usize) -> (u64, u64) {
    // Encryption copies the payload; small messages go through small buffers.
    let (max_sent, max_received) = match endpoint.security() {
        Security::Encrypt => (usize::MAX, usize::MAX),
        Security::Authenticate => (1024 - 16, 1024),
    };
    let counted = |max: usize| if len <= max { len as u64 } else { 0 };
    (counted(max_sent), counted(max_received))
}

impl Pair {
    pub(crate) fn tcp(config: &TcpConfig) -> Pair {
        let is_resumable = config.resume == Resume::Always;
        let mut sides = endpoints(config, 2).into_iter().map(|mut end| Side {
            is_resumable,
            links: (0..2).map(|lane| end.link(1 - end.rank(), lane)).collect(),
            slab: end.slab().clone(),
            object: None,
            #[cfg(target_os = "linux")]
            endpoint: None,
            tcp: Some(end),
            kept: Vec::new(),
        });
        let mut pair = Pair([sides.next().expect("two"), sides.next().expect("two")]);
        // Connections are made on first use.
        for lane in 0..2 {
            for from in [0, 1] {
                transfer(pair.from(from, lane), Protocol::Copy, Span::empty(), &mut CopySink(&mut []));
            }
        }
        pair
    }
}

/// Polls until `poll` returns a value.
fn wait<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(Instant::now() < until, "stuck");
        thread::yield_now();
    }
}

fn receive(link: &mut dyn Link, digest: u64, len: usize) -> Vec<u8> {
    let (mut state, mut payload) = (RecvState::new(digest, len), vec![0; len]);
    wait(|| {
        let progress = link.poll_recv(&mut state, &mut CopySink(&mut payload)).expect("recv");
        (progress == RecvProgress::Complete).then_some(())
    });
    payload
}

pub(crate) fn a_confirmed_message_is_complete_when_it_was_matched(mut pair: Pair) {
    for (number, len) in [0, 100, 50_000, 3_000_000].into_iter().enumerate() {
        let bytes = noise(len, 1);
        let (a, b) = pair.ends(1);
        let digest = number as u64;
        let mut state = SendState::new(digest, Protocol::Copy).with_match_ack();
        let mut payload = Vec::new();
        // A long message is not even posted before its receiver polls.
        let mut recv = RecvState::new(digest, len);
        let mut destination = vec![0; len];
        let received = wait(|| match a.poll_send(&mut state, Span::from(&*bytes)).expect("send") {
            SendProgress::Posted => Some(false),
            SendProgress::Complete => panic!("nobody has received it"),
            _ if len > BUFFER_BYTES => {
                let progress = b.poll_recv(&mut recv, &mut CopySink(&mut destination)).expect("recv");
                (progress == RecvProgress::Complete).then_some(true)
            }
            _ => None,
        });
        for _ in 0..1000 {
            let progress = a.poll_send(&mut state, Span::from(&*bytes)).expect("send");
            assert!(received || progress == SendProgress::Posted, "nobody has received it");
        }
        if received {
            payload.append(&mut destination);
        } else {
            wait(|| {
                let progress = b.poll_recv(&mut recv, &mut CopySink(&mut destination)).expect("recv");
                (progress == RecvProgress::Complete).then_some(())
            });
            payload.append(&mut destination);
        }
        assert!(payload == bytes);
        wait(|| {
            let progress = a.poll_send(&mut state, Span::from(&*bytes)).expect("send");
            (progress == SendProgress::Complete).then_some(())
        });
    }
}

/// The other end's earlier messages may be received only after the acknowledgement.
pub(crate) fn a_confirmation_does_not_wait_behind_messages(mut pair: Pair) {
    let (a, b) = pair.ends(0);
    let early = noise(300, 5);
    let sent = b.poll_send(&mut SendState::new(7, Protocol::Copy), Span::from(&*early)).expect("send");
    assert_eq!(sent, SendProgress::Complete);
    let mut state = SendState::new(8, Protocol::Copy).with_match_ack();
    let bytes = noise(10, 6);
    wait(|| {
        let progress = a.poll_send(&mut state, Span::from(&*bytes)).expect("send");
        (progress == SendProgress::Posted).then_some(())
    });
    assert_eq!(receive(b, 8, 10), bytes);
    wait(|| {
        let progress = a.poll_send(&mut state, Span::from(&*bytes)).expect("send");
        (progress == SendProgress::Complete).then_some(())
    });
    assert_eq!(receive(a, 7, 300), early);
}

/// A rank that has matched the last message of a job closes: the acknowledgement and the end of its
/// connection arrive together.
pub(crate) fn a_confirmation_counts_though_its_sender_has_closed_since(pair: Pair) {
    let Pair([mut here, mut there]) = pair;
    let bytes = noise(100, 1);
    let mut states = [0, 1].map(|lane| {
        let mut state = SendState::new(1, Protocol::Copy).with_match_ack();
        wait(|| {
            let progress = here.links[lane].poll_send(&mut state, Span::from(&*bytes)).expect("send");
            (progress == SendProgress::Posted).then_some(())
        });
        state
    });
    for link in &mut there.links {
        assert_eq!(receive(&mut **link, 1, 100), bytes);
    }
    // The connection for acknowledgements is made meanwhile.
    there.tcp.as_mut().expect("an endpoint").close(PATIENCE);
    drop(there);
    for (link, state) in here.links.iter_mut().zip(&mut states) {
        wait(|| {
            let progress = link.poll_send(state, Span::from(&*bytes)).expect("it was matched");
            (progress == SendProgress::Complete).then_some(())
        });
    }
}

pub(crate) fn a_peer_that_has_gone_is_an_error_that_names_it(pair: Pair) {
    let Pair([mut here, mut there]) = pair;
    // Messages sent before the close are still received.
    let last = noise(1000, 3);
    let sent = there.links[0].poll_send(&mut SendState::new(5, Protocol::Copy), Span::from(&*last));
    assert_eq!(sent.expect("send"), SendProgress::Complete);
    drop(there);
    assert_eq!(receive(&mut *here.links[0], 5, 1000), last);
    for lane in 0..2 {
        let link = &mut here.links[lane];
        let (mut state, mut payload) = (RecvState::new(6, 10), [0; 10]);
        let error = wait(|| link.poll_recv(&mut state, &mut CopySink(&mut payload)).err());
        assert!(matches!(error, TransportError::Closed { peer: 1 }), "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
        let bytes = noise(100_000, 4);
        let mut state = SendState::new(6, Protocol::Copy);
        let error = wait(|| link.poll_send(&mut state, Span::from(&*bytes)).err());
        assert!(matches!(error, TransportError::Closed { peer: 1 }), "{error}");
    }
}

/// Systems keep counting bytes that they will never send.
pub(crate) fn what_a_peer_that_has_gone_did_not_take_is_not_waited_for(pair: Pair) {
    let Pair([mut here, mut there]) = pair;
    if here.is_resumable {
        // Its sockets belong to the endpoint, which this case does not close.
        return;
    }
    let bytes = noise(1 << 20, 3);
    let sent = there.links[0].poll_send(&mut SendState::new(1, Protocol::Copy), Span::from(&bytes[..8]));
    assert_eq!(sent.expect("send"), SendProgress::Complete);
    assert_eq!(receive(&mut *here.links[0], 1, 8), bytes[..8]);
    let mut is_full = || {
        let sent = here.links[0].poll_send(&mut SendState::new(1, Protocol::Copy), Span::from(&*bytes));
        sent.expect("send") == SendProgress::Idle
    };
    while !is_full() {}
    let mut settled = |within| here.tcp.as_mut().expect("an endpoint").flush(within, &|_| false);
    assert!(!settled(Duration::from_millis(10)), "most of it lies with our system");
    // Not an orderly close: unread bytes make the peer's kernel reset the connection.
    std::mem::forget(there.tcp.take());
    drop(there);
    assert!(settled(PATIENCE), "nobody will ever take it");
}

/// Closing a socket with unread bytes would discard the bytes that it has sent.
pub(crate) fn an_endpoint_closes_when_all_that_it_sent_has_arrived(pair: Pair) {
    let Pair([mut here, mut there]) = pair;
    let never_read = noise(500, 1);
    let last = noise(5000, 2);
    for (from, bytes) in [(&mut here, &never_read), (&mut there, &last)] {
        let sent = from.links[0].poll_send(&mut SendState::new(1, Protocol::Copy), Span::from(&**bytes));
        assert_eq!(sent.expect("send"), SendProgress::Complete);
    }
    there.tcp.as_mut().expect("an endpoint").close(PATIENCE);
    drop(there);
    assert_eq!(receive(&mut *here.links[0], 1, 5000), last);
}
