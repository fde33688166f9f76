//! `all_reduce` by address, on the shortest way: of all calls it is the one that there are most of.
//!
//! Eight bytes are reduced in the time of some dozens of writes to memory. So nothing is written on this way that need not
//! be: no description in which every call has a place, and no error. Whatever is out of the ordinary is left to the
//! general way, which finds it again and says what is wrong with it.
//!
//! # Safety
//! As for [`super`].

use super::{Communicator, Elements, ElementsMut};
use crate::error::{Error, Result};
use collectives::{DType, ReduceOp};
use transport::memory::{Span, SpanMut};

/// [`RawWhat::AllReduce`](super::RawWhat::AllReduce), by value.
#[derive(Clone, Copy, Debug)]
pub struct RawAllReduce {
    /// The type of the elements.
    pub dtype: DType,
    /// How they are combined.
    pub op: ReduceOp,
    /// How many elements.
    pub count: usize,
    /// Where the elements are that this rank contributes.
    pub send: *const u8,
    /// Where the result goes; in place if it is the same.
    pub recv: *mut u8,
}

/// The bytes of so many elements, where an address, their number and their alignment are such as most are.
#[inline(always)] // As `all_reduce_raw`.
fn plain_bytes(address: usize, dtype: DType, count: usize) -> Option<usize> {
    // Below it, no product or sum of these is more than memory can hold.
    const MOST: usize = 1 << (usize::BITS - 8);
    let size = dtype.size();
    (address != 0 && (address | count) < MOST && address & (size - 1) == 0).then(|| count * size)
}

impl Communicator {
    /// Carries it out as [`Communicator::call_raw`] would. `None` if anything may be wrong with it: then nothing was done.
    /// An error is boxed where it comes up, since results that may be one are large.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    // Always: what is passed and what is returned would be written to memory.
    #[inline(always)]
    pub(crate) unsafe fn all_reduce_raw(&mut self, call: RawAllReduce) -> Option<Result<(), Box<Error>>> {
        let RawAllReduce { dtype, op, count, send, recv } = call;
        let bytes = plain_bytes(recv.addr(), dtype, count)?;
        // SAFETY: the caller vouches for the memory until this returns.
        let output = ElementsMut { dtype, count, bytes: unsafe { SpanMut::new(recv, bytes) } };
        if send.addr() == recv.addr() {
            let request = self.us().all_reduce_in_place(output, op).ok()?;
            return Some(self.at_once(&request).map_err(Box::new));
        }
        plain_bytes(send.addr(), dtype, count)?;
        if send.addr() < recv.addr() + bytes && recv.addr() < send.addr() + bytes {
            return None;
        }
        // SAFETY: as above.
        let input = Elements { dtype, count, bytes: unsafe { Span::new(send, bytes) } };
        let request = self.us().all_reduce(input, output, op).ok()?;
        Some(self.at_once(&request).map_err(Box::new))
    }
}
