//! The calls, on slices of elements.
//!
//! # Safety
//! Slices become spans: the borrow of the slice outlives the call, and so the span. Bytes that came from another process are made elements before the slice is seen again.

use super::{
    Buffer, Communicator,
    call::{Blocks, Call},
};
use crate::{
    Element,
    call::CallKind,
    element::{bytes_of, bytes_of_mut, settle},
    error::{Error, Result},
};
use collectives::{Collective, ReduceOp, schedule::InPlace};
use topology::Rank;
use transport::memory::{Span, SpanMut};

/// The bytes of a slice of elements, to be written.
pub(super) fn span_mut<T: Element>(elements: &mut [T]) -> SpanMut<'_> {
    let bytes = bytes_of_mut(elements);
    // SAFETY: the bytes are those of the slice, which is borrowed exclusively for the span's lifetime.
    unsafe { SpanMut::new(bytes.cast(), bytes.len()) }
}

/// Makes elements of the bytes that a call wrote, whether or not it got to its end.
pub(super) fn settled<T: Element>(elements: &mut [T]) {
    // SAFETY: the bytes are those of the slice, which is borrowed exclusively.
    unsafe { settle::<T>(bytes_of_mut(elements)) };
}

pub(super) fn lengths(what: &str, given: usize, wanted: usize) -> Result<()> {
    if given == wanted {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!("{what} has {given} elements where {wanted} are needed")))
}

impl Communicator {
    /// A buffer of `count` elements, zeroed, in memory that peers read in place.
    ///
    /// # Errors
    /// When the slab or the system has no memory left.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Buffer<T>> {
        let bytes = count.checked_mul(size_of::<T>()).ok_or_else(|| {
            Error::InvalidArgument(format!("{count} elements are more than memory can hold"))
        })?;
        Ok(Buffer::new(self.slab.allocate(bytes)?))
    }

    /// Everyone's `send`, reduced element by element, in everyone's `recv`. Both have the same length on all ranks.
    ///
    /// # Errors
    /// See [`Error`]; nothing has moved when it is about the arguments.
    pub fn all_reduce<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        lengths("recv", recv.len(), send.len())?;
        let call = call::<T>(Collective::AllReduce, send.len(), InPlace::No).with_op(op);
        let done = self.collective(&call, Span::from(bytes_of(send)), span_mut(recv));
        settled(recv);
        done
    }

    /// As [`Communicator::all_reduce`], with the input where the output will be.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_reduce_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<()> {
        let call = call::<T>(Collective::AllReduce, data.len(), InPlace::Yes).with_op(op);
        let output = span_mut(data);
        let done = self.collective(&call, output.as_span(), output);
        settled(data);
        done
    }

    /// Everyone's `send`, side by side in rank order, in everyone's `recv` (`size` times as long).
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_gather<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        lengths("recv", recv.len(), self.times_size(send.len())?)?;
        let call = call::<T>(Collective::AllGather, send.len(), InPlace::No);
        let done = self.collective(&call, Span::from(bytes_of(send)), span_mut(recv));
        settled(recv);
        done
    }

    /// As [`Communicator::all_gather`], with the input in place: block `rank` of `data`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_gather_in_place<T: Element>(&mut self, data: &mut [T]) -> Result<()> {
        let count = self.block_of(data.len())?;
        let call = call::<T>(Collective::AllGather, count, InPlace::Yes);
        let output = span_mut(data);
        let block = output.len() / self.size() as usize;
        let done = self.collective(&call, output.as_span().sub(self.rank().index() * block, block), output);
        settled(data);
        done
    }

    /// Block `rank` of everyone's `send` (`size` times as long as `recv`), reduced, in `recv`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn reduce_scatter<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        lengths("send", send.len(), self.times_size(recv.len())?)?;
        let call = call::<T>(Collective::ReduceScatter, recv.len(), InPlace::No).with_op(op);
        let done = self.collective(&call, Span::from(bytes_of(send)), span_mut(recv));
        settled(recv);
        done
    }

    /// As [`Communicator::reduce_scatter`], with the result in place: block `rank` of `data`. The other blocks are
    /// undefined afterwards.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn reduce_scatter_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<()> {
        let count = self.block_of(data.len())?;
        let call = call::<T>(Collective::ReduceScatter, count, InPlace::Yes).with_op(op);
        let all = span_mut(data);
        let block = all.len() / self.size() as usize;
        let done = self.collective(&call, all.as_span(), all.sub(self.rank().index() * block, block));
        settled(data);
        done
    }

    /// The root's `data` in everyone's `data`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn broadcast<T: Element>(&mut self, data: &mut [T], root: Rank) -> Result<()> {
        self.check_rank("root", root)?;
        let call = Call { root, ..call::<T>(Collective::Broadcast, data.len(), InPlace::Yes) };
        let output = span_mut(data);
        let done = self.collective(&call, output.as_span(), output);
        settled(data);
        done
    }

    /// The root's `send` in everyone's `recv`. Others' `send` is not read, and may be empty.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn broadcast_from<T: Element>(&mut self, send: &[T], recv: &mut [T], root: Rank) -> Result<()> {
        self.check_rank("root", root)?;
        if self.rank() == root {
            lengths("send", send.len(), recv.len())?;
        }
        let call = Call { root, ..call::<T>(Collective::Broadcast, recv.len(), InPlace::No) };
        let done = self.collective(&call, Span::from(bytes_of(send)), span_mut(recv));
        settled(recv);
        done
    }

    /// Block `j` of rank `i`'s `send` becomes block `i` of rank `j`'s `recv`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_to_all<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        lengths("recv", recv.len(), send.len())?;
        let count = self.block_of(send.len())?;
        let call = call::<T>(Collective::AllToAll, count, InPlace::No);
        let done = self.collective(&call, Span::from(bytes_of(send)), span_mut(recv));
        settled(recv);
        done
    }

    /// `send` to the next rank, and the one before's in `recv`, round the circle.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send_recv<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        lengths("recv", recv.len(), send.len())?;
        let call = call::<T>(Collective::SendRecv, send.len(), InPlace::No);
        let done = self.collective(&call, Span::from(bytes_of(send)), span_mut(recv));
        settled(recv);
        done
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn barrier(&mut self) -> Result<()> {
        self.collective(&call::<u8>(Collective::Barrier, 0, InPlace::No), Span::empty(), SpanMut::empty())
    }

    /// Sends `data` to rank `to`, which must call [`Communicator::recv`] with the same length. Messages between two
    /// ranks arrive in order. Returns when `data` may be changed, which may be before it has arrived.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send<T: Element>(&mut self, data: &[T], to: Rank) -> Result<()> {
        self.message(CallKind::Send, T::DTYPE, to, Span::from(bytes_of(data)), SpanMut::empty())
    }

    /// Receives into `data` what rank `from` sends.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn recv<T: Element>(&mut self, data: &mut [T], from: Rank) -> Result<()> {
        let done = self.message(CallKind::Recv, T::DTYPE, from, Span::empty(), span_mut(data));
        settled(data);
        done
    }

    pub(super) fn check_rank(&self, what: &str, rank: Rank) -> Result<()> {
        if rank.0 < self.size() {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!("{what} {rank} is not one of the ranks 0..{}", self.size())))
    }

    pub(super) fn times_size(&self, count: usize) -> Result<usize> {
        count.checked_mul(self.size() as usize).ok_or_else(|| {
            Error::InvalidArgument(format!("{count} elements per rank are more than memory can hold"))
        })
    }

    pub(super) fn block_of(&self, elements: usize) -> Result<usize> {
        let size = self.size() as usize;
        if elements.is_multiple_of(size) {
            return Ok(elements / size);
        }
        Err(Error::InvalidArgument(format!("{elements} elements cannot be divided into {size} blocks")))
    }
}

pub(super) fn call<T: Element>(collective: Collective, count: usize, in_place: InPlace) -> Call<'static> {
    let (dtype, count, root) = (T::DTYPE, count as u64, Rank(0));
    Call { collective, dtype, op: None, count, root, in_place, blocks: Blocks::Even, codec: None }
}

impl Call<'_> {
    pub(super) fn with_op(self, op: ReduceOp) -> Self {
        Call { op: Some(op), ..self }
    }
}
