//! The numbers by which Python names calls, element types, operations and codecs.
//!
//! Those of element types, operations and codecs are the numbers of `tbccl.h`, which a test of the Python package compares.
//! Those of calls are this module's own: `tbccl.h` has a function for each call. A number is never given to another meaning.

use crate::errors::invalid;
use pyo3::{prelude::*, types::PyDict};
use tbccl::{BlockLen, Codec, DType, ReduceOp};

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    Scan,
    ExclusiveScan,
    Barrier,
    Send,
    Recv,
    AllReduceQuantized,
    AllGatherV,
    ReduceScatterV,
    GatherV,
    ScatterV,
    AllToAllV,
}

const WHATS: [(&str, What); 19] = [
    ("ALL_REDUCE", What::AllReduce),
    ("REDUCE", What::Reduce),
    ("BROADCAST", What::Broadcast),
    ("ALL_GATHER", What::AllGather),
    ("REDUCE_SCATTER", What::ReduceScatter),
    ("ALL_TO_ALL", What::AllToAll),
    ("GATHER", What::Gather),
    ("SCATTER", What::Scatter),
    ("SCAN", What::Scan),
    ("EXCLUSIVE_SCAN", What::ExclusiveScan),
    ("BARRIER", What::Barrier),
    ("SEND", What::Send),
    ("RECV", What::Recv),
    ("ALL_REDUCE_QUANTIZED", What::AllReduceQuantized),
    ("ALL_GATHER_V", What::AllGatherV),
    ("REDUCE_SCATTER_V", What::ReduceScatterV),
    ("GATHER_V", What::GatherV),
    ("SCATTER_V", What::ScatterV),
    ("ALL_TO_ALL_V", What::AllToAllV),
];

const DTYPES: [(&str, i32, DType); 14] = [
    ("INT8", 0, DType::I8),
    ("UINT8", 1, DType::U8),
    ("INT32", 2, DType::I32),
    ("UINT32", 3, DType::U32),
    ("INT64", 4, DType::I64),
    ("UINT64", 5, DType::U64),
    ("FLOAT16", 6, DType::F16),
    ("FLOAT32", 7, DType::F32),
    ("FLOAT64", 8, DType::F64),
    ("BFLOAT16", 9, DType::Bf16),
    ("INT16", 1000, DType::I16),
    ("UINT16", 1001, DType::U16),
    ("BOOL", 1002, DType::Bool),
    ("COMPLEX64", 1003, DType::Complex64),
];

const OPS: [(&str, i32, ReduceOp); 8] = [
    ("SUM", 0, ReduceOp::Sum),
    ("PROD", 1, ReduceOp::Prod),
    ("MAX", 2, ReduceOp::Max),
    ("MIN", 3, ReduceOp::Min),
    ("AVG", 4, ReduceOp::Avg),
    ("BAND", 1000, ReduceOp::BitAnd),
    ("BOR", 1001, ReduceOp::BitOr),
    ("BXOR", 1002, ReduceOp::BitXor),
];

const CODECS: [(&str, i32, Codec); 4] = [
    ("CODEC_INT8", 1, Codec::Int8(BlockLen::B128)),
    ("CODEC_INT8_BLOCK64", 2, Codec::Int8(BlockLen::B64)),
    ("CODEC_INT8_BLOCK256", 3, Codec::Int8(BlockLen::B256)),
    ("CODEC_BF16", 4, Codec::Bf16),
];

/// What a number stands for.
fn found<T: Copy>(table: &[(&str, i32, T)], number: i32, what: &str) -> PyResult<T> {
    let row = table.iter().find(|(_, code, _)| *code == number);
    row.map(|(.., value)| *value).ok_or_else(|| invalid(format!("{number} is not the number of {what}")))
}

/// The call of a number.
#[inline]
pub(crate) fn what(number: i32) -> PyResult<What> {
    let row = usize::try_from(number).ok().and_then(|row| WHATS.get(row));
    row.map(|(_, what)| *what).ok_or_else(|| invalid(format!("{number} is not the number of a call")))
}

/// The element type of a number.
#[inline]
pub(crate) fn dtype(number: i32) -> PyResult<DType> {
    found(&DTYPES, number, "an element type")
}

/// The number of an element type.
pub(crate) fn number_of(dtype: DType) -> i32 {
    let row = DTYPES.iter().find(|(.., one)| *one == dtype);
    row.map_or(-1, |(_, number, _)| *number)
}

/// The operation of a number.
#[inline]
pub(crate) fn op(number: i32) -> PyResult<ReduceOp> {
    found(&OPS, number, "an operation")
}

/// The codec of a number.
pub(crate) fn codec(number: i32) -> PyResult<Codec> {
    found(&CODECS, number, "a codec")
}

/// Makes constants of all of them.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    for (number, (name, _)) in WHATS.iter().enumerate() {
        module.add(*name, number)?;
    }
    for (name, number, _) in DTYPES {
        module.add(name, number)?;
    }
    for (name, number, _) in OPS {
        module.add(name, number)?;
    }
    let codecs = PyDict::new(module.py());
    for (name, number, codec) in CODECS {
        module.add(name, number)?;
        codecs.set_item(codec.to_string(), number)?;
    }
    module.add("CODECS", codecs)
}
