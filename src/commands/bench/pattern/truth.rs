//! Patterns of truth values: where one rank is enough to decide, only one does.

use super::{At, Value};
use tbccl::ReduceOp;

impl Value for bool {
    fn input(op: Option<ReduceOp>, at: At) -> bool {
        let bit = at.hash() & 1 == 1;
        match op {
            Some(ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr) => bit && at.decides(),
            Some(ReduceOp::Prod | ReduceOp::Min | ReduceOp::BitAnd) => bit || !at.decides(),
            Some(ReduceOp::BitXor | ReduceOp::Avg) | None => bit,
        }
    }

    fn reduced(op: ReduceOp, at: At) -> bool {
        let mut inputs = at.on_every_rank().map(|at| bool::input(Some(op), at));
        match op {
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => inputs.any(|bit| bit),
            ReduceOp::Prod | ReduceOp::Min | ReduceOp::BitAnd => inputs.all(|bit| bit),
            ReduceOp::BitXor | ReduceOp::Avg => inputs.fold(false, |a, b| a ^ b),
        }
    }

    fn other_than(self) -> bool {
        !self
    }
}
