//! The reference: each operation element by element. It shares no code with the kernels: integers are
//! computed in `i128`, floats in `f64` and rounded, sixteen-bit floats by the `half` crate.

use collectives::{DType, ReduceOp};
use half::{bf16, f16};
use num_complex::Complex32;

/// One element, by its value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Float(f64),
    Integer(i128),
    Bool(bool),
    Complex(f32, f32),
}

fn read(dtype: DType, bytes: &[u8]) -> Value {
    macro_rules! int {
        ($t:ty) => {
            Value::Integer(i128::from(<$t>::from_ne_bytes(bytes.try_into().unwrap())))
        };
    }
    let bits16 = || u16::from_ne_bytes(bytes.try_into().unwrap());
    let f32_at = |at: usize| f32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    match dtype {
        DType::F32 => Value::Float(f64::from(f32_at(0))),
        DType::F64 => Value::Float(f64::from_ne_bytes(bytes.try_into().unwrap())),
        DType::F16 => Value::Float(f16::from_bits(bits16()).to_f64()),
        DType::Bf16 => Value::Float(bf16::from_bits(bits16()).to_f64()),
        DType::I8 => int!(i8),
        DType::I16 => int!(i16),
        DType::I32 => int!(i32),
        DType::I64 => int!(i64),
        DType::U8 => int!(u8),
        DType::U16 => int!(u16),
        DType::U32 => int!(u32),
        DType::U64 => int!(u64),
        DType::Bool => Value::Bool(bytes[0] != 0),
        DType::Complex64 => Value::Complex(f32_at(0), f32_at(4)),
    }
}

pub(super) fn write(dtype: DType, value: Value) -> Vec<u8> {
    let f32_bytes = |x: f64| (if x.is_nan() { f32::NAN } else { x as f32 }).to_ne_bytes();
    match (value, dtype) {
        (Value::Float(x), DType::F32) => f32_bytes(x).to_vec(),
        (Value::Float(x), DType::F64) => (if x.is_nan() { f64::NAN } else { x }).to_ne_bytes().to_vec(),
        (Value::Float(x), DType::F16) => {
            (if x.is_nan() { 0x7e00 } else { f16::from_f64(x).to_bits() }).to_ne_bytes().to_vec()
        }
        (Value::Float(x), DType::Bf16) => {
            (if x.is_nan() { 0x7fc0 } else { bf16::from_f32(x as f32).to_bits() }).to_ne_bytes().to_vec()
        }
        (Value::Integer(x), DType::I8 | DType::U8) => (x as u8).to_ne_bytes().to_vec(),
        (Value::Integer(x), DType::I16 | DType::U16) => (x as u16).to_ne_bytes().to_vec(),
        (Value::Integer(x), DType::I32 | DType::U32) => (x as u32).to_ne_bytes().to_vec(),
        (Value::Integer(x), DType::I64 | DType::U64) => (x as u64).to_ne_bytes().to_vec(),
        (Value::Bool(x), DType::Bool) => vec![u8::from(x)],
        (Value::Complex(re, im), DType::Complex64) => {
            [f32_bytes(f64::from(re)), f32_bytes(f64::from(im))].concat()
        }
        (value, dtype) => panic!("{value:?} is no {dtype}"),
    }
}

/// `x ⊕ y` of two floats of type `dtype`, as a value that the type still has to round.
fn float(dtype: DType, op: ReduceOp, x: f64, y: f64, ranks: u32) -> f64 {
    // Sums and products of f32 in f64 are innocuous: rounded again to f32 they are the correctly rounded
    // ones.
    let to_f32_if_narrow = |z: f64| if dtype == DType::F64 { z } else { f64::from(z as f32) };
    let negative = |z: f64| z.is_sign_negative();
    match op {
        ReduceOp::Sum => to_f32_if_narrow(x + y),
        ReduceOp::Prod => to_f32_if_narrow(x * y),
        ReduceOp::Avg => to_f32_if_narrow(to_f32_if_narrow(x + y) / f64::from(ranks)),
        ReduceOp::Min | ReduceOp::Max if x.is_nan() || y.is_nan() => f64::NAN,
        ReduceOp::Min if x == 0.0 && y == 0.0 => {
            if negative(x) || negative(y) {
                -0.0
            } else {
                0.0
            }
        }
        ReduceOp::Max if x == 0.0 && y == 0.0 => {
            if negative(x) && negative(y) {
                -0.0
            } else {
                0.0
            }
        }
        ReduceOp::Min | ReduceOp::Max => extreme(op, x, y),
        _ => panic!("{op} on floats"),
    }
}

/// The lesser or the greater of two that can be compared.
fn extreme<T: PartialOrd>(op: ReduceOp, x: T, y: T) -> T {
    let is_x = if op == ReduceOp::Min { x < y } else { x > y };
    if is_x { x } else { y }
}

fn integer(op: ReduceOp, x: i128, y: i128, wrap: impl Fn(i128) -> i128, ranks: u32) -> i128 {
    match op {
        ReduceOp::Sum => x + y,
        ReduceOp::Prod => x.wrapping_mul(y),
        ReduceOp::Avg => wrap(x + y) / i128::from(ranks),
        ReduceOp::Min => x.min(y),
        ReduceOp::Max => x.max(y),
        ReduceOp::BitAnd => x & y,
        ReduceOp::BitOr => x | y,
        ReduceOp::BitXor => x ^ y,
    }
}

fn complex(op: ReduceOp, x: (f32, f32), y: (f32, f32), ranks: u32) -> (f32, f32) {
    let part = |x: f32, y: f32| float(DType::F32, op, f64::from(x), f64::from(y), ranks) as f32;
    match op {
        ReduceOp::Sum | ReduceOp::Avg => (part(x.0, y.0), part(x.1, y.1)),
        ReduceOp::Prod => {
            let product = Complex32::new(x.0, x.1) * Complex32::new(y.0, y.1);
            (product.re, product.im)
        }
        _ if x.0.is_nan() || x.1.is_nan() || y.0.is_nan() || y.1.is_nan() => (f32::NAN, f32::NAN),
        _ if x == y => (part(x.0, y.0), part(x.1, y.1)),
        // Tuples compare lexicographically.
        ReduceOp::Min | ReduceOp::Max => extreme(op, x, y),
        _ => panic!("{op} on complex numbers"),
    }
}

/// The bytes of `x ⊕ y`; the average is divided only where `ranks` are given.
fn expected(dtype: DType, op: ReduceOp, x: &[u8], y: &[u8], ranks: Option<u32>) -> Vec<u8> {
    let op = if op == ReduceOp::Avg && ranks.is_none() { ReduceOp::Sum } else { op };
    let ranks = ranks.unwrap_or(1);
    let wrap = |x: i128| match read(dtype, &write(dtype, Value::Integer(x))) {
        Value::Integer(wrapped) => wrapped,
        other => panic!("{other:?} is no integer"),
    };
    let result = match (read(dtype, x), read(dtype, y)) {
        (Value::Float(x), Value::Float(y)) => Value::Float(float(dtype, op, x, y, ranks)),
        (Value::Integer(x), Value::Integer(y)) => Value::Integer(integer(op, x, y, wrap, ranks)),
        (Value::Complex(a, b), Value::Complex(c, d)) => {
            let (re, im) = complex(op, (a, b), (c, d), ranks);
            Value::Complex(re, im)
        }
        (Value::Bool(x), Value::Bool(y)) => Value::Bool(match op {
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => x | y,
            ReduceOp::Prod | ReduceOp::Min | ReduceOp::BitAnd => x & y,
            ReduceOp::BitXor => x != y,
            ReduceOp::Avg => panic!("avg on bool"),
        }),
        (x, y) => panic!("{x:?} and {y:?} are of different kinds"),
    };
    write(dtype, result)
}

/// The bytes of a vector of them.
pub(super) fn wanted(dtype: DType, op: ReduceOp, a: &[u8], b: &[u8], ranks: Option<u32>) -> Vec<u8> {
    let size = dtype.size();
    a.chunks(size).zip(b.chunks(size)).flat_map(|(x, y)| expected(dtype, op, x, y, ranks)).collect()
}
