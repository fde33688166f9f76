//! Patterns of complex numbers.

use super::{
    At, Value,
    parts::{Factor, factor, mean, product, share, spread, sum, term},
};
use num_complex::Complex32;
use tbccl::ReduceOp;

/// Integers that an f32 holds.
const LIMIT: u64 = 1 << 24;

/// Few real parts, so that imaginary ones often decide which number is larger.
fn parts(at: At) -> (i64, i64) {
    (spread(at.hash(), 2), spread(at.again().hash(), 1000))
}

fn complex((re, im): (i64, i64)) -> Complex32 {
    Complex32::new(re as f32, im as f32)
}

fn turned(factor: Factor) -> Complex32 {
    let magnitude = factor.magnitude() as f32;
    match factor.quarters % 4 {
        0 => Complex32::new(magnitude, 0.0),
        1 => Complex32::new(0.0, magnitude),
        2 => Complex32::new(-magnitude, 0.0),
        _ => Complex32::new(0.0, -magnitude),
    }
}

impl Value for Complex32 {
    fn input(op: Option<ReduceOp>, at: At) -> Complex32 {
        match op {
            Some(ReduceOp::Sum) => complex((term(at, LIMIT), term(at.again(), LIMIT))),
            Some(ReduceOp::Avg) => complex((share(at, LIMIT), share(at.again(), LIMIT))),
            Some(ReduceOp::Prod) => turned(factor(at, 1)),
            _ => complex(parts(at)),
        }
    }

    fn reduced(op: ReduceOp, at: At) -> Complex32 {
        let inputs = at.on_every_rank().map(parts);
        match op {
            ReduceOp::Sum => complex((sum(at, LIMIT), sum(at.again(), LIMIT))),
            ReduceOp::Avg => complex((mean(at, LIMIT), mean(at.again(), LIMIT))),
            ReduceOp::Prod => turned(product(at, 1)),
            ReduceOp::Min => complex(inputs.min().unwrap_or_default()),
            ReduceOp::Max => complex(inputs.max().unwrap_or_default()),
            ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => Complex32::new(f32::NAN, f32::NAN),
        }
    }

    fn other_than(self) -> Complex32 {
        Complex32::new(f32::NAN, f32::NAN)
    }
}
