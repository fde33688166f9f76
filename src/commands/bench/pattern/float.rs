//! Patterns of binary floating-point types.

use super::{
    Position, Value,
    parts::{factor, mean, product, share, spread, sum, term},
};
use half::{bf16, f16};
use tbccl::ReduceOp;

macro_rules! floats {
    ($($t:ty, $limit:expr, $from:expr;)*) => {
        $(
            impl Value for $t {
                fn input(op: Option<ReduceOp>, at: Position) -> $t {
                    let value = match op {
                        Some(ReduceOp::Sum) => term(at, $limit) as f64,
                        Some(ReduceOp::Avg) => share(at, $limit) as f64,
                        Some(ReduceOp::Prod) => factor(at, 2).real(),
                        _ => spread(at.hash(), $limit - 1) as f64,
                    };
                    $from(value)
                }

                fn reduced(op: ReduceOp, at: Position) -> $t {
                    let inputs = at.each_contributor().map(|at| spread(at.hash(), $limit - 1));
                    let value = match op {
                        ReduceOp::Sum => sum(at, $limit) as f64,
                        ReduceOp::Avg => mean(at, $limit) as f64,
                        ReduceOp::Prod => product(at, 2).real(),
                        ReduceOp::Min => inputs.min().unwrap_or_default() as f64,
                        ReduceOp::Max => inputs.max().unwrap_or_default() as f64,
                        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => f64::NAN,
                    };
                    $from(value)
                }

                fn different(self) -> $t {
                    <$t>::NAN
                }
            }
        )*
    };
}

floats! {
    f32, 1 << 24, |value: f64| value as f32;
    f64, 1 << 53, |value: f64| value;
    f16, 1 << 11, f16::from_f64;
    bf16, 1 << 8, bf16::from_f64;
}
