//! Numbers and names by which C programs know results, element types, operations and codecs.
//!
//! Values that NCCL also has keep NCCL's numbers, so that a program written for `nccl.h` needs no other
//! constants. Values of tbccl alone count from [`OURS`], far above anything that NCCL may add.
//!
//! Invariants: a number is never given to another meaning; `from_code` is the inverse of `code`. The enums of
//! `tbccl.h` are written from these tables. Those of element types and operations are in `collectives`.

use std::{ffi::CStr, fmt::Write};
use tbccl::{BlockLen, Codec, DType, ReduceOp};

/// First number that NCCL will not use.
pub const OURS: i32 = 1000;

/// Values that C programs know by a number.
pub trait Coded: Copy + PartialEq + Sized + 'static {
    /// Name of the C type, without its `tbccl` and `_t`.
    const TYPE: &'static str;

    /// All values, with their numbers and their names in C without the prefix `tbccl`.
    const CODES: &'static [(Self, i32, &'static [&'static str])];

    /// Limits that `nccl.h` has beside the values: how many of its numbers there are, from 0.
    const LIMITS: &'static [(&'static str, i32)] = &[];

    /// How many numbers, from 0 on, equal their row's index.
    const DENSE_CODES: usize = in_place(Self::CODES);

    /// Returns the value's number.
    #[must_use]
    fn code(self) -> i32 {
        let row = Self::CODES.iter().find(|(value, ..)| *value == self);
        // Every value has a row: the tests below compare the tables with the lists of values.
        row.map_or(-1, |(_, code, _)| *code)
    }

    /// Returns the value of a number.
    #[must_use]
    #[inline]
    fn from_code(code: i32) -> Option<Self> {
        match usize::try_from(code) {
            Ok(at) if at < Self::DENSE_CODES => Some(Self::CODES[at].0),
            _ => Self::from_sparse_code(code),
        }
    }

    /// Returns the value of a number by looking through all rows.
    #[must_use]
    #[cold]
    fn from_sparse_code(code: i32) -> Option<Self> {
        Self::CODES.iter().find(|row| row.1 == code).map(|(value, ..)| *value)
    }
}

/// Counts the rows before the first whose number is not its index.
const fn in_place<T>(rows: &[(T, i32, &[&str])]) -> usize {
    let mut at = 0;
    while at < rows.len() && rows[at].1 as usize == at {
        at += 1;
    }
    at
}

/// Result of a function of the C interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResultCode {
    /// Success.
    Success,
    /// A device refused a request; NCCL's `ncclUnhandledCudaError`.
    DeviceError,
    /// The operating system refused a request.
    SystemError,
    /// A defect of this library.
    InternalError,
    /// An argument is invalid.
    InvalidArgument,
    /// The call can't be made now.
    InvalidUsage,
    /// Another rank failed first.
    RemoteError,
    /// The call is not done yet; no error.
    InProgress,
    /// The timeout passed.
    Timeout,
    /// A peer's process ended.
    PeerDied,
    /// A peer closed its communicator.
    PeerLeft,
    /// Two ranks are in different calls.
    Mismatch,
    /// The element type does not have the operation.
    IllegalOperation,
    /// A name is unknown.
    UnknownName,
    /// No plan fits the call.
    NoPlan,
    /// A link or its memory failed.
    TransportError,
    /// The ranks could not meet.
    BootstrapError,
    /// The launcher is gone.
    LauncherGone,
    /// The communicator was aborted.
    Aborted,
}

impl ResultCode {
    /// Returns the meaning, for people.
    pub(crate) const fn meaning(self) -> &'static CStr {
        match self {
            ResultCode::Success => c"no error",
            ResultCode::DeviceError => c"a device refused something",
            ResultCode::SystemError => c"the operating system refused something",
            ResultCode::InternalError => c"internal error: a defect of tbccl",
            ResultCode::InvalidArgument => c"invalid argument",
            ResultCode::InvalidUsage => c"invalid usage: this call can't be made now",
            ResultCode::RemoteError => c"another rank failed first",
            ResultCode::InProgress => c"in progress: not done yet",
            ResultCode::Timeout => c"no progress within the time limit",
            ResultCode::PeerDied => c"a peer's process ended",
            ResultCode::PeerLeft => c"a peer closed its communicator without taking part",
            ResultCode::Mismatch => c"the ranks are not in the same call",
            ResultCode::IllegalOperation => c"the element type does not have this operation",
            ResultCode::UnknownName => c"nothing has this name",
            ResultCode::NoPlan => c"no algorithm fits the call",
            ResultCode::TransportError => c"a link or its memory failed",
            ResultCode::BootstrapError => c"the ranks could not be brought together",
            ResultCode::LauncherGone => c"the launcher is gone",
            ResultCode::Aborted => c"the communicator was aborted",
        }
    }
}

impl Coded for ResultCode {
    const TYPE: &'static str = "Result";
    const LIMITS: &'static [(&'static str, i32)] = &[("NumResults", 9)];
    const CODES: &'static [(ResultCode, i32, &'static [&'static str])] = &[
        (ResultCode::Success, 0, &["Success"]),
        (ResultCode::DeviceError, 1, &["UnhandledDeviceError", "UnhandledCudaError"]),
        (ResultCode::SystemError, 2, &["SystemError"]),
        (ResultCode::InternalError, 3, &["InternalError"]),
        (ResultCode::InvalidArgument, 4, &["InvalidArgument"]),
        (ResultCode::InvalidUsage, 5, &["InvalidUsage"]),
        (ResultCode::RemoteError, 6, &["RemoteError"]),
        (ResultCode::InProgress, 7, &["InProgress"]),
        (ResultCode::Timeout, 8, &["Timeout"]),
        (ResultCode::PeerDied, OURS, &["PeerDied"]),
        (ResultCode::PeerLeft, OURS + 1, &["PeerLeft"]),
        (ResultCode::Mismatch, OURS + 2, &["Mismatch"]),
        (ResultCode::IllegalOperation, OURS + 3, &["IllegalOperation"]),
        (ResultCode::UnknownName, OURS + 4, &["UnknownName"]),
        (ResultCode::NoPlan, OURS + 5, &["NoPlan"]),
        (ResultCode::TransportError, OURS + 6, &["TransportError"]),
        (ResultCode::BootstrapError, OURS + 7, &["BootstrapError"]),
        (ResultCode::LauncherGone, OURS + 8, &["LauncherGone"]),
        (ResultCode::Aborted, OURS + 9, &["Aborted"]),
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
            tbccl::Error::Bootstrap(_) | tbccl::Error::Absent { .. } => ResultCode::BootstrapError,
            tbccl::Error::LauncherGone => ResultCode::LauncherGone,
            tbccl::Error::Aborted { .. } => ResultCode::Aborted,
            tbccl::Error::System { .. } => ResultCode::SystemError,
            _ => ResultCode::InternalError,
        }
    }
}

impl Coded for DType {
    const TYPE: &'static str = "DataType";
    const LIMITS: &'static [(&'static str, i32)] = &[("NumTypes", 10)];
    const CODES: &'static [(DType, i32, &'static [&'static str])] = DType::CODES;
}

impl Coded for ReduceOp {
    const TYPE: &'static str = "RedOp";
    const LIMITS: &'static [(&'static str, i32)] = &[("NumOps", 5), ("MaxRedOp", i32::MAX)];
    const CODES: &'static [(ReduceOp, i32, &'static [&'static str])] = ReduceOp::CODES;
}

impl Coded for Codec {
    const TYPE: &'static str = "Codec";
    const CODES: &'static [(Codec, i32, &'static [&'static str])] = &[
        (Codec::Int8(BlockLen::B128), 1, &["CodecInt8"]),
        (Codec::Int8(BlockLen::B64), 2, &["CodecInt8Block64"]),
        (Codec::Int8(BlockLen::B256), 3, &["CodecInt8Block256"]),
        (Codec::Bf16, 4, &["CodecBf16"]),
    ];
}

/// Returns the enum of a table, as `tbccl.h` has it.
#[must_use]
pub fn c_enum<T: Coded>(about: &str) -> String {
    let names = T::CODES.iter().flat_map(|(_, code, names)| names.iter().map(move |name| (*name, *code)));
    let mut text = format!("/**\n * {about}\n */\ntypedef enum {{\n");
    for (name, code) in names.chain(T::LIMITS.iter().copied()) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  tbccl{name} = {code},");
    }
    let _ = writeln!(text, "}} tbccl{}_t;", T::TYPE);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::HashSet, fmt::Debug};

    fn assert_both_ways<T: Coded + Debug>() {
        for (value, code, names) in T::CODES {
            assert!(!names.is_empty(), "{value:?} has no name in C");
            assert_eq!(value.code(), *code);
            assert_eq!(T::from_code(*code), Some(*value));
        }
        let distinct: HashSet<i32> = T::CODES.iter().map(|(_, code, _)| *code).collect();
        assert_eq!(distinct.len(), T::CODES.len(), "a number has two meanings");
        assert_eq!(T::from_code(-1), None);
        assert_eq!(T::from_code(OURS - 1), None);
    }

    #[test]
    fn numbers_go_both_ways() {
        assert_both_ways::<ResultCode>();
        assert_both_ways::<DType>();
        assert_both_ways::<ReduceOp>();
        assert_both_ways::<Codec>();
    }

    #[test]
    fn every_type_and_operation_has_a_number() {
        assert!(DType::ALL.into_iter().all(|dtype| DType::from_code(dtype.code()) == Some(dtype)));
        assert!(Codec::ALL.into_iter().all(|codec| Coded::code(codec) == i32::from(codec.code())));
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
