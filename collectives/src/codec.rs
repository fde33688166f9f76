//! Codecs: element formats with fewer bits for messages, and their loss of precision.
//!
//! A codec turns the `f32` elements of a chunk into bytes and back. It works on blocks of elements that share
//! a scale, counted from the start of the chunk:
//!
//! * [`Codec::Int8`]: a block is its scale, an `f32`, followed by one byte per element. The scale is the
//!   largest magnitude in the block divided by 127. An element becomes the nearest multiple of the scale,
//!   ties to even. So an element is off by at most half a scale, 1/254 of that largest magnitude.
//! * [`Codec::Bf16`]: the upper half of each element, rounded to nearest, ties to even. An element is off by
//!   at most 2^-8 of itself.
//!
//! Non-finite numbers are not lost: `int8` turns all elements of their block into NaN, and `bf16` keeps them.
//! `int8` turns elements of a block whose largest magnitude is below 2^-100 into 0.
//!
//! # Error bound
//!
//! A result of a quantized `all_reduce` is a sum in which some partial sums, and usually the result, were
//! packed on the way. Let `d` be the maximum number of encodings that a contribution goes through
//! ([`Report::encodings`]). Let `δ` be the maximum loss of one encoding, relative to the largest magnitude in
//! the block. Let `S` be the sum, over the ranks, of the largest magnitude that each rank has in the block
//! (for `bf16`: of the element alone). Give each encoding a height `h`: one more than the greatest height
//! among the encodings inside the value that it packs. Encodings of one height have no contribution in
//! common, and each packs a number of at most `(1+δ)^(h-1)` times the magnitudes of its contributions. So the
//! encodings of height `h` lose at most `δ(1+δ)^(h-1) S` together, and all of them
//!
//! ```text
//! |error| <= S ((1+δ)^d - 1)
//! ```
//!
//! plus the loss of the additions themselves, which is at most `S ((1+2^-24)^n - 1)` more.
//! [`Codec::error_bound`] is that sum. For an average, divide by `n`. Any larger block, up to the whole of
//! the data, gives a weaker bound that holds too.
//!
//! [`Report::encodings`]: crate::verify::Report::encodings

use crate::UnknownName;
use std::fmt;
use std::str::FromStr;

/// Number of elements that share a scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum BlockLen {
    /// 64 elements: 6 % more bytes than without scales.
    B64 = 64,
    /// 128 elements: 3 % more.
    #[default]
    B128 = 128,
    /// 256 elements: 1.6 % more.
    B256 = 256,
}

/// A packed format of `f32` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Codec {
    /// One byte per element, and a scale for every block.
    Int8(BlockLen),
    /// The upper half of each element (bfloat16).
    Bf16,
}

/// Bytes of an element before it is packed.
const ELEMENT_BYTES: u64 = 4;

/// Bytes of a scale.
const SCALE_BYTES: u64 = 4;

/// Alignment of packed chunks, in bytes.
pub(crate) const LINE: u64 = 64;

impl Codec {
    /// All codecs.
    pub const ALL: [Codec; 4] =
        [Codec::Int8(BlockLen::B128), Codec::Int8(BlockLen::B64), Codec::Int8(BlockLen::B256), Codec::Bf16];

    /// Returns the name: `int8` (blocks of 128 elements), `int8/64`, `int8/256` or `bf16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Codec::Int8(BlockLen::B128) => "int8",
            Codec::Int8(BlockLen::B64) => "int8/64",
            Codec::Int8(BlockLen::B256) => "int8/256",
            Codec::Bf16 => "bf16",
        }
    }

    /// Returns the codec's number, at least 1, which never changes.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Codec::Int8(BlockLen::B128) => 1,
            Codec::Int8(BlockLen::B64) => 2,
            Codec::Int8(BlockLen::B256) => 3,
            Codec::Bf16 => 4,
        }
    }

    /// Returns the bytes of `elements` elements of a chunk after packing.
    #[must_use]
    pub const fn packed_bytes(self, elements: u64) -> u64 {
        match self {
            Codec::Int8(block) => {
                elements.saturating_add(elements.div_ceil(block as u64).saturating_mul(SCALE_BYTES))
            }
            Codec::Bf16 => elements.saturating_mul(2),
        }
    }

    /// Returns the largest error of one encoding, relative to the largest magnitude in the block; for `bf16`,
    /// relative to the element. Elements that round beyond the largest `bf16` (3.39e38) become infinite.
    #[must_use]
    pub const fn loss(self) -> f64 {
        match self {
            // Half a scale is 1/254; scales, quotients and products are rounded too, by a few parts in 2^24.
            Codec::Int8(_) => 1.0 / 253.9,
            Codec::Bf16 => 1.0 / 256.0,
        }
    }

    /// Returns a bound of the error of an element of a sum over `ranks` ranks, when contributions go through
    /// at most `encodings` encodings.
    ///
    /// `magnitudes` is the sum over the ranks of the largest magnitude that each has in the element's block.
    /// The bound holds while no partial sum is near the largest `f32`. The module derives it.
    #[must_use]
    pub fn error_bound(self, encodings: u32, ranks: u32, magnitudes: f64) -> f64 {
        let grown = (1.0 + self.loss()).powi(encodings as i32) * (1.0 + 2f64.powi(-24)).powi(ranks as i32);
        // Small blocks become 0, and the smallest numbers have fewer bits.
        let vanished = f64::from(encodings) * f64::from(ranks) * 2f64.powi(-100);
        magnitudes * (grown - 1.0) + vanished
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Codec {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Codec, UnknownName> {
        let lower = text.to_lowercase();
        let found = Codec::ALL
            .into_iter()
            .find(|codec| codec.name() == lower || (lower == "int8/128" && codec.code() == 1));
        found.ok_or_else(|| UnknownName::new("codec", text, Codec::ALL.into_iter().map(Codec::name)))
    }
}

/// Parameters of packed chunks in a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packing {
    /// Codec of the chunks.
    pub codec: Codec,
    /// Blocks of packed chunks that each rank needs.
    pub blocks: u32,
}

/// Whether elements of `elem_bytes` bytes can be packed.
#[must_use]
pub const fn packs(elem_bytes: u64) -> bool {
    elem_bytes == ELEMENT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_tell_codecs_apart() {
        for codec in Codec::ALL {
            assert_eq!(codec.name().parse(), Ok(codec));
            let same = Codec::ALL.into_iter().filter(|other| other.code() == codec.code());
            assert_eq!(same.count(), 1);
        }
        assert_eq!("int8/128".parse(), Ok(Codec::Int8(BlockLen::B128)));
        let error = "int9".parse::<Codec>().expect_err("none").to_string();
        assert!(error.contains("did you mean `int8`?"), "{error}");
    }

    #[test]
    fn a_quarter_and_a_scale_or_a_half() {
        assert_eq!(Codec::Int8(BlockLen::B128).packed_bytes(256), 256 + 8);
        assert_eq!(Codec::Int8(BlockLen::B128).packed_bytes(257), 257 + 12);
        assert_eq!(Codec::Int8(BlockLen::B64).packed_bytes(0), 0);
        assert_eq!(Codec::Bf16.packed_bytes(3), 6);
    }
}
