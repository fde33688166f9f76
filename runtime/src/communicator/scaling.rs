//! Multiplication of contributions before a call moves them.
//!
//! A contribution is multiplied into the output where that has room for it, and into the library's own memory
//! elsewhere. The call then runs on the product.
//!
//! # Safety
//! Kernels get spans of one length, equal or disjoint, aligned to their elements. In place, all blocks are
//! writable, as the issuer of the call guarantees.

use super::{
    request::{Request, RequestKind},
    scale::Scale,
};
use crate::{error::Result, kernels::Reducer};
use collectives::{DType, schedule::InPlace};
use transport::memory::{Span, SpanMut};

/// A multiplication of a contribution before the call moves it.
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

    /// Multiplies the contribution.
    pub(super) fn apply(&self) {
        const WORDS: usize = 512;
        let element = self.by.element();
        let size = element.len();
        let mut factors = [0u64; WORDS];
        let block: &mut [u8] = bytemuck::cast_slice_mut(&mut factors);
        block.chunks_exact_mut(size).for_each(|factor| factor.copy_from_slice(element));
        for start in (0..self.from.len()).step_by(block.len()) {
            let len = block.len().min(self.from.len() - start);
            let (from, to) = (self.from.sub(start, len), self.to.sub(start, len));
            // SAFETY: both spans hold the same number of elements, aligned as their addresses were checked to
            // be, or as the library's own memory is. They are equal or disjoint. The factors are a block of
            // this function's, aligned to every element.
            unsafe { self.product.reduce(to.as_mut_ptr(), from.as_ptr(), block.as_ptr(), len / size) };
        }
    }
}

/// The memory that a product is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    /// The output, which is as long as the input; the call then runs in place.
    Output,
    /// The input, which is writable, since the output is a block of it.
    Input,
    /// Memory of the library.
    Own,
}

fn destination(request: &Request<'_>) -> Destination {
    let (input, output) = (request.input, request.output);
    let start = input.as_ptr().addr();
    if output.len() == input.len() {
        Destination::Output
    } else if !output.is_empty() && (start..start + input.len()).contains(&output.as_mut_ptr().addr()) {
        Destination::Input
    } else {
        Destination::Own
    }
}

/// Returns the bytes of the library's memory that a contribution needs to be multiplied in.
pub(super) fn scaling_bytes(request: &Request<'_>) -> usize {
    if destination(request) == Destination::Own { request.input.len() } else { 0 }
}

/// Makes a request run on its contribution times `scale`, and returns the multiplication.
///
/// # Errors
/// [`crate::Error::InvalidArgument`] for a scale of another type.
///
/// # Safety
/// As for [`super::Communicator::call_raw`]. `memory` is the call's alone, and has [`scaling_bytes`].
pub(super) unsafe fn scaled<'m>(
    request: &mut Request<'m>,
    scale: Scale,
    memory: SpanMut<'m>,
) -> Result<Scaling<'m>> {
    let from = request.input;
    let to = match destination(request) {
        Destination::Output => {
            if let RequestKind::Collective(call) = &mut request.kind {
                call.in_place = InPlace::Yes;
            }
            request.input = request.output.as_span();
            request.output
        }
        // SAFETY: in place the caller guarantees that the memory of all blocks is writable.
        Destination::Input => unsafe { SpanMut::new(from.as_ptr().cast_mut(), from.len()) },
        Destination::Own => {
            request.input = memory.as_span();
            memory
        }
    };
    Scaling::new(from, to, scale, request.dtype())
}
