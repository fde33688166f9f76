//! The two protocols by which Python objects describe their elements: Python's buffers, and DLPack.
//!
//! Each reads an object into a [`Layout`] and a keeper that holds the memory. `view` makes views of them, and `memory`
//! offers registered memory by both.

pub(crate) mod buffer;
pub(crate) mod dlpack;

use crate::errors::invalid;
use pyo3::prelude::*;
use tbccl::DType;

/// The elements of an object, as a protocol describes them.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) address: usize,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// Bytes from one element to the next, by dimension; none where they lie side by side.
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

    /// Checks that the elements are contiguous, and writable where `writable` asks for it.
    pub(crate) fn check(&self, object: &Bound<'_, PyAny>, writable: bool) -> PyResult<()> {
        if writable && self.is_readonly {
            return Err(invalid(format!(
                "{} is read-only, and the result is to be written there; give a writable one, or no out",
                kind_of(object)
            )));
        }
        if !self.is_contiguous() {
            return Err(invalid(format!(
                "the elements of {} do not lie side by side (shape {:?}, strides {:?} bytes); make it contiguous first, \
                 as numpy.ascontiguousarray() and Tensor.contiguous() do",
                kind_of(object),
                self.shape,
                self.strides.as_deref().unwrap_or_default()
            )));
        }
        Ok(())
    }
}

/// The name of an object's type, for people.
pub(crate) fn kind_of(object: &Bound<'_, PyAny>) -> String {
    let name = object.get_type().fully_qualified_name();
    name.map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}
