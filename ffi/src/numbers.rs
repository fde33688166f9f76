//! Checks of numbers that C passes: element types and ranks.

use crate::{boundary::Outcome, codes::Coded, comm_handle::CommRef, failure::Failure, tbcclDataType_t};
use std::ffi::c_int;
use tbccl::{DType, Rank};

/// Returns the element type of a number.
#[inline]
pub(crate) fn datatype(number: tbcclDataType_t) -> Outcome<DType> {
    DType::from_code(number).ok_or_else(|| no_datatype(number))
}

#[cold]
fn no_datatype(number: tbcclDataType_t) -> Failure {
    Failure::argument(format!("datatype is {number}, which is no element type"))
}

/// Returns a rank of the communicator. `what` names the argument.
#[inline]
pub(crate) fn member(what: &str, number: c_int, found: CommRef<'_>) -> Outcome<Rank> {
    match u32::try_from(number) {
        Ok(rank) if rank < found.shared.size() => Ok(Rank(rank)),
        _ => Err(no_member(what, number, found)),
    }
}

#[cold]
fn no_member(what: &str, number: c_int, found: CommRef<'_>) -> Failure {
    Failure::argument(format!("{what} is {number}; the ranks are 0 to {}", found.shared.size() - 1))
}
