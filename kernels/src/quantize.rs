//! Packing of `f32` elements for transfer, and unpacking, as [`Codec`] describes, at memory speed.
//!
//! The loops are written once, over slices, and compiled for every instruction set, as those of reductions
//! are. Results do not depend on the set, to the bit.
//!
//! A packed chunk of `int8` has a row for each block: the scale, an `f32` in the machine's byte order, and
//! one byte per element. The scale is slightly less than the largest magnitude over 127, so that no decoded
//! number is larger than the largest input, and none becomes infinite. A block with a number that is not
//! finite has NaN for its scale, and so for all its elements. A packed chunk of `bf16` is the upper halves of
//! the elements.
//!
//! Work is not split over cores here.
//!
//! # Safety
//! Packers take addresses, for which their callers vouch. Code compiled for an instruction set is called only
//! through `Level::detect` and `Level::available`, which return sets that the machine has.

use super::{
    isa::Level,
    narrow::{bf16_from_f32, bf16_to_f32},
};
use collectives::{BlockLen, Codec};
use std::slice;

/// The bytes of a scale.
const SCALE_BYTES: usize = 4;

/// Moves the nearest integer of a number up to 2^22 to the low bits when added, ties to even: 1.5 times 2^23.
const SHIFTER: f32 = 12_582_912.0;

/// 1/127, two steps towards 0.
const SHARE: f32 = f32::from_bits((1.0f32 / 127.0).to_bits() - 2);

/// Largest magnitude below which a block becomes 0, 2^-100: its scale, or the inverse of the scale, might not
/// be normal.
const LEAST: u32 = (127 - 100) << 23;

/// The bits of infinity; larger bits are NaN.
const INFINITY: u32 = 0x7f80_0000;

/// The scale of a block by the bits of its largest magnitude, and what its elements are multiplied by.
#[inline(always)]
fn scale_of(largest: u32) -> (f32, f32) {
    if largest >= INFINITY {
        return (f32::NAN, 0.0);
    }
    if largest < LEAST {
        return (0.0, 0.0);
    }
    let scale = f32::from_bits(largest) * SHARE;
    (scale, 1.0 / scale)
}

#[inline(always)]
fn encode_int8<const BLOCK: usize>(packed: &mut [u8], elements: &[f32]) {
    for (row, block) in packed.chunks_mut(SCALE_BYTES + BLOCK).zip(elements.chunks(BLOCK)) {
        let largest = block.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff));
        let (scale, inverse) = scale_of(largest);
        let (head, bytes) = row.split_at_mut(SCALE_BYTES);
        head.copy_from_slice(&scale.to_ne_bytes());
        for (byte, x) in bytes.iter_mut().zip(block) {
            *byte = (x * inverse + SHIFTER).to_bits() as u8;
        }
    }
}

/// Calls `each` with the bytes of every block and its scale.
#[inline(always)]
fn rows<const BLOCK: usize>(packed: &[u8]) -> impl Iterator<Item = (f32, &[u8])> {
    packed.chunks(SCALE_BYTES + BLOCK).map(|row| {
        let (head, bytes) = row.split_at(SCALE_BYTES.min(row.len()));
        (f32::from_ne_bytes(head.try_into().unwrap_or_default()), bytes)
    })
}

#[inline(always)]
fn int8_to_f32(byte: u8, scale: f32) -> f32 {
    f32::from(byte.cast_signed()) * scale
}

#[inline(always)]
fn decode_int8<const BLOCK: usize>(elements: &mut [f32], packed: &[u8]) {
    for (block, (scale, bytes)) in elements.chunks_mut(BLOCK).zip(rows::<BLOCK>(packed)) {
        for (x, byte) in block.iter_mut().zip(bytes) {
            *x = int8_to_f32(*byte, scale);
        }
    }
}

#[inline(always)]
fn add_int8<const BLOCK: usize>(sum: &mut [f32], local: &[f32], packed: &[u8]) {
    let blocks = sum.chunks_mut(BLOCK).zip(local.chunks(BLOCK));
    for ((block, local), (scale, bytes)) in blocks.zip(rows::<BLOCK>(packed)) {
        for ((x, l), byte) in block.iter_mut().zip(local).zip(bytes) {
            *x = l + int8_to_f32(*byte, scale);
        }
    }
}

#[inline(always)]
fn add_in_place_int8<const BLOCK: usize>(sum: &mut [f32], packed: &[u8]) {
    for (block, (scale, bytes)) in sum.chunks_mut(BLOCK).zip(rows::<BLOCK>(packed)) {
        for (x, byte) in block.iter_mut().zip(bytes) {
            *x += int8_to_f32(*byte, scale);
        }
    }
}

#[inline(always)]
fn encode_bf16(packed: &mut [u8], elements: &[f32]) {
    for (half, x) in packed.as_chunks_mut::<2>().0.iter_mut().zip(elements) {
        *half = bf16_from_f32(*x).to_ne_bytes();
    }
}

#[inline(always)]
fn decode_bf16(elements: &mut [f32], packed: &[u8]) {
    for (x, half) in elements.iter_mut().zip(packed.as_chunks::<2>().0) {
        *x = bf16_to_f32(u16::from_ne_bytes(*half));
    }
}

#[inline(always)]
fn add_bf16(sum: &mut [f32], local: &[f32], packed: &[u8]) {
    for ((x, l), half) in sum.iter_mut().zip(local).zip(packed.as_chunks::<2>().0) {
        *x = l + bf16_to_f32(u16::from_ne_bytes(*half));
    }
}

#[inline(always)]
fn add_in_place_bf16(sum: &mut [f32], packed: &[u8]) {
    for (x, half) in sum.iter_mut().zip(packed.as_chunks::<2>().0) {
        *x += bf16_to_f32(u16::from_ne_bytes(*half));
    }
}

#[inline(always)]
fn divide(elements: &mut [f32], divisor: f32) {
    elements.iter_mut().for_each(|x| *x /= divisor);
}

/// The loops for one codec and one instruction set, which the machine that calls them must have.
#[derive(Clone, Copy, Debug)]
struct Loops {
    encode: unsafe fn(&mut [u8], &[f32]),
    decode: unsafe fn(&mut [f32], &[u8]),
    add: unsafe fn(&mut [f32], &[f32], &[u8]),
    add_in_place: unsafe fn(&mut [f32], &[u8]),
    divide: unsafe fn(&mut [f32], f32),
}

macro_rules! loops {
    ([$($features:literal)?], $encode:expr, $decode:expr, $add:expr, $add_in_place:expr) => {{
        $(#[target_feature(enable = $features)])?
        fn encode(packed: &mut [u8], elements: &[f32]) {
            $encode(packed, elements);
        }
        $(#[target_feature(enable = $features)])?
        fn decode(elements: &mut [f32], packed: &[u8]) {
            $decode(elements, packed);
        }
        $(#[target_feature(enable = $features)])?
        fn add(sum: &mut [f32], local: &[f32], packed: &[u8]) {
            $add(sum, local, packed);
        }
        $(#[target_feature(enable = $features)])?
        fn add_in_place(sum: &mut [f32], packed: &[u8]) {
            $add_in_place(sum, packed);
        }
        $(#[target_feature(enable = $features)])?
        fn divided(elements: &mut [f32], divisor: f32) {
            divide(elements, divisor);
        }
        Loops { encode, decode, add, add_in_place, divide: divided }
    }};
}

macro_rules! for_codec {
    ($codec:expr, $features:tt) => {
        match $codec {
            Codec::Int8(BlockLen::B64) => {
                loops!(
                    $features,
                    encode_int8::<64>,
                    decode_int8::<64>,
                    add_int8::<64>,
                    add_in_place_int8::<64>
                )
            }
            Codec::Int8(BlockLen::B128) => {
                loops!(
                    $features,
                    encode_int8::<128>,
                    decode_int8::<128>,
                    add_int8::<128>,
                    add_in_place_int8::<128>
                )
            }
            Codec::Int8(BlockLen::B256) => {
                loops!(
                    $features,
                    encode_int8::<256>,
                    decode_int8::<256>,
                    add_int8::<256>,
                    add_in_place_int8::<256>
                )
            }
            Codec::Bf16 => loops!($features, encode_bf16, decode_bf16, add_bf16, add_in_place_bf16),
        }
    };
}

fn loops(level: Level, codec: Codec) -> Loops {
    match level {
        Level::Baseline => for_codec!(codec, []),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => for_codec!(codec, ["avx2,f16c,fma"]),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => for_codec!(codec, ["avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512dq"]),
    }
}

/// Packs and unpacks chunks by one codec, on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Packer {
    codec: Codec,
    loops: Loops,
}

impl Packer {
    /// The best there is on this machine.
    #[must_use]
    pub fn new(codec: Codec) -> Packer {
        Packer::at(Level::detect(), codec)
    }

    /// With the instruction set of choice, which the machine must have.
    fn at(level: Level, codec: Codec) -> Packer {
        Packer { codec, loops: loops(level, codec) }
    }

    /// The codec.
    #[must_use]
    pub const fn codec(&self) -> Codec {
        self.codec
    }

    fn packed_len(&self, count: usize) -> usize {
        self.codec.packed_bytes(count as u64) as usize
    }

    /// Packs the `count` elements at `src` into the bytes at `dst`; [`Codec::packed_bytes`] gives their
    /// number.
    ///
    /// # Safety
    /// The elements are readable, initialized and aligned, the bytes writable; they do not overlap, and
    /// others neither write to the elements nor access the bytes meanwhile. With a `count` of 0 the pointers
    /// may be anything.
    pub unsafe fn encode(&self, dst: *mut u8, src: *const f32, count: usize) {
        if count == 0 {
            return;
        }
        // SAFETY: the caller's contract; the machine has the loops' instruction set by how packers are made.
        unsafe {
            let dst = slice::from_raw_parts_mut(dst, self.packed_len(count));
            (self.loops.encode)(dst, slice::from_raw_parts(src, count));
        }
    }

    /// Unpacks `count` elements from the bytes at `src` to `dst`.
    ///
    /// # Safety
    /// As for [`Packer::encode`], the other way round. Any bytes are a packed chunk.
    pub unsafe fn decode(&self, dst: *mut f32, src: *const u8, count: usize) {
        if count == 0 {
            return;
        }
        // SAFETY: as for `encode`.
        unsafe {
            let src = slice::from_raw_parts(src, self.packed_len(count));
            (self.loops.decode)(slice::from_raw_parts_mut(dst, count), src);
        }
    }

    /// Computes `dst = local + unpacked(src)` over `count` elements, divided by `ranks` where an average is
    /// complete. The bits are those of unpacking first and adding then.
    ///
    /// # Safety
    /// As for [`Packer::decode`]; and `local` is readable, initialized and aligned, and equals `dst` or does
    /// not overlap it.
    pub unsafe fn decode_add(
        &self,
        dst: *mut f32,
        local: *const f32,
        src: *const u8,
        count: usize,
        ranks: Option<u32>,
    ) {
        if count == 0 {
            return;
        }
        // SAFETY: as for `decode`; the operand that equals the destination is only seen as that.
        unsafe {
            let src = slice::from_raw_parts(src, self.packed_len(count));
            let sum = slice::from_raw_parts_mut(dst, count);
            if dst.cast_const() == local {
                (self.loops.add_in_place)(sum, src);
            } else {
                (self.loops.add)(sum, slice::from_raw_parts(local, count), src);
            }
            if let Some(ranks) = ranks {
                (self.loops.divide)(slice::from_raw_parts_mut(dst, count), ranks.max(1) as f32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;
    use proptest::prelude::*;

    fn encode(packer: &Packer, elements: &[f32]) -> Vec<u8> {
        let mut packed = vec![0xee; packer.packed_len(elements.len()) + 1];
        // SAFETY: two vectors, one of elements and one that is long enough.
        unsafe { packer.encode(packed.as_mut_ptr(), elements.as_ptr(), elements.len()) };
        assert_eq!(packed.pop(), Some(0xee), "a byte too many");
        packed
    }

    fn decode(packer: &Packer, packed: &[u8], count: usize) -> Vec<f32> {
        let mut elements = vec![7.0; count];
        // SAFETY: two vectors of the lengths that belong together.
        unsafe { packer.decode(elements.as_mut_ptr(), packed.as_ptr(), count) };
        elements
    }

    /// The documented result, element by element, in double precision.
    fn plain(codec: Codec, elements: &[f32]) -> Vec<f64> {
        let Codec::Int8(block) = codec else {
            return elements.iter().map(|x| bf16::from_f32(*x).to_f64()).collect();
        };
        let nearest = |block: &[f32]| -> Vec<f64> {
            let largest = block.iter().fold(0.0, |most: f64, x| most.max(f64::from(x.abs())));
            let scale = if largest < 2f64.powi(-100) { 0.0 } else { largest / 127.0 };
            let finite = block.iter().all(|x| x.is_finite());
            let multiple =
                |x: &f32| if scale > 0.0 { (f64::from(*x) / scale).round_ties_even() * scale } else { 0.0 };
            block.iter().map(|x| if finite { multiple(x) } else { f64::NAN }).collect()
        };
        elements.chunks(block_len(block)).flat_map(nearest).collect()
    }

    const fn block_len(block: BlockLen) -> usize {
        block as usize
    }

    fn packers() -> impl Iterator<Item = Packer> {
        let levels = Level::available().into_iter();
        levels.flat_map(|level| Codec::ALL.into_iter().map(move |codec| Packer::at(level, codec)))
    }

    fn bits(elements: &[f32]) -> Vec<u32> {
        elements.iter().map(|x| x.to_bits()).collect()
    }

    fn elements() -> impl Strategy<Value = Vec<f32>> {
        let any = prop_oneof![
            20 => -1.0f32..1.0, 4 => any::<i16>().prop_map(f32::from), 2 => -1e-33f32..1e-33, 1 => Just(0.0),
            1 => prop::num::f32::NORMAL
        ];
        prop::collection::vec(any, 0..700)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn packing_is_what_is_documented_by_every_instruction_set(elements in elements()) {
            for packer in packers() {
                let best = Packer::new(packer.codec());
                let packed = encode(&packer, &elements);
                prop_assert_eq!(&packed, &encode(&best, &elements), "{}", packer.codec());
                let found = decode(&packer, &packed, elements.len());
                prop_assert_eq!(bits(&found), bits(&decode(&best, &packed, elements.len())));
                let mut largest = 0.0f32;
                for (at, (found, wanted)) in found.iter().zip(plain(packer.codec(), &elements)).enumerate() {
                    if let Codec::Int8(block) = packer.codec() {
                        let start = at - at % block_len(block);
                        let block = &elements[start..elements.len().min(start + block_len(block))];
                        largest = block.iter().fold(0.0, |most, x| most.max(x.abs()));
                    }
                    // A quotient near a tie may be rounded the other way: then it is one step further.
                    let off = (f64::from(*found) - f64::from(elements[at])).abs();
                    let lost = (wanted - f64::from(elements[at])).abs();
                    let allowed = lost + f64::from(largest) * 1e-6;
                    prop_assert!(off <= allowed, "{found} for {wanted}, element {at}");
                    // Beyond the largest `bf16` there is infinity only.
                    if wanted.is_infinite() {
                        prop_assert_eq!(f64::from(*found), wanted);
                        continue;
                    }
                    let loss = f64::from(largest.max(elements[at].abs())) * packer.codec().loss();
                    prop_assert!(off <= loss + 2f64.powi(-100), "{found} for {}", elements[at]);
                }
            }
        }

        #[test]
        fn adding_is_decoding_and_then_adding(
            elements in elements(), other in elements(), ranks in prop::option::of(1u32..9),
        ) {
            let count = elements.len().min(other.len());
            for packer in packers() {
                let packed = encode(&packer, &elements[..count]);
                let sum = |x: &f32, y: &f32| (x + y) / ranks.unwrap_or(1) as f32;
                let decoded = decode(&packer, &packed, count);
                let wanted: Vec<f32> = decoded.iter().zip(&other).map(|(x, y)| sum(x, y)).collect();
                let (mut apart, mut same) = (vec![0.0; count], other[..count].to_vec());
                // SAFETY: vectors of the same number of elements; in the second call one is both.
                unsafe {
                    packer.decode_add(apart.as_mut_ptr(), other.as_ptr(), packed.as_ptr(), count, ranks);
                    let both = same.as_mut_ptr();
                    packer.decode_add(both, both, packed.as_ptr(), count, ranks);
                }
                prop_assert_eq!(bits(&apart), bits(&wanted));
                prop_assert_eq!(bits(&same), bits(&wanted));
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_noticed() {
        for packer in packers() {
            for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut elements = vec![1.0f32; 1000];
                elements[300] = odd;
                let found = decode(&packer, &encode(&packer, &elements), 1000);
                match packer.codec() {
                    Codec::Int8(block) => {
                        let len = block_len(block);
                        for (at, x) in found.iter().enumerate() {
                            assert_eq!(x.is_nan(), at / len == 300 / len, "element {at}: {x}");
                        }
                    }
                    Codec::Bf16 => {
                        assert!(found[300] == odd || (odd.is_nan() && found[300].is_nan()));
                        assert_eq!(found.iter().filter(|x| **x == 1.0).count(), 999);
                    }
                }
            }
        }
    }

    #[test]
    fn the_largest_and_the_smallest_numbers_stay_finite_and_small() {
        for packer in packers() {
            for largest in [f32::MAX / 1.01, 1.0, 2f32.powi(-99), 2f32.powi(-101), f32::MIN_POSITIVE, 1e-45] {
                let elements = [largest, -largest, largest / 2.0, 0.0];
                let found = decode(&packer, &encode(&packer, &elements), 4);
                for (x, found) in elements.iter().zip(&found) {
                    let bound = f64::from(largest) * packer.codec().loss() + 2f64.powi(-100);
                    assert!((f64::from(*x) - f64::from(*found)).abs() <= bound, "{x}: {found}");
                }
            }
            let extremes = decode(&packer, &encode(&packer, &[f32::MAX, f32::MIN]), 2);
            match packer.codec() {
                Codec::Int8(_) => assert!(extremes.iter().all(|x| x.is_finite()), "{extremes:?}"),
                // They are beyond the largest `bf16` by more than half a step.
                Codec::Bf16 => assert_eq!(extremes, [f32::INFINITY, f32::NEG_INFINITY]),
            }
        }
    }
}
