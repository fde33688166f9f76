//! Scales: factors by which ranks multiply their contributions.

use crate::{
    Element,
    element::bytes_of,
    error::{Error, Result},
    kernels::Reducer,
};
use collectives::{DType, ReduceOp};

/// A factor of an element type, by which a contribution is multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    dtype: DType,
    /// The element's bytes; the rest is 0.
    bytes: [u8; 8],
}

impl Scale {
    /// Creates a scale from a number.
    #[must_use]
    pub fn new<T: Element>(factor: T) -> Scale {
        let mut bytes = [0; 8];
        bytes[..size_of::<T>()].copy_from_slice(bytes_of(&[factor]));
        Scale { dtype: T::DTYPE, bytes }
    }

    /// Creates a scale from the bytes of an element.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an element of the type has another length.
    pub fn from_bytes(dtype: DType, element: &[u8]) -> Result<Scale> {
        if element.len() != dtype.size() {
            let (given, wanted) = (element.len(), dtype.size());
            return Err(Error::InvalidArgument(format!("a {dtype} has {wanted} bytes, not {given}")));
        }
        let mut bytes = [0; 8];
        bytes[..element.len()].copy_from_slice(element);
        Ok(Scale { dtype, bytes })
    }

    /// Returns the type of the factor.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the bytes of the factor's element.
    pub(super) fn element(&self) -> &[u8] {
        &self.bytes[..self.dtype.size()]
    }

    /// Returns the function that multiplies elements of this type.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for elements of another type, [`Error::IllegalOp`] for a type without
    /// products.
    pub(super) fn check(&self, dtype: DType) -> Result<Reducer> {
        if self.dtype != dtype {
            let what = format!("the factor is a {}, and the elements are {dtype}", self.dtype);
            return Err(Error::InvalidArgument(what));
        }
        Ok(Reducer::new(dtype, ReduceOp::Prod)?)
    }
}
