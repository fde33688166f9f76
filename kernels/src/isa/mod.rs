//! Instruction sets: their detection, and the loops compiled for each.
//!
//! The loops are written once, over slices, and compiled under each set's `target_feature`; the compiler
//! vectorizes them. They take slices and not pointers, because only a reference parameter tells the compiler
//! that the operands do not overlap; for that to survive, the loops' functions are never inlined. A loop has
//! two forms, since the destination may be one of the operands, which is then passed only once.
//!
//! # Safety
//! A function compiled for an instruction set is called only through the table of that set, and
//! [`Level::detect`] and [`Level::available`] return only sets that the machine has.

mod table;

pub(super) use table::Entry;

#[cfg(target_arch = "x86_64")]
use super::f16c;
#[cfg(target_arch = "aarch64")]
use super::fcvt;
#[cfg(not(target_arch = "aarch64"))]
use super::ops;
use super::{ReduceFn, ops::Op};
#[cfg(not(target_arch = "aarch64"))]
use half::f16;
use std::{mem::MaybeUninit, sync::OnceLock};
use table::Table;
#[cfg(not(target_arch = "aarch64"))]
use table::entry;

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// The baseline of the architecture: SSE2, or NEON.
    Baseline,
    /// 256 bits wide, with conversions of f16.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512 bits wide.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// Every level that this machine has, the best one last.
    pub(super) fn available() -> Vec<Level> {
        #[cfg(target_arch = "x86_64")]
        {
            let mut levels = vec![Level::Baseline];
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("f16c")
                && is_x86_feature_detected!("fma")
            {
                levels.push(Level::Avx2);
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                {
                    levels.push(Level::Avx512);
                }
            }
            levels
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            vec![Level::Baseline]
        }
    }

    /// The best level that this machine has, found once.
    #[inline]
    pub(super) fn detect() -> Level {
        static BEST: OnceLock<Level> = OnceLock::new();
        *BEST.get_or_init(|| Level::available().pop().unwrap_or(Level::Baseline))
    }

    /// The name, as people know the instruction set.
    pub(super) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Baseline => "sse2",
            #[cfg(target_arch = "aarch64")]
            Level::Baseline => "neon",
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            Level::Baseline => "baseline",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
        }
    }

    /// The kernels compiled for this level.
    #[inline]
    pub(super) fn table(self) -> &'static Table {
        static BASELINE: Table = Table::of::<Baseline>();
        #[cfg(target_arch = "x86_64")]
        static AVX2: Table = Table::of::<Avx2>();
        #[cfg(target_arch = "x86_64")]
        static AVX512: Table = Table::of::<Avx512>();
        match self {
            Level::Baseline => &BASELINE,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => &AVX2,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => &AVX512,
        }
    }
}

/// The loops over slices of equal length, compiled for one instruction set.
pub(super) trait Isa: Sized {
    /// The sum of f16, where the set has instructions that convert it.
    const F16_ADD: ReduceFn;
    /// The product of f16, likewise.
    const F16_MUL: ReduceFn;
    /// The mean of f16, likewise.
    const F16_MEAN: ReduceFn;

    /// `dst[i] = dst[i] ⊕ src[i]`
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn in_place<T: Copy, O: Op<T>>(dst: &mut [T], src: &[T], divisor: u32);

    /// `dst[i] = a[i] ⊕ b[i]`
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn apart<T: Copy, O: Op<T>>(dst: &mut [MaybeUninit<T>], a: &[T], b: &[T], divisor: u32);
}

#[inline(always)]
fn each_in_place<T: Copy, O: Op<T>>(dst: &mut [T], src: &[T], divisor: u32) {
    for (d, s) in dst.iter_mut().zip(src) {
        *d = O::apply(*d, *s, divisor);
    }
}

#[inline(always)]
fn each_apart<T: Copy, O: Op<T>>(dst: &mut [MaybeUninit<T>], a: &[T], b: &[T], divisor: u32) {
    for ((d, x), y) in dst.iter_mut().zip(a).zip(b) {
        d.write(O::apply(*x, *y, divisor));
    }
}

macro_rules! instruction_set {
    ($(#[$doc:meta])* $name:ident, [$($features:literal)?], $f16_add:expr, $f16_mul:expr, $f16_mean:expr) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl Isa for $name {
            const F16_ADD: ReduceFn = $f16_add;
            const F16_MUL: ReduceFn = $f16_mul;
            const F16_MEAN: ReduceFn = $f16_mean;

            unsafe fn in_place<T: Copy, O: Op<T>>(dst: &mut [T], src: &[T], divisor: u32) {
                #[inline(never)]
                $(#[target_feature(enable = $features)])?
                unsafe fn compiled<T: Copy, O: Op<T>>(dst: &mut [T], src: &[T], divisor: u32) {
                    each_in_place::<T, O>(dst, src, divisor);
                }
                // SAFETY: the caller promises that the machine has the features.
                unsafe { compiled::<T, O>(dst, src, divisor) }
            }

            unsafe fn apart<T: Copy, O: Op<T>>(dst: &mut [MaybeUninit<T>], a: &[T], b: &[T], divisor: u32) {
                #[inline(never)]
                $(#[target_feature(enable = $features)])?
                unsafe fn compiled<T: Copy, O: Op<T>>(
                    dst: &mut [MaybeUninit<T>],
                    a: &[T],
                    b: &[T],
                    divisor: u32,
                ) {
                    each_apart::<T, O>(dst, a, b, divisor);
                }
                // SAFETY: the caller promises that the machine has the features.
                unsafe { compiled::<T, O>(dst, a, b, divisor) }
            }
        }
    };
}

#[cfg(not(target_arch = "aarch64"))]
instruction_set! {
    /// The baseline of the architecture.
    Baseline, [],
    entry::<Baseline, f16, ops::Add>, entry::<Baseline, f16, ops::Mul>, entry::<Baseline, f16, ops::Mean>
}

#[cfg(target_arch = "aarch64")]
instruction_set! {
    /// The baseline of the architecture.
    Baseline, [],
    fcvt::add, fcvt::mul, fcvt::mean
}

#[cfg(target_arch = "x86_64")]
instruction_set! {
    /// Intel since 2013, AMD since 2015. Products and sums are never contracted to fused multiplications, so
    /// results are the same.
    Avx2, ["avx2,f16c,fma"],
    f16c::wide256::add, f16c::wide256::mul, f16c::wide256::mean
}

#[cfg(target_arch = "x86_64")]
instruction_set! {
    /// Intel's servers since 2017, AMD since 2022.
    Avx512, ["avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512dq"],
    f16c::wide512::add, f16c::wide512::mul, f16c::wide512::mean
}
