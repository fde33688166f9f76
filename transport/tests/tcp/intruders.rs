//! Strangers at the door: none gets in, none holds up those who belong, all are counted.

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

/// Two ranks, and what they say of strangers.
struct Pair {
    ends: Vec<TcpEndpoint>,
    log: Log,
    /// The next lane that is not connected.
    next: u8,
}

/// Enough to connect a new one again and again.
const LANES: u8 = 200;

impl Pair {
    fn new() -> Pair {
        let log = Log::default();
        Pair { ends: meet(&TcpConfig { lanes: LANES, ..config() }, 2, &log), log, next: 1 }
    }

    /// Listening address of rank 1; rank 0's call wins when both call.
    fn door(&self) -> SocketAddr {
        self.ends[1].listen_addresses()[0]
    }

    fn refused(&self) -> u64 {
        self.ends[1].refused()
    }

    /// Ranks of the job still connect, on a lane that was not connected before.
    fn works(&mut self) -> Duration {
        let [a, b] = &mut self.ends[..] else { panic!("two ranks") };
        let (mut there, mut back) = (a.link(1, self.next), b.link(0, self.next));
        self.next += 1;
        echo(&mut *there, &mut *back, 7, 100_000)
    }
}

fn visit(pair: &Pair) -> TcpStream {
    let stream = TcpStream::connect(pair.door()).expect("the door is open");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    stream
}

/// Waits until the other end hangs up, and says what it had to say before.
fn what_is_said(stream: &mut TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
        Err(e) => panic!("nobody hung up: {e}"),
    }
    said
}

#[test]
fn who_says_nothing_or_nonsense_is_hung_up_on_within_a_second_and_told_nothing() {
    let pair = Pair::new();
    let long = noise(100_000, 4);
    let half = [b't', b'b', b'c', transport::secure::VERSION, 2, 1];
    let spoken: [(&[u8], u64); 4] = [(&[], 900), (&half, 900), (b"GET / HTTP/1.1\r\n\r\n", 0), (&long, 0)];
    for (bytes, patience) in spoken {
        let before = pair.refused();
        let mut stream = visit(&pair);
        let began = Instant::now();
        // It may hang up before all is said.
        let _ = stream.write_all(bytes);
        assert_eq!(what_is_said(&mut stream), b"", "a stranger is told nothing");
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
        let error =
            handshake_over_stream(&mut visit(&pair), handshake, deadline).expect_err("no member of the job");
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
        let mut stream = visit(&pair);
        handshake_over_stream(&mut stream, handshake, deadline).expect("the secret is right");
        assert_eq!(what_is_said(&mut stream), b"", "no verdict");
        until("it is not counted", || pair.refused() > before);
    }
}

#[test]
fn a_recorded_handshake_is_of_no_use() {
    let mut pair = Pair::new();
    // A member of the job calls through a hand that writes down all it says.
    let (mut recorded, door) = (Vec::new(), pair.door());
    let mut stream = TcpStream::connect(door).expect("the door is open");
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
    let mut stream = visit(&pair);
    stream.write_all(&recorded).expect("written");
    // It gets an answer to its first message, made for nobody else, and nothing after it.
    let answer = what_is_said(&mut stream);
    assert!(answer.len() < 200, "{} bytes", answer.len());
    until("it is not counted", || pair.refused() > before);
    pair.works();
}

#[test]
fn a_thousand_strangers_do_not_hold_up_those_who_belong() {
    let mut pair = Pair::new();
    let door = pair.door();
    let crowd = thread::spawn(move || {
        let mut inside = Vec::new();
        for number in 0..1000 {
            // The system may have no more descriptors for us; those who came are enough.
            let Ok(mut stream) = TcpStream::connect_timeout(&door, Duration::from_secs(5)) else { continue };
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
        slowest = slowest.max(pair.works());
    }
    assert!(slowest < Duration::from_secs(10), "{slowest:?}");
    assert!(crowd.join().expect("no panics") > 100);
    until("they are not counted", || pair.refused() >= 500);
    pair.works();
    let told = pair.log.lock().expect("no panics").len();
    assert_eq!(told, 1, "once per address");
}
