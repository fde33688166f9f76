//! Reduction operations, and the table of the element types that each supports.

use crate::{DType, UnknownName, dtype::Kind};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use thiserror::Error;

/// An operation that combines two elements. All are commutative; all but floating-point sums and products are
/// associative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum ReduceOp {
    /// Addition; wraps on integers, is "or" on bool.
    Sum,
    /// Multiplication; wraps on integers, is "and" on bool.
    Prod,
    /// The smaller one; NaN wins, -0 is smaller than +0, complex compares lexicographically as NumPy does.
    Min,
    /// The larger one; NaN wins, +0 is larger than -0, complex compares lexicographically as NumPy does.
    Max,
    /// The sum divided by the number of ranks; on integers the (wrapping) sum's quotient is truncated toward
    /// zero.
    Avg,
    /// Bitwise and, on integers and bool.
    #[serde(rename = "band")]
    BitAnd,
    /// Bitwise or, on integers and bool.
    #[serde(rename = "bor")]
    BitOr,
    /// Bitwise exclusive or, on integers and bool.
    #[serde(rename = "bxor")]
    BitXor,
}

/// The error for an operation that its element type does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{op} is not defined for {dtype}; it is for {}", legal_types(*.op))]
pub struct IllegalOp {
    /// The requested operation.
    pub op: ReduceOp,
    /// The element type.
    pub dtype: DType,
}

fn legal_types(op: ReduceOp) -> String {
    let types: Vec<_> = DType::ALL.into_iter().filter(|t| op.is_legal_for(*t)).map(DType::name).collect();
    types.join(", ")
}

impl ReduceOp {
    /// All operations, in the order of tables.
    pub const ALL: [ReduceOp; 8] = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Avg,
        ReduceOp::BitAnd,
        ReduceOp::BitOr,
        ReduceOp::BitXor,
    ];

    /// Whether the operation is defined for elements of this type. This is the table.
    #[must_use]
    pub const fn is_legal_for(self, dtype: DType) -> bool {
        use ReduceOp::{Avg, BitAnd, BitOr, BitXor, Max, Min, Prod, Sum};
        match (dtype.kind(), self) {
            (Kind::Float | Kind::Integer | Kind::Bool | Kind::Complex, Sum | Prod | Min | Max) => true,
            (Kind::Float | Kind::Integer | Kind::Complex, Avg) => true,
            (Kind::Bool, Avg) => false,
            (Kind::Integer | Kind::Bool, BitAnd | BitOr | BitXor) => true,
            (Kind::Float | Kind::Complex, BitAnd | BitOr | BitXor) => false,
        }
    }

    /// Checks that the operation is defined for elements of this type.
    ///
    /// # Errors
    /// [`IllegalOp`], which names the types that the operation has.
    pub fn check(self, dtype: DType) -> Result<(), IllegalOp> {
        if self.is_legal_for(dtype) { Ok(()) } else { Err(IllegalOp { op: self, dtype }) }
    }

    /// The numbers of `tbccl.h`, with the C names without their prefix `tbccl`. Numbers below 1000 are
    /// NCCL's.
    ///
    /// A number never gets another meaning.
    pub const CODES: &'static [(ReduceOp, i32, &'static [&'static str])] = &[
        (ReduceOp::Sum, 0, &["Sum"]),
        (ReduceOp::Prod, 1, &["Prod"]),
        (ReduceOp::Max, 2, &["Max"]),
        (ReduceOp::Min, 3, &["Min"]),
        (ReduceOp::Avg, 4, &["Avg"]),
        (ReduceOp::BitAnd, 1000, &["BitAnd"]),
        (ReduceOp::BitOr, 1001, &["BitOr"]),
        (ReduceOp::BitXor, 1002, &["BitXor"]),
    ];

    /// Returns the name: `sum`, `band`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Avg => "avg",
            ReduceOp::BitAnd => "band",
            ReduceOp::BitOr => "bor",
            ReduceOp::BitXor => "bxor",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<ReduceOp, UnknownName> {
        let lower = text.to_lowercase();
        ReduceOp::ALL.into_iter().find(|op| op.name() == lower).ok_or_else(|| {
            UnknownName::new("reduction operation", text, ReduceOp::ALL.into_iter().map(ReduceOp::name))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitwise_operations_are_for_integers_and_bool_only() {
        assert!(ReduceOp::BitXor.is_legal_for(DType::U16));
        assert!(ReduceOp::BitAnd.is_legal_for(DType::Bool));
        let error = ReduceOp::BitOr.check(DType::F16).expect_err("no bits of floats");
        assert!(error.to_string().starts_with("bor is not defined for f16; it is for i8, "), "{error}");
    }

    #[test]
    fn every_operation_has_a_number() {
        assert!(ReduceOp::ALL.into_iter().all(|op| ReduceOp::CODES.iter().any(|(known, ..)| *known == op)));
    }

    #[test]
    fn the_average_of_truth_values_is_refused() {
        assert!(ReduceOp::Avg.check(DType::Bool).is_err());
        assert!(ReduceOp::Avg.check(DType::I64).is_ok());
    }
}
