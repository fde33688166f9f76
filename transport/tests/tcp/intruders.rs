//! Foreign callers: none is admitted, none delays the ranks of the job, all are counted.

use crate::net::*;
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};
use transport::{
    driver::{
        Endpoint,
        tcp::{TcpConfig, TcpEndpoint},
    },
    secure::{Handshake, Purpose, Secret, SecureError, handshake_over_stream},
};

/// Two ranks, and their warnings about foreign callers.
struct Pair {
    ends: Vec<TcpEndpoint>,
    log: Log,
    /// The next lane without a connection.
    next: u8,
}

/// Number of lanes, enough to connect another one for each check.
const LANES: u8 = 200;

impl Pair {
    fn new() -> Pair {
        let log = Log::default();
        Pair { ends: connect_all(&TcpConfig { lanes: LANES, ..config() }, 2, &log), log, next: 1 }
    }

    /// Returns the listening address of rank 1; rank 0's attempt wins if both connect.
    fn address(&self) -> SocketAddr {
        self.ends[1].listen_addresses()[0]
    }

    fn refused(&self) -> u64 {
        self.ends[1].refused()
    }

    /// Checks that ranks of the job still connect, on a lane without a connection. Returns the time.
    fn connects(&mut self) -> Duration {
        let [a, b] = &mut self.ends[..] else { panic!("two ranks") };
        let (mut there, mut back) = (a.link(1, self.next), b.link(0, self.next));
        self.next += 1;
        echo(&mut *there, &mut *back, 7, 100_000)
    }
}

fn connect(pair: &Pair) -> TcpStream {
    let stream = TcpStream::connect(pair.address()).expect("the door is open");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    stream
}

/// Reads until the other end closes, and returns the bytes.
fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut text = Vec::new();
    match stream.read_to_end(&mut text) {
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
        Err(e) => panic!("nobody hung up: {e}"),
    }
    text
}

#[test]
fn who_says_nothing_or_nonsense_is_hung_up_on_within_a_second_and_told_nothing() {
    let pair = Pair::new();
    let long = noise(100_000, 4);
    let half = [b't', b'b', b'c', transport::secure::VERSION, 2, 1];
    let spoken: [(&[u8], u64); 4] = [(&[], 900), (&half, 900), (b"GET / HTTP/1.1\r\n\r\n", 0), (&long, 0)];
    for (bytes, patience) in spoken {
        let before = pair.refused();
        // Before the connection, from which on the other end has patience.
        let began = Instant::now();
        let mut stream = connect(&pair);
        // The other end may close before all bytes are written.
        let _ = stream.write_all(bytes);
        assert_eq!(read_to_end(&mut stream), b"", "a stranger is told nothing");
        assert!(began.elapsed() >= Duration::from_millis(patience), "who may still speak is listened to");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        until("it is not counted", || pair.refused() > before);
    }
    let log = pair.log.lock().expect("no panics");
    assert_eq!(log.len(), 1, "once per address: {log:?}");
    assert!(log[0].contains("127.0.0.1:") && log[0].contains("refused"), "{log:?}");
}

#[test]
fn another_secret_or_purpose_is_refused() {
    let pair = Pair::new();
    let deadline = Instant::now() + PATIENCE;
    let other = Secret::from_bytes([4; 32]);
    for (secret, purpose) in [(&other, Purpose::Data), (&secret(), Purpose::Bootstrap)] {
        let before = pair.refused();
        let handshake = Handshake::initiator(secret, purpose, b"").expect("begun");
        let error = handshake_over_stream(&mut connect(&pair), handshake, deadline)
            .expect_err("no member of the job");
        assert!(matches!(error, SecureError::Closed), "{error}");
        until("it is not counted", || pair.refused() > before);
    }
}

#[test]
fn who_knows_the_secret_and_is_no_rank_of_this_communicator_is_refused() {
    let pair = Pair::new();
    let deadline = Instant::now() + PATIENCE;
    for hello in [&b""[..], &[0; 26], &[0xff; 26], &[1; 1024]] {
        let before = pair.refused();
        let handshake = Handshake::initiator(&secret(), Purpose::Data, hello).expect("begun");
        let mut stream = connect(&pair);
        handshake_over_stream(&mut stream, handshake, deadline).expect("the secret is right");
        assert_eq!(read_to_end(&mut stream), b"", "no verdict");
        until("it is not counted", || pair.refused() > before);
    }
}

#[test]
fn a_recorded_handshake_is_of_no_use() {
    let mut pair = Pair::new();
    // A rank of the job connects through a recorder of its bytes.
    let (mut recorded, address) = (Vec::new(), pair.address());
    let mut stream = TcpStream::connect(address).expect("the door is open");
    let mut member = Handshake::initiator(&secret(), Purpose::Data, &[0; 26]).expect("begun");
    while !member.is_done() {
        if member.outgoing().is_empty() {
            let mut bytes = vec![0; member.bytes_wanted()];
            stream.read_exact(&mut bytes).expect("an answer");
            member.receive(&bytes).expect("the right secret");
        } else {
            let bytes = member.outgoing().to_vec();
            stream.write_all(&bytes).expect("written");
            member.mark_written(bytes.len());
            recorded.extend(bytes);
        }
    }
    drop(stream);
    let before = pair.refused();
    let mut stream = connect(&pair);
    stream.write_all(&recorded).expect("written");
    // The replay gets an answer to its first message, made for this connection, and nothing more.
    let answer = read_to_end(&mut stream);
    assert!(answer.len() < 200, "{} bytes", answer.len());
    until("it is not counted", || pair.refused() > before);
    pair.connects();
}

#[test]
fn a_thousand_strangers_do_not_hold_up_those_who_belong() {
    let mut pair = Pair::new();
    let address = pair.address();
    let crowd = thread::spawn(move || {
        let mut inside = Vec::new();
        for number in 0..1000 {
            // The system may have no descriptors left; the previous callers suffice.
            let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(5)) else {
                continue;
            };
            if number % 3 == 0 {
                let _ = stream.write_all(b"tbc");
            } else if number % 3 == 1 {
                let _ = stream.write_all(&[0xee; 64]);
            }
            inside.push(stream);
            if inside.len() > 300 {
                inside.remove(0);
            }
        }
        inside.len()
    });
    let mut slowest = Duration::ZERO;
    while pair.next < 4 || (!crowd.is_finished() && pair.next < LANES - 1) {
        slowest = slowest.max(pair.connects());
    }
    assert!(slowest < Duration::from_secs(10), "{slowest:?}");
    assert!(crowd.join().expect("no panics") > 100);
    until("they are not counted", || pair.refused() >= 500);
    pair.connects();
    let told = pair.log.lock().expect("no panics").len();
    assert_eq!(told, 1, "once per address");
}
