//! Contributions that are multiplied before a call moves them.
//!
//! They are multiplied into the output where that has room for them, and into memory of the library's own where not; the
//! call then runs on what is there.
//!
//! # Safety
//! Kernels get spans of one length, equal or disjoint, aligned to their elements. In place, all blocks are writable, as
//! whoever issued the call has promised.

use super::{
    elements::ElementsMut,
    raw::{RawCall, RawWhat},
    request::{Request, Us},
};
use crate::{
    Element,
    element::bytes_of,
    error::{Error, Result},
    kernels::Reducer,
};
use collectives::{DType, ReduceOp};
use transport::memory::{Span, SpanMut};

/// A number of an element type, by which contributions are multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    dtype: DType,
    /// The element's, from the first one on.
    bytes: [u8; 8],
}

impl Scale {
    /// This number.
    #[must_use]
    pub fn new<T: Element>(factor: T) -> Scale {
        let mut bytes = [0; 8];
        bytes[..size_of::<T>()].copy_from_slice(bytes_of(&[factor]));
        Scale { dtype: T::DTYPE, bytes }
    }

    /// The number whose element is these bytes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when an element of the type is not as long.
    pub fn from_bytes(dtype: DType, element: &[u8]) -> Result<Scale> {
        if element.len() != dtype.size() {
            let (given, wanted) = (element.len(), dtype.size());
            return Err(Error::InvalidArgument(format!("a {dtype} has {wanted} bytes, not {given}")));
        }
        let mut bytes = [0; 8];
        bytes[..element.len()].copy_from_slice(element);
        Ok(Scale { dtype, bytes })
    }

    /// The type of the number.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How elements of this type are multiplied by it.
    pub(super) fn check(&self, dtype: DType) -> Result<Reducer> {
        if self.dtype != dtype {
            let what = format!("the factor is a {}, and the elements are {dtype}", self.dtype);
            return Err(Error::InvalidArgument(what));
        }
        Ok(Reducer::new(dtype, ReduceOp::Prod)?)
    }
}

/// A contribution that is multiplied before the call moves it.
#[derive(Debug)]
pub(super) struct Scaling<'m> {
    from: Span<'m>,
    /// The same as `from`, or disjoint from it.
    to: SpanMut<'m>,
    by: Scale,
    product: Reducer,
}

impl<'m> Scaling<'m> {
    fn new(from: Span<'m>, to: SpanMut<'m>, by: Scale, dtype: DType) -> Result<Scaling<'m>> {
        assert_eq!(from.len(), to.len(), "a product is as long as what is multiplied");
        Ok(Scaling { from, to, by, product: by.check(dtype)? })
    }

    /// Multiplies.
    pub(super) fn apply(&self) {
        const WORDS: usize = 512;
        let size = self.by.dtype.size();
        let mut factors = [0u64; WORDS];
        let block: &mut [u8] = bytemuck::cast_slice_mut(&mut factors);
        block.chunks_exact_mut(size).for_each(|factor| factor.copy_from_slice(&self.by.bytes[..size]));
        for start in (0..self.from.len()).step_by(block.len()) {
            let len = block.len().min(self.from.len() - start);
            let (from, to) = (self.from.sub(start, len), self.to.sub(start, len));
            // SAFETY: both spans hold as many elements, aligned as their addresses were checked to be, or the library's
            // own, and are equal or disjoint; the factors are a block of this function's, aligned to every element.
            unsafe { self.product.reduce(to.as_mut_ptr(), from.as_ptr(), block.as_ptr(), len / size) };
        }
    }
}

impl RawCall {
    /// The bytes of memory of the library's own that a contribution needs to be multiplied in; none where it is
    /// multiplied in the output. The same as what [`scaled`] uses.
    pub(super) fn scaling_bytes(&self, request: &Request<'_>, us: Us) -> usize {
        match self.what {
            RawWhat::ReduceScaled(_, root, _) if us.rank != root => request.input.len(),
            RawWhat::ReduceScatterScaled(..) if !self.is_in_place(request) => request.input.len(),
            _ => 0,
        }
    }

    /// Does the output of a request lie in its input?
    fn is_in_place(&self, request: &Request<'_>) -> bool {
        let (input, output) = (request.input, request.output);
        let start = input.as_ptr().addr();
        !output.is_empty() && (start..start + input.len()).contains(&output.as_mut_ptr().addr())
    }
}

/// The request of a call whose contribution is multiplied first, and the multiplication.
///
/// # Safety
/// As for [`super::Communicator::call_raw`], and `memory` is the call's alone.
pub(super) unsafe fn scaled<'m>(
    call: &RawCall,
    us: Us,
    by: Scale,
    request: Request<'m>,
    memory: SpanMut<'m>,
) -> Result<(Request<'m>, Scaling<'m>)> {
    let RawCall { dtype, count, .. } = *call;
    let from = request.input;
    let in_place = ElementsMut { dtype, count, bytes: request.output };
    let (request, to) = match call.what {
        RawWhat::AllReduceScaled(op, _) => (us.all_reduce_in_place(in_place, op)?, request.output),
        RawWhat::ReduceScaled(op, root, _) if us.rank == root => {
            (us.reduce_in_place(in_place, op, root)?, request.output)
        }
        RawWhat::ReduceScatterScaled(..) if call.is_in_place(&request) => {
            // SAFETY: in place the caller vouches for the memory of all blocks being writable.
            let all = unsafe { SpanMut::new(from.as_ptr().cast_mut(), from.len()) };
            (request, all)
        }
        _ => (Request { input: memory.as_span(), ..request }, memory),
    };
    Ok((request, Scaling::new(from, to, by, dtype)?))
}
