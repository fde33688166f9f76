//! The calls without a root, on slices of elements: what their arguments must be, and the calls themselves.
//!
//! # Safety
//! Slices become spans: a request holds the borrow of the slice, and lives as long as the call. Bytes that came from
//! another process are made elements before the slice is seen again.

use super::{
    Buffer, Communicator,
    call::{Blocks, Call},
    request::{Request, Us, What},
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
pub(super) fn settled<T: Element>(output: SpanMut<'_>) {
    if output.is_empty() {
        return;
    }
    let bytes = std::ptr::slice_from_raw_parts_mut(output.as_mut_ptr(), output.len());
    // SAFETY: the span is that of a slice of these elements, or of a block of one, whose exclusive borrow the request
    // holds.
    unsafe { settle::<T>(bytes) };
}

pub(super) fn lengths(what: &str, given: usize, wanted: usize) -> Result<()> {
    if given == wanted {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!("{what} has {given} elements where {wanted} are needed")))
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

/// A call from one slice to another.
pub(super) fn between<'m, T: Element>(call: Call<'static>, send: &'m [T], recv: &'m mut [T]) -> Request<'m> {
    Request::collective(call, Span::from(bytes_of(send)), span_mut(recv))
}

/// A call with its input where its output will be.
pub(super) fn within<'m, T: Element>(call: Call<'static>, data: &'m mut [T]) -> Request<'m> {
    let output = span_mut(data);
    Request::collective(call, output.as_span(), output)
}

/// A call whose output has all blocks, with its input as the block of this rank among them.
pub(super) fn from_own_block<'m, T: Element>(us: Us, call: Call<'static>, data: &'m mut [T]) -> Request<'m> {
    let output = span_mut(data);
    let block = call.count as usize * size_of::<T>();
    Request::collective(call, output.as_span().sub(us.rank.index() * block, block), output)
}

/// A call whose input has all blocks, with its output as the block of this rank among them.
pub(super) fn into_own_block<'m, T: Element>(us: Us, call: Call<'static>, data: &'m mut [T]) -> Request<'m> {
    let all = span_mut(data);
    let block = call.count as usize * size_of::<T>();
    Request::collective(call, all.as_span(), all.sub(us.rank.index() * block, block))
}

impl Us {
    pub(super) fn all_reduce<'m, T: Element>(
        self,
        send: &'m [T],
        recv: &'m mut [T],
        op: ReduceOp,
    ) -> Result<Request<'m>> {
        lengths("recv", recv.len(), send.len())?;
        let call = call::<T>(Collective::AllReduce, send.len(), InPlace::No).with_op(op);
        Ok(between(call, send, recv))
    }

    pub(super) fn all_reduce_in_place<T: Element>(self, data: &mut [T], op: ReduceOp) -> Result<Request<'_>> {
        Ok(within(call::<T>(Collective::AllReduce, data.len(), InPlace::Yes).with_op(op), data))
    }

    pub(super) fn all_gather<'m, T: Element>(self, send: &'m [T], recv: &'m mut [T]) -> Result<Request<'m>> {
        lengths("recv", recv.len(), self.times_size(send.len())?)?;
        Ok(between(call::<T>(Collective::AllGather, send.len(), InPlace::No), send, recv))
    }

    pub(super) fn all_gather_in_place<T: Element>(self, data: &mut [T]) -> Result<Request<'_>> {
        let call = call::<T>(Collective::AllGather, self.block_of(data.len())?, InPlace::Yes);
        Ok(from_own_block(self, call, data))
    }

    pub(super) fn reduce_scatter<'m, T: Element>(
        self,
        send: &'m [T],
        recv: &'m mut [T],
        op: ReduceOp,
    ) -> Result<Request<'m>> {
        lengths("send", send.len(), self.times_size(recv.len())?)?;
        let call = call::<T>(Collective::ReduceScatter, recv.len(), InPlace::No).with_op(op);
        Ok(between(call, send, recv))
    }

    pub(super) fn reduce_scatter_in_place<T: Element>(
        self,
        data: &mut [T],
        op: ReduceOp,
    ) -> Result<Request<'_>> {
        let count = self.block_of(data.len())?;
        let call = call::<T>(Collective::ReduceScatter, count, InPlace::Yes).with_op(op);
        Ok(into_own_block(self, call, data))
    }

    pub(super) fn all_to_all<'m, T: Element>(self, send: &'m [T], recv: &'m mut [T]) -> Result<Request<'m>> {
        lengths("recv", recv.len(), send.len())?;
        let call = call::<T>(Collective::AllToAll, self.block_of(send.len())?, InPlace::No);
        Ok(between(call, send, recv))
    }

    pub(super) fn send_recv<'m, T: Element>(self, send: &'m [T], recv: &'m mut [T]) -> Result<Request<'m>> {
        lengths("recv", recv.len(), send.len())?;
        Ok(between(call::<T>(Collective::SendRecv, send.len(), InPlace::No), send, recv))
    }

    pub(super) fn send<T: Element>(self, data: &[T], to: Rank) -> Result<Request<'_>> {
        self.check_rank("to", to)?;
        let what = What::Message { kind: CallKind::Send, dtype: T::DTYPE, peer: to };
        Ok(Request { what, input: Span::from(bytes_of(data)), output: SpanMut::empty(), lengths: None })
    }

    pub(super) fn recv<T: Element>(self, data: &mut [T], from: Rank) -> Result<Request<'_>> {
        self.check_rank("from", from)?;
        let what = What::Message { kind: CallKind::Recv, dtype: T::DTYPE, peer: from };
        Ok(Request { what, input: Span::empty(), output: span_mut(data), lengths: None })
    }
}

impl Communicator {
    /// By what the arguments of a call are checked.
    #[inline]
    pub(super) fn us(&self) -> Us {
        Us { rank: self.rank(), size: self.size() }
    }

    /// Carries out a call on elements of this type.
    #[inline]
    pub(super) fn at_once<T: Element>(&mut self, request: &Request<'_>) -> Result<()> {
        let done = match request.what {
            What::Collective(call) => {
                self.collective(&Call { blocks: request.blocks(), ..call }, request.input, request.output)
            }
            What::Message { kind, dtype, peer } => {
                self.message(kind, dtype, peer, request.input, request.output)
            }
        };
        settled::<T>(request.output);
        done
    }

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
        self.at_once::<T>(&self.us().all_reduce(send, recv, op)?)
    }

    /// As [`Communicator::all_reduce`], with the input where the output will be.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_reduce_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.at_once::<T>(&self.us().all_reduce_in_place(data, op)?)
    }

    /// Everyone's `send`, side by side in rank order, in everyone's `recv` (`size` times as long).
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_gather<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        self.at_once::<T>(&self.us().all_gather(send, recv)?)
    }

    /// As [`Communicator::all_gather`], with the input in place: block `rank` of `data`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_gather_in_place<T: Element>(&mut self, data: &mut [T]) -> Result<()> {
        self.at_once::<T>(&self.us().all_gather_in_place(data)?)
    }

    /// Block `rank` of everyone's `send` (`size` times as long as `recv`), reduced, in `recv`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn reduce_scatter<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        self.at_once::<T>(&self.us().reduce_scatter(send, recv, op)?)
    }

    /// As [`Communicator::reduce_scatter`], with the result in place: block `rank` of `data`. The other blocks are
    /// undefined afterwards.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn reduce_scatter_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.at_once::<T>(&self.us().reduce_scatter_in_place(data, op)?)
    }

    /// Block `j` of rank `i`'s `send` becomes block `i` of rank `j`'s `recv`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_to_all<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        self.at_once::<T>(&self.us().all_to_all(send, recv)?)
    }

    /// `send` to the next rank, and the one before's in `recv`, round the circle.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send_recv<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        self.at_once::<T>(&self.us().send_recv(send, recv)?)
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
        self.at_once::<T>(&self.us().send(data, to)?)
    }

    /// Receives into `data` what rank `from` sends.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn recv<T: Element>(&mut self, data: &mut [T], from: Rank) -> Result<()> {
        self.at_once::<T>(&self.us().recv(data, from)?)
    }
}
