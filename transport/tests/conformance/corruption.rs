//! A peer that corrupts shared memory causes an error, and never a fault.
//!
//! # Safety
//! [`SharedWriter`] writes single words inside an arena that it keeps mapped, as a corrupt peer could. Only
//! the kernel reads the span of an unmapped address, and it refuses the address.

use crate::fixture::*;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use transport::{
    Protocol, RecvProgress, RecvState, SendProgress, SendState, TransportError,
    memory::{Arena, Mapping, Span},
};

/// First words of the cell that changes hands, and of the first other one.
const SWAP: usize = 16;
const FIRST: usize = 32;

/// Words of the ring on which rank 0 sends to rank 1 on lane 0, mapped by an outsider.
struct SharedWriter(Mapping);

impl SharedWriter {
    fn of(pair: &Pair) -> SharedWriter {
        let object = pair.0[1].object.as_ref().expect("shared memory");
        SharedWriter(Mapping::from_descriptor(object, LAYOUT.bytes()).expect("one more mapping"))
    }

    /// Writes one word: word 0 is the first of the consumer line, word [`SWAP`] that of the cell that changes
    /// hands, and word [`FIRST`] that of cell 0.
    fn write(&self, word: usize, value: u64) {
        assert!(word < FIRST + 16 * CELLS);
        // SAFETY: the word is within the ring, which is within the mapping; all ends access it as an atomic.
        unsafe {
            let words = self.0.as_ptr().add(BOARD_BYTES).cast::<AtomicU64>();
            (*words.add(word)).store(value, SeqCst);
        }
    }
}

#[test]
fn a_corrupt_header_is_an_error_and_not_a_fault() {
    const LEN: usize = 5000;
    let (slab, len, piece) = (LAYOUT.slab_bytes as u64, LEN as u64, PIECE as u64);
    let far = [1 << 32, 1 << 47, 1 << 63, u64::MAX - 4095, u64::MAX];
    let near = [0, 1, 48, 64, piece, len, 4 * piece, slab - 1, slab - len + 1, slab];
    let wild = [&near[..], &far[..]].concat();
    let mut pair = Pair::shm();
    for (kind, cell) in (0..=6u64).flat_map(|kind| [(kind, SWAP), (kind, FIRST)]) {
        for (i, total) in wild.iter().enumerate() {
            for (j, place) in wild.iter().enumerate() {
                let vandal = SharedWriter::of(&pair);
                // The message of the last round is still there.
                [SWAP, FIRST].into_iter().for_each(|cell| vandal.write(cell, 0));
                let size = wild[(i * 7 + j * 3) % wild.len()];
                let inline = [0, 48, 49, 255][(i + j) % 4];
                let words = [1 | kind << 32 | inline << 40, 5, *total, *place, size];
                for (word, value) in words.into_iter().enumerate().rev() {
                    vandal.write(cell + word, value);
                }
                let mut received = vec![0; LEN];
                let taken =
                    pair.ends(0).1.poll_recv(&mut RecvState::new(5, LEN), &mut CopySink(&mut received));
                let in_place = kind == 3 && *total == len && *place <= slab - len;
                let staged = kind == 2 && *total == len && *place == 0 && (1..=piece).contains(&size);
                assert_eq!(taken.is_ok(), in_place || staged, "{words:x?}: {taken:?}");
                if taken.is_ok() {
                    pair = Pair::shm();
                }
            }
        }
    }
}

#[test]
fn a_header_that_changes_between_pieces_is_an_error() {
    let mut pair = Pair::shm();
    let vandal = SharedWriter::of(&pair);
    let bytes = noise(3 * PIECE, 3);
    let (a, b) = pair.ends(0);
    a.poll_send(&mut SendState::new(5, Protocol::Copy), Span::from(&*bytes)).expect("send");
    let (mut received, mut state) = (vec![0; 3 * PIECE], RecvState::new(5, 3 * PIECE));
    assert_eq!(
        b.poll_recv(&mut state, &mut CopySink(&mut received)).expect("intact"),
        RecvProgress::Advanced
    );
    for (word, value) in [
        (2, 1),
        (2, u64::MAX),
        (3, 0),
        (3, u64::MAX),
        (4, PIECE as u64 + 1),
        (4, 0),
        // A whole message instead of the second one.
        (0, 1 | 1 << 32 | 48 << 40 | 1 << 48),
    ] {
        vandal.write(FIRST + word, value);
        assert!(b.poll_recv(&mut state, &mut CopySink(&mut received)).is_err(), "word {word}: {value}");
    }
}

#[test]
fn credits_that_nobody_gave_are_an_error_and_not_an_overwrite() {
    let mut pair = Pair::shm();
    let vandal = SharedWriter::of(&pair);
    let bytes = [7u8; 8];
    let (a, _) = pair.ends(0);
    let mut send = || a.poll_send(&mut SendState::new(5, Protocol::Copy), Span::from(&bytes[..]));
    for _ in 0..ROOM {
        assert_eq!(send().expect("room"), SendProgress::Complete);
    }
    vandal.write(0, u64::MAX);
    assert!(matches!(send(), Err(TransportError::Corrupt(_))));
}

#[test]
fn memory_that_cannot_be_pulled_is_an_error_that_names_the_process() {
    let mut pair = Pair::shm();
    if !pair.protocols().contains(&Protocol::Pull) {
        support::missing("the right to read another process's memory");
        return;
    }
    let (a, b) = pair.ends(0);
    // SAFETY: only the system reads the span, and it checks the address.
    let nowhere = unsafe { Span::new(std::ptr::without_provenance(8), 1000) };
    a.poll_send(&mut SendState::new(5, Protocol::Pull), nowhere).expect("send");
    let mut received = vec![0; 1000];
    let error =
        b.poll_recv(&mut RecvState::new(5, 1000), &mut CopySink(&mut received)).expect_err("no such memory");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
}

#[test]
fn a_shared_object_that_is_too_short_is_refused() {
    let (_, small) = Mapping::shared(4096).expect("memory");
    assert!(Arena::of_peer(LAYOUT, small).is_err());
}
