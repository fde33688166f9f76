//! The table of kernels: (element type, operation) to a pair of functions, one table per instruction set.
//!
//! # Safety
//! Pointers become slices in one place, [`entry`], under the contract of [`ReduceFn`].

use super::{
    super::{ReduceFn, ops},
    Isa,
};
use collectives::{DType, ReduceOp};
use half::bf16;
use num_complex::Complex32;
use std::{mem::MaybeUninit, slice};

/// The functions of one (element type, operation), which are beside them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) kernel: Kernel,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
}

/// Two functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    /// Combines; for the average, adds.
    pub(crate) combine: ReduceFn,
    /// Combines for the last time; differs for the average, which then divides.
    pub(crate) last: ReduceFn,
}

impl Kernel {
    const fn once(function: ReduceFn) -> Kernel {
        Kernel { combine: function, last: function }
    }
}

/// The kernels of one instruction set, none where the pair is illegal.
#[derive(Debug)]
pub(crate) struct Table([[Option<Entry>; ReduceOp::ALL.len()]; DType::ALL.len()]);

impl Table {
    pub(crate) const fn of<I: Isa>() -> Table {
        let mut kernels = [[None; ReduceOp::ALL.len()]; DType::ALL.len()];
        let mut t = 0;
        while t < DType::ALL.len() {
            let mut o = 0;
            while o < ReduceOp::ALL.len() {
                let (dtype, op) = (DType::ALL[t], ReduceOp::ALL[o]);
                kernels[dtype as usize][op as usize] = match kernel::<I>(dtype, op) {
                    Some(kernel) => Some(Entry { kernel, dtype, op }),
                    None => None,
                };
                o += 1;
            }
            t += 1;
        }
        Table(kernels)
    }

    #[inline]
    pub(crate) fn get(&self, dtype: DType, op: ReduceOp) -> Option<&Entry> {
        self.0[dtype as usize][op as usize].as_ref()
    }
}

const fn kernel<I: Isa>(dtype: DType, op: ReduceOp) -> Option<Kernel> {
    match dtype {
        DType::F32 => float::<I, f32>(op),
        DType::F64 => float::<I, f64>(op),
        DType::Bf16 => float::<I, bf16>(op),
        DType::F16 => half_float::<I>(op),
        DType::I8 => integer::<I, i8, u8>(op),
        DType::I16 => integer::<I, i16, u16>(op),
        DType::I32 => integer::<I, i32, u32>(op),
        DType::I64 => integer::<I, i64, u64>(op),
        DType::U8 => integer::<I, u8, u8>(op),
        DType::U16 => integer::<I, u16, u16>(op),
        DType::U32 => integer::<I, u32, u32>(op),
        DType::U64 => integer::<I, u64, u64>(op),
        DType::Bool => truth::<I>(op),
        DType::Complex64 => complex::<I>(op),
    }
}

const fn float<I: Isa, T: Copy>(op: ReduceOp) -> Option<Kernel>
where
    ops::Add: ops::Op<T>,
    ops::Mul: ops::Op<T>,
    ops::Least: ops::Op<T>,
    ops::Greatest: ops::Op<T>,
    ops::Mean: ops::Op<T>,
{
    Some(match op {
        ReduceOp::Sum => Kernel::once(entry::<I, T, ops::Add>),
        ReduceOp::Prod => Kernel::once(entry::<I, T, ops::Mul>),
        ReduceOp::Min => Kernel::once(entry::<I, T, ops::Least>),
        ReduceOp::Max => Kernel::once(entry::<I, T, ops::Greatest>),
        ReduceOp::Avg => Kernel { combine: entry::<I, T, ops::Add>, last: entry::<I, T, ops::Mean> },
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => return None,
    })
}

const fn half_float<I: Isa>(op: ReduceOp) -> Option<Kernel> {
    Some(match op {
        ReduceOp::Sum => Kernel::once(I::F16_ADD),
        ReduceOp::Prod => Kernel::once(I::F16_MUL),
        ReduceOp::Avg => Kernel { combine: I::F16_ADD, last: I::F16_MEAN },
        _ => return float::<I, half::f16>(op),
    })
}

/// Integer kernels. `U` is the unsigned type of the same width, on which operations that ignore the sign are
/// compiled once.
const fn integer<I: Isa, T: Copy, U: Copy>(op: ReduceOp) -> Option<Kernel>
where
    ops::Add: ops::Op<U>,
    ops::Mul: ops::Op<U>,
    ops::And: ops::Op<U>,
    ops::Or: ops::Op<U>,
    ops::Xor: ops::Op<U>,
    ops::Least: ops::Op<T>,
    ops::Greatest: ops::Op<T>,
    ops::Mean: ops::Op<T>,
{
    Some(match op {
        ReduceOp::Sum => Kernel::once(entry::<I, U, ops::Add>),
        ReduceOp::Prod => Kernel::once(entry::<I, U, ops::Mul>),
        ReduceOp::Min => Kernel::once(entry::<I, T, ops::Least>),
        ReduceOp::Max => Kernel::once(entry::<I, T, ops::Greatest>),
        ReduceOp::Avg => Kernel { combine: entry::<I, U, ops::Add>, last: entry::<I, T, ops::Mean> },
        ReduceOp::BitAnd => Kernel::once(entry::<I, U, ops::And>),
        ReduceOp::BitOr => Kernel::once(entry::<I, U, ops::Or>),
        ReduceOp::BitXor => Kernel::once(entry::<I, U, ops::Xor>),
    })
}

const fn truth<I: Isa>(op: ReduceOp) -> Option<Kernel> {
    Some(match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => Kernel::once(entry::<I, ops::Truth, ops::Or>),
        ReduceOp::Prod | ReduceOp::Min | ReduceOp::BitAnd => Kernel::once(entry::<I, ops::Truth, ops::And>),
        ReduceOp::BitXor => Kernel::once(entry::<I, ops::Truth, ops::Xor>),
        ReduceOp::Avg => return None,
    })
}

const fn complex<I: Isa>(op: ReduceOp) -> Option<Kernel> {
    Some(match op {
        ReduceOp::Sum => Kernel::once(parts::<I, ops::Add>),
        ReduceOp::Prod => Kernel::once(entry::<I, Complex32, ops::Mul>),
        ReduceOp::Min => Kernel::once(entry::<I, Complex32, ops::Least>),
        ReduceOp::Max => Kernel::once(entry::<I, Complex32, ops::Greatest>),
        ReduceOp::Avg => Kernel { combine: parts::<I, ops::Add>, last: parts::<I, ops::Mean> },
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => return None,
    })
}

/// Complex numbers taken as twice as many floats.
unsafe fn parts<I: Isa, O: ops::Op<f32>>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
    divisor: u32,
) {
    // SAFETY: a complex number is two floats, without padding and with their alignment.
    unsafe { entry::<I, f32, O>(dst, a, b, 2 * count, divisor) }
}

/// A [`ReduceFn`]: finds out which operand the destination is, and runs the loop for that.
pub(crate) unsafe fn entry<I: Isa, T: Copy, O: ops::Op<T>>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
    divisor: u32,
) {
    if count == 0 {
        return;
    }
    let (dst, a, b) = (dst.cast::<T>(), a.cast::<T>(), b.cast::<T>());
    debug_assert!(dst.is_aligned() && a.is_aligned() && b.is_aligned(), "operands aligned to their elements");
    if dst.cast_const() != a && dst.cast_const() != b {
        // SAFETY: the caller's contract: the operands are readable, the destination writable, each over
        // `count` elements, and it overlaps neither of them unless it equals it. The table that holds this
        // function is used only on machines that have `I`.
        unsafe {
            let (a, b) = (slice::from_raw_parts(a, count), slice::from_raw_parts(b, count));
            I::apart::<T, O>(slice::from_raw_parts_mut(dst.cast(), count), a, b, divisor);
        }
        return;
    }
    // Operations are symmetric to the bit, so it doesn't matter which of the two it was.
    let other = if dst.cast_const() == a { b } else { a };
    if dst.cast_const() == other {
        // SAFETY: as above, with one operand that is everything.
        unsafe { doubled::<I, T, O>(slice::from_raw_parts_mut(dst, count), divisor) };
        return;
    }
    // SAFETY: as above, and the destination, being one operand, doesn't overlap the other.
    unsafe {
        I::in_place::<T, O>(
            slice::from_raw_parts_mut(dst, count),
            slice::from_raw_parts(other, count),
            divisor,
        );
    };
}

/// `x[i] = x[i] ⊕ x[i]`, through a copy of a few at a time, since the loops want operands that don't overlap.
#[cold]
unsafe fn doubled<I: Isa, T: Copy, O: ops::Op<T>>(elements: &mut [T], divisor: u32) {
    const SOME: usize = 64;
    let mut copy = [MaybeUninit::<T>::uninit(); SOME];
    for some in elements.chunks_mut(SOME) {
        let copied = copy[..some.len()].write_copy_of_slice(some);
        // SAFETY: the caller promises that the machine has `I`.
        unsafe { I::in_place::<T, O>(some, copied, divisor) };
    }
}
