//! The calls without a root, on slices of elements: what their arguments must be, and the calls themselves.
//!
//! What arguments must be is said of [`Elements`], so that it is the same for slices and for addresses (`raw`).

use super::{
    Buffer, Communicator,
    call::Call,
    elements::{Elements, ElementsMut, Settling},
    request::{Request, Us, What},
};
use crate::{
    Element,
    call::CallKind,
    error::{Error, Result},
};
use collectives::{Collective, DType, ReduceOp, schedule::InPlace};
use topology::Rank;
use transport::memory::{Span, SpanMut};

pub(super) fn lengths(what: &str, given: usize, wanted: usize) -> Result<()> {
    if given == wanted {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!("{what} has {given} elements where {wanted} are needed")))
}

#[inline]
pub(super) fn call(collective: Collective, dtype: DType, count: usize, in_place: InPlace) -> Call {
    let (count, root) = (count as u64, Rank(0));
    Call { collective, dtype, op: None, count, root, in_place, codec: None }
}

impl Call {
    #[inline]
    pub(super) fn with_op(self, op: ReduceOp) -> Self {
        Call { op: Some(op), ..self }
    }
}

/// A call from one place to another.
#[inline]
pub(super) fn between<'m>(call: Call, send: Elements<'m>, recv: ElementsMut<'m>) -> Request<'m> {
    Request::collective(call, send.bytes, recv.bytes)
}

/// A call with its input where its output will be.
#[inline]
pub(super) fn within<'m>(call: Call, data: ElementsMut<'m>) -> Request<'m> {
    Request::collective(call, data.bytes.as_span(), data.bytes)
}

/// A call whose output has all blocks, with its input as the block of this rank among them.
pub(super) fn from_own_block<'m>(us: Us, call: Call, data: ElementsMut<'m>) -> Request<'m> {
    let block = call.count as usize * data.dtype.size();
    Request::collective(call, data.bytes.as_span().sub(us.rank.index() * block, block), data.bytes)
}

/// A call whose input has all blocks, with its output as the block of this rank among them.
pub(super) fn into_own_block<'m>(us: Us, call: Call, data: ElementsMut<'m>) -> Request<'m> {
    let block = call.count as usize * data.dtype.size();
    Request::collective(call, data.bytes.as_span(), data.bytes.sub(us.rank.index() * block, block))
}

impl Us {
    #[inline]
    pub(super) fn all_reduce<'m>(
        self,
        send: Elements<'m>,
        recv: ElementsMut<'m>,
        op: ReduceOp,
    ) -> Result<Request<'m>> {
        lengths("recv", recv.count, send.count)?;
        let call = call(Collective::AllReduce, send.dtype, send.count, InPlace::No).with_op(op);
        Ok(between(call, send, recv))
    }

    #[inline]
    pub(super) fn all_reduce_in_place(self, data: ElementsMut<'_>, op: ReduceOp) -> Result<Request<'_>> {
        Ok(within(call(Collective::AllReduce, data.dtype, data.count, InPlace::Yes).with_op(op), data))
    }

    pub(super) fn all_gather<'m>(self, send: Elements<'m>, recv: ElementsMut<'m>) -> Result<Request<'m>> {
        lengths("recv", recv.count, self.times_size(send.count)?)?;
        Ok(between(call(Collective::AllGather, send.dtype, send.count, InPlace::No), send, recv))
    }

    pub(super) fn all_gather_in_place(self, data: ElementsMut<'_>) -> Result<Request<'_>> {
        let call = call(Collective::AllGather, data.dtype, self.block_of(data.count)?, InPlace::Yes);
        Ok(from_own_block(self, call, data))
    }

    pub(super) fn reduce_scatter<'m>(
        self,
        send: Elements<'m>,
        recv: ElementsMut<'m>,
        op: ReduceOp,
    ) -> Result<Request<'m>> {
        lengths("send", send.count, self.times_size(recv.count)?)?;
        let call = call(Collective::ReduceScatter, send.dtype, recv.count, InPlace::No).with_op(op);
        Ok(between(call, send, recv))
    }

    pub(super) fn reduce_scatter_in_place(self, data: ElementsMut<'_>, op: ReduceOp) -> Result<Request<'_>> {
        let count = self.block_of(data.count)?;
        let call = call(Collective::ReduceScatter, data.dtype, count, InPlace::Yes).with_op(op);
        Ok(into_own_block(self, call, data))
    }

    pub(super) fn all_to_all<'m>(self, send: Elements<'m>, recv: ElementsMut<'m>) -> Result<Request<'m>> {
        lengths("recv", recv.count, send.count)?;
        let call = call(Collective::AllToAll, send.dtype, self.block_of(send.count)?, InPlace::No);
        Ok(between(call, send, recv))
    }

    pub(super) fn send_recv<'m>(self, send: Elements<'m>, recv: ElementsMut<'m>) -> Result<Request<'m>> {
        lengths("recv", recv.count, send.count)?;
        Ok(between(call(Collective::SendRecv, send.dtype, send.count, InPlace::No), send, recv))
    }

    pub(super) fn barrier(self) -> Request<'static> {
        let call = call(Collective::Barrier, DType::U8, 0, InPlace::No);
        Request::collective(call, Span::empty(), SpanMut::empty())
    }

    pub(super) fn send(self, data: Elements<'_>, to: Rank) -> Result<Request<'_>> {
        self.check_rank("to", to)?;
        let what = What::Message { kind: CallKind::Send, dtype: data.dtype, peer: to };
        Ok(Request { what, input: data.bytes, output: SpanMut::empty(), lengths: None })
    }

    pub(super) fn recv(self, data: ElementsMut<'_>, from: Rank) -> Result<Request<'_>> {
        self.check_rank("from", from)?;
        let what = What::Message { kind: CallKind::Recv, dtype: data.dtype, peer: from };
        Ok(Request { what, input: Span::empty(), output: data.bytes, lengths: None })
    }
}

impl Communicator {
    /// By what the arguments of a call are checked.
    #[inline]
    pub(super) fn us(&self) -> Us {
        Us { rank: self.rank(), size: self.size() }
    }

    /// Carries out a call.
    // Always: where the call is known, as it mostly is, a jump is left of this.
    #[inline(always)]
    pub(super) fn at_once(&mut self, request: &Request<'_>) -> Result<()> {
        // By reference, and with nothing to do after the call: moving a call or a result about takes a small call longer
        // than making it.
        let _settling = Settling { dtype: request.dtype(), output: request.output };
        match &request.what {
            What::Collective(call) => self.collective(call, request.blocks(), request.input, request.output),
            What::Message { kind, dtype, peer } => {
                self.message(*kind, *dtype, *peer, request.input, request.output)
            }
        }
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
        self.at_once(&self.us().all_reduce(send.into(), recv.into(), op)?)
    }

    /// As [`Communicator::all_reduce`], with the input where the output will be.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_reduce_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.at_once(&self.us().all_reduce_in_place(data.into(), op)?)
    }

    /// Everyone's `send`, side by side in rank order, in everyone's `recv` (`size` times as long).
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_gather<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        self.at_once(&self.us().all_gather(send.into(), recv.into())?)
    }

    /// As [`Communicator::all_gather`], with the input in place: block `rank` of `data`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_gather_in_place<T: Element>(&mut self, data: &mut [T]) -> Result<()> {
        self.at_once(&self.us().all_gather_in_place(data.into())?)
    }

    /// Block `rank` of everyone's `send` (`size` times as long as `recv`), reduced, in `recv`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn reduce_scatter<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        self.at_once(&self.us().reduce_scatter(send.into(), recv.into(), op)?)
    }

    /// As [`Communicator::reduce_scatter`], with the result in place: block `rank` of `data`. The other blocks are
    /// undefined afterwards.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn reduce_scatter_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.at_once(&self.us().reduce_scatter_in_place(data.into(), op)?)
    }

    /// Block `j` of rank `i`'s `send` becomes block `i` of rank `j`'s `recv`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_to_all<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        self.at_once(&self.us().all_to_all(send.into(), recv.into())?)
    }

    /// `send` to the next rank, and the one before's in `recv`, round the circle.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send_recv<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        self.at_once(&self.us().send_recv(send.into(), recv.into())?)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn barrier(&mut self) -> Result<()> {
        self.at_once(&self.us().barrier())
    }

    /// Sends `data` to rank `to`, which must call [`Communicator::recv`] with the same length. Messages between two
    /// ranks arrive in order. Returns when `data` may be changed, which may be before it has arrived.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send<T: Element>(&mut self, data: &[T], to: Rank) -> Result<()> {
        self.at_once(&self.us().send(data.into(), to)?)
    }

    /// Receives into `data` what rank `from` sends.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn recv<T: Element>(&mut self, data: &mut [T], from: Rank) -> Result<()> {
        self.at_once(&self.us().recv(data.into(), from)?)
    }
}
