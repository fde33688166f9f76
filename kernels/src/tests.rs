//! Tests of every kernel of every instruction set that this machine has, against a `reference` written
//! element by element.
//!
//! # Safety
//! All operands are vectors of these tests, and every call stays within them. Guard bytes around
//! each destination check that.

mod reference;

use super::{Level, Reducer};
use collectives::{DType, ReduceOp};
use reference::{Value, wanted, write};

/// Ranks to average over: powers of two, others, and more than a small integer holds.
const RANKS: [u32; 6] = [1, 2, 3, 7, 300, 70_001];

/// Elements at which things go wrong.
fn specials(dtype: DType) -> Vec<Vec<u8>> {
    let f32s = [
        0,
        1,
        0x007f_ffff,
        0x0080_0000,
        0x3f80_0000,
        0x3f80_0001,
        0x3eaa_aaab,
        0x4040_0000,
        0x4b80_0000,
        0x7f7f_ffff,
        0x7f80_0000,
        0x7f80_0001,
        0x7fc0_0000,
        0x7fff_ffff,
        0x4770_0000,
    ];
    let f64s = [
        0,
        1,
        0x000f_ffff_ffff_ffff,
        0x0010_0000_0000_0000,
        0x3ff0_0000_0000_0000,
        0x3ff0_0000_0000_0001,
        0x4008_0000_0000_0000,
        0x7fef_ffff_ffff_ffff,
        0x7ff0_0000_0000_0000,
        0x7ff0_0000_0000_0001,
        0x7ff8_0000_0000_0000,
        0x7fff_ffff_ffff_ffff_u64,
    ];
    let with_signs = |bits: u32| [bits, bits | 0x8000_0000];
    match dtype {
        DType::F32 => f32s.into_iter().flat_map(with_signs).map(|x| x.to_ne_bytes().to_vec()).collect(),
        DType::F64 => {
            f64s.into_iter().flat_map(|x| [x, x | 1 << 63]).map(|x| x.to_ne_bytes().to_vec()).collect()
        }
        DType::F16 | DType::Bf16 => [
            0, 1, 2, 0x03ff, 0x0400, 0x0401, 0x0fff, 0x3bff, 0x3c00, 0x3c01, 0x4200, 0x6800, 0x7bff, 0x7c00,
            0x7c01, 0x7e00, 0x7fff, 0x007f, 0x0080, 0x0081, 0x3f80, 0x3f81, 0x4040, 0x7f7f, 0x7f80, 0x7f81,
            0x7fc0u16,
        ]
        .into_iter()
        .flat_map(|x| [x, x | 0x8000])
        .map(|x| x.to_ne_bytes().to_vec())
        .collect(),
        DType::Bool => [0u8, 1, 2, 128, 255].into_iter().map(|x| vec![x]).collect(),
        DType::Complex64 => {
            let parts = [0, 0x3f80_0000, 0x4040_0000, 0x7f80_0000, 0x7fc0_0001, 0x7f7f_ffff];
            let parts: Vec<u32> = parts.into_iter().flat_map(with_signs).collect();
            let pairs = parts.iter().flat_map(|re| parts.iter().map(move |im| (re, im)));
            pairs.map(|(re, im)| [re.to_ne_bytes(), im.to_ne_bytes()].concat()).collect()
        }
        _ => {
            let bits = 8 * dtype.size() as u32;
            let greatest = (1i128 << (bits - 1)) - 1;
            [0, 1, 2, 3, -1, -2, -3, 100, greatest, greatest - 1, greatest + 1, greatest + 2]
                .into_iter()
                .map(|x| write(dtype, Value::Integer(x)))
                .collect()
        }
    }
}

/// A fixed sequence that looks random (xorshift).
fn noise() -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Operands of `count` elements: any bits, tame numbers, and specials, mixed.
fn operands(dtype: DType, count: usize) -> (Vec<u8>, Vec<u8>) {
    let specials = specials(dtype);
    let mut random = noise();
    let mut element = || {
        let bits = random();
        match (bits >> 60, dtype) {
            (0..4, _) => specials[bits as usize % specials.len()].clone(),
            (4..10, DType::F32 | DType::F64 | DType::F16 | DType::Bf16) => {
                write(dtype, Value::Float((bits % 4001) as f64 / 16.0 - 125.0))
            }
            (4..14, DType::Complex64) => {
                write(dtype, Value::Complex((bits % 7) as f32 - 3.0, (bits % 5) as f32 - 2.0))
            }
            _ => random().to_ne_bytes()[..dtype.size()].to_vec(),
        }
    };
    let mut operand = || (0..count).flat_map(|_| element()).collect::<Vec<u8>>();
    (operand(), operand())
}

fn legal() -> impl Iterator<Item = (DType, ReduceOp)> {
    let all = DType::ALL.into_iter().flat_map(|t| ReduceOp::ALL.map(|op| (t, op)));
    all.filter(|(dtype, op)| op.is_legal_for(*dtype))
}

/// Memory that is aligned for anything, and can be addressed by the byte.
struct Memory(Vec<u64>);

impl Memory {
    const FILL: u8 = 0xa5;

    /// Room for `bytes` that start `offset` bytes in, with a guard behind.
    fn new(offset: usize, bytes: &[u8]) -> Memory {
        let mut memory = Memory(vec![u64::from_ne_bytes([Memory::FILL; 8]); (offset + bytes.len()) / 8 + 9]);
        memory.bytes_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        memory
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }

    /// Checks what is there, and that nothing else was touched.
    fn check(&mut self, offset: usize, bytes: &[u8], size: usize, what: &dyn Fn() -> String) {
        let all = self.bytes_mut();
        let (before, rest) = all.split_at(offset);
        let (found, after) = rest.split_at(bytes.len());
        if found != bytes {
            let at = found.chunks(size).zip(bytes.chunks(size)).position(|(f, b)| f != b).unwrap();
            let (found, wanted) = (&found[at * size..][..size], &bytes[at * size..][..size]);
            panic!("{}: element {at} is {found:x?}, should be {wanted:x?}", what());
        }
        assert!(before.iter().chain(after).all(|b| *b == Memory::FILL), "{}: wrote elsewhere", what());
    }
}

/// Reduces in every form of aliasing and compares with what is expected.
fn check(
    reducer: Reducer,
    level: Level,
    a: &[u8],
    b: &[u8],
    wanted: &[u8],
    ranks: Option<u32>,
    misaligned: bool,
) {
    let size = reducer.dtype().size();
    let count = a.len() / size;
    let shift = |by: usize| if misaligned { by * size } else { 0 };
    let run = |dst: *mut u8, a: *const u8, b: *const u8| {
        // SAFETY: the pointers are those of `Memory`, aligned and with room for `count` elements.
        unsafe {
            match ranks {
                Some(ranks) => reducer.reduce_last(dst, a, b, count, ranks),
                None => reducer.reduce(dst, a, b, count),
            }
        }
    };
    let what = |form: &'static str| {
        move || format!("{} {} on {}, {count} elements, {form}", reducer.dtype(), reducer.op(), level.name())
    };
    {
        let (mut x, mut y) = (Memory::new(shift(1), a), Memory::new(shift(3), b));
        let mut dst = Memory::new(shift(5), &vec![0; a.len()]);
        let dst_at = dst.bytes_mut()[shift(5)..].as_mut_ptr();
        run(dst_at, x.bytes_mut()[shift(1)..].as_ptr(), y.bytes_mut()[shift(3)..].as_ptr());
        dst.check(shift(5), wanted, size, &what("apart"));
        x.check(shift(1), a, size, &what("apart, first operand"));
        y.check(shift(3), b, size, &what("apart, second operand"));
    }
    {
        let (mut x, mut y) = (Memory::new(shift(1), a), Memory::new(shift(2), b));
        let dst = x.bytes_mut()[shift(1)..].as_mut_ptr();
        run(dst, dst, y.bytes_mut()[shift(2)..].as_ptr());
        x.check(shift(1), wanted, size, &what("into the first"));
        y.check(shift(2), b, size, &what("into the first, second operand"));
    }
    {
        let (mut x, mut y) = (Memory::new(shift(1), a), Memory::new(shift(1), b));
        let dst = y.bytes_mut()[shift(1)..].as_mut_ptr();
        run(dst, x.bytes_mut()[shift(1)..].as_ptr(), dst);
        y.check(shift(1), wanted, size, &what("into the second"));
        x.check(shift(1), a, size, &what("into the second, first operand"));
    }
}

#[test]
fn every_kernel_agrees_with_the_reference_at_every_count() {
    let counts: Vec<usize> = (0..=70).chain([127, 255, 1021, 4099]).collect();
    for (dtype, op) in legal() {
        let (a, b) = operands(dtype, 4099);
        let divisors: &[Option<u32>] =
            if op == ReduceOp::Avg { &[None, Some(3), Some(70_001)] } else { &[None, Some(3)] };
        for ranks in divisors {
            let wanted = wanted(dtype, op, &a, &b, *ranks);
            for level in Level::available() {
                let reducer = Reducer::at(level, dtype, op).unwrap();
                for bytes in counts.iter().map(|count| count * dtype.size()) {
                    for misaligned in [false, true] {
                        check(reducer, level, &a[..bytes], &b[..bytes], &wanted[..bytes], *ranks, misaligned);
                    }
                }
            }
        }
    }
}

#[test]
fn every_pair_of_special_elements_agrees_with_the_reference_in_either_order() {
    for (dtype, op) in legal() {
        let specials = specials(dtype);
        let pairs = || specials.iter().flat_map(|x| specials.iter().map(move |y| (x, y)));
        let a: Vec<u8> = pairs().flat_map(|(x, _)| x.clone()).collect();
        let b: Vec<u8> = pairs().flat_map(|(_, y)| y.clone()).collect();
        let divisors = RANKS.map(Some);
        let divisors: &[Option<u32>] = if op == ReduceOp::Avg { &divisors } else { &[None] };
        for ranks in divisors {
            let wanted = wanted(dtype, op, &a, &b, *ranks);
            for level in Level::available() {
                let reducer = Reducer::at(level, dtype, op).unwrap();
                check(reducer, level, &a, &b, &wanted, *ranks, false);
                check(reducer, level, &b, &a, &wanted, *ranks, false);
            }
        }
    }
}

#[test]
fn every_pair_of_small_integers_agrees_with_the_reference() {
    let a: Vec<u8> = (0..=255).flat_map(|x| [x; 256]).collect();
    let b: Vec<u8> = (0..256).flat_map(|_| 0..=255).collect();
    for (dtype, op) in legal().filter(|(dtype, _)| dtype.size() == 1) {
        let divisors: &[Option<u32>] =
            if op == ReduceOp::Avg { &[Some(1), Some(2), Some(3), Some(127), Some(255)] } else { &[None] };
        for ranks in divisors {
            let wanted = wanted(dtype, op, &a, &b, *ranks);
            for level in Level::available() {
                check(Reducer::at(level, dtype, op).unwrap(), level, &a, &b, &wanted, *ranks, false);
            }
        }
    }
}

#[test]
fn every_sixteen_bit_float_agrees_with_the_reference() {
    let a: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    let others = [0x0000u16, 0x8000, 0x0001, 0x3c00, 0x3e01, 0x7bff, 0x3f80, 0x3fc1, 0xc77f, 0x7f7f];
    for (dtype, op) in legal().filter(|(dtype, _)| matches!(dtype, DType::F16 | DType::Bf16)) {
        let ranks = (op == ReduceOp::Avg).then_some(3);
        for other in others {
            let b = other.to_ne_bytes().repeat(1 << 16);
            let wanted = wanted(dtype, op, &a, &b, ranks);
            for level in Level::available() {
                check(Reducer::at(level, dtype, op).unwrap(), level, &a, &b, &wanted, ranks, false);
            }
        }
    }
}

#[test]
fn every_f16_halfway_case_rounds_to_even() {
    // The sum of a float and half its last place is a tie; a quarter more or less is not.
    let reducer = |level| Reducer::at(level, DType::F16, ReduceOp::Avg).unwrap();
    for level in Level::available() {
        // (1 + 1.0009765625) / 2 lies between 1 and its successor, and 1 is even; the next tie goes up.
        for (x, y, mean) in
            [(0x3c00u16, 0x3c01u16, 0x3c00u16), (0x3c01, 0x3c02, 0x3c02), (1, 0, 0), (1, 2, 2)]
        {
            let (a, b) = (x.to_ne_bytes(), y.to_ne_bytes());
            check(reducer(level), level, &a, &b, &mean.to_ne_bytes(), Some(2), false);
        }
    }
}

#[test]
fn an_operand_may_be_everything_at_once() {
    for (dtype, op) in legal() {
        let (a, _) = operands(dtype, 131);
        let wanted = wanted(dtype, op, &a, &a, None);
        for level in Level::available() {
            let mut memory = Memory::new(0, &a);
            let all = memory.bytes_mut().as_mut_ptr();
            // SAFETY: the memory holds 131 elements.
            unsafe { Reducer::at(level, dtype, op).unwrap().reduce(all, all, all, 131) };
            memory.check(0, &wanted, dtype.size(), &|| format!("{dtype} {op} on {}, doubled", level.name()));
        }
    }
}

#[test]
fn integer_averages_are_truncated_toward_zero() {
    for level in Level::available() {
        let reducer = Reducer::at(level, DType::I32, ReduceOp::Avg).unwrap();
        let (a, b) = ([-1i32, 1, -4, i32::MIN, i32::MAX], [-2i32, 2, 1, 0, 1]);
        let mut dst = [0i32; 5];
        // SAFETY: the arrays hold 5 elements each.
        unsafe { reducer.reduce_last(dst.as_mut_ptr().cast(), a.as_ptr().cast(), b.as_ptr().cast(), 5, 2) };
        assert_eq!(dst, [-1, 1, -1, i32::MIN / 2, i32::MIN / 2]);
    }
}

#[test]
fn signs_of_zeros_and_nan_do_not_depend_on_the_order() {
    let nan = f32::from_bits(0xffc0_1234);
    let (a, b) = ([0.0f32, -0.0, nan, 1.0], [-0.0f32, 0.0, 1.0, nan]);
    for level in Level::available() {
        for (op, zero) in [(ReduceOp::Min, -0.0f32), (ReduceOp::Max, 0.0)] {
            let mut dst = [7.0f32; 4];
            let reducer = Reducer::at(level, DType::F32, op).unwrap();
            // SAFETY: the arrays hold 4 elements each.
            unsafe { reducer.reduce(dst.as_mut_ptr().cast(), a.as_ptr().cast(), b.as_ptr().cast(), 4) };
            assert_eq!(dst.map(f32::to_bits), [zero, zero, f32::NAN, f32::NAN].map(f32::to_bits));
        }
    }
}

#[test]
fn illegal_pairs_are_errors_and_legal_ones_are_not() {
    for (dtype, op) in DType::ALL.into_iter().flat_map(|t| ReduceOp::ALL.map(|op| (t, op))) {
        for level in Level::available() {
            assert_eq!(Reducer::at(level, dtype, op).err(), op.check(dtype).err());
        }
        if let Ok(reducer) = Reducer::new(dtype, op) {
            assert_eq!((reducer.dtype(), reducer.op()), (dtype, op));
        }
    }
}

#[test]
fn the_best_instruction_set_is_taken() {
    let best = Level::available().pop().unwrap();
    assert_eq!(super::isa_name(), best.name());
}

#[test]
fn slices_are_combined_in_place() {
    let mut sums = [1.0f32, -2.0, 3.5];
    super::combine(&mut sums, &[1.0, 2.0, 3.0], ReduceOp::Sum).unwrap();
    assert_eq!(sums, [2.0, 0.0, 6.5]);
    assert!(super::combine(&mut sums, &[1.0; 3], ReduceOp::BitOr).is_err());
}
