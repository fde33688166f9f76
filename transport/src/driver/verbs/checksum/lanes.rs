//! The hash of pairs of rows, over registers of any width; and rows without vector instructions.
//!
//! # Safety
//! Rows are read and written by address, within the bytes that the caller vouches for. Functions of an
//! instruction set are called only through [`hash`], whose caller knows that the machine has it.

use super::keys::{LANES, PAIRS, ROWS, Row};

/// Number of bytes in a row.
pub(super) const ROW_BYTES: usize = LANES * size_of::<u64>();
/// Number of bytes in a pair of rows.
pub(super) const PAIR_BYTES: usize = 2 * ROW_BYTES;

/// The pairs of rows to hash, and to copy.
#[derive(Debug)]
pub(super) struct Rows {
    from: *const u8,
    to: *mut u8,
    pairs: usize,
}

impl Rows {
    /// The pairs in `len` bytes; `to` is where they are copied to, if they are.
    #[inline]
    pub(super) fn new(from: *const u8, to: *mut u8, len: usize) -> Rows {
        debug_assert_eq!(len % PAIR_BYTES, 0, "whole pairs");
        Rows { from, to, pairs: len / PAIR_BYTES }
    }
}

/// A row in registers.
pub(super) trait Lanes: Copy {
    /// Sums of products, in whatever order the registers have them.
    type Sums: Copy;

    /// Reads a row.
    ///
    /// # Safety
    /// [`ROW_BYTES`] are readable at `from`, and the machine has the instructions, as for all functions here.
    unsafe fn load(from: *const u8) -> Self;

    /// Writes a row.
    ///
    /// # Safety
    /// [`ROW_BYTES`] are writable at `to`.
    unsafe fn store(self, to: *mut u8);

    /// # Safety
    /// The machine has the instructions.
    unsafe fn xor(self, other: Self) -> Self;

    /// # Safety
    /// The machine has the instructions.
    unsafe fn no_sums() -> Self::Sums;

    /// Adds the products of the low halves, and of the high halves, of the words of two rows.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn add_products(sums: Self::Sums, a: Self, b: Self) -> Self::Sums;

    /// Returns the sums lane by lane.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn total(sums: Self::Sums) -> Self;
}

/// Returns the lanes of the hash of the rows, and copies them if `COPY`.
///
/// # Safety
/// The machine has the instructions of `L`. The bytes of the rows are readable, others may write them
/// meanwhile; if `COPY`, as many bytes are writable at their target, and nobody else accesses these.
#[inline(always)]
pub(super) unsafe fn hash<L: Lanes, const COPY: bool>(rows: &Rows) -> [u64; LANES] {
    let mut lanes = Row([0; LANES]);
    // SAFETY: a block lies within the rows; a `Row` has the bytes of a row. The rest is the caller's promise.
    unsafe {
        let mut hash = L::load(lanes.0.as_ptr().cast());
        let (blocks, rest) = (rows.pairs / PAIRS, rows.pairs % PAIRS);
        let (mut from, mut to) = (rows.from, rows.to);
        for _ in 0..blocks {
            hash = block::<L, COPY>(hash, from, to, PAIRS);
            (from, to) = (from.add(PAIRS * PAIR_BYTES), to.wrapping_add(PAIRS * PAIR_BYTES));
        }
        if rest > 0 {
            hash = block::<L, COPY>(hash, from, to, rest);
        }
        hash.store(lanes.0.as_mut_ptr().cast());
    }
    lanes.0
}

/// Returns the lanes of a block after another one of lanes `before`.
///
/// # Safety
/// As for [`hash`].
#[inline(always)]
unsafe fn block<L: Lanes, const COPY: bool>(before: L, from: *const u8, to: *mut u8, pairs: usize) -> L {
    // SAFETY: the caller's promise; there are keys for all pairs of a block.
    unsafe {
        let mut sums = L::add_products(L::no_sums(), before.xor(key::<L>(0)), key::<L>(1));
        for pair in 0..pairs {
            let at = pair * PAIR_BYTES;
            let (a, b) = (L::load(from.add(at)), L::load(from.add(at + ROW_BYTES)));
            if COPY {
                a.store(to.add(at));
                b.store(to.add(at + ROW_BYTES));
            }
            sums = L::add_products(sums, a.xor(key::<L>(2 + 2 * pair)), b.xor(key::<L>(3 + 2 * pair)));
        }
        L::total(sums)
    }
}

/// # Safety
/// As for [`Lanes::load`].
#[inline(always)]
unsafe fn key<L: Lanes>(row: usize) -> L {
    // SAFETY: a row of keys has the bytes of a row.
    unsafe { L::load(ROWS[row].0.as_ptr().cast()) }
}

/// Rows without vector instructions. Keys and words are read alike, so the order of bytes matters here only.
impl Lanes for [u64; LANES] {
    type Sums = [u64; LANES];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller promises that the bytes are readable.
        unsafe { from.cast::<Self>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller promises that the bytes are writable.
        unsafe { to.cast::<Self>().write_unaligned(self) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] ^ other[lane])
    }

    #[inline(always)]
    unsafe fn no_sums() -> Self {
        [0; LANES]
    }

    #[inline(always)]
    unsafe fn add_products(sums: Self, a: Self, b: Self) -> Self {
        let (low, high) = (|word: u64| word & u64::from(u32::MAX), |word: u64| word >> 32);
        std::array::from_fn(|lane| {
            let (a, b) = (a[lane], b[lane]);
            sums[lane].wrapping_add(low(a) * low(b)).wrapping_add(high(a) * high(b))
        })
    }

    #[inline(always)]
    unsafe fn total(sums: Self) -> Self {
        sums
    }
}
