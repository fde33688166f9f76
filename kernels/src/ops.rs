//! Operations on two elements: the only place where elements are combined.
//!
//! Every body is free of branches, so that a loop over it vectorizes, and symmetric to the bit: `x ⊕ y` and
//! `y ⊕ x` have the same bits on every machine. For floats that requires two rules. A NaN result is the
//! canonical quiet NaN of its type, since hardware passes on either operand's payload, or its own default.
//! And of two zeros the minimum is the negative one.
//!
//! # Safety
//! The only unsafe operation is a conversion of a float to an integer that is known to be in range.

use super::narrow::{
    BF16_INFINITY, BF16_NAN, F16_INFINITY, F16_NAN, bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32,
    is_nan, order,
};
use half::{bf16, f16};
use num_complex::Complex32;

/// An operation on elements of type `T`.
pub(super) trait Op<T> {
    /// `x ⊕ y`; only [`Mean`] looks at the divisor.
    fn apply(x: T, y: T, divisor: u32) -> T;
}

/// The sum.
pub(super) struct Add;
/// The product.
pub(super) struct Mul;
/// The minimum.
pub(super) struct Least;
/// The maximum.
pub(super) struct Greatest;
/// The sum divided by the divisor, which counts as 1 when it's 0.
pub(super) struct Mean;
/// Conjunction, bitwise or of truth values.
pub(super) struct And;
/// Disjunction, bitwise or of truth values.
pub(super) struct Or;
/// Exclusive or, bitwise or of truth values.
pub(super) struct Xor;

/// The byte of a bool, before it is known to be one: nonzero is true.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Truth(u8);

macro_rules! op {
    ($op:ident, $t:ty, |$x:ident, $y:ident $(, $divisor:ident)?| $body:expr) => {
        impl Op<$t> for $op {
            #[inline(always)]
            fn apply($x: $t, $y: $t, _divisor: u32) -> $t {
                $(let $divisor = _divisor;)?
                $body
            }
        }
    };
}

macro_rules! floats {
    ($($t:ty, $canonical:ident, $least:ident, $greatest:ident);* $(;)?) => {
        $(
            #[inline(always)]
            fn $canonical(value: $t) -> $t {
                if value.is_nan() { <$t>::NAN } else { value }
            }

            // Each pick is one `min` instruction, which returns its second operand when neither is smaller.
            // So the two differ only for NaN, and for zeros of either sign, of which the bitwise "or" is the
            // negative one.
            #[inline(always)]
            fn $least(x: $t, y: $t) -> $t {
                let (p, q) = (if x < y { x } else { y }, if y < x { y } else { x });
                let least = <$t>::from_bits(p.to_bits() | q.to_bits());
                if x.is_nan() | y.is_nan() { <$t>::NAN } else { least }
            }

            #[inline(always)]
            fn $greatest(x: $t, y: $t) -> $t {
                let (p, q) = (if x > y { x } else { y }, if y > x { y } else { x });
                let greatest = <$t>::from_bits(p.to_bits() & q.to_bits());
                if x.is_nan() | y.is_nan() { <$t>::NAN } else { greatest }
            }

            op!(Add, $t, |x, y| $canonical(x + y));
            op!(Mul, $t, |x, y| $canonical(x * y));
            op!(Least, $t, |x, y| $least(x, y));
            op!(Greatest, $t, |x, y| $greatest(x, y));
            op!(Mean, $t, |x, y, divisor| $canonical((x + y) / (divisor.max(1) as $t)));
        )*
    };
}

floats! {
    f32, canonical_f32, least_f32, greatest_f32;
    f64, canonical_f64, least_f64, greatest_f64;
}

macro_rules! sixteen_bit_floats {
    ($($t:ty, $widen:ident, $narrow:ident, $infinity:ident, $nan:ident);* $(;)?) => {
        $(
            op!(Add, $t, |x, y| <$t>::from_bits($narrow($widen(x.to_bits()) + $widen(y.to_bits()))));
            op!(Mul, $t, |x, y| <$t>::from_bits($narrow($widen(x.to_bits()) * $widen(y.to_bits()))));
            op!(Mean, $t, |x, y, divisor| {
                let sum = $widen(x.to_bits()) + $widen(y.to_bits());
                <$t>::from_bits($narrow(sum / (divisor.max(1) as f32)))
            });
            op!(Least, $t, |x, y| {
                let (x, y) = (x.to_bits(), y.to_bits());
                let least = order(order(x).min(order(y)).cast_unsigned()).cast_unsigned();
                <$t>::from_bits(if is_nan(x, $infinity) | is_nan(y, $infinity) { $nan } else { least })
            });
            op!(Greatest, $t, |x, y| {
                let (x, y) = (x.to_bits(), y.to_bits());
                let greatest = order(order(x).max(order(y)).cast_unsigned()).cast_unsigned();
                <$t>::from_bits(if is_nan(x, $infinity) | is_nan(y, $infinity) { $nan } else { greatest })
            });
        )*
    };
}

sixteen_bit_floats! {
    f16, f16_to_f32, f16_from_f32, F16_INFINITY, F16_NAN;
    bf16, bf16_to_f32, bf16_from_f32, BF16_INFINITY, BF16_NAN;
}

macro_rules! unsigned_integers {
    ($($t:ty),*) => {
        $(
            op!(Add, $t, |x, y| x.wrapping_add(y));
            op!(Mul, $t, |x, y| x.wrapping_mul(y));
            op!(And, $t, |x, y| x & y);
            op!(Or, $t, |x, y| x | y);
            op!(Xor, $t, |x, y| x ^ y);
        )*
    };
}

// Signed sums, products and bitwise operations have the same bits.
unsigned_integers!(u8, u16, u32, u64);

macro_rules! integers {
    ($($t:ty),*) => {
        $(
            op!(Least, $t, |x, y| x.min(y));
            op!(Greatest, $t, |x, y| x.max(y));
        )*
    };
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);

/// Quotients computed by a float division, which vectorizes where an integer division would not.
///
/// They are exact: let `s` and `n` be the sum and the divisor. A quotient that is no integer lies at least
/// `1/n` from the next one, and the correctly rounded float at most half an ulp from the quotient. That is
/// less as long as `|s| + n` fits the significand, and then truncation gives the result of the integer
/// division.
macro_rules! mean_by_float {
    ($($t:ty, $float:ty, $wide:ty, $greatest_divisor:expr);* $(;)?) => {
        $(
            op!(Mean, $t, |x, y, divisor| {
                let sum = x.wrapping_add(y) as $float;
                let quotient = sum / (divisor.clamp(1, $greatest_divisor) as $float);
                // SAFETY: the divisor is at least 1, so the quotient's magnitude is at most that of the
                // sum, which fits $t.
                let whole: $wide = unsafe { quotient.to_int_unchecked() };
                whole as $t
            });
        )*
    };
}

/// More than any sum of 16 bits or less, so that a larger divisor makes no difference, and exact in f32.
const BEYOND_16_BITS: u32 = 1 << 17;

mean_by_float! {
    i8, f32, i32, BEYOND_16_BITS;
    u8, f32, i32, BEYOND_16_BITS;
    i16, f32, i32, BEYOND_16_BITS;
    u16, f32, i32, BEYOND_16_BITS;
    i32, f64, i32, u32::MAX;
    u32, f64, u32, u32::MAX;
}

op!(Mean, i64, |x, y, divisor| x.wrapping_add(y) / i64::from(divisor.max(1)));
op!(Mean, u64, |x, y, divisor| x.wrapping_add(y) / u64::from(divisor.max(1)));

op!(And, Truth, |x, y| Truth(u8::from((x.0 != 0) & (y.0 != 0))));
op!(Or, Truth, |x, y| Truth(u8::from(x.0 | y.0 != 0)));
op!(Xor, Truth, |x, y| Truth(u8::from((x.0 != 0) ^ (y.0 != 0))));

// Sums and means of complex numbers are those of their parts.

// The textbook product: an infinity times a number with a zero part is NaN in a part, as in NumPy.
op!(Mul, Complex32, |x, y| {
    let re = canonical_f32(x.re * y.re - x.im * y.im);
    let im = canonical_f32(x.re * y.im + x.im * y.re);
    Complex32::new(re, im)
});

/// NaN in either part makes a complex number NaN, as in NumPy.
#[inline(always)]
fn is_nan_complex(z: Complex32) -> bool {
    z.re.is_nan() | z.im.is_nan()
}

/// NumPy's order: real parts, and imaginary parts where those are equal; zeros of either sign are equal.
#[inline(always)]
fn below(x: Complex32, y: Complex32) -> bool {
    (x.re < y.re) | ((x.re == y.re) & (x.im < y.im))
}

#[inline(always)]
fn select(first: bool, x: Complex32, y: Complex32) -> Complex32 {
    Complex32::new(if first { x.re } else { y.re }, if first { x.im } else { y.im })
}

// As for floats, the two picks differ only where the operands are equal but for the signs of zeros.
op!(Least, Complex32, |x, y| {
    let (p, q) = (select(below(x, y), x, y), select(below(y, x), y, x));
    let re = f32::from_bits(p.re.to_bits() | q.re.to_bits());
    let im = f32::from_bits(p.im.to_bits() | q.im.to_bits());
    let nan = is_nan_complex(x) | is_nan_complex(y);
    Complex32::new(if nan { f32::NAN } else { re }, if nan { f32::NAN } else { im })
});

op!(Greatest, Complex32, |x, y| {
    let (p, q) = (select(below(y, x), x, y), select(below(x, y), y, x));
    let re = f32::from_bits(p.re.to_bits() & q.re.to_bits());
    let im = f32::from_bits(p.im.to_bits() & q.im.to_bits());
    let nan = is_nan_complex(x) | is_nan_complex(y);
    Complex32::new(if nan { f32::NAN } else { re }, if nan { f32::NAN } else { im })
});
