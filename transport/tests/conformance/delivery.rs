//! Every message arrives complete, and the counters show its copies.

use crate::fixture::*;
use transport::{Counters, Protocol, memory::Span};

pub(crate) fn sizes() -> Vec<usize> {
    vec![0, 1, 47, INLINE, 49, 64, 65, PIECE - 1, PIECE, PIECE + 1, 4 * PIECE, 4 * PIECE + 1, (3 << 20) + 5]
}

pub(crate) fn every_size_arrives_whole_by_every_protocol(mut pair: Pair) {
    for protocol in pair.all_protocols() {
        for len in sizes() {
            for from in [0, 1] {
                let bytes = noise(len, len as u64 * 3 + from as u64);
                let memory = registered(&pair.0[from].slab, &bytes);
                let src = if protocol == Protocol::Direct { memory.span() } else { Span::from(&*bytes) };
                let (mut destination, mut folding) = (vec![0xee; len], vec![0xee; len]);
                transfer(pair.from(from, 1), protocol, src, &mut CopySink(&mut destination));
                transfer(pair.from(from, 1), protocol, src, &mut ReduceSink(&mut folding));
                assert!(destination == bytes && folding == bytes, "{len} bytes by {protocol:?}");
            }
        }
    }
}

pub(crate) fn bytes_moved_and_copied_are_counted_exactly(mut pair: Pair) {
    for protocol in pair.all_protocols() {
        for len in sizes() {
            let bytes = noise(len, 5);
            let memory = registered(&pair.0[0].slab, &bytes);
            let src = if protocol == Protocol::Direct { memory.span() } else { Span::from(&*bytes) };
            for fold in [false, true] {
                let mut to = vec![0; len];
                let (a, b) = pair.ends(0);
                let before = (a.counters(), b.counters());
                match fold {
                    true => transfer((&mut *a, &mut *b), protocol, src, &mut ReduceSink(&mut to)),
                    false => transfer((&mut *a, &mut *b), protocol, src, &mut CopySink(&mut to)),
                }
                let (copied, is_resumable) = (pair.copied(len, fold), pair.0[0].is_resumable);
                let (a, b) = pair.ends(0);
                let len = len as u64;
                let (out, into) = match protocol {
                    Protocol::Copy => copied,
                    Protocol::Direct => (0, 0),
                    // Pulled bytes to be reduced go through a buffer.
                    Protocol::Pull => (0, if fold { len } else { 0 }),
                    // The message that is folded is sent for the second time. Of less than two words no
                    // sample is taken.
                    Protocol::PullUnchanged if fold && len > 8 => (0, len),
                    Protocol::PullUnchanged => copied,
                };
                let (found, found_into) = (a.counters() - before.0, b.counters() - before.1);
                // What is copied depends on the acknowledgements that have come.
                let (out, into) = match is_resumable {
                    true => (found.copied_bytes, found_into.copied_bytes),
                    false => (out, into),
                };
                assert!(out <= 2 * len && into <= 2 * len, "{out} and {into} copied for {len} bytes");
                let sent = Counters { sent_messages: 1, copied_bytes: out, ..Counters::default() };
                assert_eq!(found, sent, "{len} bytes by {protocol:?}");
                let received = Counters {
                    received_messages: 1,
                    moved_bytes: len,
                    copied_bytes: into,
                    ..Counters::default()
                };
                assert_eq!(found_into, received, "{len} bytes by {protocol:?}, fold {fold}");
            }
        }
    }
}

/// Only a sample of a message is looked at before it is read by system call.
pub(crate) fn a_message_that_changed_where_no_sample_is_arrives_as_it_is(mut pair: Pair) {
    if !pair.all_protocols().contains(&Protocol::PullUnchanged) {
        return;
    }
    let mut bytes = noise(100_000, 1);
    for at in 0..64 {
        bytes[at * 1500 + 700] ^= 1;
        let mut to = vec![0; bytes.len()];
        transfer(pair.ends(0), Protocol::PullUnchanged, Span::from(&*bytes), &mut CopySink(&mut to));
        assert!(to == bytes, "byte {} changed", at * 1500 + 700);
    }
    let received = pair.ends(0).1.counters();
    assert!(received.copied_bytes < received.moved_bytes / 2, "most were read by system call: {received:?}");
}
