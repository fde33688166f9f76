//! The two protocols by which Python objects describe their elements.
//!
//! | module | protocol |
//! |---|---|
//! | `buffer` | Python's buffer protocol |
//! | `dlpack` | DLPack |
//!
//! Each reads an object into a [`Layout`] and an owner that keeps the memory valid. `view` creates views from
//! them, and `memory` exports registered memory by both.

pub(crate) mod buffer;
pub(crate) mod dlpack;

use crate::errors::invalid_argument;
use pyo3::prelude::*;
use tbccl::DType;

/// The elements of an object, as a protocol describes them.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) address: usize,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// Bytes from one element to the next, by dimension; None if the elements are contiguous.
    pub(crate) strides: Option<Vec<isize>>,
    pub(crate) is_readonly: bool,
}

impl Layout {
    /// Whether the elements are contiguous, in row-major order.
    fn is_contiguous(&self) -> bool {
        let Some(strides) = &self.strides else { return true };
        if self.shape.contains(&0) {
            return true;
        }
        let mut expected = self.dtype.size() as isize;
        let dimensions = self.shape.iter().zip(strides).rev();
        for (&length, &stride) in dimensions {
            if length != 1 && stride != expected {
                return false;
            }
            expected *= length as isize;
        }
        true
    }

    /// Checks that the elements are contiguous, and writable if `writable` is set.
    pub(crate) fn check(&self, object: &Bound<'_, PyAny>, writable: bool) -> PyResult<()> {
        if writable && self.is_readonly {
            return Err(invalid_argument(format!(
                "{} is read-only, but the result is written there; pass a writable object, or omit out",
                type_name(object)
            )));
        }
        if !self.is_contiguous() {
            return Err(invalid_argument(format!(
                "the elements of {} are not contiguous (shape {:?}, strides {:?} bytes); \
                 make it contiguous first, as numpy.ascontiguousarray() and Tensor.contiguous() do",
                type_name(object),
                self.shape,
                self.strides.as_deref().unwrap_or_default()
            )));
        }
        Ok(())
    }
}

/// Returns the qualified name of an object's type, for error messages.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    let name = object.get_type().fully_qualified_name();
    name.map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}
