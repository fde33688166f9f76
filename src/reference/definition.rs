//! Definitions of the operations on each element type, written as simply as possible; and inputs whose
//! reductions have the same bits in any order.

use half::{bf16, f16};
use num_complex::Complex32;
use std::fmt::Debug;
use tbccl::{Element, ReduceOp};

/// The definition of an element type, written as simply as possible.
pub trait Sample: Element + Debug {
    /// Returns an element of an input; `ranks` is the number of contributions.
    fn sample(op: ReduceOp, random: u64, ranks: u32) -> Self;
    /// Reduces the elements of all ranks.
    fn reduce(op: ReduceOp, elements: &[Self]) -> Self;
}

macro_rules! integers {
    ($($rust:ty),*) => {$(
        impl Sample for $rust {
            fn sample(_op: ReduceOp, random: u64, _ranks: u32) -> $rust {
                random as $rust
            }

            fn reduce(op: ReduceOp, elements: &[$rust]) -> $rust {
                let all = elements.iter().copied();
                let sum = || all.clone().fold(0, <$rust>::wrapping_add);
                let reduced = match op {
                    ReduceOp::Sum => return sum(),
                    ReduceOp::Avg => return (i128::from(sum()) / elements.len() as i128) as $rust,
                    ReduceOp::Prod => return all.fold(1, <$rust>::wrapping_mul),
                    ReduceOp::Min => all.min(),
                    ReduceOp::Max => all.max(),
                    ReduceOp::BitAnd => all.reduce(|a, b| a & b),
                    ReduceOp::BitOr => all.reduce(|a, b| a | b),
                    ReduceOp::BitXor => all.reduce(|a, b| a ^ b),
                };
                reduced.expect("a rank")
            }
        }
    )*};
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);

/// Returns a small integer, such that sums, products and averages are exact in eight bits of mantissa.
fn small(op: ReduceOp, random: u64, ranks: u32) -> f32 {
    match op {
        ReduceOp::Prod => [1.0, 2.0, -1.0, -2.0][random as usize % 4],
        ReduceOp::Avg => (random % 4) as f32 * ranks as f32,
        _ => (random % 31) as f32 - 15.0,
    }
}

/// Reduces floats; exact on small integers in any order.
fn reduce_floats(op: ReduceOp, elements: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let count = elements.len() as f64;
    match op {
        ReduceOp::Sum => elements.sum::<f64>() + 0.0,
        ReduceOp::Prod => elements.product(),
        ReduceOp::Min => elements.fold(f64::INFINITY, f64::min),
        ReduceOp::Max => elements.fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Avg => elements.sum::<f64>() / count + 0.0,
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => unreachable!("floats have no bits"),
    }
}

macro_rules! floats {
    ($($rust:ty: $from:expr, $to:expr;)*) => {$(
        impl Sample for $rust {
            fn sample(op: ReduceOp, random: u64, ranks: u32) -> $rust {
                $from(f64::from(small(op, random, ranks)))
            }

            fn reduce(op: ReduceOp, elements: &[$rust]) -> $rust {
                $from(reduce_floats(op, elements.iter().map($to)))
            }
        }
    )*};
}

floats! {
    f32: |x: f64| x as f32, |x| f64::from(*x);
    f64: |x: f64| x, |x| *x;
    f16: f16::from_f64, |x| x.to_f64();
    bf16: bf16::from_f64, |x| x.to_f64();
}

impl Sample for bool {
    fn sample(_op: ReduceOp, random: u64, ranks: u32) -> bool {
        // True is rare, so that "or" over many ranks is not always true.
        random.is_multiple_of(u64::from(ranks))
    }

    fn reduce(op: ReduceOp, elements: &[bool]) -> bool {
        let mut all = elements.iter().copied();
        match op {
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => all.any(|x| x),
            ReduceOp::Prod | ReduceOp::Min | ReduceOp::BitAnd => all.all(|x| x),
            ReduceOp::BitXor => all.fold(false, |a, b| a ^ b),
            ReduceOp::Avg => unreachable!("truth values have no average"),
        }
    }
}

impl Sample for Complex32 {
    fn sample(op: ReduceOp, random: u64, ranks: u32) -> Complex32 {
        if op == ReduceOp::Prod {
            let (one, two) = (Complex32::new(1.0, 0.0), Complex32::new(2.0, 0.0));
            return [one, two, -one, -two][random as usize % 4];
        }
        Complex32::new(small(op, random, ranks), small(op, random >> 32, ranks))
    }

    fn reduce(op: ReduceOp, elements: &[Complex32]) -> Complex32 {
        let lexicographic =
            |a: &&Complex32, b: &&Complex32| a.re.total_cmp(&b.re).then(a.im.total_cmp(&b.im));
        match op {
            ReduceOp::Min => *elements.iter().min_by(lexicographic).expect("a rank"),
            ReduceOp::Max => *elements.iter().max_by(lexicographic).expect("a rank"),
            ReduceOp::Prod => elements.iter().product(),
            _ => {
                let part = |of: fn(&Complex32) -> f32| {
                    reduce_floats(op, elements.iter().map(|x| f64::from(of(x)))) as f32
                };
                Complex32::new(part(|x| x.re), part(|x| x.im))
            }
        }
    }
}
