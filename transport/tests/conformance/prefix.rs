//! Messages whose bytes become available little by little.

use crate::{delivery::sizes, fixture::*};
use std::time::Instant;
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState,
    memory::{Span, SpanMut},
};

/// Message length that links able to send prefixes split into several parts.
const LONG: usize = 1 << 20;

/// No byte is sent before it is available, and long messages start before their last bytes are available.
pub(crate) fn what_is_there_of_a_message_is_sent_on(mut pair: Pair) {
    let mut numbers = Numbers(77);
    for protocol in pair.protocols() {
        for len in sizes() {
            for reduced in [false, true] {
                let bytes = noise(len, len as u64 + 7);
                let mut foreign = vec![0xee; len];
                let mut memory = registered(&pair.0[0].slab, &foreign);
                let from_slab = reduced || protocol == Protocol::Direct;
                let src = if from_slab { memory.span_mut() } else { SpanMut::from(&mut foreign[..]) };
                let message = Message { bytes: &bytes, src, protocol, reduced };
                send_in_prefixes(pair.from(0, 1), &message, &mut numbers);
                // The next message must not be mistaken for the current one.
                let mut payload = vec![0; len];
                transfer(pair.from(0, 1), protocol, src.as_span(), &mut CopySink(&mut payload));
                assert!(payload == bytes, "the message behind one of {len} bytes by {protocol:?}");
            }
        }
    }
}

struct Message<'a> {
    bytes: &'a [u8],
    /// Source memory, which the test fills little by little.
    src: SpanMut<'a>,
    protocol: Protocol,
    reduced: bool,
}

/// Sends a message whose bytes become available little by little.
fn send_in_prefixes(
    (from, to): (&mut dyn Link, &mut dyn Link),
    message: &Message<'_>,
    numbers: &mut Numbers,
) {
    let Message { bytes, src, protocol, reduced } = *message;
    let len = bytes.len();
    let what = format!("{len} bytes by {protocol:?}, folded {reduced}");
    let (mut send, mut recv) = (SendState::new(3, protocol), RecvState::new(3, len));
    let (mut sent, mut received, mut ready, mut payload) = (false, false, 0, vec![0x11; len]);
    let until = Instant::now() + PATIENCE;
    while !(sent && received) {
        assert!(Instant::now() < until, "stuck with {ready} of {what}, {} received", recv.received());
        // The second half of a long message is held back until some of the first has arrived.
        let holds_back = protocol == Protocol::Copy && len > LONG && ready > len / 2 && recv.received() == 0;
        if numbers.below(4) == 0 && !holds_back {
            let more = (1 + numbers.below(200 + len / 20)).min(len - ready);
            src.sub(ready, more).copy_from(Span::from(&bytes[ready..ready + more]));
            ready += more;
        }
        if !sent {
            let progress = match ready < len {
                true => from.poll_send_prefix(&mut send, src.as_span(), ready),
                false => from.poll_send(&mut send, src.as_span()),
            };
            let progress = progress.expect("send");
            let is_through = matches!(progress, SendProgress::Posted | SendProgress::Complete);
            assert!(ready == len || !is_through, "{progress:?} with {ready} of {what}");
            sent = progress == SendProgress::Complete;
        }
        if !received {
            let before = recv.received();
            let progress = match reduced {
                true => to.poll_recv(&mut recv, &mut ReduceSink(&mut payload)),
                false => to.poll_recv(&mut recv, &mut CopySink(&mut payload)),
            };
            received = progress.expect("recv") == RecvProgress::Complete;
            let taken = recv.received();
            assert!(before <= taken && taken <= ready, "{taken} taken with {ready} of {what}");
            assert!(payload[before..taken] == bytes[before..taken], "{before} to {taken} of {what}");
        }
    }
    assert!(payload == bytes, "{what}");
}
