//! Numbers by which Python names calls, element types, operations and codecs.
//!
//! Element types, operations and codecs have the numbers of `tbccl.h`. Calls have numbers of this module,
//! since `tbccl.h` has a function for each. All derive from the library's tables: a new collective or element
//! type needs no change here.

use crate::errors::invalid_argument;
use pyo3::{prelude::*, types::PyDict};
use tbccl::{CallKind, Codec, Collective, DType, ReduceOp};

/// Variant of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Blocks of equal length.
    Uniform,
    /// Blocks of individual lengths.
    Vector,
    /// Messages are compressed by a codec.
    Quantized,
}

/// Distance between the numbers of two variants of a call.
const VARIANT_STRIDE: i32 = 100;

const SEND: i32 = 3 * VARIANT_STRIDE;
const RECV: i32 = SEND + 1;

/// Returns the call kind and the variant of a call's number.
#[inline]
pub(crate) fn kind_and_variant(number: i32) -> PyResult<(CallKind, Variant)> {
    let entry = match (number.div_euclid(VARIANT_STRIDE), number) {
        (0, _) => collective(number).map(|collective| (collective, Variant::Uniform)),
        (1, _) => collective(number).filter(|c| c.shape().vector.is_some()).map(|c| (c, Variant::Vector)),
        (2, _) => collective(number).filter(|c| c.shape().quantizes).map(|c| (c, Variant::Quantized)),
        (_, SEND) => return Ok((CallKind::Send, Variant::Uniform)),
        (_, RECV) => return Ok((CallKind::Recv, Variant::Uniform)),
        _ => None,
    };
    let (collective, variant) =
        entry.ok_or_else(|| invalid_argument(format!("{number} is not the number of a call")))?;
    Ok((CallKind::Collective(collective), variant))
}

fn collective(number: i32) -> Option<Collective> {
    let callable = Collective::ALL.into_iter().filter(|collective| collective.shape().names.python.is_some());
    callable.into_iter().find(|collective| *collective as i32 == number % VARIANT_STRIDE)
}

/// Returns the value of a number in a table; `what` describes the value in the error.
fn lookup<T: Copy>(table: &[(T, i32, &[&str])], number: i32, what: &str) -> PyResult<T> {
    let row = table.iter().find(|(_, code, _)| *code == number);
    row.map(|(value, ..)| *value)
        .ok_or_else(|| invalid_argument(format!("{number} is not the number of {what}")))
}

/// Returns the element type of a number.
#[inline]
pub(crate) fn dtype(number: i32) -> PyResult<DType> {
    lookup(DType::CODES, number, "an element type")
}

/// Returns the number of an element type.
pub(crate) fn dtype_number(dtype: DType) -> i32 {
    DType::CODES.iter().find(|(one, ..)| *one == dtype).map_or(-1, |(_, number, _)| *number)
}

/// Returns the operation of a number.
#[inline]
pub(crate) fn op(number: i32) -> PyResult<ReduceOp> {
    lookup(ReduceOp::CODES, number, "an operation")
}

/// Returns the codec of a number.
pub(crate) fn codec(number: i64) -> PyResult<Codec> {
    let codec = Codec::ALL.into_iter().find(|codec| i64::from(codec.code()) == number);
    codec.ok_or_else(|| invalid_argument(format!("{number} is not the number of a codec")))
}

/// Adds a constant for each number, and dictionaries from names of element types, operations and codecs to
/// numbers.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    for collective in Collective::ALL {
        let shape = collective.shape();
        let Some(name) = shape.names.python else { continue };
        let name = name.to_uppercase();
        let number = collective as i32;
        if shape.vector.is_some() {
            module.add(format!("{name}_V"), number + VARIANT_STRIDE)?;
        }
        if shape.quantizes {
            module.add(format!("{name}_QUANTIZED"), number + 2 * VARIANT_STRIDE)?;
        }
        module.add(name, number)?;
    }
    module.add("SEND", SEND)?;
    module.add("RECV", RECV)?;
    let dtypes = DType::ALL.map(|dtype| (dtype.long_name().to_owned(), dtype_number(dtype)));
    add_table(module, "DTYPES", "", &dtypes)?;
    let ops = ReduceOp::CODES.iter().map(|(op, number, _)| (op.name().to_owned(), *number));
    add_table(module, "OPS", "", &ops.collect::<Vec<_>>())?;
    let codecs = Codec::ALL.map(|codec| (codec.to_string(), i32::from(codec.code())));
    add_table(module, "CODECS", "CODEC_", &codecs)
}

/// Adds a dictionary of names to numbers, and a constant for each of its entries.
fn add_table(
    module: &Bound<'_, PyModule>,
    table: &str,
    prefix: &str,
    entries: &[(String, i32)],
) -> PyResult<()> {
    let names = PyDict::new(module.py());
    for (name, number) in entries {
        names.set_item(name, number)?;
        module.add(format!("{prefix}{}", name.to_uppercase().replace('/', "_BLOCK")), number)?;
    }
    module.add(table, names)
}
