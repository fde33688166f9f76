//! Bytes of requests that a device has not executed: they do not change, however often messages are repeated.

use super::*;
use crate::SendProgress;

/// Rules of unreliable connections, with and without remote writes and checksums.
const UNRELIABLE: [u8; 4] = [3, 2, 1, 0];

impl Rig {
    /// Begins or continues to send a message.
    fn send_message(&mut self, stream: usize, state: &mut SendState, bytes: &[u8]) -> SendProgress {
        let (peer, mut env) = self.engine.peer(1).expect("a peer");
        peer.poll_send(&mut env, stream, state, Span::from(bytes), bytes.len()).expect("the peer is alive")
    }

    /// Sends a small message.
    fn send_small(&mut self, stream: usize) {
        let mut state = SendState::new(DIGEST, Protocol::Copy);
        let progress = self.send_message(stream, &mut state, &[1; 40]);
        assert_eq!(progress, SendProgress::Complete, "there is room");
    }

    /// Takes in a message of the peer by rail 0.
    pub(super) fn hear(&mut self, header: Header, payload: &[u8]) {
        let rail = &self.engine.peer(1).expect("a peer").0.rails()[0];
        let (life, their_life) = (rail.handshake.their_life(), rail.handshake.life());
        let header = Header { life, their_life, len: payload.len() as u16, ..header };
        let mut message = [bytemuck::bytes_of(&header), payload].concat();
        let crc = message_checksum(&message);
        message[..4].copy_from_slice(&crc.to_le_bytes());
        self.complete((0, 0), &message, None, WcStatus::SUCCESS);
    }

    /// Lets the device execute requests until all messages before `ack` have been sent once, and the peer
    /// acknowledge them and match all fragments.
    fn arrive(&mut self, ack: u32) {
        let pairs: Vec<u32> = self.pairs.iter().flatten().copied().collect();
        for pair in pairs {
            let requests = null_device::requests(pair);
            let numbers: Vec<Option<u32>> = requests.iter().map(|posted| number_of(&posted.bytes)).collect();
            let is_new = |number: &u32| (self.acknowledged..ack).contains(number);
            let first = |number| numbers.iter().position(|other| *other == Some(number));
            let last = numbers.iter().flatten().copied().filter(is_new).filter_map(first).max();
            (0..last.map_or(0, |last| last + 1)).for_each(|_| self.execute(pair));
        }
        self.acknowledged = ack;
        self.hear(Header { ack, stream: 0, limit: ack + 32, ..Header::new(Kind::Ack) }, &[]);
    }

    /// Lets milliseconds pass without an acknowledgement.
    fn wait(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now += Duration::from_millis(1);
            let now = self.now;
            self.engine.drive(1, |peer, env| peer.retry(env, now));
        }
    }

    pub(super) fn requests(&self) -> Vec<null_device::PostedRequest> {
        self.pairs.iter().flatten().flat_map(|pair| null_device::requests(*pair)).collect()
    }

    /// The bytes of a request as the device would read them now.
    fn bytes_now(&self, request: &null_device::PostedRequest) -> Vec<u8> {
        let (start, len) = (request.address as *const u8, request.bytes.len());
        let at = self.engine.memory.locate(start, len).expect("a part of the slab");
        self.engine.memory.bytes(at, len).to_vec()
    }

    fn assert_unchanged(&self) {
        for request in self.requests() {
            assert_eq!(request.bytes, self.bytes_now(&request), "the bytes of a queued request");
        }
    }

    /// Lets the device execute the oldest request of a queue pair.
    fn execute(&mut self, pair: u32) {
        let request = null_device::execute(pair).expect("a request");
        assert_eq!(request.bytes, self.bytes_now(&request), "the bytes of a request that is executed");
        if request.is_signaled {
            let completion = Completion { id: request.id, ..Completion::default() };
            let id = Id::unpack(request.id);
            self.engine.drive(1, |peer, env| peer.take_completion(env, id, &completion));
        }
    }

    /// Lets the device execute all requests.
    fn execute_all(&mut self) {
        let pairs: Vec<u32> = self.pairs.iter().flatten().copied().collect();
        for pair in pairs {
            (0..null_device::requests(pair).len()).for_each(|_| self.execute(pair));
        }
    }
}

/// The number of a message, if it is sequenced.
fn number_of(message: &[u8]) -> Option<u32> {
    let header = bytemuck::pod_read_unaligned::<Header>(&message[..size_of::<Header>()]);
    (header.kind < Kind::Ack as u8).then_some(header.seq)
}

/// Acknowledgements come late where a cable is slow, so a message is repeated while its first request waits
/// in the device. Nothing may be written to its place, neither another header nor, once it is acknowledged,
/// another message.
#[test]
fn bytes_that_are_queued_stay_as_they_are_while_messages_are_repeated_and_acknowledged() {
    for bits in UNRELIABLE {
        let mut rig = Rig::new(bits);
        for number in 1..=20 {
            rig.send_small(0);
            rig.send_small(0);
            rig.wait(7);
            rig.assert_unchanged();
            rig.arrive(3 * number - 1);
            rig.send_small(1);
            rig.assert_unchanged();
            rig.arrive(3 * number);
            rig.assert_unchanged();
        }
        rig.engine.end();
    }
}

#[test]
fn a_long_message_that_is_repeated_is_repeated_with_its_bytes() {
    for bits in UNRELIABLE {
        let mut rig = Rig::new(bits);
        let bytes: Vec<u8> = (0..12_000).map(|at| (at % 251) as u8).collect();
        rig.send_message(0, &mut SendState::new(DIGEST, Protocol::Copy), &bytes);
        let sent = |rig: &Rig| {
            let copies = rig.requests().into_iter().filter(|request| request.bytes.ends_with(&bytes));
            copies.map(|request| request.address).collect::<Vec<_>>()
        };
        assert_eq!(sent(&rig).len(), 1);
        rig.wait(7);
        rig.assert_unchanged();
        let [first, second] = sent(&rig)[..] else { panic!("two copies") };
        assert_ne!(first, second);
        rig.engine.end();
    }
}

/// Places are scarce: those that repeats have taken must come back.
#[test]
fn places_of_repeated_messages_are_free_again_once_their_requests_have_left_the_device() {
    for bits in UNRELIABLE {
        let mut rig = Rig::new(bits);
        let mut sent = 0;
        for _ in 0..50 {
            (0..30).for_each(|_| rig.send_small(0));
            sent += 30;
            rig.wait(400);
            rig.assert_unchanged();
            rig.arrive(sent);
            rig.assert_unchanged();
            rig.execute_all();
        }
        rig.engine.end();
    }
}

/// The place of the checksum was that of an acknowledged message, which a second request still sent. So the
/// checksum arrived with that request, before its piece: the piece counted as lost, was granted again, and
/// was written again after it had been handed over.
#[test]
fn no_request_in_front_of_a_piece_sends_its_checksum() {
    let mut rig = Rig::new(UNRELIABLE[0]);
    let bytes = vec![3; 2 * PIECE_BYTES + 8000];
    let mut state = SendState::new(DIGEST, Protocol::Copy).with_size(SizeClass::Bulk);
    rig.send_message(0, &mut state, &bytes);
    rig.send_small(1);
    rig.wait(7);
    rig.arrive(2);
    let grant = Grant {
        digest: DIGEST,
        total: bytes.len() as u64,
        len: PIECE_BYTES as u32,
        ..bytemuck::Zeroable::zeroed()
    };
    let header = Header { seq: 0, ack: 2, ..Header::new(Kind::Grants) };
    rig.hear(header, bytemuck::bytes_of(&grant));
    assert_eq!(rig.send_message(0, &mut state, &bytes), SendProgress::Advanced);
    let requests = null_device::requests(rig.pairs[0][0]);
    let piece = requests.iter().position(|request| request.is_write).expect("the piece");
    let kinds: Vec<u8> =
        requests.iter().map(|request| rig.bytes_now(request)[std::mem::offset_of!(Header, kind)]).collect();
    assert!(kinds[piece + 1..].contains(&(Kind::Sent as u8)), "{kinds:?}");
    assert!(!kinds[..piece].contains(&(Kind::Sent as u8)), "{kinds:?}, the piece is request {piece}");
    rig.assert_unchanged();
    rig.engine.end();
}

/// A header is kept with its message, and nowhere else.
#[test]
fn a_message_that_waits_for_room_in_the_queue_is_sent_with_its_header() {
    // No message is as long as the one that had its place before.
    let len_of = |number: u32| 1 + number as usize % 60;
    for bits in UNRELIABLE {
        let mut rig = Rig::new(bits);
        let pairs: Vec<u32> = rig.pairs.iter().flatten().copied().collect();
        // The device reports no request as executed, so its queue gets full.
        let waiting = (0..10_000).find(|number| {
            let before = rig.requests().len();
            let bytes = vec![1; len_of(*number)];
            rig.send_message(0, &mut SendState::new(DIGEST, Protocol::Copy), &bytes);
            let waits = rig.requests().len() == before;
            if !waits {
                let ack = number + 1;
                rig.hear(Header { ack, stream: 0, limit: ack + 32, ..Header::new(Kind::Ack) }, &[]);
            }
            waits
        });
        let len = len_of(waiting.expect("the queue gets full"));
        let mut executed = pairs.iter().flat_map(|pair| std::iter::from_fn(|| null_device::execute(*pair)));
        let sent = executed.find(|request| {
            if request.is_signaled {
                let completion = Completion { id: request.id, ..Completion::default() };
                let id = Id::unpack(request.id);
                rig.engine.drive(1, |peer, env| {
                    peer.take_completion(env, id, &completion)?;
                    peer.flush(env)
                });
            }
            number_of(&request.bytes) == waiting
        });
        let message = sent.expect("the message").bytes;
        let header: Header = bytemuck::pod_read_unaligned(&message[..size_of::<Header>()]);
        assert_eq!(header.checked(message.len()), Ok(Kind::Eager));
        assert_eq!((header.digest, header.total, usize::from(header.len)), (DIGEST, len as u64, len));
        rig.engine.end();
    }
}

impl Rig {
    /// Completes all requests and a receive, without a poll; returns the requests.
    fn finish_all(&self) -> Vec<null_device::PostedRequest> {
        let pairs = self.pairs.iter().flatten();
        let finished =
            pairs.flat_map(|pair| std::iter::from_fn(|| null_device::finish_send(*pair))).collect();
        null_device::finish_receive(self.pairs[0][0], size_of::<Header>()).expect("a receive that is posted");
        finished
    }

    /// Asserts that a poll posts what waits for room, and leaves the receive for the next poll.
    fn assert_room_is_used_first(&mut self) {
        assert!(!self.finish_all().is_empty());
        assert!(self.engine.progress(), "there are completions");
        assert!(!self.requests().is_empty(), "what waited for room is posted");
        assert_eq!(null_device::unpolled_receives(self.pairs[0][0]), 1, "the receive is polled later");
    }
}

/// The peer waits for what has no room, and receives take long: each piece is checked.
#[test]
fn a_message_that_waits_for_room_is_sent_before_receives_are_taken() {
    for bits in UNRELIABLE {
        let mut rig = Rig::new(bits);
        let is_full = (0..10_000).any(|number| {
            let before = rig.requests().len();
            rig.send_message(0, &mut SendState::new(DIGEST, Protocol::Copy), &[1; 40]);
            let (ack, is_full) = (number + 1, rig.requests().len() == before);
            if !is_full {
                rig.hear(Header { ack, stream: 0, limit: ack + 32, ..Header::new(Kind::Ack) }, &[]);
            }
            is_full
        });
        assert!(is_full, "the device executes nothing, so its queue gets full");
        rig.assert_room_is_used_first();
        rig.engine.end();
    }
}

/// The fourth piece of each call left after those of the peer had been checked, and up to 25 us late.
#[test]
fn a_piece_that_waits_for_room_is_sent_before_receives_are_taken() {
    let mut rig = Rig::new(2);
    let bytes = vec![1; WINDOW * PIECE_BYTES];
    rig.hear(Header { seq: 0, stream: 0, value: 0, ..Header::new(Kind::Placed) }, &[]);
    let is_full = (0..1000).any(|number| {
        let before = rig.requests().len();
        let mut state = SendState::new(DIGEST, Protocol::Copy).with_size(SizeClass::Bulk);
        while rig.send_message(0, &mut state, &bytes) == SendProgress::Advanced {}
        let (ack, done) = (number + 1, (number + 1) * WINDOW as u32);
        // The head and four pieces with their trailers.
        let is_full = rig.requests().len() < before + 1 + 2 * WINDOW;
        if !is_full {
            rig.hear(Header { ack, done, stream: 0, limit: ack + 32, ..Header::new(Kind::Ack) }, &[]);
        }
        is_full
    });
    assert!(is_full, "the device executes nothing, so its queue gets full");
    rig.assert_room_is_used_first();
    rig.engine.end();
}
