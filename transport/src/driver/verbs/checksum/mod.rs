//! Checksums of messages and pieces.
//!
//! The checksum of fewer bytes than [`LEAST_HASHED_BYTES`] is their CRC32C. More are hashed with NH, the hash
//! of UMAC (RFC 4418, section 5.2): sums of products of 32-bit words, each combined with a key of its place.
//! One instruction of AVX-512 multiplies eight pairs of words. So bytes are hashed at two to three times the
//! rate of a CRC32C, which carry-less products bound. A copy that is hashed on its way takes no longer.
//!
//! Words of 64 bits, the least significant byte first, form rows of eight *lanes*. Two rows are a pair, and
//! eight pairs a block of 1 KiB, the last block having fewer. Each lane of a block is
//! `sum of low(a ^ k) * low(b ^ l) + high(a ^ k) * high(b ^ l)` over the block's pairs of words `a` and `b`,
//! with the keys `k` and `l` of their place in the block. A pair of the lanes of the block before and of
//! constants goes in front, so blocks have an order. The bytes of the last incomplete pair have their CRC32C.
//!
//! An error is missed with a probability of about one in 2^32, as with any checksum of 32 bits. The keys are
//! public: this is no protection from an attacker.
//!
//! Invariants:
//! - The checksum does not depend on the instruction set; ranks of different processors compare it.
//! - The checksum of a copy is that of the bytes that were written, also where another thread changes those
//!   that are read.
//!
//! This module does not know messages: [`wire`](super::wire) says which bytes have a checksum.
//!
//! # Safety
//! Bytes are hashed in whole pairs of rows, whose number follows from their length.

mod keys;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::memory::Span;
use lanes::{PAIR_BYTES, Rows};

/// Length from which bytes are hashed in rows.
pub(super) const LEAST_HASHED_BYTES: usize = 1024;

/// Returns the checksum of `bytes`.
#[inline]
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    if bytes.len() < LEAST_HASHED_BYTES {
        return crc32c(bytes);
    }
    let (pairs, rest) = bytes.split_at(bytes.len() / PAIR_BYTES * PAIR_BYTES);
    // SAFETY: `pairs` is readable, and nothing is written.
    let lanes = unsafe { hash::<false>(&Rows::new(pairs.as_ptr(), std::ptr::null_mut(), pairs.len())) };
    combine(lanes, crc32c(rest), bytes.len())
}

/// Returns the CRC32C of `bytes`, in no time for none.
#[inline]
fn crc32c(bytes: &[u8]) -> u32 {
    if bytes.is_empty() { 0 } else { crc_fast::crc32_iscsi(bytes) }
}

/// Copies bytes, and returns the checksum of what was written.
///
/// # Safety
/// `to` is writable for the length of `from`, and nobody else accesses these bytes meanwhile.
#[inline]
pub(super) unsafe fn copy(from: Span<'_>, to: *mut u8) -> u32 {
    let len = from.len();
    let overlap = to.addr().abs_diff(from.as_ptr().addr()) < len;
    if len < LEAST_HASHED_BYTES || overlap {
        // SAFETY: the caller's promise, and that of the span.
        return unsafe {
            std::ptr::copy(from.as_ptr(), to, len);
            checksum(std::slice::from_raw_parts(to, len))
        };
    }
    let hashed = len / PAIR_BYTES * PAIR_BYTES;
    // SAFETY: as above, for the bytes after the last pair.
    let rest = unsafe {
        std::ptr::copy_nonoverlapping(from.as_ptr().add(hashed), to.add(hashed), len - hashed);
        crc32c(std::slice::from_raw_parts(to.add(hashed), len - hashed))
    };
    // SAFETY: as above, for the bytes of the pairs.
    let lanes = unsafe { hash::<true>(&Rows::new(from.as_ptr(), to, hashed)) };
    combine(lanes, rest, len)
}

/// Returns the checksum of two parts, from those of the parts.
#[inline]
pub(super) fn join(first: u32, second: u32) -> u32 {
    mix(u64::from(first) << 32 | u64::from(second))
}

/// Hashes pairs of rows with the best instructions of the machine, and copies them if `COPY`.
///
/// # Safety
/// As for [`lanes::hash`].
#[inline]
unsafe fn hash<const COPY: bool>(rows: &Rows) -> [u64; 8] {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promise.
    return unsafe { x86::hash::<COPY>(rows) };
    #[cfg(all(target_arch = "aarch64", target_endian = "little", not(miri)))]
    // SAFETY: the caller's promise.
    return unsafe { neon::hash::<COPY>(rows) };
    #[allow(unreachable_code, reason = "the other instruction sets come first")]
    // SAFETY: the caller's promise.
    unsafe {
        lanes::hash::<[u64; 8], COPY>(rows)
    }
}

/// Combines the lanes of the pairs, the checksum of the bytes after them, and the number of all bytes.
#[inline]
fn combine(lanes: [u64; 8], rest: u32, bytes: usize) -> u32 {
    let tail = (bytes as u64) << 32 | u64::from(rest);
    // The products do not wait for each other.
    let sum = lanes.iter().zip(&keys::FACTORS).fold(tail, |sum, (lane, key)| {
        sum.wrapping_add((lane ^ (lane >> 32)).wrapping_mul(*key).rotate_right(32))
    });
    mix(sum)
}

/// Spreads each bit over all bits of the result: the finalizer of MurmurHash3.
#[inline]
fn mix(mut sum: u64) -> u32 {
    sum = (sum ^ (sum >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    sum = (sum ^ (sum >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (sum ^ (sum >> 33)) as u32
}
