//! Element types as other libraries describe them: formats of Python's buffers, and type codes of DLPack.
//!
//! Numbers and long names come from the tables of the crate `tbccl`, by way of `numbers`. A new element type
//! needs one row in [`descriptions`] and, if it has products, one in [`scale`].

use crate::{errors::invalid_argument, numbers};
use half::{bf16, f16};
use pyo3::{prelude::*, types::PyDict};
use std::ffi::CStr;
use tbccl::{DType, Scale};

/// Descriptions of an element type by other libraries.
struct Descriptions {
    /// Format of exported buffers.
    exported_format: &'static CStr,
    /// Formats of buffers whose elements are of this type if they also have its size.
    formats: &'static [&'static str],
    /// Whether `memoryview.cast` accepts the exported format in all supported versions of Python.
    is_castable: bool,
    /// `DLDataTypeCode`.
    dlpack_code: u8,
}

/// Returns the descriptions of an element type.
const fn descriptions(dtype: DType) -> Descriptions {
    // `DLDataTypeCode` of dlpack.h.
    const INT: u8 = 0;
    const UINT: u8 = 1;
    const FLOAT: u8 = 2;
    const BFLOAT: u8 = 4;
    const COMPLEX: u8 = 5;
    const BOOL: u8 = 6;
    let (exported_format, formats, is_castable, dlpack_code): (_, &'static [_], _, _) = match dtype {
        DType::F32 => (c"f", &["f"], true, FLOAT),
        DType::F64 => (c"d", &["d"], true, FLOAT),
        DType::F16 => (c"e", &["e"], false, FLOAT),
        // `struct` has no letter for bfloat16: it is exported as 16-bit integers, and MLX exports its name.
        DType::Bf16 => (c"H", &["bfloat16"], false, BFLOAT),
        DType::I8 => (c"b", &["b"], true, INT),
        DType::I16 => (c"h", &["h"], true, INT),
        DType::I32 => (c"i", &["i", "l"], true, INT),
        DType::I64 => (c"q", &["q", "l", "n"], true, INT),
        DType::U8 => (c"B", &["B"], true, UINT),
        DType::U16 => (c"H", &["H"], true, UINT),
        DType::U32 => (c"I", &["I", "L"], true, UINT),
        DType::U64 => (c"Q", &["Q", "L", "N"], true, UINT),
        DType::Bool => (c"?", &["?"], true, BOOL),
        DType::Complex64 => (c"Zf", &["Zf", "F"], false, COMPLEX),
    };
    Descriptions { exported_format, formats, is_castable, dlpack_code }
}

/// Returns the format with which buffers of an element type are exported.
pub(crate) fn exported_format(dtype: DType) -> &'static CStr {
    descriptions(dtype).exported_format
}

/// Returns the element type of a buffer's format without a byte order, and of `size` bytes.
pub(crate) fn from_format(format: &str, size: usize) -> Option<DType> {
    DType::ALL
        .into_iter()
        .find(|dtype| dtype.size() == size && descriptions(*dtype).formats.contains(&format))
}

/// Returns DLPack's type code of an element type.
pub(crate) fn dlpack_code(dtype: DType) -> u8 {
    descriptions(dtype).dlpack_code
}

/// Returns the element type of a type code of DLPack, and of `bits` bits.
pub(crate) fn from_dlpack(code: u8, bits: u8) -> Option<DType> {
    DType::ALL
        .into_iter()
        .find(|dtype| dtype.size() * 8 == usize::from(bits) && descriptions(*dtype).dlpack_code == code)
}

/// Converts a scale factor into an element of the call's type.
pub(crate) fn scale(dtype: DType, factor: f64) -> PyResult<Scale> {
    let is_float = matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::Bf16);
    if !is_float && factor.fract() != 0.0 {
        return Err(invalid_argument(format!("scale is {factor}, but {dtype} elements need a whole number")));
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
        DType::Bool | DType::Complex64 => {
            return Err(invalid_argument(format!("{dtype} elements can't be scaled")));
        }
    })
}

/// Adds a dictionary from short names to long names, and one from numbers to the formats that
/// `memoryview.cast` accepts.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let names = PyDict::new(module.py());
    let formats = PyDict::new(module.py());
    for dtype in DType::ALL {
        names.set_item(dtype.name(), dtype.long_name())?;
        let Descriptions { exported_format, is_castable, .. } = descriptions(dtype);
        if is_castable {
            formats.set_item(numbers::dtype_number(dtype), exported_format.to_string_lossy())?;
        }
    }
    module.add("SHORT_NAMES", names)?;
    module.add("MEMORYVIEW_FORMATS", formats)
}
