//! Kernels: the element-wise reduction of chunks, for every element type and its operations.
//!
//! A [`Reducer`] is looked up once per operation and then called on chunks: `dst = a ⊕ b`. The loops are
//! compiled for several instruction sets, and the best one that the machine has is used.
//!
//! Invariants:
//! - Results do not depend on the instruction set, and are symmetric in the operands, to the bit. So all
//!   ranks that combine the same two chunks get the same bits.
//! - Sums of `f16` and `bf16` are computed in `f32` and rounded to nearest even, once per combination.
//! - A kernel writes valid elements; in particular a bool is 0 or 1 for any input bytes.
//!
//! [`ReduceOp`] documents the semantics. In detail, for complex numbers: the minimum and the maximum compare
//! real parts, and imaginary parts where the real ones are equal, zeros of either sign being equal. A number
//! with a NaN in either part is NaN, and wins as in NumPy, but both parts of the result are then NaN, so that
//! it does not depend on the order. Of two numbers that are equal but for the signs of zeros, each part of
//! the minimum is the negative zero, and of the maximum the positive one.
//!
//! # Safety
//! This crate works on raw pointers, since the memory belongs to users, devices and other processes. Callers
//! vouch for the pointers by the contract of [`ReduceFn`]; code that depends on the instruction set is sealed
//! in `isa`.

pub mod element;
#[cfg(target_arch = "x86_64")]
mod f16c;
#[cfg(target_arch = "aarch64")]
mod fcvt;
mod isa;
mod narrow;
mod ops;
pub mod parallel;
pub mod quantize;
#[cfg(test)]
mod tests;

use collectives::{DType, IllegalOp, ReduceOp};
pub use element::Element;
use isa::Entry;
use isa::Level;
pub use parallel::Threads;

/// A reduction loop: `dst[i] = a[i] ⊕ b[i]` over `count` elements; the function of a mean also divides by
/// `divisor`.
///
/// # Safety
/// For `count` elements, `a` and `b` are readable and initialized, `dst` is writable, and all are aligned to
/// their element type (complex64: to 4 bytes). `dst` equals `a` or `b` exactly, or overlaps neither. Others
/// neither write to the operands nor access `dst` meanwhile. With a `count` of 0 the pointers may be
/// anything.
pub type ReduceFn = unsafe fn(dst: *mut u8, a: *const u8, b: *const u8, count: usize, divisor: u32);

/// The reduction loops of one element type and operation on this machine.
///
/// A single reference, since small calls pass it on in less time than two functions and two bytes would take
/// to move.
#[derive(Clone, Copy, Debug)]
pub struct Reducer(&'static Entry);

impl Reducer {
    /// Looks the functions up, in a few nanoseconds.
    ///
    /// # Errors
    /// [`IllegalOp`] if the operation is not defined for the element type.
    #[inline]
    pub fn new(dtype: DType, op: ReduceOp) -> Result<Reducer, IllegalOp> {
        Reducer::at(Level::detect(), dtype, op)
    }

    /// As [`Reducer::new`], with the instruction set of choice, which the machine must have.
    #[inline]
    fn at(level: Level, dtype: DType, op: ReduceOp) -> Result<Reducer, IllegalOp> {
        match level.table().get(dtype, op) {
            Some(entry) => Ok(Reducer(entry)),
            None => Err(IllegalOp { op, dtype }),
        }
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The operation.
    #[must_use]
    pub fn op(&self) -> ReduceOp {
        self.0.op
    }

    /// `dst = a ⊕ b` over `count` elements; for the average, their sum.
    ///
    /// # Safety
    /// The contract of [`ReduceFn`].
    #[inline]
    pub unsafe fn reduce(&self, dst: *mut u8, a: *const u8, b: *const u8, count: usize) {
        // SAFETY: the caller's contract is the function's.
        unsafe { (self.0.kernel.combine)(dst, a, b, count, 1) }
    }

    /// `dst = a ⊕ b` for the last time: the average also divides by `ranks`, which is at least 1.
    ///
    /// # Safety
    /// The contract of [`ReduceFn`].
    #[inline]
    pub unsafe fn reduce_last(&self, dst: *mut u8, a: *const u8, b: *const u8, count: usize, ranks: u32) {
        debug_assert!(ranks > 0, "an average over no ranks");
        // SAFETY: the caller's contract is the function's.
        unsafe { (self.0.kernel.last)(dst, a, b, count, ranks) }
    }
}

/// The instruction set that the kernels use on this machine: `sse2`, `avx2`, `avx512` or `neon`.
#[must_use]
pub fn isa_name() -> &'static str {
    Level::detect().name()
}

/// Copies `bytes` bytes from `src` to `dst`, which do not overlap.
///
/// # Safety
/// `src` is readable and `dst` writable for `bytes` bytes, and others write to neither meanwhile.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's contract is the function's.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes) }
}

/// `dst = dst ⊕ with`, element by element.
///
/// # Errors
/// [`IllegalOp`] if the operation is not defined for the element type.
///
/// # Panics
/// When the lengths differ.
pub fn combine<T: Element>(dst: &mut [T], with: &[T], op: ReduceOp) -> Result<(), IllegalOp> {
    assert_eq!(dst.len(), with.len(), "elements are combined with as many");
    let reducer = Reducer::new(T::DTYPE, op)?;
    let place = dst.as_mut_ptr().cast::<u8>();
    // SAFETY: both are slices of elements of this type, so aligned and initialized, of equal length; the
    // destination equals the first operand, and is borrowed mutably, so it does not overlap the second one.
    unsafe { reducer.reduce(place, place, with.as_ptr().cast(), dst.len()) };
    Ok(())
}

/// Turns every nonzero byte into 1.
///
/// # Safety
/// The `count` bytes at `bytes` are readable, writable and initialized, and not accessed by others meanwhile.
pub(crate) unsafe fn truth(bytes: *mut u8, count: usize) {
    if let Some(entry) = Level::detect().table().get(DType::Bool, ReduceOp::BitOr) {
        // SAFETY: the caller's contract; the destination equals both operands. `x or x` is `x`, made 0 or 1.
        unsafe { (entry.kernel.combine)(bytes, bytes, bytes, count, 1) };
    }
}
