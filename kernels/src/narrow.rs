//! Conversions of sixteen-bit floats: to `f32`, back with one rounding to nearest even, and their order, all
//! without branches, so that loops over them vectorize on any instruction set.
//!
//! The `half` crate checks CPU features at each conversion, which keeps a loop scalar. A NaN becomes the
//! canonical one, regardless of its payload.

/// The quiet NaN that every reduction of f16 yields.
pub(super) const F16_NAN: u16 = 0x7e00;
/// Positive infinity in f16; larger bits, sign aside, are NaN.
pub(super) const F16_INFINITY: u16 = 0x7c00;
/// The quiet NaN that every reduction of bf16 yields.
pub(super) const BF16_NAN: u16 = 0x7fc0;
/// Positive infinity in bf16.
pub(super) const BF16_INFINITY: u16 = 0x7f80;

/// Bits of the significand that f32 has and f16 hasn't.
const EXTRA_BITS: u32 = 23 - 10;
/// The difference of the exponents' biases of f16 and f32, in place.
const REBIAS: u32 = (127 - 15) << 23;

/// f16 to f32, exact.
#[inline(always)]
pub(super) fn f16_to_f32(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff) << EXTRA_BITS;
    let exponent = magnitude & (0x7c00 << EXTRA_BITS);
    let normal = magnitude + REBIAS;
    // The exponent of infinities and NaN has the other half of the way still to go.
    let special = normal + REBIAS;
    // A subnormal is read as the significand of the smallest normal, whose leading one is then subtracted.
    let least_normal = REBIAS + (1 << 23);
    let subnormal = f32::from_bits(magnitude + least_normal) - f32::from_bits(least_normal);
    let bits = match exponent {
        0 => subnormal.to_bits(),
        0x0f80_0000 => special,
        _ => normal,
    };
    f32::from_bits(bits | u32::from(half & 0x8000) << 16)
}

/// f32 to f16, rounded to nearest even.
#[inline(always)]
pub(super) fn f16_from_f32(value: f32) -> u16 {
    /// The least f32 that is a normal f16.
    const LEAST_NORMAL: u32 = REBIAS + (1 << 23);
    /// Adding it moves a subnormal's bits to the end of the significand, rounded by the adder.
    const SHIFTER: u32 = REBIAS + ((EXTRA_BITS + 1) << 23);
    /// The first power of two that is too large for f16.
    const TOO_LARGE: u32 = (127 + 16) << 23;

    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let odd = (magnitude >> EXTRA_BITS) & 1;
    let normal = magnitude.wrapping_sub(REBIAS).wrapping_add((1 << (EXTRA_BITS - 1)) - 1 + odd) >> EXTRA_BITS;
    let shifted = f32::from_bits(magnitude) + f32::from_bits(SHIFTER);
    let subnormal = shifted.to_bits().wrapping_sub(SHIFTER);
    let finite = if magnitude < LEAST_NORMAL { subnormal } else { normal };
    let ordered = if magnitude >= TOO_LARGE { u32::from(F16_INFINITY) } else { finite };
    let signed = (ordered | (bits >> 16) & 0x8000) as u16;
    if value.is_nan() { F16_NAN } else { signed }
}

/// bf16 to f32, exact.
#[inline(always)]
pub(super) fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// f32 to bf16, rounded to nearest even.
#[inline(always)]
pub(super) fn bf16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    if value.is_nan() { BF16_NAN } else { rounded as u16 }
}

/// An integer that is ordered as the float with these bits is, -0 below +0; its own inverse.
#[inline(always)]
pub(super) fn order(half: u16) -> i16 {
    let signed = half.cast_signed();
    signed ^ ((signed >> 15) & 0x7fff)
}

/// Whether these are the bits of a NaN, in the format with this infinity.
#[inline(always)]
pub(super) fn is_nan(half: u16, infinity: u16) -> bool {
    half & 0x7fff > infinity
}
