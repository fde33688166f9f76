//! Patterns of integers. Arithmetic wraps, so results of any bits are exact; the patterns ensure that every
//! rank affects the result.

use super::{Position, Value};
use tbccl::ReduceOp;

macro_rules! integers {
    ($($t:ty),*) => {
        $(
            impl Value for $t {
                fn input(op: Option<ReduceOp>, at: Position) -> $t {
                    let bits = at.hash() as $t;
                    match op {
                        // Even factors would soon make every product 0.
                        Some(ReduceOp::Prod) => bits | 1,
                        Some(ReduceOp::BitAnd) if !at.is_decisive() => !0,
                        Some(ReduceOp::BitOr) if !at.is_decisive() => 0,
                        _ => bits,
                    }
                }

                fn reduced(op: ReduceOp, at: Position) -> $t {
                    let inputs = at.each_contributor().map(|at| <$t>::input(Some(op), at));
                    match op {
                        ReduceOp::Sum => inputs.fold(0, <$t>::wrapping_add),
                        ReduceOp::Prod => inputs.fold(1, <$t>::wrapping_mul),
                        ReduceOp::Min => inputs.min().unwrap_or_default(),
                        ReduceOp::Max => inputs.max().unwrap_or_default(),
                        ReduceOp::Avg => {
                            let sum = inputs.fold(0, <$t>::wrapping_add);
                            (i128::from(sum) / i128::from(at.ranks)) as $t
                        }
                        ReduceOp::BitAnd => inputs.fold(!0, |a, b| a & b),
                        ReduceOp::BitOr => inputs.fold(0, |a, b| a | b),
                        ReduceOp::BitXor => inputs.fold(0, |a, b| a ^ b),
                    }
                }

                fn different(self) -> $t {
                    !self
                }
            }
        )*
    };
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);
