//! Tests of checksums: equal on all instruction sets, and different for different bytes.
//!
//! # Safety
//! Copies go to vectors with room for them. An instruction set is used only where the machine has it.

use super::*;
use keys::LANES;
use lanes::Lanes;
use std::collections::HashSet;

/// Lengths around all borders: of the CRC32C, of pairs and of blocks.
const LENGTHS: [usize; 15] =
    [0, 1, 255, 256, 257, 383, 384, 1023, 1024, 1151, 1152, 2048, 4064, 9000, 16_384];

/// Returns bytes without a pattern.
fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Returns the checksum by a function that hashes pairs.
fn by(bytes: &[u8], hash: impl Fn(&Rows) -> [u64; LANES]) -> u32 {
    let (pairs, rest) = bytes.split_at(bytes.len() / PAIR_BYTES * PAIR_BYTES);
    let lanes = hash(&Rows::new(pairs.as_ptr(), std::ptr::null_mut(), pairs.len()));
    combine(lanes, crc32c(rest), bytes.len())
}

fn by_registers_of<L: Lanes>(rows: &Rows) -> [u64; LANES] {
    // SAFETY: the bytes are readable, and the callers here pass rows that every machine has.
    unsafe { lanes::hash::<L, false>(rows) }
}

/// Ranks with different processors would drop each other's messages.
#[test]
fn all_instruction_sets_compute_the_same_checksum() {
    for len in LENGTHS.into_iter().filter(|len| *len >= LEAST_HASHED_BYTES) {
        for from in [0, 1, 32] {
            let bytes = &bytes(from + len)[from..];
            let portable = by(bytes, by_registers_of::<[u64; LANES]>);
            assert_eq!(checksum(bytes), portable, "{len} bytes from {from} on");
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: each is called where the machine has its instructions.
            unsafe {
                assert_eq!(
                    by(bytes, |rows| x86::with_sse2::<false>(rows)),
                    portable,
                    "{len} bytes with SSE2"
                );
                if std::arch::is_x86_feature_detected!("avx2") {
                    assert_eq!(
                        by(bytes, |rows| x86::with_avx2::<false>(rows)),
                        portable,
                        "{len} bytes, AVX2"
                    );
                }
            }
        }
    }
}

/// The values are part of the wire, whose version changes with them.
#[test]
fn checksums_are_those_of_the_wire_s_version() {
    let sums = [0, 100, 1024, 1200, 10_000].map(|len| checksum(&bytes(len)));
    assert_eq!(sums, [0, 1_867_317_804, 816_816_015, 3_866_846_548, 508_360_708]);
    assert_eq!(join(1, 2), 337_744_490);
    assert_eq!(checksum(b"123456789"), 0xe306_9283, "the check value of CRC32C");
}

#[test]
fn a_copy_has_the_checksum_of_its_bytes() {
    for len in LENGTHS {
        let source = bytes(len + 1);
        for (from, to) in [(0, 0), (1, 3)] {
            let mut target = vec![0xee; len + 64];
            // SAFETY: the target has room for the bytes.
            let sum = unsafe { copy(Span::from(&source[from..from + len]), target.as_mut_ptr().add(to)) };
            assert_eq!(sum, checksum(&source[from..from + len]), "{len} bytes");
            assert_eq!(&target[to..to + len], &source[from..from + len]);
            assert!(
                target[..to].iter().chain(&target[to + len..]).all(|byte| *byte == 0xee),
                "more was written"
            );
        }
    }
}

/// A message may be moved within the slab.
#[test]
fn a_copy_onto_a_part_of_itself_is_right() {
    let mut memory = bytes(5000);
    let expected = memory[..4000].to_vec();
    // SAFETY: both ranges lie in the vector, and no other reference is used.
    let sum = unsafe {
        let start = memory.as_mut_ptr();
        copy(Span::new(start, 4000), start.add(64))
    };
    assert_eq!(&memory[64..4064], &expected);
    assert_eq!(sum, checksum(&expected));
}

#[test]
fn any_wrong_bit_changes_the_checksum() {
    for len in [1024, 1200, 4064] {
        // Zeros are frequent in messages, and multiply to nothing where keys do not prevent it.
        for mut bytes in [bytes(len), vec![0; len], vec![0xff; len]] {
            let right = checksum(&bytes);
            for bit in 0..8 * len {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(checksum(&bytes), right, "bit {bit} of {len} bytes");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

/// A device that loses or exchanges a frame of 4 KiB gives the bytes of another one.
#[test]
fn bytes_in_another_order_have_another_checksum() {
    let right = bytes(16_384);
    for part in [4, 8, 64, 128, 1024, 4096] {
        for (a, b) in [(0, 1), (0, 2), (1, 3)] {
            let mut wrong = right.clone();
            let (low, high) = wrong.split_at_mut(b * part);
            low[a * part..(a + 1) * part].swap_with_slice(&mut high[..part]);
            assert_ne!(checksum(&wrong), checksum(&right), "parts {a} and {b} of {part} bytes exchanged");
        }
    }
}

/// With 20,000 sums of 32 bits, two are equal in one of 20 draws. The draw is fixed, so the test is not.
#[test]
fn checksums_of_similar_bytes_are_spread() {
    let mut sums = HashSet::new();
    for len in 1024..2024 {
        let mut bytes = vec![0u8; len];
        for value in 0..20u8 {
            bytes[len / 2] = value;
            sums.insert(checksum(&bytes));
        }
    }
    assert!(sums.len() >= 1000 * 20 - 1, "{} of 20000 are different", sums.len());
    // Each bit of the sum is one in about half of the cases.
    for bit in 0..32 {
        let ones = sums.iter().filter(|sum| **sum >> bit & 1 == 1).count();
        assert!((9_500..10_500).contains(&ones), "bit {bit} is one in {ones} of 20000");
    }
}
