//! Calls on memory by address: what the C ABI and other languages stand on.
//!
//! A raw call becomes the very [`Request`] that its typed twin becomes, so that both go by the same rules. What is
//! checked here is what a slice can't get wrong: null, misaligned and overlapping addresses, and lengths beyond what
//! memory can hold. In place is recognised by the addresses, as NCCL does.
//!
//! # Safety
//! Whoever issues a call vouches for its addresses ([`Communicator::call_raw`]). Spans are made of them once they have
//! been checked, and end with the call.

mod all_reduce;
mod what;

pub use all_reduce::RawAllReduce;
pub use what::RawWhat;

use super::{
    Communicator,
    elements::{Elements, ElementsMut},
    request::{Request, Us, What},
    scale::{Scale, scaled},
    uneven::total_of,
};
use crate::error::{Error, Result};
use collectives::{Collective, DType};
use std::slice;
use topology::Rank;
use transport::memory::{Span, SpanMut};

/// A call, by the addresses of its memory. It only describes: the promise about the memory is made by who issues it.
#[derive(Clone, Debug)]
pub struct RawCall {
    /// What is called.
    pub what: RawWhat,
    /// The type of the elements.
    pub dtype: DType,
    /// How many elements, as NCCL counts them; see [`RawWhat`].
    pub count: usize,
    /// Where the elements are that this rank contributes.
    pub send: *const u8,
    /// Where the result goes.
    pub recv: *mut u8,
}

// SAFETY: a call is a description; addresses are used only where somebody vouches for them, on whatever thread.
unsafe impl Send for RawCall {}
// SAFETY: as for `Send`.
unsafe impl Sync for RawCall {}

/// Where, in place, input and output lie to each other.
#[derive(Clone, Copy)]
enum Together {
    /// `send` equals `recv`.
    Same,
    /// `send` is this block of `recv`.
    BlockOfRecv(usize),
    /// `recv` is this block of `send`.
    BlockOfSend(usize),
    /// They never do.
    Never,
}

/// The memory of a call.
enum Buffers<'m> {
    /// What has all blocks, where one of the two is a block of the other.
    InPlace(ElementsMut<'m>),
    Apart(Elements<'m>, ElementsMut<'m>),
}

impl<'m> Buffers<'m> {
    #[inline]
    fn bind(
        self,
        in_place: impl FnOnce(ElementsMut<'m>) -> Result<Request<'m>>,
        apart: impl FnOnce(Elements<'m>, ElementsMut<'m>) -> Result<Request<'m>>,
    ) -> Result<Request<'m>> {
        match self {
            Buffers::InPlace(data) => in_place(data),
            Buffers::Apart(send, recv) => apart(send, recv),
        }
    }
}

/// The alignment of elements.
const fn alignment(dtype: DType) -> usize {
    match dtype {
        // A pair of floats.
        DType::Complex64 => align_of::<f32>(),
        other => other.size(),
    }
}

/// The bytes of so many elements from an address on, if there can be any.
#[inline]
fn checked(what: &str, address: usize, dtype: DType, count: usize) -> Result<usize> {
    let bytes = count.checked_mul(dtype.size()).filter(|bytes| *bytes <= isize::MAX as usize);
    // A power of two.
    let is_aligned = address & (alignment(dtype) - 1) == 0;
    match bytes {
        Some(0) => Ok(0),
        Some(bytes) if is_aligned && address != 0 && address.checked_add(bytes).is_some() => Ok(bytes),
        _ => Err(impossible(what, address, dtype, count)),
    }
}

/// Why there can't be so many elements from an address on.
#[cold]
fn impossible(what: &str, address: usize, dtype: DType, count: usize) -> Error {
    let bytes = count.checked_mul(dtype.size()).filter(|bytes| *bytes <= isize::MAX as usize);
    Error::InvalidArgument(if bytes.and_then(|bytes| address.checked_add(bytes)).is_none() {
        format!("{what} of {count} {dtype} is more than memory can hold")
    } else if address == 0 {
        format!("{what} is null, and {count} {dtype} are to be there")
    } else {
        let wanted = alignment(dtype);
        format!("{what} is at {address:#x}; {dtype} begin at multiples of {wanted} bytes")
    })
}

impl RawCall {
    /// So many elements of `send`.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    #[inline]
    unsafe fn input<'m>(&self, count: usize) -> Result<Elements<'m>> {
        let bytes = checked("send", self.send.addr(), self.dtype, count)?;
        // SAFETY: the caller vouches for the memory.
        let bytes = unsafe { Span::new(self.send, bytes) };
        Ok(Elements { dtype: self.dtype, count, bytes })
    }

    /// So many elements of `recv`.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    #[inline]
    unsafe fn output<'m>(&self, count: usize) -> Result<ElementsMut<'m>> {
        let bytes = checked("recv", self.recv.addr(), self.dtype, count)?;
        // SAFETY: the caller vouches for the memory.
        let bytes = unsafe { SpanMut::new(self.recv, bytes) };
        Ok(ElementsMut { dtype: self.dtype, count, bytes })
    }

    /// So many elements of `send` and of `recv`, which overlap in no way but this.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    #[inline]
    unsafe fn buffers<'m>(&self, sent: usize, received: usize, together: Together) -> Result<Buffers<'m>> {
        // SAFETY: the caller vouches for the memory.
        let (send, recv) = unsafe { (self.input(sent)?, self.output(received)?) };
        let (from, to) = (self.send.addr(), self.recv.addr());
        if send.bytes.is_empty() || recv.bytes.is_empty() {
            return Ok(Buffers::Apart(send, recv));
        }
        let (is_in_place, all) = match together {
            Together::Same => (from == to, recv),
            Together::BlockOfRecv(rank) => (from == to + rank * send.bytes.len(), recv),
            Together::BlockOfSend(rank) => {
                let is_in_place = to == from + rank * recv.bytes.len();
                // SAFETY: in place the caller vouches for the memory of all blocks being writable.
                let bytes = unsafe { SpanMut::new(self.send.cast_mut(), send.bytes.len()) };
                (is_in_place, ElementsMut { dtype: self.dtype, count: sent, bytes })
            }
            Together::Never => (false, recv),
        };
        if is_in_place {
            return Ok(Buffers::InPlace(all));
        }
        if from < to + recv.bytes.len() && to < from + send.bytes.len() {
            return Err(overlap(together));
        }
        Ok(Buffers::Apart(send, recv))
    }

    /// Is it right, as far as a rank can tell by itself? No memory is looked at.
    ///
    /// # Errors
    /// What [`Communicator::call_raw`] would say.
    pub(crate) fn check(&self, rank: Rank, size: u32) -> Result<()> {
        // SAFETY: the request is dropped before anybody looks at memory.
        let request = unsafe { self.request(Us { rank, size })? };
        if let What::Collective(call) = request.what {
            call.reducer()?;
        }
        match self.scale() {
            Some(by) => by.check(self.dtype).map(drop),
            None => Ok(()),
        }
    }

    /// By what contributions are multiplied, if they are.
    fn scale(&self) -> Option<Scale> {
        match self.what {
            RawWhat::AllReduceScaled(_, by)
            | RawWhat::ReduceScaled(_, _, by)
            | RawWhat::ReduceScatterScaled(_, by) => Some(by),
            _ => None,
        }
    }

    /// Makes the request of a call whose contribution is moved as it is.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    unsafe fn request<'m>(&self, us: Us) -> Result<Request<'m>> {
        let count = self.count;
        // SAFETY: the caller vouches for the memory.
        unsafe {
            match self.what {
                RawWhat::AllReduce(op) | RawWhat::AllReduceScaled(op, _) => {
                    self.buffers(count, count, Together::Same)?.bind(
                        |data| us.all_reduce_in_place(data, op),
                        |send, recv| us.all_reduce(send, recv, op),
                    )
                }
                RawWhat::AllReduceQuantized(op, codec) => self.buffers(count, count, Together::Same)?.bind(
                    |data| us.all_reduce_quantized_in_place(data, op, codec),
                    |send, recv| us.all_reduce_quantized(send, recv, op, codec),
                ),
                RawWhat::Scan(op) => self
                    .buffers(count, count, Together::Same)?
                    .bind(|data| us.scan_in_place(data, op), |send, recv| us.scan(send, recv, op)),
                RawWhat::ExclusiveScan(op) => self.buffers(count, count, Together::Same)?.bind(
                    |data| us.exclusive_scan_in_place(data, op),
                    |send, recv| us.exclusive_scan(send, recv, op),
                ),
                RawWhat::Barrier => Ok(us.barrier()),
                RawWhat::Send(to) => us.send(self.input(count)?, to),
                RawWhat::Recv(from) => us.recv(self.output(count)?, from),
                RawWhat::Reduce(..)
                | RawWhat::ReduceScaled(..)
                | RawWhat::Broadcast(_)
                | RawWhat::Gather(_)
                | RawWhat::Scatter(_) => self.rooted(us),
                RawWhat::AllGather
                | RawWhat::ReduceScatter(_)
                | RawWhat::ReduceScatterScaled(..)
                | RawWhat::AllToAll => self.of_blocks(us),
                _ => self.uneven(us),
            }
        }
    }

    /// The calls with a root.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    unsafe fn rooted<'m>(&self, us: Us) -> Result<Request<'m>> {
        let (count, rank, dtype) = (self.count, us.rank.index(), self.dtype);
        // SAFETY: the caller vouches for the memory.
        unsafe {
            match self.what {
                RawWhat::Reduce(op, root) | RawWhat::ReduceScaled(op, root, _) if us.rank == root => {
                    self.buffers(count, count, Together::Same)?.bind(
                        |data| us.reduce_in_place(data, op, root),
                        |send, recv| us.reduce(send, recv, op, root),
                    )
                }
                RawWhat::Reduce(op, root) | RawWhat::ReduceScaled(op, root, _) => {
                    us.reduce(self.input(count)?, ElementsMut::none(dtype), op, root)
                }
                RawWhat::Broadcast(root) if us.rank == root => self
                    .buffers(count, count, Together::Same)?
                    .bind(|data| us.broadcast(data, root), |send, recv| us.broadcast_from(send, recv, root)),
                RawWhat::Broadcast(root) => {
                    us.broadcast_from(Elements::none(dtype), self.output(count)?, root)
                }
                RawWhat::Gather(root) if us.rank == root => self
                    .buffers(count, us.times_size(count)?, Together::BlockOfRecv(rank))?
                    .bind(|data| us.gather_in_place(data, root), |send, recv| us.gather(send, recv, root)),
                RawWhat::Gather(root) => us.gather(self.input(count)?, ElementsMut::none(dtype), root),
                RawWhat::Scatter(root) if us.rank == root => self
                    .buffers(us.times_size(count)?, count, Together::BlockOfSend(rank))?
                    .bind(|data| us.scatter_in_place(data, root), |send, recv| us.scatter(send, recv, root)),
                RawWhat::Scatter(root) => us.scatter(Elements::none(dtype), self.output(count)?, root),
                _ => unreachable!("{:?} has no root", self.what),
            }
        }
    }

    /// The calls without a root one of whose buffers has a block for each rank.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    unsafe fn of_blocks<'m>(&self, us: Us) -> Result<Request<'m>> {
        let (count, all, rank) = (self.count, us.times_size(self.count)?, us.rank.index());
        // SAFETY: the caller vouches for the memory.
        unsafe {
            match self.what {
                RawWhat::AllGather => self
                    .buffers(count, all, Together::BlockOfRecv(rank))?
                    .bind(|data| us.all_gather_in_place(data), |send, recv| us.all_gather(send, recv)),
                RawWhat::ReduceScatter(op) | RawWhat::ReduceScatterScaled(op, _) => {
                    self.buffers(all, count, Together::BlockOfSend(rank))?.bind(
                        |data| us.reduce_scatter_in_place(data, op),
                        |send, recv| us.reduce_scatter(send, recv, op),
                    )
                }
                RawWhat::AllToAll => {
                    let (send, recv) = self.apart(all, all)?;
                    us.all_to_all(send, recv)
                }
                _ => unreachable!("{:?} has no blocks", self.what),
            }
        }
    }

    /// The calls with lengths for each block.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    unsafe fn uneven<'m>(&self, us: Us) -> Result<Request<'m>> {
        let total = |counts: &[usize]| total_of("counts", counts, us.size);
        let rank = us.rank.index();
        // SAFETY: the caller vouches for the memory.
        unsafe {
            match &self.what {
                RawWhat::AllGatherV(counts) => {
                    let all = total(counts)?;
                    let (send, recv) = self.apart(counts[rank], all)?;
                    us.all_gather_v(send, recv, counts)
                }
                RawWhat::ReduceScatterV(op, counts) => {
                    let all = total(counts)?;
                    let (send, recv) = self.apart(all, counts[rank])?;
                    us.reduce_scatter_v(send, recv, counts, *op)
                }
                RawWhat::GatherV(root, counts) => {
                    let all = if us.has_all_blocks(Collective::Gather, *root) { total(counts)? } else { 0 };
                    let own = total(counts).map(|_| counts[rank])?;
                    let (send, recv) = self.apart(own, all)?;
                    us.gather_v(send, recv, counts, *root)
                }
                RawWhat::ScatterV(root, counts) => {
                    let all = if us.has_all_blocks(Collective::Scatter, *root) { total(counts)? } else { 0 };
                    let own = total(counts).map(|_| counts[rank])?;
                    let (send, recv) = self.apart(all, own)?;
                    us.scatter_v(send, recv, counts, *root)
                }
                RawWhat::AllToAllV { send: sent, recv: received } => {
                    let sent_all = total_of("send_counts", sent, us.size)?;
                    let (send, recv) = self.apart(sent_all, total_of("recv_counts", received, us.size)?)?;
                    us.all_to_all_v(send, sent, recv, received)
                }
                _ => unreachable!("{:?} has no lengths", self.what),
            }
        }
    }

    /// So many elements of `send` and of `recv`, which don't overlap.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    unsafe fn apart<'m>(&self, sent: usize, received: usize) -> Result<(Elements<'m>, ElementsMut<'m>)> {
        // SAFETY: the caller vouches for the memory.
        match unsafe { self.buffers(sent, received, Together::Never)? } {
            Buffers::Apart(send, recv) => Ok((send, recv)),
            Buffers::InPlace(_) => unreachable!("it has no form in place"),
        }
    }
}

#[cold]
fn overlap(together: Together) -> Error {
    let remedy = match together {
        Together::Same => "in place they are the same",
        Together::BlockOfRecv(_) => "in place send is the block of this rank in recv",
        Together::BlockOfSend(_) => "in place recv is the block of this rank in send",
        Together::Never => "this call has no form in place",
    };
    Error::InvalidArgument(format!("send and recv overlap; {remedy}"))
}

impl Communicator {
    /// Carries out a call on memory by address. It is checked, carried out and answered as its typed twin is.
    ///
    /// # Errors
    /// See [`Error`]. [`Error::InvalidArgument`] names the argument where an address is null with elements to be there, is
    /// not aligned to the elements, or where `send` and `recv` overlap otherwise than in place.
    ///
    /// # Safety
    /// Until the call returns the elements at `send` stay readable, those at `recv`, and in place of all blocks, readable
    /// and writable, and no other thread writes the former or uses the latter. How many there are says the call.
    // Always: each step on the way of a call of 8 bytes that is a function takes as long as its checks.
    #[inline(always)]
    pub unsafe fn call_raw(&mut self, call: &RawCall) -> Result<()> {
        // The call that there are most of goes the shortest way.
        if let RawCall { what: RawWhat::AllReduce(op), dtype, count, send, recv } = *call {
            let call = RawAllReduce { dtype, op, count, send, recv };
            // SAFETY: the caller's promise.
            if let Some(done) = unsafe { self.all_reduce_raw(call) } {
                return done.map_err(|error| *error);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.call_otherwise(call) }
    }

    /// Carries out any call.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    unsafe fn call_otherwise(&mut self, call: &RawCall) -> Result<()> {
        if call.scale().is_some() {
            // SAFETY: the caller's promise.
            return unsafe { self.group_raw(slice::from_ref(call)) };
        }
        // SAFETY: the caller vouches for the memory until this returns.
        let request = unsafe { call.request(self.us())? };
        match call.what {
            RawWhat::AllToAllV { .. } => self.all_to_all_v_at_once(&request),
            _ => self.at_once(&request),
        }
    }

    /// Carries out calls as a [`super::Group`] of them: together, and in this order as far as their results depend on it.
    /// Every call of [`RawWhat`] may be in a group.
    ///
    /// # Errors
    /// See [`Error`]; nothing has moved when it is about arguments.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`], for each of them. They don't write what another one uses.
    pub unsafe fn group_raw(&mut self, calls: &[RawCall]) -> Result<()> {
        let us = self.us();
        // SAFETY: the caller vouches for the memory until this returns.
        let mut requests: Vec<Request<'_>> =
            calls.iter().map(|call| unsafe { call.request(us) }).collect::<Result<_>>()?;
        if calls.iter().all(|call| call.scale().is_none()) {
            return self.run_together(&requests, &[]);
        }
        self.check_alive()?;
        let needs = |(call, request): (&RawCall, &Request<'_>)| call.scaling_bytes(request, us);
        let bytes: Vec<usize> = calls
            .iter()
            .zip(&requests)
            .map(needs)
            .map(|bytes| bytes.next_multiple_of(super::ALIGNMENT))
            .collect();
        // The others are about to enter, so that this failure is theirs too.
        let mut memory = match self.slab.allocate(bytes.iter().sum()) {
            Ok(memory) => memory,
            Err(error) => return self.fail(error.into()),
        };
        let mut rest = memory.span_mut();
        let mut scalings = Vec::new();
        for ((call, request), bytes) in calls.iter().zip(&mut requests).zip(bytes) {
            let Some(by) = call.scale() else { continue };
            let own = rest.sub(0, call.scaling_bytes(request, us));
            rest = rest.sub(bytes, rest.len() - bytes);
            let plain = std::mem::replace(request, us.barrier());
            // SAFETY: the caller vouches for the memory until this returns, and `own` is ours until then.
            let (ready, scaling) = unsafe { scaled(call, us, by, plain, own)? };
            *request = ready;
            scalings.push(scaling);
        }
        self.run_together(&requests, &scalings)
    }
}
