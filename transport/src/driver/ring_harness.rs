//! Shared memory of a hostile peer, for tests and the fuzz target `ring_places` under `fuzz/`.
//!
//! A script writes words of the memory that a peer may write, and polls a link between the writes. The link
//! gives bytes of the peer's memory, an error, or nothing, and writes only to the destination of a receive.
//!
//! # Safety
//! The words lie in arenas that the harness owns, at offsets below the ends of their parts.

use super::{pull::Puller, ring_link::RingLink};
use crate::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink,
    memory::{Arena, ArenaLayout, Board, Span, SpanMut},
    ring::{RingLayout, Stores},
};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const LAYOUT: ArenaLayout = ArenaLayout {
    ranks: 2,
    lanes: 1,
    ring: RingLayout {
        cells: 8,
        staging_bytes: 4 * 256,
        piece_bytes: 256,
        buffers: 2,
        lap_bytes: 4 * 256,
        stores: Stores::Auto,
        fetches: false,
    },
    slab_bytes: 1 << 16,
};
/// Bytes around a destination, to detect stray writes.
const MARGIN: usize = 64;
/// Acts of a script that are carried out.
const MAX_ACTS: usize = 64;
const LENS: [usize; 8] = [0, 8, 48, 49, 256, 300, 1000, 5000];
const DIGEST: u64 = 6;

/// Unread rest of a script.
struct Script<'s>(&'s [u8]);

impl Script<'_> {
    /// Returns the next byte; 0 behind the end.
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Returns a number that is small, near the end of the range of 64 bits, or any.
    fn word(&mut self) -> u64 {
        let kind = self.byte();
        let small = u64::from(self.byte()) << (kind >> 4);
        match kind & 3 {
            0 | 1 => small,
            2 => small.wrapping_neg(),
            _ => (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte())),
        }
    }

    fn len(&mut self) -> usize {
        LENS[usize::from(self.byte()) % LENS.len()]
    }
}

/// A destination, or a reduction that only looks at the bytes.
struct Destination<'d> {
    bytes: &'d mut [u8],
    is_reduced: bool,
    /// Bytes passed so far.
    passed: usize,
}

impl Sink for Destination<'_> {
    fn write(&mut self, offset: usize, data: Span<'_>) {
        assert!(offset + data.len() <= self.bytes.len() - 2 * MARGIN, "bytes behind the end of the message");
        self.passed += data.len();
        let inner = SpanMut::from(&mut self.bytes[MARGIN..]);
        inner.sub(offset, data.len()).copy_from(data);
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        let end = self.bytes.len() - MARGIN;
        (!self.is_reduced).then(|| SpanMut::from(&mut self.bytes[MARGIN..end]))
    }
}

/// Returns a word at `offset` of an arena.
fn word(arena: &Arena, offset: usize) -> &AtomicU64 {
    assert!(offset.is_multiple_of(8) && offset + 8 <= LAYOUT.bytes());
    // SAFETY: the word lies in the mapping, is aligned, and is accessed as an atomic or by the code under
    // test, which runs on this thread.
    unsafe { &*arena.mapping().as_ptr().add(offset).cast() }
}

/// Offsets of the ring from `source` in an arena.
fn ring(arena: &Arena, source: u32) -> usize {
    arena.ring(source, 0) as usize - arena.mapping().as_ptr() as usize
}

/// Carries out a script: each act is a byte, and the bytes of its arguments.
///
/// # Panics
/// If the link violates an invariant.
pub fn feed(script: &[u8]) {
    let [ours, theirs] = [(); 2].map(|()| Arena::private(LAYOUT).expect("memory"));
    let mut script = Script(script);
    let pulls = script.byte() & 1 == 1;
    let puller = pulls.then(|| Puller::new(std::process::id()));
    let mut link = RingLink::new("hostile", (0, &ours), (1, &theirs), 0, puller);
    let incoming = ring(&ours, 1);
    let outgoing = ring(&theirs, 0);
    let (mut receive, mut send) = (None::<(RecvState, Vec<u8>, bool)>, None::<(SendState, Vec<u8>)>);
    // Messages published in cells of the ring, and in those that change hands.
    let (mut in_ring, mut in_swap) = (0u64, 0u64);
    for _ in 0..MAX_ACTS {
        if script.0.is_empty() {
            return;
        }
        match script.byte() % 8 {
            0 => {
                // A cell as a sender would publish it, with any content.
                let (kind, len) = (u64::from(script.byte() % 8), u64::from(script.byte()));
                let flags = script.byte();
                let digest = if flags < 250 { DIGEST } else { script.word() };
                let order = (in_ring + in_swap) << 48;
                let (arena, at, nth) = if flags & 1 == 1 {
                    in_swap += 1;
                    let (arena, ring) =
                        if in_swap & 1 == 1 { (&ours, incoming) } else { (&theirs, outgoing) };
                    (arena, ring + RingLayout::SWAP_START, in_swap)
                } else {
                    in_ring += 1;
                    let slot = (in_ring - 1) as usize % LAYOUT.ring.cells;
                    (&ours, incoming + RingLayout::cell_start(slot), in_ring)
                };
                word(arena, at + 8).store(digest, Relaxed);
                for index in 2..5 {
                    word(arena, at + 8 * index).store(script.word(), Relaxed);
                }
                word(arena, at).store(nth & 0xffff_ffff | kind << 32 | len << 40 | order, Relaxed);
            }
            1 => {
                // A piece of the expected length where the next one belongs.
                let (total, len) = (script.len() as u64, 1 + u64::from(script.byte()));
                let (order, slot) = ((in_ring + in_swap) << 48, in_ring as usize % LAYOUT.ring.cells);
                let at = incoming + RingLayout::cell_start(slot);
                let words = [DIGEST, total, script.word(), len.min(total)];
                for (index, value) in words.into_iter().enumerate() {
                    word(&ours, at + 8 * (1 + index)).store(value, Relaxed);
                }
                in_ring += 1;
                word(&ours, at).store(in_ring & 0xffff_ffff | 2 << 32 | order, Relaxed);
            }
            2 => {
                // Any word of the ring that the peer writes.
                let at = script.word() as usize % (LAYOUT.ring.bytes() / 8) * 8;
                word(&ours, incoming + at).store(script.word(), Relaxed);
            }
            3 => {
                // Counters of consumption, or any other word of the ring to the peer.
                let at = script.word() as usize % (LAYOUT.ring.bytes() / 8) * 8;
                word(&theirs, outgoing + at).store(script.word(), Relaxed);
            }
            4 => word(&theirs, Board::BYTES).store(script.word() & 1, Relaxed),
            5 => {
                let len = script.len();
                let memory = vec![0xa5; len + 2 * MARGIN];
                receive = Some((RecvState::new(DIGEST, len), memory, script.byte() & 1 == 1));
            }
            6 => {
                let protocols = [Protocol::Copy, Protocol::Direct, Protocol::Pull, Protocol::PullUnchanged];
                let protocol = protocols[usize::from(script.byte() % 4)];
                send = Some((SendState::new(DIGEST, protocol), vec![0x5a; script.len()]));
            }
            _ => {}
        }
        if let Some((state, memory, is_reduced)) = &mut receive {
            let is_over = poll(&mut link, state, memory, *is_reduced);
            receive = receive.filter(|_| !is_over);
        }
        if let Some((state, bytes)) = &mut send
            && !matches!(
                link.poll_send(state, Span::from(bytes.as_slice())),
                Ok(SendProgress::Idle | SendProgress::Advanced | SendProgress::Posted)
            )
        {
            send = None;
        }
    }
}

/// Polls a receive; returns whether it has ended.
fn poll(link: &mut RingLink, state: &mut RecvState, memory: &mut [u8], is_reduced: bool) -> bool {
    let (len, before) = (state.len, state.received);
    let mut sink = Destination { bytes: memory, is_reduced, passed: 0 };
    let polled = link.poll_recv(state, &mut sink);
    let passed = sink.passed;
    assert!(state.received <= len && state.received >= before);
    assert!(passed == state.received - before || !is_reduced || polled.is_err(), "bytes counted twice");
    let is_intact = |margin: &[u8]| margin.iter().all(|byte| *byte == 0xa5);
    assert!(is_intact(&memory[..MARGIN]) && is_intact(&memory[MARGIN + len..]), "a stray write");
    match polled {
        Ok(RecvProgress::Complete) => {
            assert_eq!(state.received, len);
            true
        }
        Ok(_) => false,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::feed;

    #[test]
    fn inputs_that_fuzzing_has_found_are_replayed() {
        support::replay("ring_places", feed);
    }
}
