//! Credits, lanes, and source memory in use.

use crate::fixture::*;
use std::{
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
    thread,
    time::{Duration, Instant},
};
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, TransportError, memory::Span,
};

pub(crate) fn a_full_ring_is_idle_and_never_overwritten(mut pair: Pair) {
    // Buffers that change hands stay with an end that only receives, and add to the room until then.
    let staged = |pieces| pieces + BUFFERS as u64;
    for (len, room) in [(8, ROOM as u64), (PIECE, staged(4)), (100, ROOM as u64), (3000, staged(5))] {
        let (a, b) = pair.ends(0);
        let message = |i: u64| noise(len, i);
        let receive = |b: &mut dyn Link, i: u64| {
            let mut payload = vec![0; len];
            let progress =
                b.poll_recv(&mut RecvState::new(i, len), &mut CopySink(&mut payload)).expect("recv");
            assert_eq!(progress, RecvProgress::Complete);
            assert!(payload == message(i), "message {i} was overwritten");
        };
        let (mut sent, mut received) = (0, 0);
        while received < 5 * room {
            loop {
                let bytes = message(sent);
                let mut state = SendState::new(sent, Protocol::Copy);
                match a.poll_send(&mut state, Span::from(&*bytes)).expect("send") {
                    SendProgress::Complete => sent += 1,
                    SendProgress::Idle => break,
                    other => panic!("{other:?} of a single piece"),
                }
            }
            assert!(sent - received <= room, "{sent} sent, {received} received");
            // Receives until the ring is empty or has room for one more message.
            for _ in 0..=sent % (sent - received) {
                receive(b, received);
                received += 1;
            }
        }
        while received < sent {
            receive(b, received);
            received += 1;
        }
    }
}

/// Sends more messages than the link has room for: no message is lost, and a refused one has not started.
pub(crate) fn a_full_link_takes_no_more_and_loses_nothing(mut pair: Pair) {
    for len in [8, 100, PIECE, 3_000_000] {
        let (a, b) = pair.ends(0);
        let (mut sent, mut received, mut full) = (0u64, 0u64, 0);
        let mut under_way: Option<(SendState, Vec<u8>)> = None;
        let until = Instant::now() + PATIENCE;
        while full < 3 || received < sent || under_way.is_some() {
            assert!(Instant::now() < until, "stuck");
            loop {
                let begun = full < 3;
                if under_way.is_none() && !begun {
                    break;
                }
                let (state, bytes) =
                    under_way.get_or_insert_with(|| (SendState::new(sent, Protocol::Copy), noise(len, sent)));
                match a.poll_send(state, Span::from(&**bytes)).expect("send") {
                    SendProgress::Complete => (under_way, sent) = (None, sent + 1),
                    SendProgress::Advanced => {}
                    SendProgress::Idle => {
                        full += 1;
                        break;
                    }
                    SendProgress::Posted => panic!("nobody asked for a confirmation"),
                }
            }
            let all = sent + u64::from(under_way.is_some());
            let (mut state, mut payload) = (RecvState::new(received, len), vec![0; len]);
            // Sends until all messages are received or the ring is full.
            for _ in 0..10_000 {
                if received == all {
                    break;
                }
                if b.poll_recv(&mut state, &mut CopySink(&mut payload)).expect("recv")
                    == RecvProgress::Complete
                {
                    assert!(payload == noise(len, received), "message {received} is not what was sent");
                    received += 1;
                    (state, payload) = (RecvState::new(received, len), vec![0; len]);
                } else if under_way.is_some() {
                    let (state, bytes) = under_way.as_mut().expect("as seen");
                    let progress = a.poll_send(state, Span::from(&**bytes)).expect("send");
                    if progress == SendProgress::Complete {
                        (under_way, sent) = (None, sent + 1);
                    }
                }
            }
            assert_eq!(state.received(), 0, "a message was not received to its end");
        }
    }
}

pub(crate) fn a_lane_that_is_full_does_not_stop_another(mut pair: Pair) {
    let bytes = [1u8; 8];
    let (a, _) = pair.ends(0);
    let mut sent = 0;
    while a.poll_send(&mut SendState::new(3, Protocol::Copy), Span::from(&bytes[..])).expect("send")
        == SendProgress::Complete
    {
        sent += 1;
    }
    assert!(sent >= CELLS, "only {sent} messages");
    assert_eq!(pair.ends(1).1.peek_digest(), None);
    let mut payload = [0; 8];
    for _ in 0..3 * CELLS {
        transfer(pair.from(0, 1), Protocol::Copy, Span::from(&bytes[..]), &mut CopySink(&mut payload));
        // A full direction does not stop the other one.
        transfer(pair.from(1, 0), Protocol::Copy, Span::from(&bytes[..]), &mut CopySink(&mut payload));
    }
}

/// Returns the error of receiving the next message, once it has arrived.
fn refusal(link: &mut dyn Link, state: RecvState, to: &mut [u8]) -> TransportError {
    let until = Instant::now() + PATIENCE;
    loop {
        match link.poll_recv(&mut state.clone(), &mut CopySink(to)) {
            Ok(RecvProgress::Complete) => panic!("{state:?} was received"),
            Ok(_) => assert!(Instant::now() < until, "nothing came"),
            Err(error) => return error,
        }
    }
}

pub(crate) fn a_message_that_is_not_expected_stays_where_it_is(mut pair: Pair) {
    for protocol in pair.protocols() {
        for len in [8, 100, PIECE] {
            let bytes = noise(len, 9);
            let memory = registered(&pair.0[0].slab, &bytes);
            let (a, b) = pair.ends(0);
            a.poll_send(&mut SendState::new(0xabc, protocol), memory.span()).expect("send");
            let mut payload = vec![0; len + 1];
            for _ in 0..2 {
                let error = refusal(b, RecvState::new(0xdef, len), &mut payload);
                assert!(
                    matches!(error, TransportError::Mismatch { expected: 0xdef, found: 0xabc }),
                    "{error}"
                );
                let text = error.to_string();
                assert!(text.contains("def") && text.contains("abc"), "{text}");
                let error = refusal(b, RecvState::new(0xabc, len + 1), &mut payload);
                let text = format!("has {len} bytes where {} were expected", len + 1);
                assert!(error.to_string().contains(&text), "{error}");
                assert_eq!(b.peek_digest(), Some(0xabc));
            }
            payload.truncate(len);
            let progress = b.poll_recv(&mut RecvState::new(0xabc, len), &mut CopySink(&mut payload));
            assert_eq!(progress.expect("the message"), RecvProgress::Complete);
            assert_eq!(payload, bytes);
        }
    }
}

pub(crate) fn a_source_that_is_read_in_place_is_in_use_until_it_was_received(mut pair: Pair) {
    const LEN: usize = 600_000;
    for protocol in pair.protocols().into_iter().filter(|p| *p != Protocol::Copy) {
        let memory = registered(&pair.0[0].slab, &noise(LEN, 4));
        let (a, b) = pair.ends(0);
        let mut send = SendState::new(1, protocol);
        let (mut payload, mut recv) = (vec![0; LEN], RecvState::new(1, LEN));
        let mut polls = 0;
        loop {
            assert_eq!(a.poll_send(&mut send, memory.span()).expect("send"), SendProgress::Posted);
            polls += 1;
            if b.poll_recv(&mut recv, &mut CopySink(&mut payload)).expect("recv") == RecvProgress::Complete {
                break;
            }
        }
        assert!(polls > 1, "a long message keeps others waiting");
        assert_eq!(a.poll_send(&mut send, memory.span()).expect("send"), SendProgress::Complete);
        assert!(payload == memory.as_slice());
    }
}

pub(crate) fn posted_messages_do_not_hold_up_later_ones(mut pair: Pair) {
    for protocol in pair.protocols().into_iter().filter(|p| *p != Protocol::Copy) {
        let memory = registered(&pair.0[0].slab, &noise(CELLS * 100, 4));
        let part = |i: usize| memory.span().sub(i * 100, 100);
        let (a, b) = pair.ends(0);
        let mut states: Vec<SendState> = (0..CELLS as u64).map(|i| SendState::new(i, protocol)).collect();
        for (i, state) in states.iter_mut().enumerate() {
            assert_eq!(a.poll_send(state, part(i)).expect("send"), SendProgress::Posted);
        }
        let mut more = SendState::new(99, protocol);
        assert_eq!(a.poll_send(&mut more, part(0)).expect("send"), SendProgress::Idle);
        for i in 0..CELLS {
            let mut payload = vec![0; 100];
            b.poll_recv(&mut RecvState::new(i as u64, 100), &mut CopySink(&mut payload)).expect("recv");
            assert_eq!(payload, memory.as_slice()[i * 100..][..100]);
            for (j, state) in states.iter_mut().enumerate() {
                let expected = if j <= i { SendProgress::Complete } else { SendProgress::Posted };
                let progress = a.poll_send(state, part(j)).expect("send");
                assert_eq!(progress, expected, "message {j} after {i} was received");
            }
        }
    }
}

pub(crate) fn unregistered_memory_is_copied_when_asked_to_be_read_in_place(mut pair: Pair) {
    let bytes = noise(10_000, 8);
    let mut payload = vec![0; 10_000];
    let copied = pair.ends(0).0.counters().copied_bytes;
    transfer(pair.ends(0), Protocol::Direct, Span::from(&*bytes), &mut CopySink(&mut payload));
    assert_eq!(payload, bytes);
    let copied = pair.ends(0).0.counters().copied_bytes - copied;
    match pair.0[0].is_resumable {
        true => assert!(copied >= 10_000, "{copied}"),
        false => assert_eq!(copied, pair.copied(10_000, false).0),
    }
}

pub(crate) fn many_messages_between_two_threads_keep_their_order(mut pair: Pair) {
    const FOR: Duration = Duration::from_millis(1500);
    /// Messages that are sent on a busy machine too, which takes longer then.
    const LEAST: u64 = 10 << 10;
    /// Returns message `i`: mostly inline, sometimes staged.
    fn message(i: u64) -> ([u8; 160], usize) {
        let mut bytes = [i as u8; 160];
        bytes[..8].copy_from_slice(&i.to_ne_bytes());
        (bytes, if i.is_multiple_of(7) { 8 + (i % 150) as usize } else { 8 + (i % 41) as usize })
    }
    let [a, b] = &mut pair.0;
    let (sender, receiver) = (&mut a.links[0], &mut b.links[0]);
    let start = Instant::now();
    let idle = |polls: &mut u32| {
        *polls += 1;
        if *polls > 100 {
            thread::yield_now();
            assert!(start.elapsed() < PATIENCE, "stuck");
        }
    };
    let total = AtomicU64::new(u64::MAX);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut i = 0;
            while i % 1024 != 0 || i < LEAST || start.elapsed() < FOR {
                let (bytes, len) = message(i);
                let (mut state, mut polls) = (SendState::new(i, Protocol::Copy), 0);
                while sender.poll_send(&mut state, Span::from(&bytes[..len])).expect("send")
                    != SendProgress::Complete
                {
                    idle(&mut polls);
                }
                i += 1;
            }
            total.store(i, Release);
        });
        let (mut i, mut polls) = (0, 0);
        while i < total.load(Acquire) {
            let (bytes, len) = message(i);
            let mut payload = [0; 160];
            // A message of a single piece arrives as a whole.
            match receiver.poll_recv(&mut RecvState::new(i, len), &mut CopySink(&mut payload[..len])) {
                Ok(RecvProgress::Complete) => {
                    assert_eq!(payload[..len], bytes[..len], "message {i}");
                    (i, polls) = (i + 1, 0);
                }
                Ok(_) => idle(&mut polls),
                Err(e) => panic!("message {i}: {e}"),
            }
        }
    });
}
