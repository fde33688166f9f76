//! Descriptions of calls: numbers and addresses from Python, checked and made into those of the library.
//!
//! Nothing here looks at memory: a [`RawCall`] only describes a call.

use crate::{
    errors::invalid,
    numbers::{self, Variant},
};
use half::{bf16, f16};
use pyo3::{prelude::*, types::PyTuple};
use std::time::Duration;
use tbccl::{Blocks, CallKind, CallOptions, DType, Operation, Rank, RawCall, Scale, VectorCounts};

/// Returns a timeout that Python gives in seconds; infinity is none.
pub(crate) fn seconds(given: f64) -> PyResult<Option<Duration>> {
    if given == f64::INFINITY {
        return Ok(None);
    }
    let limit = Duration::try_from_secs_f64(given);
    limit.map(Some).map_err(|_| invalid(format!("timeout is {given}; it is seconds, 0 or more")))
}

/// Returns the options with another timeout, if one is given.
pub(crate) fn with_timeout(options: &CallOptions, timeout: Option<f64>) -> PyResult<CallOptions> {
    let mut options = options.clone();
    if let Some(given) = timeout {
        // A timeout longer than any job: without one the communicator's would hold.
        options.timeout = Some(seconds(given)?.unwrap_or(Duration::from_secs(u64::from(u32::MAX))));
    }
    Ok(options)
}

fn rank(number: i64) -> PyResult<Rank> {
    u32::try_from(number).map(Rank).map_err(|_| invalid(format!("{number} is not a rank")))
}

/// The numbers of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) call: i32,
    pub(crate) dtype: i32,
    pub(crate) op: i32,
    /// The root, the other rank of a message, or the codec of a quantized all-reduce.
    pub(crate) root: i64,
}

/// Describes a call. `count` is a number; for a vector form it is a pair of lists or None, the lengths of
/// what is sent and received.
#[inline]
pub(crate) fn call(
    numbers: Numbers,
    count: &Bound<'_, PyAny>,
    send: usize,
    recv: usize,
    factor: Option<f64>,
) -> PyResult<RawCall> {
    let (kind, variant) = numbers::call(numbers.call)?;
    let mut operation = match kind {
        CallKind::Collective(collective) => Operation::new(collective),
        CallKind::Send => Operation::send(rank(numbers.root)?),
        CallKind::Recv => Operation::recv(rank(numbers.root)?),
    };
    let shape = operation.shape();
    // A call without elements has no element type.
    let has_data = shape.send.blocks != Blocks::None || shape.recv.blocks != Blocks::None;
    let dtype = if has_data { numbers::dtype(numbers.dtype)? } else { DType::U8 };
    if shape.reduces {
        operation = operation.with_op(numbers::op(numbers.op)?);
    }
    if shape.has_root {
        operation = operation.with_root(rank(numbers.root)?);
    }
    if let Some(factor) = factor {
        operation = operation.with_scale(scale(dtype, factor)?);
    }
    let mut even = 0;
    match (variant, count.cast::<PyTuple>()) {
        (Variant::Vector, Ok(pair)) => operation = with_counts(operation, pair)?,
        (Variant::Vector, Err(_)) => {
            return Err(invalid(format!("{}_v needs the counts of each block", shape.names.rust)));
        }
        (_, Ok(_)) => return Err(invalid(format!("{} has one count for all blocks", shape.names.rust))),
        (_, Err(_)) => even = count.extract()?,
    }
    if variant == Variant::Quantized {
        operation = operation.with_codec(numbers::codec(numbers.root)?);
    }
    Ok(RawCall { operation, dtype, count: even, send: send as *const u8, recv: recv as *mut u8 })
}

/// Adds the lengths of blocks.
fn with_counts(operation: Operation<'static>, pair: &Bound<'_, PyTuple>) -> PyResult<Operation<'static>> {
    let (send, recv) = pair.extract::<(Option<Vec<usize>>, Option<Vec<usize>>)>()?;
    let shape = operation.shape();
    let needed = |counts: Option<Vec<usize>>, which: &str| {
        counts.ok_or_else(|| invalid(format!("{}_v needs {which}", shape.names.rust)))
    };
    Ok(match (shape.vector, shape.send.blocks) {
        (Some(VectorCounts::Own), _) => {
            operation.with_own_counts(needed(send, "send_counts")?, needed(recv, "recv_counts")?)
        }
        (_, Blocks::PerRank) => operation.with_counts(needed(send, "send_counts")?),
        _ => operation.with_counts(needed(recv, "recv_counts")?),
    })
}

/// Returns the scale of a factor, as an element.
fn scale(dtype: DType, factor: f64) -> PyResult<Scale> {
    let is_float = matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::Bf16);
    if !is_float && factor.fract() != 0.0 {
        return Err(invalid(format!("scale is {factor}, and the elements are {dtype}")));
    }
    Ok(match dtype {
        DType::F32 => Scale::new(factor as f32),
        DType::F64 => Scale::new(factor),
        DType::F16 => Scale::new(f16::from_f64(factor)),
        DType::Bf16 => Scale::new(bf16::from_f64(factor)),
        DType::I8 => Scale::new(factor as i8),
        DType::I16 => Scale::new(factor as i16),
        DType::I32 => Scale::new(factor as i32),
        DType::I64 => Scale::new(factor as i64),
        DType::U8 => Scale::new(factor as u8),
        DType::U16 => Scale::new(factor as u16),
        DType::U32 => Scale::new(factor as u32),
        DType::U64 => Scale::new(factor as u64),
        _ => return Err(invalid(format!("scale is a real number, and the elements are {dtype}"))),
    })
}

/// Describes the calls of a group: tuples of the first seven arguments of `submit`.
pub(crate) fn group(calls: &Bound<'_, PyAny>) -> PyResult<Vec<RawCall>> {
    calls.try_iter()?.map(|given| one_of_group(&given?)).collect()
}

fn one_of_group(given: &Bound<'_, PyAny>) -> PyResult<RawCall> {
    let (number, dtype, op, count, send, recv, root) =
        given.extract::<(i32, i32, i32, Bound<'_, PyAny>, usize, usize, i64)>()?;
    call(Numbers { call: number, dtype, op, root }, &count, send, recv, None)
}
