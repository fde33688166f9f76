//! The C face of tbccl: the numbers by which C programs name results, element types and operations.
//!
//! What NCCL has too has NCCL's number, so that a program written for `nccl.h` needs no other constants. What is
//! ours alone counts from [`OURS`], far above anything that NCCL may add.
//!
//! Invariants: a number is never given to another meaning; `from_code` is the inverse of `code`.
//!
//! There are no functions for C here yet, and no unsafe code.
#![forbid(unsafe_code)]

use tbccl::{DType, ReduceOp};

/// The first number that NCCL will not use.
pub const OURS: i32 = 1000;

/// Something that C programs know by a number.
pub trait Coded: Copy + PartialEq + Sized + 'static {
    /// Everything, with its number.
    const CODES: &'static [(Self, i32)];

    /// Its number.
    #[must_use]
    fn code(self) -> i32 {
        let row = Self::CODES.iter().find(|(value, _)| *value == self);
        // Every value has a row: the tests below hold the tables against the lists of values.
        row.map_or(-1, |(_, code)| *code)
    }

    /// What the number stands for.
    #[must_use]
    fn from_code(code: i32) -> Option<Self> {
        Self::CODES.iter().find(|(_, number)| *number == code).map(|(value, _)| *value)
    }
}

/// What a function of the C interface returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResultCode {
    /// All went well.
    Success,
    /// A device refused; NCCL's `ncclUnhandledCudaError`.
    DeviceError,
    /// The operating system refused something.
    SystemError,
    /// A defect of this library.
    InternalError,
    /// An argument that no call can have.
    InvalidArgument,
    /// A call that can't be made now.
    InvalidUsage,
    /// Another rank failed first.
    RemoteError,
    /// Not done yet; no error.
    InProgress,
    /// The deadline passed.
    Timeout,
    /// A peer's process ended.
    PeerDied,
    /// A peer closed its communicator.
    PeerLeft,
    /// Two ranks are not in the same call.
    Mismatch,
    /// The element type does not have the operation.
    IllegalOperation,
    /// A name that nothing has.
    UnknownName,
    /// No plan fits the call.
    NoPlan,
    /// A link or its memory failed.
    TransportError,
    /// The ranks could not be brought together.
    BootstrapError,
    /// The launcher is gone.
    LauncherGone,
}

impl Coded for ResultCode {
    const CODES: &'static [(ResultCode, i32)] = &[
        (ResultCode::Success, 0),
        (ResultCode::DeviceError, 1),
        (ResultCode::SystemError, 2),
        (ResultCode::InternalError, 3),
        (ResultCode::InvalidArgument, 4),
        (ResultCode::InvalidUsage, 5),
        (ResultCode::RemoteError, 6),
        (ResultCode::InProgress, 7),
        (ResultCode::Timeout, 8),
        (ResultCode::PeerDied, OURS),
        (ResultCode::PeerLeft, OURS + 1),
        (ResultCode::Mismatch, OURS + 2),
        (ResultCode::IllegalOperation, OURS + 3),
        (ResultCode::UnknownName, OURS + 4),
        (ResultCode::NoPlan, OURS + 5),
        (ResultCode::TransportError, OURS + 6),
        (ResultCode::BootstrapError, OURS + 7),
        (ResultCode::LauncherGone, OURS + 8),
    ];
}

impl From<&tbccl::Error> for ResultCode {
    fn from(error: &tbccl::Error) -> ResultCode {
        match error {
            tbccl::Error::InvalidArgument(_) => ResultCode::InvalidArgument,
            tbccl::Error::IllegalOp(_) => ResultCode::IllegalOperation,
            tbccl::Error::UnknownName(_) => ResultCode::UnknownName,
            tbccl::Error::Plan(_) => ResultCode::NoPlan,
            tbccl::Error::PeerDied { .. } => ResultCode::PeerDied,
            tbccl::Error::PeerLeft { .. } => ResultCode::PeerLeft,
            tbccl::Error::Mismatch { .. } => ResultCode::Mismatch,
            tbccl::Error::Timeout { .. } => ResultCode::Timeout,
            tbccl::Error::Remote { .. } => ResultCode::RemoteError,
            tbccl::Error::Transport(_) | tbccl::Error::Link { .. } | tbccl::Error::Start { .. } => {
                ResultCode::TransportError
            }
            tbccl::Error::Bootstrap(_) => ResultCode::BootstrapError,
            tbccl::Error::LauncherGone => ResultCode::LauncherGone,
            tbccl::Error::System { .. } => ResultCode::SystemError,
            _ => ResultCode::InternalError,
        }
    }
}

impl Coded for DType {
    const CODES: &'static [(DType, i32)] = &[
        (DType::I8, 0),
        (DType::U8, 1),
        (DType::I32, 2),
        (DType::U32, 3),
        (DType::I64, 4),
        (DType::U64, 5),
        (DType::F16, 6),
        (DType::F32, 7),
        (DType::F64, 8),
        (DType::Bf16, 9),
        (DType::I16, OURS),
        (DType::U16, OURS + 1),
        (DType::Bool, OURS + 2),
        (DType::Complex64, OURS + 3),
    ];
}

impl Coded for ReduceOp {
    const CODES: &'static [(ReduceOp, i32)] = &[
        (ReduceOp::Sum, 0),
        (ReduceOp::Prod, 1),
        (ReduceOp::Max, 2),
        (ReduceOp::Min, 3),
        (ReduceOp::Avg, 4),
        (ReduceOp::BitAnd, OURS),
        (ReduceOp::BitOr, OURS + 1),
        (ReduceOp::BitXor, OURS + 2),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::HashSet, fmt::Debug};

    fn assert_both_ways<T: Coded + Debug>() {
        for (value, code) in T::CODES {
            assert_eq!(value.code(), *code);
            assert_eq!(T::from_code(*code), Some(*value));
        }
        let distinct: HashSet<i32> = T::CODES.iter().map(|(_, code)| *code).collect();
        assert_eq!(distinct.len(), T::CODES.len(), "a number has two meanings");
        assert_eq!(T::from_code(-1), None);
        assert_eq!(T::from_code(OURS - 1), None);
    }

    #[test]
    fn numbers_go_both_ways() {
        assert_both_ways::<ResultCode>();
        assert_both_ways::<DType>();
        assert_both_ways::<ReduceOp>();
    }

    #[test]
    fn every_type_and_operation_has_a_number() {
        assert!(DType::ALL.into_iter().all(|dtype| DType::from_code(dtype.code()) == Some(dtype)));
        assert!(ReduceOp::ALL.into_iter().all(|op| ReduceOp::from_code(op.code()) == Some(op)));
    }

    #[test]
    fn shared_numbers_are_those_of_nccl() {
        assert_eq!((ResultCode::Success.code(), ResultCode::RemoteError.code()), (0, 6));
        assert_eq!((DType::F16.code(), DType::F32.code(), DType::Bf16.code()), (6, 7, 9));
        // NCCL counts max before min.
        assert_eq!((ReduceOp::Max.code(), ReduceOp::Min.code(), ReduceOp::Avg.code()), (2, 3, 4));
    }
}
