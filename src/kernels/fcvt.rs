//! Sums, products and means of f16 with NEON's instructions that convert it, which the compiler doesn't find by itself.
//!
//! # Safety
//! Every kernel here is a [`ReduceFn`](super::ReduceFn); all of aarch64 has NEON. A step loads both operands whole
//! before it stores, so a destination that equals an operand needs no care.

use super::ops::{Add, Mean, Mul, Op};
use half::f16;
use std::arch::aarch64::*;

/// The sum.
pub(super) unsafe fn add(dst: *mut u8, a: *const u8, b: *const u8, count: usize, _: u32) {
    // SAFETY: the caller's contract, passed on.
    unsafe { each::<Add>(dst, a, b, count, 1, |x, y| vaddq_f32(x, y)) }
}

/// The product.
pub(super) unsafe fn mul(dst: *mut u8, a: *const u8, b: *const u8, count: usize, _: u32) {
    // SAFETY: the caller's contract, passed on.
    unsafe { each::<Mul>(dst, a, b, count, 1, |x, y| vmulq_f32(x, y)) }
}

/// The mean.
pub(super) unsafe fn mean(dst: *mut u8, a: *const u8, b: *const u8, count: usize, divisor: u32) {
    // SAFETY: the caller's contract, passed on.
    unsafe {
        let by = vdupq_n_f32(divisor.max(1) as f32);
        each::<Mean>(dst, a, b, count, divisor, |x, y| vdivq_f32(vaddq_f32(x, y), by));
    }
}

/// Four elements, as f32.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn widen(elements: *const u16) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(elements))) }
}

/// Four elements at a time, rounded to nearest even as the floating-point environment of Rust is, with any NaN made
/// the canonical one; what is left, as on any machine.
///
/// # Safety
/// The contract of [`ReduceFn`](super::ReduceFn).
#[inline(always)]
unsafe fn each<O: Op<f16>>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
    divisor: u32,
    combine: impl Fn(float32x4_t, float32x4_t) -> float32x4_t,
) {
    let (dst, a, b) = (dst.cast::<u16>(), a.cast::<u16>(), b.cast::<u16>());
    let whole = count - count % 4;
    for i in (0..whole).step_by(4) {
        // SAFETY: elements i..i+4 are within the operands and the destination.
        unsafe {
            let value = combine(widen(a.add(i)), widen(b.add(i)));
            let value = vbslq_f32(vceqq_f32(value, value), value, vdupq_n_f32(f32::NAN));
            vst1_u16(dst.add(i), vreinterpret_u16_f16(vcvt_f16_f32(value)));
        }
    }
    for i in whole..count {
        // SAFETY: element i is within the operands and the destination.
        unsafe {
            let (x, y) = (f16::from_bits(*a.add(i)), f16::from_bits(*b.add(i)));
            *dst.add(i) = O::apply(x, y, divisor).to_bits();
        }
    }
}
