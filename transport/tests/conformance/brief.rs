//! Brief messages are the messages that polls send and receive, in another way.

use crate::fixture::*;
use transport::{
    BriefMessage, Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, TransportError,
    memory::Span,
};

/// The digest of the messages of these tests.
const DIGEST: u64 = 8;

/// Sends a message by one poll, which must be enough.
fn send_by_poll(link: &mut dyn Link, src: &[u8]) {
    let mut state = SendState::new(DIGEST, Protocol::Copy);
    let mut polled = || link.poll_send(&mut state, Span::from(src)).expect("send");
    assert!((0..100).any(|_| polled() == SendProgress::Complete), "{} bytes have room", src.len());
}

fn receive_by_poll(link: &mut dyn Link, len: usize) -> Vec<u8> {
    let (mut state, mut got) = (RecvState::new(DIGEST, len), vec![0; len]);
    let mut polled = || link.poll_recv(&mut state, &mut CopySink(&mut got)).expect("recv");
    assert!((0..100).any(|_| polled() == RecvProgress::Complete), "{len} bytes are there");
    got
}

/// Returns the next message, if it is a brief one that is there, and ends it.
fn receive_brief(link: &mut dyn Link, len: usize) -> Option<Vec<u8>> {
    let BriefMessage::Whole(parts) = link.poll_brief(DIGEST, len, 3) else { return None };
    let mut got = Vec::new();
    for part in parts {
        let at = got.len();
        got.resize(at + part.len(), 0);
        transport::memory::SpanMut::from(&mut got[at..]).copy_from(part);
    }
    link.end_brief(len, true, Some(len));
    Some(got)
}

fn sizes() -> Vec<usize> {
    vec![0, 1, INLINE, INLINE + 1, 103, 104, 105, 256, 1000, PIECE - 1, PIECE]
}

pub(crate) fn brief_messages_and_polled_ones_are_the_same(mut pair: Pair) {
    for round in 0..40 {
        for (at, len) in sizes().into_iter().enumerate() {
            let bytes = noise(len, (round * 100 + at) as u64);
            let (from, to) = pair.from(round % 2, round % 2);
            let before = (from.counters(), to.counters());
            let is_sent = (round + at) % 3 != 0 && from.send_brief(DIGEST, Span::from(&*bytes), false);
            if !is_sent {
                send_by_poll(from, &bytes);
            }
            let got = if (round + at) % 5 < 3 { receive_brief(to, len) } else { None };
            let got = got.unwrap_or_else(|| receive_by_poll(to, len));
            assert!(got == bytes, "{len} bytes in round {round}");
            let (sent, received) = (from.counters() - before.0, to.counters() - before.1);
            let len = len as u64;
            assert_eq!((sent.sent_messages, sent.copied_bytes), (1, len));
            let of = (received.received_messages, received.moved_bytes, received.copied_bytes);
            assert_eq!(of, (1, len, len));
        }
    }
}

/// A link that knew no brief message would pass the test above.
pub(crate) fn short_messages_are_brief(mut pair: Pair) {
    for len in sizes() {
        let bytes = noise(len, 3);
        let (from, to) = pair.ends(0);
        assert!(from.send_brief(DIGEST, Span::from(&*bytes), false), "{len} bytes leave at once");
        assert_eq!(receive_brief(to, len), Some(bytes), "{len} bytes");
    }
    let (from, to) = pair.ends(0);
    assert!(!from.send_brief(DIGEST, Span::from(&noise(1 << 20, 3)[..]), false), "it does not fit");
    assert!(matches!(to.poll_brief(DIGEST, 1 << 20, 0), BriefMessage::Another));
    assert!(matches!(to.poll_brief(DIGEST, 8, 5), BriefMessage::NotYet), "nothing was sent");
}

pub(crate) fn a_message_that_is_not_expected_is_no_brief_one_and_stays(mut pair: Pair) {
    for len in [8, 100, 1000] {
        let bytes = noise(len, 4);
        let (from, to) = pair.ends(0);
        assert!(from.send_brief(DIGEST, Span::from(&*bytes), true), "{len} bytes");
        assert!(matches!(to.poll_brief(DIGEST + 2, len, 3), BriefMessage::Another), "of another call");
        assert!(matches!(to.poll_brief(DIGEST, len - 1, 3), BriefMessage::Another), "of another length");
        let mut got = vec![0; len];
        let mut poll = |digest, len| {
            let mut state = RecvState::new(digest, len);
            to.poll_recv(&mut state, &mut CopySink(&mut got[..len])).expect_err("not expected")
        };
        assert!(matches!(poll(DIGEST + 2, len), TransportError::Mismatch { found: DIGEST, .. }));
        assert!(matches!(poll(DIGEST, len - 1), TransportError::Length { .. }));
        assert!(matches!(to.poll_brief(DIGEST, len, 3), BriefMessage::Whole(_)), "{len} bytes");
        assert_eq!(receive_brief(to, len), Some(bytes), "it stays until its end");
    }
}

pub(crate) fn a_brief_message_without_room_is_not_sent(mut pair: Pair) {
    for len in [8, 100, 1000, PIECE] {
        let (from, to) = pair.ends(0);
        let message = |number: usize| noise(len, number as u64);
        let sent = (0..).take_while(|n| from.send_brief(DIGEST, Span::from(&message(*n)[..]), false)).count();
        assert!((2..=ROOM).contains(&sent), "{sent} messages of {len} bytes");
        for number in 0..sent {
            assert!(receive_brief(to, len) == Some(message(number)), "message {number} of {len} bytes");
        }
        assert_eq!(receive_brief(to, len), None, "no other one was sent");
        assert!(from.send_brief(DIGEST, Span::from(&message(0)[..]), false), "there is room again");
        assert_eq!(receive_by_poll(to, len), message(0));
    }
}
