//! Calls as Python describes them: numbers and addresses, checked and made into the crate's own.
//!
//! Nothing here looks at memory: a call only describes, as [`RawCall`] has it.

use crate::{
    errors::invalid,
    numbers::{self, What},
};
use half::{bf16, f16};
use pyo3::{prelude::*, types::PyTuple};
use std::{sync::Arc, time::Duration};
use tbccl::{CallOptions, DType, Rank, RawCall, RawWhat, Scale};

/// A time limit in seconds, as Python gives them. Without end is none.
pub(crate) fn seconds(given: f64) -> PyResult<Option<Duration>> {
    if given == f64::INFINITY {
        return Ok(None);
    }
    let limit = Duration::try_from_secs_f64(given);
    limit.map(Some).map_err(|_| invalid(format!("timeout is {given}; it is seconds, 0 or more")))
}

/// These options, with another time limit if one is given.
pub(crate) fn with_timeout(options: &CallOptions, timeout: Option<f64>) -> PyResult<CallOptions> {
    let mut options = options.clone();
    if let Some(given) = timeout {
        // A time limit beyond all clocks is none; the communicator's would count if nothing were said.
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
    pub(crate) what: i32,
    pub(crate) dtype: i32,
    pub(crate) op: i32,
    /// The root, the other end of a message, or the codec of a quantized all-reduce.
    pub(crate) root: i64,
}

/// How many elements: of each block the same, or of each its own.
#[derive(Debug)]
pub(crate) enum Counts {
    Even(usize),
    Uneven { send: Option<Vec<usize>>, recv: Option<Vec<usize>> },
}

/// Describes a call.
#[inline]
pub(crate) fn call(numbers: Numbers, counts: Counts, send: usize, recv: usize) -> PyResult<RawCall> {
    let what = numbers::what(numbers.what)?;
    let count = match counts {
        Counts::Even(count) => count,
        Counts::Uneven { .. } => 0,
    };
    let what = match counts {
        Counts::Even(_) => even(what, numbers)?,
        Counts::Uneven { send, recv } => uneven(what, numbers, send, recv)?,
    };
    let dtype = match what {
        // Of which nothing else is looked at.
        RawWhat::Barrier => DType::U8,
        _ => numbers::dtype(numbers.dtype)?,
    };
    let (send, recv) = (send as *const u8, recv as *mut u8);
    Ok(RawCall { what, dtype, count, send, recv })
}

#[inline]
fn even(what: What, numbers: Numbers) -> PyResult<RawWhat> {
    let op = || numbers::op(numbers.op);
    let root = || rank(numbers.root);
    Ok(match what {
        What::AllReduce => RawWhat::AllReduce(op()?),
        What::Reduce => RawWhat::Reduce(op()?, root()?),
        What::Broadcast => RawWhat::Broadcast(root()?),
        What::AllGather => RawWhat::AllGather,
        What::ReduceScatter => RawWhat::ReduceScatter(op()?),
        What::AllToAll => RawWhat::AllToAll,
        What::Gather => RawWhat::Gather(root()?),
        What::Scatter => RawWhat::Scatter(root()?),
        What::Scan => RawWhat::Scan(op()?),
        What::ExclusiveScan => RawWhat::ExclusiveScan(op()?),
        What::Barrier => RawWhat::Barrier,
        What::Send => RawWhat::Send(root()?),
        What::Recv => RawWhat::Recv(root()?),
        What::AllReduceQuantized => {
            let codec = i32::try_from(numbers.root).unwrap_or(-1);
            RawWhat::AllReduceQuantized(op()?, numbers::codec(codec)?)
        }
        _ => return Err(invalid(format!("{what:?} needs the counts of each block"))),
    })
}

fn uneven(
    what: What,
    numbers: Numbers,
    send: Option<Vec<usize>>,
    recv: Option<Vec<usize>>,
) -> PyResult<RawWhat> {
    let needed = |counts: Option<Vec<usize>>, which: &str| -> PyResult<Arc<[usize]>> {
        let counts = counts.ok_or_else(|| invalid(format!("{what:?} needs {which}")))?;
        Ok(counts.into())
    };
    let op = || numbers::op(numbers.op);
    let root = || rank(numbers.root);
    Ok(match what {
        What::AllGatherV => RawWhat::AllGatherV(needed(recv, "recv_counts")?),
        What::ReduceScatterV => RawWhat::ReduceScatterV(op()?, needed(send, "send_counts")?),
        What::GatherV => RawWhat::GatherV(root()?, needed(recv, "recv_counts")?),
        What::ScatterV => RawWhat::ScatterV(root()?, needed(send, "send_counts")?),
        What::AllToAllV => {
            let (send, recv) = (needed(send, "send_counts")?, needed(recv, "recv_counts")?);
            RawWhat::AllToAllV { send, recv }
        }
        _ => return Err(invalid(format!("{what:?} has one count for all blocks"))),
    })
}

/// The same call with every rank's contribution multiplied by a factor of its own first.
pub(crate) fn scaled(call: &RawCall, factor: f64) -> PyResult<RawCall> {
    let by = scale(call.dtype, factor)?;
    let what = match call.what {
        RawWhat::AllReduce(op) => RawWhat::AllReduceScaled(op, by),
        RawWhat::Reduce(op, root) => RawWhat::ReduceScaled(op, root, by),
        RawWhat::ReduceScatter(op) => RawWhat::ReduceScatterScaled(op, by),
        _ => return Err(invalid("scale is for all_reduce, reduce and reduce_scatter")),
    };
    Ok(RawCall { what, ..*call })
}

/// The factor as an element.
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

/// The calls of a group: tuples of (what, dtype, op, count, send, recv, root), where the count of a call with a count for each
/// block is a pair of lists, or None, of what is sent and received.
pub(crate) fn group(calls: &Bound<'_, PyAny>) -> PyResult<Vec<RawCall>> {
    calls.try_iter()?.map(|given| one_of_group(&given?)).collect()
}

fn one_of_group(given: &Bound<'_, PyAny>) -> PyResult<RawCall> {
    let (what, dtype, op, count, send, recv, root) =
        given.extract::<(i32, i32, i32, Bound<'_, PyAny>, usize, usize, i64)>()?;
    let counts = match count.cast::<PyTuple>() {
        Ok(pair) => {
            let (send, recv) = pair.extract()?;
            Counts::Uneven { send, recv }
        }
        Err(_) => Counts::Even(count.extract()?),
    };
    call(Numbers { what, dtype, op, root }, counts, send, recv)
}
