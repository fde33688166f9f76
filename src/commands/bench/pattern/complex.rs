//! Patterns of complex numbers.

use super::{
    Position, Value,
    parts::{Factor, factor, mean, product, share, spread, sum, term},
};
use num_complex::Complex32;
use tbccl::ReduceOp;

/// Largest integer up to which f32 holds all.
const LIMIT: u64 = 1 << 24;

/// Few distinct real parts, so that the imaginary part often decides a comparison.
fn parts(at: Position) -> (i64, i64) {
    (spread(at.hash(), 2), spread(at.second().hash(), 1000))
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
    fn input(op: Option<ReduceOp>, at: Position) -> Complex32 {
        match op {
            Some(ReduceOp::Sum) => complex((term(at, LIMIT), term(at.second(), LIMIT))),
            Some(ReduceOp::Avg) => complex((share(at, LIMIT), share(at.second(), LIMIT))),
            Some(ReduceOp::Prod) => turned(factor(at, 1)),
            _ => complex(parts(at)),
        }
    }

    fn reduced(op: ReduceOp, at: Position) -> Complex32 {
        let inputs = at.each_contributor().map(parts);
        match op {
            ReduceOp::Sum => complex((sum(at, LIMIT), sum(at.second(), LIMIT))),
            ReduceOp::Avg => complex((mean(at, LIMIT), mean(at.second(), LIMIT))),
            ReduceOp::Prod => turned(product(at, 1)),
            ReduceOp::Min => complex(inputs.min().unwrap_or_default()),
            ReduceOp::Max => complex(inputs.max().unwrap_or_default()),
            ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => Complex32::new(f32::NAN, f32::NAN),
        }
    }

    fn different(self) -> Complex32 {
        Complex32::new(f32::NAN, f32::NAN)
    }
}
