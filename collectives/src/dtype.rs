//! Element types.

use crate::UnknownName;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary16; reductions accumulate in f32.
    F16,
    /// bfloat16, the upper half of binary32; reductions accumulate in f32.
    Bf16,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// One byte, 0 or 1; any other byte counts as 1 in a reduction.
    Bool,
    /// A pair of f32: real, imaginary.
    Complex64,
}

/// The numeric class of an element type; it decides which operations the type has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Binary floating point.
    Float,
    /// Two's complement or unsigned integer.
    Integer,
    /// Truth value.
    Bool,
    /// Pair of floats.
    Complex,
}

impl DType {
    /// All element types, in the order of tables.
    pub const ALL: [DType; 14] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::Bf16,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::Bool,
        DType::Complex64,
    ];

    /// Returns the bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            DType::I8 | DType::U8 | DType::Bool => 1,
            DType::F16 | DType::Bf16 | DType::I16 | DType::U16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 | DType::Complex64 => 8,
        }
    }

    /// Returns the numeric class of the type.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => Kind::Float,
            DType::Bool => Kind::Bool,
            DType::Complex64 => Kind::Complex,
            _ => Kind::Integer,
        }
    }

    /// Returns the short name: `f32`, `bf16`, `complex64`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::Bool => "bool",
            DType::Complex64 => "complex64",
        }
    }

    /// Returns the long name, as NumPy, MLX and nccl-tests spell it: `float32`, `bfloat16`, `uint8`.
    #[must_use]
    pub const fn long_name(self) -> &'static str {
        match self {
            DType::F32 => "float32",
            DType::F64 => "float64",
            DType::F16 => "float16",
            DType::Bf16 => "bfloat16",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::U8 => "uint8",
            DType::U16 => "uint16",
            DType::U32 => "uint32",
            DType::U64 => "uint64",
            DType::Bool => "bool",
            DType::Complex64 => "complex64",
        }
    }

    /// The numbers of `tbccl.h`, with the C names without their prefix `tbccl`. Numbers below 1000 are
    /// NCCL's.
    ///
    /// A number never gets another meaning.
    pub const CODES: &'static [(DType, i32, &'static [&'static str])] = &[
        (DType::I8, 0, &["Int8", "Char"]),
        (DType::U8, 1, &["Uint8"]),
        (DType::I32, 2, &["Int32", "Int"]),
        (DType::U32, 3, &["Uint32"]),
        (DType::I64, 4, &["Int64"]),
        (DType::U64, 5, &["Uint64"]),
        (DType::F16, 6, &["Float16", "Half"]),
        (DType::F32, 7, &["Float32", "Float"]),
        (DType::F64, 8, &["Float64", "Double"]),
        (DType::Bf16, 9, &["Bfloat16"]),
        (DType::I16, 1000, &["Int16"]),
        (DType::U16, 1001, &["Uint16"]),
        (DType::Bool, 1002, &["Bool"]),
        (DType::Complex64, 1003, &["Complex64"]),
    ];

    /// Returns another spelling in use: C's or nccl-tests'.
    const fn alias(self) -> Option<&'static str> {
        match self {
            DType::F32 => Some("float"),
            DType::F64 => Some("double"),
            DType::F16 => Some("half"),
            _ => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<DType, UnknownName> {
        let lower = text.to_lowercase();
        DType::ALL
            .into_iter()
            .find(|t| t.name() == lower || t.long_name() == lower || t.alias() == Some(lower.as_str()))
            .ok_or_else(|| {
                let names = DType::ALL.into_iter().flat_map(|t| [t.long_name(), t.name()]);
                let mut known: Vec<_> = names.collect();
                known.dedup();
                UnknownName::new("element type", text, known)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_parses_back() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            assert_eq!(dtype.long_name().to_uppercase().parse(), Ok(dtype));
        }
        assert_eq!("double".parse(), Ok(DType::F64));
    }

    #[test]
    fn every_type_has_a_number_and_the_names_of_c_are_the_long_names() {
        let names = DType::CODES.iter().map(|(dtype, _, names)| (*dtype, names[0].to_lowercase()));
        let names: std::collections::HashMap<DType, String> = names.collect();
        for dtype in DType::ALL {
            assert_eq!(names.get(&dtype).map(String::as_str), Some(dtype.long_name()));
        }
    }

    #[test]
    fn an_unknown_type_suggests_the_nearest() {
        let error = "flaot32".parse::<DType>().expect_err("no such type");
        assert_eq!(error.nearest, Some("float32"));
        assert!(error.to_string().contains("did you mean `float32`?"), "{error}");
    }
}
