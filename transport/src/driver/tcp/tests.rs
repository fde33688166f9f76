//! Misbehaving peers and manipulated bytes cause an error that names the peer, and never a wrong byte or a
//! fault.

use super::{
    super::PEER_TIMEOUT,
    connection_table::{Connection, ConnectionTable, Key},
    link::TcpLink,
    match_acks::MatchAcks,
    probe_cache::ProbeCache,
    wire::{HEADER_BYTES, Head, Header, MAX_HEAD_BYTES, Striping},
};
use crate::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError,
    memory::{Span, SpanMut},
    secure::{Handshake, Opener, Purpose, Sealer, Secret},
};
use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(20);
const LANES: u8 = 1;

/// The link to rank 1, and rank 1's end of the connection.
struct Fixture {
    link: TcpLink,
    table: Arc<ConnectionTable>,
    peer: TcpStream,
    /// The peer's ciphers, if the connection is encrypted.
    ciphers: Option<(Sealer, Opener)>,
}

fn streams() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let theirs = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    let (ours, _) = listener.accept().expect("accepted");
    ours.set_nonblocking(true).expect("set");
    [ours, theirs]
}

/// Returns the ciphers of both ends.
fn ciphers() -> [(Sealer, Opener); 2] {
    let secret = Secret::from_bytes([1; 32]);
    let mut a = Handshake::initiator(&secret, Purpose::Data, b"").expect("begun");
    let mut b = Handshake::responder(&secret, Purpose::Data, b"").expect("begun");
    for turn in 0..3 {
        let (from, to) = if turn % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        let bytes = from.outgoing().to_vec();
        from.mark_written(bytes.len());
        to.receive(&bytes).expect("the same secret");
    }
    [a, b].map(|end| end.finish().expect("done").into_ciphers())
}

impl Fixture {
    fn new(encrypted: bool) -> Fixture {
        let parts = Striping { sockets: 1, min_part_bytes: 64 };
        let table = Arc::new(
            ConnectionTable::new(0, LANES, vec![parts; 2], PEER_TIMEOUT, ProbeCache::separate())
                .expect("a table"),
        );
        let (link, peer, ciphers) = Fixture::connect(&table, 0, encrypted);
        Fixture { link, table, peer, ciphers }
    }

    fn connect(
        table: &Arc<ConnectionTable>,
        lane: u8,
        encrypted: bool,
    ) -> (TcpLink, TcpStream, Option<(Sealer, Opener)>) {
        let [stream, peer] = streams();
        let [ours, theirs] = ciphers();
        let connection = Connection { stream, ciphers: encrypted.then(|| Box::new(ours)) };
        table.accept(Key { peer: 1, lane, stripe: 0 }, |_| Ok(connection)).expect("taken");
        (
            TcpLink::new(Arc::clone(table), Arc::new(MatchAcks::new(1, LANES)), 1, lane),
            peer,
            encrypted.then_some(theirs),
        )
    }

    /// Encrypts `bytes` as one record.
    fn record(&mut self, has_header: bool, bytes: &[u8]) -> Vec<u8> {
        let (sealer, _) = self.ciphers.as_mut().expect("sealed");
        let mark = (bytes.len() as u32 | if has_header { 1 << 31 } else { 0 }).to_le_bytes();
        let mut encrypted = bytes.to_vec();
        let tag = sealer.seal(&mark, &mut encrypted);
        [&mark[..], &encrypted, &tag].concat()
    }

    fn send(&mut self, bytes: &[u8]) {
        self.peer.write_all(bytes).expect("written");
    }

    /// Receives a message of `len` bytes; checks that no byte outside of its destination changes.
    fn receive(&mut self, digest: u64, len: usize, reduced: bool) -> Result<Vec<u8>, TransportError> {
        let mut memory = vec![0xa5; len + 128];
        let mut state = RecvState::new(digest, len);
        let until = Instant::now() + PATIENCE;
        let done = loop {
            let mut sink = TestSink { bytes: &mut memory[64..64 + len], reduced };
            match self.link.poll_recv(&mut state, &mut sink) {
                Ok(RecvProgress::Complete) => break Ok(()),
                Ok(_) => assert!(Instant::now() < until, "neither a message nor an error"),
                Err(error) => break Err(error),
            }
        };
        assert!(memory[..64].iter().chain(&memory[64 + len..]).all(|byte| *byte == 0xa5));
        done.map(|()| memory[64..64 + len].to_vec())
    }
}

struct TestSink<'a> {
    bytes: &'a mut [u8],
    reduced: bool,
}

impl Sink for TestSink<'_> {
    fn write(&mut self, offset: usize, data: Span<'_>) {
        assert!(
            offset.is_multiple_of(64) && (data.as_ptr() as usize).is_multiple_of(64),
            "an element is split"
        );
        SpanMut::from(&mut self.bytes[offset..offset + data.len()]).copy_from(data);
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        (!self.reduced).then(|| SpanMut::from(&mut *self.bytes))
    }
}

/// Returns a header, and the zeros behind it if the message is long.
fn header(digest: u64, len: u64, part: u8) -> Vec<u8> {
    let mut head = Head::EMPTY;
    head.set(&Header { digest, len, part, match_ack: false });
    head.bytes().to_vec()
}

#[test]
fn what_is_no_head_is_an_error_that_names_the_peer() {
    for reduced in [false, true] {
        for len in [8, 1000, 5000, 200_000] {
            for bytes in [&[0u8; 300][..], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n and so on", &[0xff; 100]] {
                let mut fixture = Fixture::new(false);
                fixture.send(bytes);
                let error = fixture.receive(5, len, reduced).expect_err("no message");
                assert!(matches!(error, TransportError::Protocol { peer: 1, .. }), "{error}");
            }
        }
    }
}

#[test]
fn a_part_in_the_place_of_another_one_is_an_error() {
    let mut fixture = Fixture::new(false);
    fixture.send(&header(5, 100, 3));
    assert!(matches!(fixture.receive(5, 100, false), Err(TransportError::Protocol { peer: 1, .. })));
}

#[test]
fn a_message_that_ends_in_the_middle_is_an_error_and_not_a_wait() {
    for len in [8usize, 1000, 5000, 300_000] {
        let whole = [&header(5, len as u64, 0)[..], &vec![7; len]].concat();
        for cut in [0, 1, 15, 16, 17, 127, 128, 129, 16 + len / 2, 15 + len, whole.len() - 1] {
            for reduced in [false, true] {
                let mut fixture = Fixture::new(false);
                fixture.send(&whole[..cut.min(whole.len() - 1)]);
                fixture.peer.shutdown(Shutdown::Write).expect("shut down");
                let error = fixture.receive(5, len, reduced).expect_err("it was cut off");
                assert!(matches!(error, TransportError::Closed { peer: 1 }), "{error}");
            }
        }
    }
}

#[test]
fn another_length_is_refused_however_large_and_nothing_is_written() {
    for found in [0, 7, 9, 1 << 20, (1 << 48) - 1] {
        for expected in [8usize, 5000, 100_000] {
            let mut fixture = Fixture::new(false);
            fixture.send(&header(5, found, 0));
            fixture.send(&[1; 2000]);
            let error = fixture.receive(5, expected, false).expect_err("another length");
            let TransportError::Length { expected: e, found: f } = error else { panic!("{error}") };
            assert_eq!((e, f), (expected as u64, found));
        }
    }
}

#[test]
fn a_message_that_was_read_to_the_wrong_place_is_put_back() {
    for len in [100usize, 5000, 32_767, 32_768, 60_000] {
        let mut fixture = Fixture::new(false);
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        let next = [&header(6, 3, 0)[..], b"abc"].concat();
        fixture.send(&[&header(5, len as u64, 0)[..], &bytes, &next].concat());
        assert!(matches!(fixture.receive(4, len, false), Err(TransportError::Mismatch { found: 5, .. })));
        assert!(matches!(fixture.receive(5, 70_000, false), Err(TransportError::Length { .. })));
        assert!(matches!(fixture.receive(5, 1, true), Err(TransportError::Length { .. })));
        assert_eq!(fixture.link.peek_digest(), Some(5));
        assert!(fixture.receive(5, len, true).expect("the message") == bytes);
        assert_eq!(fixture.receive(6, 3, false).expect("the next one"), b"abc");
    }
}

/// Zeros lie between the header and the payload of a long message, and any read may end between them.
#[test]
fn a_long_message_is_whole_however_its_head_is_cut() {
    let len = 40_000;
    let bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
    let next = [&header(6, 3, 0)[..], b"abc"].concat();
    let whole = [&header(5, len as u64, 0)[..], &bytes, &next].concat();
    assert_eq!(whole.len(), MAX_HEAD_BYTES + len + HEADER_BYTES + 3);
    for cut in [1, 15, 16, 17, 64, 127, 128, 129, 4000] {
        for reduced in [false, true] {
            let mut fixture = Fixture::new(false);
            fixture.send(&whole[..cut]);
            let mut memory = vec![0; len];
            let mut sink = TestSink { bytes: &mut memory, reduced };
            let mut state = RecvState::new(5, len);
            // What was sent is read before the rest is.
            for _ in 0..100 {
                let polled = fixture.link.poll_recv(&mut state, &mut sink).expect("no error");
                assert_ne!(polled, RecvProgress::Complete);
            }
            fixture.send(&whole[cut..]);
            assert!(fixture.receive(5, len, reduced).expect("the message")[cut..] == bytes[cut..], "{cut}");
            assert_eq!(fixture.receive(6, 3, false).expect("the next one"), b"abc");
        }
    }
}

#[test]
fn small_messages_that_come_together_are_taken_one_by_one() {
    let mut fixture = Fixture::new(false);
    let all: Vec<u8> =
        (0..500u64).flat_map(|digest| [&header(digest, 9, 0)[..], &[digest as u8; 9]].concat()).collect();
    // Pieces that split headers and payloads.
    for piece in all.chunks(37) {
        fixture.send(piece);
    }
    for digest in 0..500 {
        assert_eq!(fixture.receive(digest, 9, digest % 2 == 0).expect("in order"), [digest as u8; 9]);
    }
}

#[test]
fn records_that_were_changed_or_are_none_are_errors() {
    let message = [&header(5, 1000, 0)[..], &[3; 1000]].concat();
    for at in [0, 1, 4, 19, 20, 600, 4 + 1016, 4 + 1016 + 15] {
        let mut fixture = Fixture::new(true);
        let mut record = fixture.record(true, &message);
        record[at] ^= 1;
        fixture.send(&record);
        // A length that was increased makes the receiver wait for more bytes.
        fixture.peer.shutdown(Shutdown::Write).expect("shut down");
        let error = fixture.receive(5, 1000, false).expect_err("it was changed");
        assert_eq!(error.peer(), Some(1), "{error}");
    }
    for mark in [0u32, 1 << 31, 15 | 1 << 31, 70_000, 0x7fff_ffff, u32::MAX] {
        let mut fixture = Fixture::new(true);
        fixture.send(&mark.to_le_bytes());
        let error = fixture.receive(5, 1000, false).expect_err("no record");
        assert!(matches!(error, TransportError::Protocol { peer: 1, .. }), "{mark:x}: {error}");
    }
}

#[test]
fn records_that_do_not_fit_their_message_are_errors() {
    let begin = [&header(5, 1000, 0)[..], &[3; 128]].concat();
    type Follows = fn(&mut Fixture) -> Vec<u8>;
    let follows: [Follows; 3] = [
        |fixture| fixture.record(false, &[3; 873]),
        |fixture| fixture.record(false, &[3; 100]),
        |fixture| fixture.record(true, &header(6, 10, 0)),
    ];
    for next in follows {
        for reduced in [false, true] {
            let mut fixture = Fixture::new(true);
            let record = fixture.record(true, &begin);
            fixture.send(&record);
            let record = next(&mut fixture);
            fixture.send(&record);
            let error = fixture.receive(5, 1000, reduced).expect_err("it does not fit");
            assert!(matches!(error, TransportError::Protocol { peer: 1, .. }), "{error}");
        }
    }
    let mut fixture = Fixture::new(true);
    let record = fixture.record(false, &[3; 64]);
    fixture.send(&record);
    assert!(fixture.receive(5, 1000, false).is_err(), "it does not begin with a head");
}

#[test]
fn a_recorded_record_does_not_open_again() {
    let mut fixture = Fixture::new(true);
    let record = fixture.record(true, &[&header(5, 8, 0)[..], b"12345678"].concat());
    fixture.send(&[&record[..], &record].concat());
    assert_eq!(fixture.receive(5, 8, false).expect("once"), b"12345678");
    assert!(matches!(fixture.receive(5, 8, false), Err(TransportError::Lost { peer: 1, .. })));
}

#[test]
fn bytes_at_random_are_never_a_fault() {
    let mut state = 77u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..300 {
        let encrypted = round % 2 == 0;
        let mut fixture = Fixture::new(encrypted);
        let mut bytes: Vec<u8> = (0..random() % 3000).map(|_| random() as u8).collect();
        if round % 3 == 0 && !encrypted {
            // A valid header with random bytes behind it.
            bytes.splice(0..0, header(5, 2000, 0));
        }
        fixture.send(&bytes);
        fixture.peer.shutdown(Shutdown::Write).expect("shut down");
        for _ in 0..4 {
            if fixture.receive(5, 2000, round % 5 == 0).is_err() {
                break;
            }
        }
    }
}

#[test]
fn a_confirmation_that_can_not_be_is_an_error() {
    for (lane, count) in [(0u64, 0u64), (1, 1), (u64::MAX, 1)] {
        let mut fixture = Fixture::new(false);
        let [stream, mut peer] = streams();
        let key = Key { peer: 1, lane: LANES, stripe: 0 };
        fixture.table.accept(key, |_| Ok(Connection { stream, ciphers: None })).expect("taken");
        let mut state = SendState::new(5, Protocol::Copy).with_match_ack();
        let bytes = [1; 8];
        let sent = fixture.link.poll_send(&mut state, Span::from(&bytes[..])).expect("sent");
        assert_eq!(sent, SendProgress::Posted);
        let mut came = [0; HEADER_BYTES + 8];
        fixture.peer.read_exact(&mut came).expect("the message");
        let ack = [lane.to_le_bytes(), count.to_le_bytes()].concat();
        peer.write_all(&header(u64::from_le_bytes(*b"matched!"), 16, 0)).expect("written");
        peer.write_all(&ack).expect("written");
        let until = Instant::now() + PATIENCE;
        let error = loop {
            match fixture.link.poll_send(&mut state, Span::from(&bytes[..])) {
                Ok(progress) => assert_eq!(progress, SendProgress::Posted),
                Err(error) => break error,
            }
            assert!(Instant::now() < until, "no error");
        };
        assert!(matches!(error, TransportError::Protocol { peer: 1, .. }), "{error}");
    }
}

#[test]
fn a_peer_that_takes_its_time_to_read_is_waited_for() {
    let mut fixture = Fixture::new(false);
    let bytes = vec![9; 64 << 20];
    let mut state = SendState::new(5, Protocol::Copy);
    let began = Instant::now();
    // Longer than the peer timeout.
    while began.elapsed() < Duration::from_millis(3500) {
        let sent = fixture.link.poll_send(&mut state, Span::from(&bytes[..])).expect("the peer is alive");
        assert_ne!(sent, SendProgress::Complete, "nobody has read it");
        std::thread::sleep(Duration::from_millis(1));
    }
}
