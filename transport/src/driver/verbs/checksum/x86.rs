//! The hash with the vector instructions of x86-64.
//!
//! The registers of a row are written out by a macro. A closure for each of them would be a function of its
//! own without the instructions, into which the compiler may not inline them: a call for each instruction.
//!
//! # Safety
//! [`hash`] calls functions only where the machine has their instructions. Rows are accessed as in [`lanes`].

use super::{
    keys::LANES,
    lanes::{self, Lanes, Rows},
};
use std::arch::{is_x86_feature_detected, x86_64::*};

/// As [`lanes::hash`], with the best instructions that the machine has.
///
/// # Safety
/// As for [`lanes::hash`], which sees that the machine has the instructions.
#[inline]
pub(super) unsafe fn hash<const COPY: bool>(rows: &Rows) -> [u64; LANES] {
    // SAFETY: the instructions are there, and the rest is the caller's promise.
    unsafe {
        if is_x86_feature_detected!("avx512f") {
            with_avx512::<COPY>(rows)
        } else if is_x86_feature_detected!("avx2") {
            with_avx2::<COPY>(rows)
        } else {
            with_sse2::<COPY>(rows)
        }
    }
}

/// # Safety
/// The machine has AVX-512F; the rest as for [`lanes::hash`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn with_avx512<const COPY: bool>(rows: &Rows) -> [u64; LANES] {
    // SAFETY: the caller's promise.
    unsafe { lanes::hash::<[__m512i; 1], COPY>(rows) }
}

/// # Safety
/// The machine has AVX2; the rest as for [`lanes::hash`].
#[target_feature(enable = "avx2")]
pub(super) unsafe fn with_avx2<const COPY: bool>(rows: &Rows) -> [u64; LANES] {
    // SAFETY: the caller's promise.
    unsafe { lanes::hash::<[__m256i; 2], COPY>(rows) }
}

/// # Safety
/// As for [`lanes::hash`]; every machine has SSE2.
pub(super) unsafe fn with_sse2<const COPY: bool>(rows: &Rows) -> [u64; LANES] {
    // SAFETY: the caller's promise.
    unsafe { lanes::hash::<[__m128i; 4], COPY>(rows) }
}

/// Implements rows of several registers of one width.
macro_rules! registers {
    ($register:ty; $number:literal: $($at:literal)*; $load:ident, $store:ident, $zero:ident,
     $xor:ident, $add:ident, $multiply:ident, $shift:ident) => {
        impl Lanes for [$register; $number] {
            type Sums = Self;

            #[inline(always)]
            unsafe fn load(from: *const u8) -> Self {
                // SAFETY: the caller promises that the bytes of all registers are readable.
                unsafe { [$($load(from.cast::<$register>().add($at).cast())),*] }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut u8) {
                // SAFETY: the caller promises that the bytes of all registers are writable.
                unsafe { $($store(to.cast::<$register>().add($at).cast(), self[$at]);)* }
            }

            #[inline(always)]
            unsafe fn xor(self, other: Self) -> Self {
                // SAFETY: the caller promises the instructions.
                unsafe { [$($xor(self[$at], other[$at])),*] }
            }

            #[inline(always)]
            unsafe fn no_sums() -> Self {
                // SAFETY: the caller promises the instructions.
                unsafe { [$zero(); $number] }
            }

            #[inline(always)]
            unsafe fn add_products(sums: Self, a: Self, b: Self) -> Self {
                // The multiplication takes the low halves.
                // SAFETY: the caller promises the instructions.
                unsafe {
                    let low = [$($multiply(a[$at], b[$at])),*];
                    let high = [$($multiply($shift::<32>(a[$at]), $shift::<32>(b[$at]))),*];
                    [$($add(sums[$at], $add(low[$at], high[$at]))),*]
                }
            }

            #[inline(always)]
            unsafe fn total(sums: Self) -> Self {
                sums
            }
        }
    };
}

registers! {
    __m512i; 1: 0; _mm512_loadu_si512, _mm512_storeu_si512, _mm512_setzero_si512,
    _mm512_xor_si512, _mm512_add_epi64, _mm512_mul_epu32, _mm512_srli_epi64
}
registers! {
    __m256i; 2: 0 1; _mm256_loadu_si256, _mm256_storeu_si256, _mm256_setzero_si256,
    _mm256_xor_si256, _mm256_add_epi64, _mm256_mul_epu32, _mm256_srli_epi64
}
registers! {
    __m128i; 4: 0 1 2 3; _mm_loadu_si128, _mm_storeu_si128, _mm_setzero_si128,
    _mm_xor_si128, _mm_add_epi64, _mm_mul_epu32, _mm_srli_epi64
}
