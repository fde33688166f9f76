//! Sums, products and means of f16 by NEON's conversion instructions, which the compiler does not find by
//! itself.
//!
//! # Safety
//! Every kernel here is a [`ReduceFn`](super::ReduceFn); every aarch64 has NEON. A step loads both operands
//! whole before it stores, so a destination that equals an operand needs no care.

use std::arch::aarch64::*;

/// The sum.
pub(super) unsafe fn add(dst: *mut u8, a: *const u8, b: *const u8, count: usize, _: u32) {
    // SAFETY: the caller's contract, passed on.
    unsafe { each(dst, a, b, count, |x, y| vaddq_f32(x, y)) }
}

/// The product.
pub(super) unsafe fn mul(dst: *mut u8, a: *const u8, b: *const u8, count: usize, _: u32) {
    // SAFETY: the caller's contract, passed on.
    unsafe { each(dst, a, b, count, |x, y| vmulq_f32(x, y)) }
}

/// The mean.
pub(super) unsafe fn mean(dst: *mut u8, a: *const u8, b: *const u8, count: usize, divisor: u32) {
    // SAFETY: the caller's contract, passed on.
    unsafe {
        let by = vdupq_n_f32(divisor.max(1) as f32);
        each(dst, a, b, count, |x, y| vdivq_f32(vaddq_f32(x, y), by));
    }
}

/// Four elements, combined in f32 and rounded to nearest even, with any NaN made the canonical one.
///
/// # Safety
/// They are readable, or writable at `dst`.
#[inline(always)]
unsafe fn four(
    dst: *mut u16,
    a: *const u16,
    b: *const u16,
    combine: impl Fn(float32x4_t, float32x4_t) -> float32x4_t,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let x = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(a)));
        let y = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(b)));
        let value = combine(x, y);
        let value = vbslq_f32(vceqq_f32(value, value), value, vdupq_n_f32(f32::NAN));
        vst1_u16(dst, vreinterpret_u16_f16(vcvt_f16_f32(value)));
    }
}

/// Four elements at a time, and what is left by way of buffers of four.
///
/// # Safety
/// The contract of [`ReduceFn`](super::ReduceFn).
#[inline(always)]
unsafe fn each(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
    combine: impl Fn(float32x4_t, float32x4_t) -> float32x4_t,
) {
    let (dst, a, b) = (dst.cast::<u16>(), a.cast::<u16>(), b.cast::<u16>());
    let rest = count % 4;
    let whole = count - rest;
    for i in (0..whole).step_by(4) {
        // SAFETY: elements i..i+4 are within the operands and the destination.
        unsafe { four(dst.add(i), a.add(i), b.add(i), &combine) };
    }
    if rest > 0 {
        let (mut x, mut y) = ([0u16; 4], [0u16; 4]);
        // SAFETY: the rest is within the operands and the destination, and fewer than the four of a buffer.
        unsafe {
            a.add(whole).copy_to_nonoverlapping(x.as_mut_ptr(), rest);
            b.add(whole).copy_to_nonoverlapping(y.as_mut_ptr(), rest);
            let at = x.as_mut_ptr();
            four(at, at, y.as_ptr(), &combine);
            x.as_ptr().copy_to_nonoverlapping(dst.add(whole), rest);
        }
    }
}
