//! Patterns of booleans: where one rank can decide the result, only one does.

use super::{Position, Value};
use tbccl::ReduceOp;

impl Value for bool {
    fn input(op: Option<ReduceOp>, at: Position) -> bool {
        let bit = at.hash() & 1 == 1;
        match op {
            Some(ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr) => bit && at.is_decisive(),
            Some(ReduceOp::Prod | ReduceOp::Min | ReduceOp::BitAnd) => bit || !at.is_decisive(),
            Some(ReduceOp::BitXor | ReduceOp::Avg) | None => bit,
        }
    }

    fn reduced(op: ReduceOp, at: Position) -> bool {
        let mut inputs = at.each_contributor().map(|at| bool::input(Some(op), at));
        match op {
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => inputs.any(|bit| bit),
            ReduceOp::Prod | ReduceOp::Min | ReduceOp::BitAnd => inputs.all(|bit| bit),
            ReduceOp::BitXor | ReduceOp::Avg => inputs.fold(false, |a, b| a ^ b),
        }
    }

    fn different(self) -> bool {
        !self
    }
}
