//! Operations: those with fixed numbers, and those that a program makes, which scale contributions.
//!
//! # Safety
//! Arguments are converted by `cast`, which says what that rests on. The only other unsafe act is to export a
//! name.

use crate::{
    boundary::{Outcome, boundary},
    cast::{self, out},
    codes::Coded,
    comm_handle::{CommRef, find, tbcclComm_t},
    failure::Failure,
    handle::{Held, Key, Table},
    numbers::datatype,
    tbcclDataType_t, tbcclRedOp_t, tbcclResult_t,
};
use std::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
};
use tbccl::{DType, ReduceOp, Scale};

/// An operation that a program has made.
#[derive(Debug)]
struct CustomOp {
    /// The communicator that it is for.
    comm: Key,
    scale: Scale,
}

static CUSTOM_OPS: Table<CustomOp> = Table::new();

/// Returns the operation of a number, and the scale of an operation that a program has made.
#[inline]
pub(crate) fn operation(
    number: tbcclRedOp_t,
    dtype: DType,
    found: CommRef<'_>,
) -> Outcome<(ReduceOp, Option<Scale>)> {
    match ReduceOp::from_code(number) {
        Some(op) => Ok((op, None)),
        None => Ok((ReduceOp::Sum, Some(scale_of(number, dtype, found)?))),
    }
}

/// Returns the scale of an operation that a program has made.
#[inline(never)]
fn scale_of(number: tbcclRedOp_t, dtype: DType, found: CommRef<'_>) -> Outcome<Scale> {
    let made = find_made(number, found)?;
    if made.scale.dtype() != dtype {
        return Err(Failure::argument(format!(
            "op was made for {}, and the elements are {dtype}",
            made.scale.dtype()
        )));
    }
    Ok(made.scale)
}

fn find_made(number: tbcclRedOp_t, found: CommRef<'_>) -> Outcome<Held<CustomOp>> {
    let made = CUSTOM_OPS.get_op(number).ok_or_else(|| {
        Failure::argument(format!("op is {number}, which is no operation, or was destroyed"))
    })?;
    if made.comm != found.first() {
        return Err(Failure::argument("op was made for another communicator"));
    }
    Ok(made)
}

/// Makes an operation that multiplies each rank's contribution by the rank's own scalar, and sums. It is for
/// this communicator and element type, and for tbcclAllReduce, tbcclReduce and tbcclReduceScatter. The scalar
/// is one element, read at once; residence does not matter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclRedOpCreatePreMulSum(
    op: Option<&mut MaybeUninit<tbcclRedOp_t>>,
    scalar: *mut c_void,
    datatype: tbcclDataType_t,
    residence: c_int,
    comm: tbcclComm_t,
) -> tbcclResult_t {
    boundary(|| {
        let place = out("op", op)?;
        let found = find(comm)?;
        let dtype = self::datatype(datatype)?;
        if !matches!(residence, 0 | 1) {
            return Err(Failure::argument(format!(
                "residence is {residence}, which is no tbcclScalarResidence_t"
            )));
        }
        // SAFETY: as `tbccl.h` says, it is null or an element.
        let element = unsafe { cast::bytes("scalar", scalar.cast_const().cast(), dtype.size())? };
        let made = CustomOp { comm: found.first(), scale: Scale::from_bytes(dtype, &element)? };
        let key = CUSTOM_OPS.insert(made);
        let number = key.and_then(Key::to_op);
        if let (Some(key), None) = (key, number)
            && let Some(beyond) = CUSTOM_OPS.get(key)
        {
            Table::close(&beyond);
        }
        place.write(number.ok_or_else(|| Failure::usage("there are too many operations; destroy some"))?);
        Ok(())
    })
}

/// Ends an operation of this communicator. Calls that were issued with it go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclRedOpDestroy(op: tbcclRedOp_t, comm: tbcclComm_t) -> tbcclResult_t {
    boundary(|| {
        let made = find_made(op, find(comm)?.at())?;
        if Table::close(&made) { Ok(()) } else { Err(Failure::argument("op was destroyed")) }
    })
}
