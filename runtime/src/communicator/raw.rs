//! Calls on memory by address: the base of the C interface and of other languages.
//!
//! A raw call becomes the same [`Request`] as its typed twin, so both follow the same rules. This module
//! checks only properties that a slice guarantees: null, misaligned and overlapping addresses, and lengths
//! beyond memory. As in NCCL, a call is in place if its addresses say so.
//!
//! # Safety
//! The issuer of a call guarantees the validity of its addresses ([`Communicator::call_raw`]). Spans are made
//! of addresses after they have been checked, and end with the call.

use super::{
    Communicator,
    operation::{Operation, Signature},
    rank_info::RankInfo,
    request::{Extents, Request, RequestKind},
    scaling::{Scaling, scaled, scaling_bytes},
};
use crate::{
    call::CallKind,
    error::{Error, Result},
};
use collectives::{Collective, DType, Overlap, ReduceOp, schedule::InPlace};
use std::slice;
use topology::Rank;
use transport::memory::{Span, SpanMut};

/// A call, by the addresses of its memory.
///
/// The value only describes the call; the guarantee about the memory is given when it is issued.
///
/// `count` is the number of elements of one block, as NCCL counts: the elements that a rank sends in
/// `all_gather` and `gather`, receives in `reduce_scatter` and `scatter`, and sends to each rank in
/// `all_to_all`. Operations with lengths ([`Operation::with_counts`]) ignore it. A buffer that only the root
/// has is ignored on other ranks.
///
/// A call is in place if `send` equals `recv`, or if this rank's block in the buffer of all blocks is the
/// other buffer ([`collectives::CallShape::in_place`]). `all_to_all` and operations with lengths have no form
/// in place.
#[derive(Clone, Debug)]
pub struct RawCall {
    /// The operation.
    pub operation: Operation<'static>,
    /// The type of the elements.
    pub dtype: DType,
    /// Elements of one block.
    pub count: usize,
    /// Address of the elements that this rank contributes.
    pub send: *const u8,
    /// Address of the result.
    pub recv: *mut u8,
}

// SAFETY: a call is a description; its addresses are used only by functions whose callers guarantee the
// validity of the memory, on any thread.
unsafe impl Send for RawCall {}
// SAFETY: as for `Send`.
unsafe impl Sync for RawCall {}

/// An `all_reduce` by address, without scale and codec: the most frequent call.
///
/// It is small and needs no drop, so it is passed in registers. Through a [`RawCall`], which is written to
/// memory, an `all_reduce` of 8 bytes takes 15 ns longer from C, of 78.
#[derive(Clone, Copy, Debug)]
pub struct RawAllReduce {
    /// The type of the elements.
    pub dtype: DType,
    /// The operation.
    pub op: ReduceOp,
    /// Number of elements.
    pub count: usize,
    /// Address of the elements that this rank contributes.
    pub send: *const u8,
    /// Address of the result; in place if it equals `send`.
    pub recv: *mut u8,
}

/// A call by address that a communicator can run.
pub trait CallByAddress {
    /// Runs the call.
    ///
    /// # Errors
    /// Those of [`Communicator::call_raw`].
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    unsafe fn execute(&self, comm: &mut Communicator) -> Result<()>;
}

impl CallByAddress for RawCall {
    #[inline]
    unsafe fn execute(&self, comm: &mut Communicator) -> Result<()> {
        // SAFETY: the caller guarantees the validity of the memory.
        unsafe { comm.call_raw(self) }
    }
}

impl CallByAddress for RawAllReduce {
    // Always inlined: in a call of 8 bytes, each function call takes as long as the checks.
    #[inline(always)]
    unsafe fn execute(&self, comm: &mut Communicator) -> Result<()> {
        const SIGNATURE: Signature = Signature::new(CallKind::Collective(Collective::AllReduce));
        let RawAllReduce { dtype, op, count, send, recv } = *self;
        let operation = Operation::new(Collective::AllReduce).with_op(op);
        let call = RawCall { operation, dtype, count, send, recv };
        // SAFETY: the caller guarantees the validity of the memory until this returns.
        let request = unsafe { call.request_of(SIGNATURE, comm.rank_info())? };
        comm.execute(&request)
    }
}

/// Returns the alignment of elements.
const fn alignment(dtype: DType) -> usize {
    match dtype {
        // A complex number is a pair of floats.
        DType::Complex64 => align_of::<f32>(),
        other => other.size(),
    }
}

/// Returns the bytes of `count` elements at an address.
///
/// # Errors
/// [`Error::InvalidArgument`] for a null or misaligned address, or for too many elements.
#[inline(always)] // As `RawAllReduce`.
fn checked(what: &str, address: usize, dtype: DType, count: usize) -> Result<usize> {
    // Below this limit, no product or sum of lengths exceeds memory.
    const MOST: usize = 1 << (usize::BITS - 8);
    let size = dtype.size();
    if address != 0 && (address | count) < MOST && address & (size - 1) == 0 {
        return Ok(count * size);
    }
    checked_exactly(what, address, dtype, count)
}

/// Checks as [`checked`], for unusual addresses and counts.
#[cold]
fn checked_exactly(what: &str, address: usize, dtype: DType, count: usize) -> Result<usize> {
    let bytes = count.checked_mul(dtype.size()).filter(|bytes| *bytes <= isize::MAX as usize);
    let is_aligned = address.is_multiple_of(alignment(dtype));
    Err(Error::InvalidArgument(match bytes {
        Some(0) => return Ok(0),
        Some(bytes) if address.checked_add(bytes).is_some() => {
            if address == 0 {
                format!("{what} is null, and {count} {dtype} are to be there")
            } else if is_aligned {
                return Ok(bytes);
            } else {
                let wanted = alignment(dtype);
                format!("{what} is at {address:#x}; {dtype} begin at multiples of {wanted} bytes")
            }
        }
        _ => format!("{what} of {count} {dtype} is more than memory can hold"),
    }))
}

impl RawCall {
    /// Returns whether the call is in place, where `send` has this many bytes and `recv` that many.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they overlap otherwise than `overlap` says.
    #[inline(always)] // As `RawAllReduce`.
    fn in_place(&self, (sent, received): (usize, usize), overlap: Overlap, rank: Rank) -> Result<InPlace> {
        let (from, to) = (self.send.addr(), self.recv.addr());
        if sent == 0 || received == 0 {
            return Ok(InPlace::No);
        }
        let is_in_place = match overlap {
            Overlap::Same => from == to,
            Overlap::SendInRecv => from == to + rank.index() * sent,
            Overlap::RecvInSend => to == from + rank.index() * received,
            Overlap::Never => false,
        };
        if is_in_place {
            return Ok(InPlace::Yes);
        }
        if from < to + received && to < from + sent {
            Err(forbidden_overlap(overlap))
        } else {
            Ok(InPlace::No)
        }
    }

    /// Checks the call, as far as a rank can tell by itself. No memory is looked at.
    ///
    /// # Errors
    /// Those of [`Communicator::call_raw`] that are about arguments.
    pub(crate) fn check(&self, rank: Rank, size: u32) -> Result<()> {
        // SAFETY: the request is dropped before the memory is accessed.
        let request = unsafe { self.request(RankInfo { rank, size })? };
        if let RequestKind::Collective(call) = request.kind {
            call.reducer()?;
        }
        match self.operation.scale {
            Some(scale) => scale.check(self.dtype).map(drop),
            None => Ok(()),
        }
    }

    /// Returns the call as an `all_reduce` without scale and codec, if it is one.
    #[inline]
    fn as_all_reduce(&self) -> Option<RawAllReduce> {
        let RawCall { operation, dtype, count, send, recv } = self;
        let Operation { kind: CallKind::Collective(Collective::AllReduce), op: Some(op), .. } = operation
        else {
            return None;
        };
        let is_plain = operation.scale.is_none() && operation.codec.is_none() && operation.is_even();
        is_plain.then_some(RawAllReduce { dtype: *dtype, op: *op, count: *count, send: *send, recv: *recv })
    }

    /// Checks the call and makes its request. Its contribution is not scaled yet.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the argument.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    unsafe fn request<'m>(&self, info: RankInfo) -> Result<Request<'m>> {
        // SAFETY: the caller guarantees the validity of the memory.
        unsafe { self.request_of(self.operation.signature(), info) }
    }

    /// Makes the request of a call of this signature.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    #[inline(always)] // As `RawAllReduce`.
    unsafe fn request_of<'m>(&self, signature: Signature, info: RankInfo) -> Result<Request<'m>> {
        let RawCall { operation, dtype, count, .. } = self;
        let shape = signature.shape;
        operation.check(signature, info, *dtype)?;
        let extents = Extents::new(shape, info, operation, *count)?;
        let overlap = if operation.is_even() { shape.in_place } else { Overlap::Never };
        let sent = checked("send", self.send.addr(), *dtype, extents.send)?;
        let received = checked("recv", self.recv.addr(), *dtype, extents.recv)?;
        let in_place = self.in_place((sent, received), overlap, info.rank)?;
        // SAFETY: the caller guarantees the validity of the memory.
        let (input, output) = unsafe { (Span::new(self.send, sent), SpanMut::new(self.recv, received)) };
        Request::new(signature, info, operation, (*dtype, *count), (input, output, in_place))
    }
}

#[cold]
fn forbidden_overlap(overlap: Overlap) -> Error {
    let remedy = match overlap {
        Overlap::Same => "in place they are the same",
        Overlap::SendInRecv => "in place send is the block of this rank in recv",
        Overlap::RecvInSend => "in place recv is the block of this rank in send",
        Overlap::Never => "this call has no form in place",
    };
    Error::InvalidArgument(format!("send and recv overlap; {remedy}"))
}

impl Communicator {
    /// Runs a call on memory by address, as its typed twin.
    ///
    /// # Errors
    /// Those of the typed twin. [`Error::InvalidArgument`] names the argument if a required address is null,
    /// if an address is misaligned, or if `send` and `recv` overlap otherwise than in place.
    ///
    /// # Safety
    /// Until the call returns, the elements at `send` stay readable and the elements at `recv` readable and
    /// writable; in place, all blocks are readable and writable. Meanwhile no other thread writes the
    /// elements at `send` or uses those at `recv`.
    #[inline]
    pub unsafe fn call_raw(&mut self, call: &RawCall) -> Result<()> {
        match call.as_all_reduce() {
            // SAFETY: the caller guarantees the validity of the memory.
            Some(call) => unsafe { call.execute(self) },
            // SAFETY: as above.
            None => unsafe { self.general_call(call) },
        }
    }

    /// Runs a call of any kind.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    #[inline(never)]
    unsafe fn general_call(&mut self, call: &RawCall) -> Result<()> {
        if call.operation.scale.is_some() {
            // SAFETY: the caller guarantees the validity of the memory.
            return unsafe { self.group_raw(slice::from_ref(call)) };
        }
        // SAFETY: the caller guarantees the validity of the memory until this returns.
        let request = unsafe { call.request(self.rank_info())? };
        self.execute(&request)
    }

    /// Runs calls as a [`super::Group`]: together, and in this order as far as their results depend on it.
    ///
    /// # Errors
    /// Those of [`Communicator::call_raw`]; nothing has moved after an [`Error::InvalidArgument`].
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`], for each call. No call writes memory that another one uses.
    pub unsafe fn group_raw(&mut self, calls: &[RawCall]) -> Result<()> {
        let info = self.rank_info();
        // SAFETY: the caller guarantees the validity of the memory until this returns.
        let mut requests: Vec<Request<'_>> =
            calls.iter().map(|call| unsafe { call.request(info) }).collect::<Result<_>>()?;
        let scales: Vec<_> = calls.iter().map(|call| call.operation.scale).collect();
        if scales.iter().all(Option::is_none) {
            return self.run_together(&requests, &[]);
        }
        self.check_alive()?;
        let bytes = |(scale, request): (&Option<_>, &Request<'_>)| {
            if scale.is_some() { scaling_bytes(request).next_multiple_of(super::ALIGNMENT) } else { 0 }
        };
        let bytes: Vec<usize> = scales.iter().zip(&requests).map(bytes).collect();
        // The other ranks are about to enter the calls, so this failure fails them too.
        let mut memory = match self.slab.allocate(bytes.iter().sum()) {
            Ok(memory) => memory,
            Err(error) => return self.fail(error.into()),
        };
        let mut rest = memory.span_mut();
        let mut scalings: Vec<Scaling<'_>> = Vec::new();
        for ((scale, request), bytes) in scales.into_iter().zip(&mut requests).zip(bytes) {
            let Some(scale) = scale else { continue };
            let own = rest.sub(0, scaling_bytes(request));
            rest = rest.sub(bytes, rest.len() - bytes);
            // SAFETY: the caller guarantees the validity of the memory until this returns, and `own` is not
            // used by others until then.
            scalings.push(unsafe { scaled(request, scale, own)? });
        }
        self.run_together(&requests, &scalings)
    }
}
