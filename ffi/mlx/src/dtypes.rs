//! Element types by the numbers that C++ passes: those of JACCL.

use crate::{Failure, Outcome};
use std::ffi::c_int;
use tbccl::DType;

/// Element types by number.
const DTYPES: [DType; 14] = [
    DType::Bool,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::F16,
    DType::Bf16,
    DType::F32,
    DType::F64,
    DType::Complex64,
];

/// Returns the element type of a number.
#[inline]
pub(crate) fn from_number(number: c_int) -> Outcome<DType> {
    let known = usize::try_from(number).ok().and_then(|number| DTYPES.get(number));
    known.copied().ok_or_else(|| {
        Failure::usage(format!("element type {number} is not one of 0..{} (jaccl::Dtype)", DTYPES.len()))
    })
}
