//! Tests of unauthenticated connections at the port of a rendezvous, before and while ranks are connected.

use super::*;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};
use transport::secure::{Handshake, Purpose};

const TIMEOUT: Duration = Duration::from_secs(20);

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).expect("the rendezvous listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    stream
}

/// Reads until the server closes the connection. Returns the bytes and the time it took.
fn read_until_closed(mut stream: TcpStream) -> (Vec<u8>, Duration) {
    let began = Instant::now();
    let mut received = Vec::new();
    if let Err(e) = stream.read_to_end(&mut received) {
        assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "closed in time");
    }
    (received, began.elapsed())
}

/// Returns the first handshake message that a secret gives.
fn first_message(secret: &Secret) -> Vec<u8> {
    let handshake = Handshake::initiator(secret, Purpose::Bootstrap, &[]).expect("random numbers");
    handshake.outgoing().to_vec()
}

/// Sets a flag when dropped, also when an assertion fails: the scope joins threads that wait for the flag.
pub(super) struct SetOnDrop<'a>(pub(super) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Runs two ranks that exchange bytes repeatedly while `meanwhile` disturbs the server.
fn run_undisturbed(server: &Server, secret: &Secret, meanwhile: impl FnOnce()) {
    let rendezvous = rendezvous(server, secret, Way::Tcp);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let rank = |rank: u32| {
            let (rendezvous, is_over) = (&rendezvous, &is_over);
            move || {
                let mut connection = join(rendezvous, &hello(rank, 2, 20_000)).expect("both join");
                loop {
                    let wish = [u8::from(is_over.load(Relaxed))];
                    let wishes = connection.exchange(&wish).expect("both are there");
                    if wishes.iter().all(|wish| wish == &[1]) {
                        return connection.goodbye(vec![]);
                    }
                }
            }
        };
        let _over = SetOnDrop(&is_over);
        scope.spawn(rank(0));
        scope.spawn(rank(1));
        server.wait_until(|status| status.joined == 2, TIMEOUT);
        meanwhile();
    });
}

#[test]
fn connections_that_are_silent_send_nonsense_or_have_another_secret_are_closed_without_an_answer() {
    let (server, secret) = open(2);
    let to = server.addresses()[0];
    run_undisturbed(&server, &secret, || {
        let wrong = first_message(&Secret::generate().expect("random numbers"));
        let right = first_message(&secret);
        let inputs: [&[u8]; 6] =
            [b"", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 300], &[0; 8], &wrong, &right[..20]];
        for input in inputs {
            let mut stream = connect(to);
            stream.write_all(input).expect("sent");
            let (answer, took) = read_until_closed(stream);
            assert!(answer.is_empty(), "{input:?} was answered with {answer:?}");
            assert!(took < Duration::from_secs(5), "{input:?}: closed after {took:?}");
        }
        assert_eq!(server.rejections().strangers, inputs.len() as u64);
    });
    assert_eq!(server.rejections().ranks, 0);
}

#[test]
fn a_recorded_handshake_is_of_no_use() {
    let (server, secret) = open(2);
    let to = server.addresses()[0];
    // An eavesdropper between a rank and the rendezvous records all bytes from the rank.
    let tap = TcpListener::bind("127.0.0.1:0").expect("a port");
    let tapped = tap.local_addr().expect("bound");
    let wire = thread::spawn(move || {
        let (mut rank, _) = tap.accept().expect("the rank");
        let mut server = connect(to);
        let mut back = (server.try_clone().expect("a copy"), rank.try_clone().expect("a copy"));
        let answers = thread::spawn(move || std::io::copy(&mut back.0, &mut back.1));
        let (mut record, mut bytes) = (Vec::new(), [0; 4096]);
        while let Ok(len @ 1..) = rank.read(&mut bytes) {
            record.extend_from_slice(&bytes[..len]);
            let _ = server.write_all(&bytes[..len]);
        }
        let _ = server.shutdown(std::net::Shutdown::Both);
        let _ = answers.join();
        record
    });
    let addresses = vec![Address::Tcp("127.0.0.1".into(), tapped.port())];
    let through = ConnectSpec { addresses, ..rendezvous(&server, &secret, Way::Tcp) };
    thread::scope(|scope| {
        scope.spawn(|| {
            let rendezvous = rendezvous(&server, &secret, Way::Tcp);
            join(&rendezvous, &hello(0, 2, 20_000)).expect("joins").goodbye(vec![]);
        });
        join(&through, &hello(1, 2, 20_000)).expect("joins").goodbye(vec![]);
    });
    let record = wire.join().expect("no panic");
    assert!(record.len() > 200, "a handshake and a greeting");
    assert!(!record.windows(5).any(|part| part == b"tbccl"), "the greeting does not travel in the clear");
    let before = server.rejections().strangers;
    let mut duplicate = connect(to);
    duplicate.write_all(&record).expect("sent");
    read_until_closed(duplicate);
    assert_eq!(server.rejections().strangers, before + 1, "the repetition is a stranger");
    assert_eq!(server.wait_until(|_| true, TIMEOUT).joined, 2, "and no rank");
}

#[test]
fn a_thousand_connections_at_once_keep_no_rank_out_and_none_waiting() {
    let (server, secret) = open(2);
    let to = server.addresses()[0];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let mut held = std::collections::VecDeque::new();
            let mut made = 0;
            while !is_over.load(Relaxed) || made < 1000 {
                // As many connections as this process may hold beside the tests that run with this one.
                if held.len() == 300 {
                    held.pop_front();
                }
                held.push_back(TcpStream::connect(to).expect("the kernel takes connections"));
                made += 1;
            }
            made
        });
        let over = SetOnDrop(&is_over);
        run_undisturbed(&server, &secret, || thread::sleep(Duration::from_millis(300)));
        drop(over);
        assert!(flood.join().expect("no panic") >= 1000);
    });
    assert_eq!(server.rejections().ranks, 0);
}

#[test]
fn a_rank_with_another_secret_is_told_what_is_most_likely_wrong() {
    let (server, _) = open(2);
    let other = Secret::generate().expect("random numbers");
    let error = join(&rendezvous(&server, &other, Way::Tcp), &hello(0, 2, 5000)).expect_err("another secret");
    let Error::Rendezvous(why) = error else { panic!("{error:?}") };
    assert!(why.contains("another secret") && why.contains(&server.addresses()[0].to_string()), "{why}");
    assert!(!why.contains('\n'), "{why}");
}

#[test]
fn a_rank_without_a_secret_does_not_try() {
    let (server, secret) = open(2);
    let without = ConnectSpec { secret: None, ..rendezvous(&server, &secret, Way::Tcp) };
    let error = join(&without, &hello(0, 2, 5000)).expect_err("no secret").to_string();
    assert!(error.contains("TBCCL_SECRET or TBCCL_SECRET_FILE is needed"), "{error}");
    assert_eq!(server.rejections(), Default::default());
}
