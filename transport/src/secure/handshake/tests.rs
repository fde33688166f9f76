//! Tests of handshakes that succeed, and of the ways in which they must fail.

use super::*;

fn secret(byte: u8) -> Secret {
    Secret::from_bytes([byte; 32])
}

fn ends() -> [Handshake; 2] {
    [
        Handshake::initiator(&secret(1), Purpose::Data, b"rank 3").expect("begun"),
        Handshake::responder(&secret(1), Purpose::Data, b"rank 0").expect("begun"),
    ]
}

/// Returns all bytes that one end has to send now, and marks them as written.
fn said(end: &mut Handshake) -> Vec<u8> {
    let bytes = end.outgoing().to_vec();
    end.mark_written(bytes.len());
    bytes
}

/// Runs the handshake with at most `step` bytes at a time; returns the bytes of each direction.
fn carry(a: &mut Handshake, b: &mut Handshake, step: usize) -> Result<[Vec<u8>; 2], SecureError> {
    let mut wire = [Vec::new(), Vec::new()];
    for _ in 0..10_000 {
        for (at, bytes_of) in wire.iter_mut().enumerate() {
            let (from, to) = if at == 0 { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
            let len = step.min(from.outgoing().len()).min(to.bytes_wanted());
            let bytes = from.outgoing()[..len].to_vec();
            from.mark_written(len);
            bytes_of.extend_from_slice(&bytes);
            to.receive(&bytes)?;
        }
        if a.is_done() && b.is_done() {
            return Ok(wire);
        }
    }
    panic!("they never came to an end: {a:?}, {b:?}");
}

#[test]
fn both_learn_what_the_other_says_of_itself_however_bytes_come() {
    for step in [1, 2, 7, 8, 9, 100, usize::MAX] {
        let [mut a, mut b] = ends();
        carry(&mut a, &mut b, step).expect("the same secret");
        let (a, b) = (a.finish().expect("done"), b.finish().expect("done"));
        assert_eq!((a.hello(), b.hello()), (&b"rank 0"[..], &b"rank 3"[..]));
        let ((mut seal_a, mut open_a), (mut seal_b, mut open_b)) = (a.into_ciphers(), b.into_ciphers());
        for (sealer, opener) in [(&mut seal_a, &mut open_b), (&mut seal_b, &mut open_a)] {
            let mut record = *b"the first record";
            let tag = sealer.seal(&[], &mut record);
            assert_ne!(&record, b"the first record");
            opener.open(&[], &mut record, &tag).expect("sealed by the other end");
            assert_eq!(&record, b"the first record");
        }
    }
}

#[test]
fn every_connection_has_keys_of_its_own_and_the_wire_shows_no_hello() {
    let mut wires = Vec::new();
    for _ in 0..2 {
        let [mut a, mut b] = ends();
        wires.push(carry(&mut a, &mut b, usize::MAX).expect("the same secret"));
    }
    assert_ne!(wires[0][0][HEADER_BYTES..], wires[1][0][HEADER_BYTES..]);
    assert_ne!(wires[0][1][HEADER_BYTES..], wires[1][1][HEADER_BYTES..]);
    for bytes in wires.iter().flatten() {
        assert!(!bytes.windows(4).any(|part| part == b"rank"));
    }
}

#[test]
fn hellos_may_be_empty_and_are_bounded() {
    let long = vec![7; MAX_HELLO_BYTES];
    for hello in [&[][..], &long] {
        let mut a = Handshake::initiator(&secret(1), Purpose::Data, hello).expect("begun");
        let mut b = Handshake::responder(&secret(1), Purpose::Data, hello).expect("begun");
        carry(&mut a, &mut b, usize::MAX).expect("the same secret");
        assert_eq!(a.finish().expect("done").hello(), hello);
        assert_eq!(b.finish().expect("done").hello(), hello);
    }
    let longer = vec![7; MAX_HELLO_BYTES + 1];
    assert!(Handshake::initiator(&secret(1), Purpose::Data, &longer).is_err());
}

#[test]
fn another_secret_is_refused_before_anything_is_said() {
    let mut a = Handshake::initiator(&secret(2), Purpose::Data, b"").expect("begun");
    let [_, mut b] = ends();
    let error = b.receive(&said(&mut a)).expect_err("another secret");
    assert!(matches!(error, SecureError::Secret), "{error}");
    assert!(b.outgoing().is_empty(), "a foreign initiator gets no answer");
    assert_eq!(b.bytes_wanted(), 0);
    assert!(b.receive(b"more").is_err() && !b.is_done() && b.finish().is_err());
}

#[test]
fn another_purpose_or_version_is_refused_and_named() {
    let mut a = Handshake::initiator(&secret(1), Purpose::Bootstrap, b"").expect("begun");
    let first = said(&mut a);
    let [_, mut b] = ends();
    let error = b.receive(&first).expect_err("another purpose").to_string();
    assert!(error.contains("purpose 1") && error.contains("purpose 2"), "{error}");
    // An initiator that only changes the purpose in the header is refused too.
    let mut renamed = first.clone();
    renamed[4] = Purpose::Data as u8;
    let [_, mut b] = ends();
    assert!(matches!(b.receive(&renamed), Err(SecureError::Secret)));
    let mut newer = first;
    newer[3] = VERSION + 1;
    let [_, mut b] = ends();
    let error = b.receive(&newer).expect_err("another version").to_string();
    assert!(error.contains(&format!("version {}", VERSION + 1)), "{error}");
}

#[test]
fn a_recording_of_one_handshake_is_of_no_use_for_another() {
    let [mut a, mut b] = ends();
    let [from_initiator, from_responder] = carry(&mut a, &mut b, usize::MAX).expect("the same secret");
    // Replayed to another responder: its answer is new, so the recorded third message does not fit.
    let [_, mut responder] = ends();
    let first = HEADER_BYTES + KEY_BYTES + TAG_BYTES;
    responder.receive(&from_initiator[..first]).expect("it was made with the secret");
    said(&mut responder);
    let error = responder.receive(&from_initiator[first..]).expect_err("recorded");
    assert!(matches!(error, SecureError::Secret), "{error}");
    // Replayed to another initiator: its key is new, so the recorded answer does not fit.
    let [mut initiator, _] = ends();
    said(&mut initiator);
    let error = initiator.receive(&from_responder).expect_err("recorded");
    assert!(matches!(error, SecureError::Secret), "{error}");
    // Reflected to its sender.
    let [mut initiator, _] = ends();
    let own = said(&mut initiator);
    assert!(initiator.receive(&own).is_err());
}

#[test]
fn strangers_are_known_by_their_first_byte() {
    for text in [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-", b"\x16\x03\x01", &[0; 8], &[0xff; 300]] {
        let [_, mut b] = ends();
        let error = b.receive(&text[..1]).expect_err("not ours");
        assert!(matches!(error, SecureError::UnknownProtocol), "{error}");
    }
    let [_, mut b] = ends();
    assert!(matches!(b.receive(b"tbx"), Err(SecureError::UnknownProtocol)));
}

#[test]
fn every_changed_byte_makes_it_fail_on_one_side_at_least() {
    let [mut a, mut b] = ends();
    let whole = carry(&mut a, &mut b, usize::MAX).expect("the same secret");
    for (direction, bytes) in whole.iter().enumerate() {
        for at in 0..bytes.len() {
            let [mut a, mut b] = ends();
            let mut sent = [0; 2];
            let mut failed = false;
            for _ in 0..6 {
                for way in [0, 1] {
                    let (from, to) = if way == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
                    let len = from.outgoing().len().min(to.bytes_wanted());
                    let mut part = from.outgoing()[..len].to_vec();
                    from.mark_written(len);
                    if way == direction && (sent[way]..sent[way] + len).contains(&at) {
                        part[at - sent[way]] ^= 0x40;
                    }
                    sent[way] += len;
                    failed |= to.receive(&part).is_err();
                }
            }
            // A length that was increased makes the reader wait until its owner's deadline.
            assert!(failed || !(a.is_done() && b.is_done()), "byte {at} of direction {direction}");
        }
    }
}

#[test]
fn what_is_cut_off_is_never_done() {
    let [mut a, mut b] = ends();
    let [from_initiator, _] = carry(&mut a, &mut b, usize::MAX).expect("the same secret");
    for len in 0..HEADER_BYTES + KEY_BYTES + TAG_BYTES {
        let [_, mut b] = ends();
        b.receive(&from_initiator[..len]).expect("a beginning");
        assert!(!b.is_done() && b.outgoing().is_empty() && b.bytes_wanted() > 0);
    }
}

#[test]
fn lengths_that_can_not_be_are_refused_before_they_are_waited_for() {
    for len in [0, 1, KEY_BYTES + TAG_BYTES - 1, KEY_BYTES + TAG_BYTES + 1, 5000, 0xffff] {
        let [_, mut b] = ends();
        let [low, high] = (len as u16).to_le_bytes();
        let header = [b't', b'b', b'c', VERSION, Purpose::Data as u8, 1, low, high];
        let error = b.receive(&header).expect_err("a length that none has");
        assert!(matches!(error, SecureError::Malformed(_)), "{len}: {error}");
    }
}

#[test]
fn bytes_at_random_are_refused_and_never_a_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..2000 {
        let [mut a, mut b] = ends();
        let end = if round % 2 == 0 { &mut a } else { &mut b };
        let number = if round % 2 == 0 { 2 } else { 1 };
        let len = (random() % 1200) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| random() as u8).collect();
        if round % 3 == 0 {
            let [low, high] = ((KEY_BYTES + TAG_BYTES) as u16).to_le_bytes();
            bytes.splice(0..0, [b't', b'b', b'c', VERSION, Purpose::Data as u8, number, low, high]);
        }
        let refused = end.receive(&bytes).is_err();
        assert!(refused || bytes.len() < HEADER_BYTES + KEY_BYTES + TAG_BYTES);
        assert!(!end.is_done());
    }
}
