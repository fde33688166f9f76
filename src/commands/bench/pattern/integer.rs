//! Patterns of integers. They wrap, so any bits are exact; the patterns ensure that every rank's part shows
//! in the result.

use super::{At, Value};
use tbccl::ReduceOp;

macro_rules! integers {
    ($($t:ty),*) => {
        $(
            impl Value for $t {
                fn input(op: Option<ReduceOp>, at: At) -> $t {
                    let bits = at.hash() as $t;
                    match op {
                        // Even factors would soon make every product 0.
                        Some(ReduceOp::Prod) => bits | 1,
                        Some(ReduceOp::BitAnd) if !at.decides() => !0,
                        Some(ReduceOp::BitOr) if !at.decides() => 0,
                        _ => bits,
                    }
                }

                fn reduced(op: ReduceOp, at: At) -> $t {
                    let inputs = at.on_every_rank().map(|at| <$t>::input(Some(op), at));
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

                fn other_than(self) -> $t {
                    !self
                }
            }
        )*
    };
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);
