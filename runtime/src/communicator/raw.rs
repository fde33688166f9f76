//! Calls on memory by address: the base of the C interface and of other languages.
//!
//! A raw call becomes the same [`Request`] as its typed twin, so both follow the same rules. This module checks only
//! properties that a slice guarantees: null, misaligned and overlapping addresses, and lengths beyond memory. As in NCCL, a
//! call is in place if its addresses say so.
//!
//! # Safety
//! The issuer of a call vouches for its addresses ([`Communicator::call_raw`]). Spans are made of addresses after they have
//! been checked, and end with the call.

use super::{
    Communicator,
    elements::{Elements, ElementsMut},
    operation::Operation,
    rank_info::RankInfo,
    request::{Buffers, Extents, Request, RequestKind},
    scaling::{Scaling, scaled, scaling_bytes},
};
use crate::{
    call::CallKind,
    error::{Error, Result},
};
use collectives::{CallShape, Collective, DType, Overlap};
use topology::Rank;
use transport::memory::{Span, SpanMut};

/// A call, by the addresses of its memory.
///
/// The value only describes the call. Its issuer makes the promise about the memory.
///
/// `count` is the number of elements of one block, as NCCL counts: the elements that a rank sends in `all_gather` and
/// `gather`, receives in `reduce_scatter` and `scatter`, and sends to each rank in `all_to_all`. Operations with lengths
/// ([`Operation::with_counts`]) do not look at it. A buffer that only the root has is not looked at on other ranks.
///
/// A call is in place if `send` equals `recv`, or if the block of this rank in the buffer of all blocks is the other buffer
/// ([`CallShape::in_place`]). `all_to_all` and operations with lengths have no form in place.
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

// SAFETY: a call is a description; addresses are used only where somebody vouches for them, on whatever thread.
unsafe impl Send for RawCall {}
// SAFETY: as for `Send`.
unsafe impl Sync for RawCall {}

/// The alignment of elements.
const fn alignment(dtype: DType) -> usize {
    match dtype {
        // A pair of floats.
        DType::Complex64 => align_of::<f32>(),
        other => other.size(),
    }
}

/// Returns the bytes of `count` elements at an address.
///
/// # Errors
/// [`Error::InvalidArgument`] if there can be no such elements.
#[inline(always)] // As `Communicator::call_raw`.
fn checked(what: &str, address: usize, dtype: DType, count: usize) -> Result<usize> {
    // Below it, no product or sum of these is more than memory can hold.
    const MOST: usize = 1 << (usize::BITS - 8);
    let size = dtype.size();
    if address != 0 && (address | count) < MOST && address & (size - 1) == 0 {
        return Ok(count * size);
    }
    checked_exactly(what, address, dtype, count)
}

/// As [`checked`], for addresses and counts that are not as usual.
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
    /// Makes buffers of the addresses. They overlap in no way but `overlap`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the argument.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    #[inline(always)] // As that.
    unsafe fn buffers<'m>(&self, extents: Extents, overlap: Overlap, rank: Rank) -> Result<Buffers<'m>> {
        let RawCall { dtype, .. } = *self;
        let (from, to) = (self.send.addr(), self.recv.addr());
        let sent = checked("send", from, dtype, extents.send)?;
        let received = checked("recv", to, dtype, extents.recv)?;
        if sent != 0 && received != 0 {
            let is_in_place = match overlap {
                Overlap::Same => from == to,
                Overlap::SendInRecv => from == to + rank.index() * sent,
                Overlap::RecvInSend => to == from + rank.index() * received,
                Overlap::Never => false,
            };
            if is_in_place {
                let (start, count, bytes) = match overlap {
                    Overlap::RecvInSend => (self.send.cast_mut(), extents.send, sent),
                    _ => (self.recv, extents.recv, received),
                };
                // SAFETY: the caller vouches for the memory; in place all blocks are writable.
                let bytes = unsafe { SpanMut::new(start, bytes) };
                return Ok(Buffers::InPlace(ElementsMut { dtype, count, bytes }));
            }
            if from < to + received && to < from + sent {
                return Err(forbidden_overlap(overlap));
            }
        }
        // SAFETY: the caller vouches for the memory.
        let (sent, received) = unsafe { (Span::new(self.send, sent), SpanMut::new(self.recv, received)) };
        Ok(Buffers::Apart(
            Elements { dtype, count: extents.send, bytes: sent },
            ElementsMut { dtype, count: extents.recv, bytes: received },
        ))
    }

    /// Checks the call, as far as a rank can tell by itself. No memory is looked at.
    ///
    /// # Errors
    /// Those of [`Communicator::call_raw`] that are about arguments.
    pub(crate) fn check(&self, rank: Rank, size: u32) -> Result<()> {
        // SAFETY: the request is dropped before anybody looks at memory.
        let request = unsafe { self.request(RankInfo { rank, size })? };
        if let RequestKind::Collective(call) = request.kind {
            call.reducer()?;
        }
        match self.operation.scale {
            Some(scale) => scale.check(self.dtype).map(drop),
            None => Ok(()),
        }
    }

    /// Checks the call and makes its request. Its contribution is not scaled yet.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the argument.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    #[inline(always)] // As that.
    unsafe fn request<'m>(&self, info: RankInfo) -> Result<Request<'m>> {
        match self.operation.kind {
            // SAFETY: the caller's promise.
            CallKind::Collective(Collective::AllReduce) => unsafe {
                self.request_of(Collective::AllReduce.shape(), info)
            },
            // SAFETY: the caller's promise.
            _ => unsafe { self.general_request(info) },
        }
    }

    /// Makes the request of any call.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    #[inline(never)]
    unsafe fn general_request<'m>(&self, info: RankInfo) -> Result<Request<'m>> {
        // SAFETY: the caller's promise.
        unsafe { self.request_of(self.operation.shape(), info) }
    }

    /// Makes the request of a call of this shape.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    #[inline(always)]
    unsafe fn request_of<'m>(&self, shape: &CallShape, info: RankInfo) -> Result<Request<'m>> {
        let RawCall { operation, dtype, count, .. } = self;
        operation.check(shape, info, *dtype)?;
        let extents = Extents::new(shape, info, operation, *count)?;
        let overlap = if operation.is_even() { shape.in_place } else { Overlap::Never };
        // SAFETY: the caller vouches for the memory.
        let buffers = unsafe { self.buffers(extents, overlap, info.rank)? };
        Request::new(shape, info, operation, (*dtype, *count), buffers)
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
    /// Carries out a call on memory by address, as its typed twin.
    ///
    /// # Errors
    /// Those of the typed twin. [`Error::InvalidArgument`] names the argument where an address is null and elements are
    /// needed, is not aligned to the elements, or where `send` and `recv` overlap otherwise than in place.
    ///
    /// # Safety
    /// Until the call returns, the elements at `send` stay readable and the elements at `recv` readable and writable; in
    /// place, all blocks are readable and writable. Meanwhile no other thread writes the elements at `send` or uses those at
    /// `recv`.
    // Always: each step on the way of a call of 8 bytes that is a function takes as long as its checks.
    #[inline(always)]
    pub unsafe fn call_raw(&mut self, call: &RawCall) -> Result<()> {
        if call.operation.scale.is_some() {
            // A copy, so that a call without a scale has no address and need not be written to memory.
            // SAFETY: the caller's promise.
            return unsafe { self.scaled_call(call.clone()) };
        }
        // SAFETY: the caller vouches for the memory until this returns.
        let request = unsafe { call.request(self.rank_info())? };
        self.execute(&request)
    }

    /// Carries out a call whose contribution is scaled first.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    #[cold]
    unsafe fn scaled_call(&mut self, call: RawCall) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.group_raw(&[call]) }
    }

    /// Carries out calls as a [`super::Group`]: together, and in this order as far as their results depend on it.
    ///
    /// # Errors
    /// Those of [`Communicator::call_raw`]; nothing has moved after an [`Error::InvalidArgument`].
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`], for each call. No call writes memory that another one uses.
    pub unsafe fn group_raw(&mut self, calls: &[RawCall]) -> Result<()> {
        let info = self.rank_info();
        // SAFETY: the caller vouches for the memory until this returns.
        let mut requests: Vec<Request<'_>> =
            calls.iter().map(|call| unsafe { call.request(info) }).collect::<Result<_>>()?;
        let scales: Vec<_> = calls.iter().map(|call| call.operation.scale).collect();
        if scales.iter().all(Option::is_none) {
            return self.run_together(&requests, &[]);
        }
        self.check_alive()?;
        let bytes = |(scale, request): (&Option<_>, &Request<'_>)| {
            if scale.is_some() { scaling_bytes(request).next_multiple_of(ALIGNMENT) } else { 0 }
        };
        let bytes: Vec<usize> = scales.iter().zip(&requests).map(bytes).collect();
        // The others are about to enter, so that this failure is theirs too.
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
            // SAFETY: the caller vouches for the memory until this returns, and `own` is ours until then.
            scalings.push(unsafe { scaled(request, scale, own)? });
        }
        self.run_together(&requests, &scalings)
    }
}

/// Contributions that are scaled in the library's memory begin at a multiple of this many bytes.
const ALIGNMENT: usize = 64;
