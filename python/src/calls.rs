//! Conversion of numbers and addresses from Python into call descriptions.
//!
//! Nothing here reads memory: a [`RawCall`] only describes a call.

use crate::{
    elements,
    errors::invalid_argument,
    numbers::{self, Variant},
};
use pyo3::{prelude::*, types::PyTuple};
use std::time::Duration;
use tbccl::{Blocks, CallKind, CallOptions, DType, Operation, Rank, RawCall, VectorCounts};

/// Returns the duration of an argument in seconds, or None for infinity.
pub(crate) fn seconds(argument: &str, given: f64) -> PyResult<Option<Duration>> {
    if given == f64::INFINITY {
        return Ok(None);
    }
    let limit = Duration::try_from_secs_f64(given);
    limit
        .map(Some)
        .map_err(|_| invalid_argument(format!("{argument} is {given}; it must be seconds, at least 0")))
}

/// Returns the options, with the timeout replaced if one is given.
pub(crate) fn with_timeout(options: &CallOptions, timeout: Option<f64>) -> PyResult<CallOptions> {
    let mut options = options.clone();
    if let Some(given) = timeout {
        // Infinity becomes 136 years: None would select the communicator's timeout.
        options.timeout =
            Some(seconds("timeout", given)?.unwrap_or(Duration::from_secs(u64::from(u32::MAX))));
    }
    Ok(options)
}

fn parse_rank(number: i64) -> PyResult<Rank> {
    u32::try_from(number).map(Rank).map_err(|_| invalid_argument(format!("{number} is not a rank")))
}

/// The numbers that identify one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallNumbers {
    pub(crate) call: i32,
    pub(crate) dtype: i32,
    pub(crate) op: i32,
    /// The root, the other rank of a message, or the codec of a quantized all-reduce.
    pub(crate) root: i64,
}

/// Builds the description of one call.
///
/// `count` is a number of elements. For a vector form it is a pair, each a list or None: the block lengths to
/// send and to receive.
#[inline]
pub(crate) fn raw_call(
    numbers: CallNumbers,
    count: &Bound<'_, PyAny>,
    send: usize,
    recv: usize,
    factor: Option<f64>,
) -> PyResult<RawCall> {
    let (kind, variant) = numbers::kind_and_variant(numbers.call)?;
    let mut operation = match kind {
        CallKind::Collective(collective) => Operation::new(collective),
        CallKind::Send => Operation::send(parse_rank(numbers.root)?),
        CallKind::Recv => Operation::recv(parse_rank(numbers.root)?),
    };
    let shape = operation.shape();
    // A call without elements has no element type.
    let has_data = shape.send.blocks != Blocks::None || shape.recv.blocks != Blocks::None;
    let dtype = if has_data { numbers::dtype(numbers.dtype)? } else { DType::U8 };
    if shape.reduces {
        operation = operation.with_op(numbers::op(numbers.op)?);
    }
    if shape.has_root {
        operation = operation.with_root(parse_rank(numbers.root)?);
    }
    if let Some(factor) = factor {
        operation = operation.with_scale(elements::scale(dtype, factor)?);
    }
    let mut uniform_count = 0;
    match (variant, count.cast::<PyTuple>()) {
        (Variant::Vector, Ok(pair)) => operation = with_counts(operation, pair)?,
        (Variant::Vector, Err(_)) => {
            return Err(invalid_argument(format!("{}_v needs the counts of each block", shape.names.rust)));
        }
        (_, Ok(_)) => {
            return Err(invalid_argument(format!("{} has one count for all blocks", shape.names.rust)));
        }
        (_, Err(_)) => uniform_count = count.extract()?,
    }
    if variant == Variant::Quantized {
        operation = operation.with_codec(numbers::codec(numbers.root)?);
    }
    Ok(RawCall { operation, dtype, count: uniform_count, send: send as *const u8, recv: recv as *mut u8 })
}

/// Adds the block lengths of a vector form to an operation.
fn with_counts(operation: Operation<'static>, pair: &Bound<'_, PyTuple>) -> PyResult<Operation<'static>> {
    let (send, recv) = pair.extract::<(Option<Vec<usize>>, Option<Vec<usize>>)>()?;
    let shape = operation.shape();
    let required = |counts: Option<Vec<usize>>, which: &str| {
        counts.ok_or_else(|| invalid_argument(format!("{}_v needs {which}", shape.names.rust)))
    };
    Ok(match (shape.vector, shape.send.blocks) {
        (Some(VectorCounts::Own), _) => {
            operation.with_own_counts(required(send, "send_counts")?, required(recv, "recv_counts")?)
        }
        (_, Blocks::PerRank) => operation.with_counts(required(send, "send_counts")?),
        _ => operation.with_counts(required(recv, "recv_counts")?),
    })
}

/// Builds the descriptions of a group of calls: tuples of the first seven arguments of `submit`.
pub(crate) fn raw_calls(calls: &Bound<'_, PyAny>) -> PyResult<Vec<RawCall>> {
    calls.try_iter()?.map(|given| raw_call_from_tuple(&given?)).collect()
}

fn raw_call_from_tuple(given: &Bound<'_, PyAny>) -> PyResult<RawCall> {
    let (number, dtype, op, count, send, recv, root) =
        given.extract::<(i32, i32, i32, Bound<'_, PyAny>, usize, usize, i64)>()?;
    raw_call(CallNumbers { call: number, dtype, op, root }, &count, send, recv, None)
}
