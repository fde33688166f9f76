//! The hash with the vector instructions of AArch64.
//!
//! # Safety
//! Every machine of this architecture has the instructions. Rows are accessed as in [`lanes`].

use super::{
    keys::LANES,
    lanes::{self, Lanes, Rows},
};
use std::arch::aarch64::*;

/// Number of registers in a row.
const REGISTERS: usize = 4;

/// As [`lanes::hash`].
///
/// # Safety
/// As for [`lanes::hash`].
#[inline]
pub(super) unsafe fn hash<const COPY: bool>(rows: &Rows) -> [u64; LANES] {
    // SAFETY: the caller's promise.
    unsafe { lanes::hash::<[uint32x4_t; REGISTERS], COPY>(rows) }
}

/// Returns an array of the value at each register of a row. A closure might be called for each of them.
macro_rules! each {
    ($at:ident => $value:expr) => {
        [each!($at = 0, $value), each!($at = 1, $value), each!($at = 2, $value), each!($at = 3, $value)]
    };
    ($at:ident = $place:literal, $value:expr) => {{
        let $at = $place;
        $value
    }};
}

/// The instructions multiply words that lie side by side. So the products of a register's first lane are in
/// the first sum, those of its second lane in the second one, and low and high halves are added at the end.
impl Lanes for [uint32x4_t; REGISTERS] {
    type Sums = [[uint64x2_t; 2]; REGISTERS];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller promises that the bytes of all registers are readable.
        unsafe { each!(at => vreinterpretq_u32_u8(vld1q_u8(from.add(16 * at)))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller promises that the bytes of all registers are writable.
        unsafe { each!(at => vst1q_u8(to.add(16 * at), vreinterpretq_u8_u32(self[at]))) };
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: every machine has the instructions.
        unsafe { each!(at => veorq_u32(self[at], other[at])) }
    }

    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        // SAFETY: every machine has the instructions.
        [[unsafe { vdupq_n_u64(0) }; 2]; REGISTERS]
    }

    #[inline(always)]
    unsafe fn add_products(sums: Self::Sums, a: Self, b: Self) -> Self::Sums {
        // SAFETY: every machine has the instructions.
        unsafe {
            each!(at => [
                vmlal_u32(sums[at][0], vget_low_u32(a[at]), vget_low_u32(b[at])),
                vmlal_high_u32(sums[at][1], a[at], b[at]),
            ])
        }
    }

    #[inline(always)]
    unsafe fn total(sums: Self::Sums) -> Self {
        // SAFETY: every machine has the instructions.
        unsafe { each!(at => vreinterpretq_u32_u64(vpaddq_u64(sums[at][0], sums[at][1]))) }
    }
}
