//! Requests: calls whose arguments have been checked.
//!
//! A communicator runs a request at once; a group keeps it until it runs. One set of functions checks the
//! arguments of every call, on slices and on addresses, by the shape of its operation ([`CallShape`]). This
//! module moves no bytes and asks no peers: a request depends only on what this rank knows.

use super::{
    call::{Blocks, Call},
    elements::{Elements, ElementsMut},
    operation::{Counts, Operation, Signature},
    rank_info::RankInfo,
};
use crate::{
    call::CallKind,
    error::{Error, Result},
};
use collectives::{self, BufferShape, CallShape, DType, Overlap, schedule::InPlace};
use topology::Rank;
use transport::memory::{Span, SpanMut};

/// A call with checked arguments, and its memory, which it borrows.
#[derive(Debug)]
pub(super) struct Request<'m> {
    pub(super) kind: RequestKind,
    pub(super) input: Span<'m>,
    pub(super) output: SpanMut<'m>,
    /// Lengths of blocks, where they differ.
    pub(super) lengths: Option<Box<Lengths>>,
}

/// A collective or a message, by value.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestKind {
    Collective(Call),
    Message { kind: CallKind, dtype: DType, peer: Rank },
}

/// The elements of each block, where blocks differ.
#[derive(Debug)]
pub(super) struct Lengths {
    /// Lengths of this rank's input blocks.
    pub(super) input: Vec<u64>,
    /// Lengths of this rank's output blocks.
    pub(super) output: Vec<u64>,
    known: Known,
}

/// The list of lengths that all ranks know, and must agree about.
#[derive(Clone, Copy, Debug)]
enum Known {
    Input,
    Output,
    Neither,
}

impl Lengths {
    /// Returns the lengths of a call's blocks, and the count that its plan is chosen by.
    #[cold]
    fn new(shape: &CallShape, info: RankInfo, counts: &Counts<'_>) -> (u64, Option<Box<Lengths>>) {
        let list = |counts: &[usize]| counts.iter().map(|count| *count as u64).collect::<Vec<_>>();
        match counts {
            Counts::Even => (0, None),
            Counts::Common(counts) => {
                let (own, all) = (vec![counts[info.rank.index()] as u64], list(counts));
                // The mean is equal on all ranks, and good enough to choose a plan by.
                let mean = all.iter().sum::<u64>() / u64::from(info.size);
                let lengths = match shape.send.blocks == collectives::Blocks::PerRank {
                    true => Lengths { input: all, output: own, known: Known::Input },
                    false => Lengths { input: own, output: all, known: Known::Output },
                };
                (mean, Some(Box::new(lengths)))
            }
            Counts::Own { send, recv } => {
                let lengths = Lengths { input: list(send), output: list(recv), known: Known::Neither };
                (0, Some(Box::new(lengths)))
            }
        }
    }

    fn blocks(&self) -> Blocks<'_> {
        let (input, output) = (&self.input[..], &self.output[..]);
        let all = match self.known {
            Known::Input => Some(input),
            Known::Output => Some(output),
            Known::Neither => None,
        };
        Blocks::Uneven { input, output, all }
    }
}

/// Elements that `send` and `recv` hold on this rank; 0 where it does not have the buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extents {
    pub(super) send: usize,
    pub(super) recv: usize,
}

impl Extents {
    /// Returns the elements of both buffers of a call whose blocks have `count` elements, or the lengths of
    /// the operation.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more elements than memory can hold, or counts that are not one per
    /// rank.
    #[inline(always)]
    pub(super) fn new(
        shape: &CallShape,
        info: RankInfo,
        operation: &Operation<'_>,
        count: usize,
    ) -> Result<Extents> {
        if !operation.is_even() {
            return Extents::uneven(shape, info, operation);
        }
        let is_root = info.rank == operation.root;
        let elements = |buffer: BufferShape| match buffer.blocks {
            _ if !buffer.is_present(is_root) => Ok(0),
            collectives::Blocks::None => Ok(0),
            collectives::Blocks::One => Ok(count),
            collectives::Blocks::PerRank => info.times_size(count),
        };
        Ok(Extents { send: elements(shape.send)?, recv: elements(shape.recv)? })
    }

    #[cold]
    fn uneven(shape: &CallShape, info: RankInfo, operation: &Operation<'_>) -> Result<Extents> {
        let (rank, is_root) = (info.rank.index(), info.rank == operation.root);
        match &operation.counts {
            Counts::Even => Ok(Extents { send: 0, recv: 0 }),
            Counts::Common(counts) => {
                let total = total_of("counts", counts, info)?;
                let elements = |buffer: BufferShape| match buffer.blocks {
                    _ if !buffer.is_present(is_root) => 0,
                    collectives::Blocks::PerRank => total,
                    _ => counts[rank],
                };
                Ok(Extents { send: elements(shape.send), recv: elements(shape.recv) })
            }
            Counts::Own { send, recv } => {
                let extents = Extents {
                    send: total_of("send_counts", send, info)?,
                    recv: total_of("recv_counts", recv, info)?,
                };
                check_length("the own block of recv", recv[rank], send[rank])?;
                Ok(extents)
            }
        }
    }
}

/// Returns the elements of all blocks of these lengths, of which there is one per rank.
fn total_of(what: &str, counts: &[usize], info: RankInfo) -> Result<usize> {
    let (given, ranks) = (counts.len(), info.size);
    if given != ranks as usize {
        return Err(Error::InvalidArgument(format!(
            "{what} has {given} lengths, and there are {ranks} ranks; give one for each"
        )));
    }
    counts
        .iter()
        .try_fold(0usize, |sum, count| sum.checked_add(*count))
        .ok_or_else(|| Error::InvalidArgument(format!("{what} come to more elements than memory can hold")))
}

#[inline]
fn check_length(what: &str, given: usize, needed: usize) -> Result<()> {
    if given == needed {
        return Ok(());
    }
    Err(wrong_length(what, given, needed))
}

#[cold]
fn wrong_length(what: &str, given: usize, needed: usize) -> Error {
    Error::InvalidArgument(format!("{what} has {given} elements where {needed} are needed"))
}

/// Whether a call on slices takes its count from `recv`. The count comes from a buffer of one block that all
/// ranks have; from `send` if both are such buffers.
#[inline(always)]
fn is_counted_by_recv(shape: &CallShape) -> bool {
    let is_of_all = |buffer: BufferShape| buffer.blocks == collectives::Blocks::One && !buffer.is_root_only;
    is_of_all(shape.recv) && !is_of_all(shape.send)
}

impl<'m> Request<'m> {
    /// Checks a call from one slice to another.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the argument.
    #[inline(always)]
    pub(super) fn apart(
        info: RankInfo,
        operation: &Operation<'_>,
        send: Elements<'m>,
        recv: ElementsMut<'m>,
    ) -> Result<Request<'m>> {
        let signature = operation.signature();
        let shape = signature.shape;
        operation.check(signature, info, send.dtype)?;
        let (elements, blocks) = match is_counted_by_recv(shape) {
            true => (recv.count, shape.recv.blocks),
            false => (send.count, shape.send.blocks),
        };
        let count = match blocks {
            collectives::Blocks::PerRank if operation.is_even() => info.block_of(elements)?,
            _ => elements,
        };
        let extents = Extents::new(shape, info, operation, count)?;
        let is_root = info.rank == operation.root;
        if shape.send.is_present(is_root) {
            check_length("send", send.count, extents.send)?;
        }
        if shape.recv.is_present(is_root) {
            check_length("recv", recv.count, extents.recv)?;
        }
        let memory = (send.bytes, recv.bytes, InPlace::No);
        Request::new(signature, info, operation, (send.dtype, count), memory)
    }

    /// Checks a call in place. `data` has all blocks where this rank has a buffer of all blocks, and one
    /// block elsewhere.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the argument.
    #[inline(always)]
    pub(super) fn in_place(
        info: RankInfo,
        operation: &Operation<'_>,
        data: ElementsMut<'m>,
    ) -> Result<Request<'m>> {
        let signature = operation.signature();
        let shape = signature.shape;
        operation.check(signature, info, data.dtype)?;
        let count = match has_all_blocks(shape, info, operation) {
            true => info.block_of(data.count)?,
            false => data.count,
        };
        let (input, output) = overlapping(shape, info, operation, data, count)?;
        Request::new(signature, info, operation, (data.dtype, count), (input, output, InPlace::Yes))
    }

    /// Makes the request of a call whose operation and lengths have been checked.
    ///
    /// # Errors
    /// None. The function returns a `Result`, as the checks do, so that the compiler constructs the request
    /// in the caller's memory.
    #[inline(always)]
    pub(super) fn new(
        Signature { kind, shape }: Signature,
        info: RankInfo,
        operation: &Operation<'_>,
        (dtype, count): (DType, usize),
        (input, output, in_place): (Span<'m>, SpanMut<'m>, InPlace),
    ) -> Result<Request<'m>> {
        let CallKind::Collective(collective) = kind else {
            let kind = RequestKind::Message { kind, dtype, peer: operation.root };
            return Ok(Request { kind, input, output, lengths: None });
        };
        let has_data = shape.send.blocks != collectives::Blocks::None;
        let (count, lengths) = match operation.is_even() {
            true => (count as u64, None),
            false => Lengths::new(shape, info, &operation.counts),
        };
        let call = Call {
            collective,
            // Equal on all ranks, also if a caller sets parameters that the call does not have.
            dtype: if has_data { dtype } else { DType::U8 },
            op: operation.op,
            count: if has_data { count } else { 0 },
            root: if shape.has_root { operation.root } else { Rank(0) },
            in_place,
            codec: operation.codec,
        };
        Ok(Request { kind: RequestKind::Collective(call), input, output, lengths })
    }

    /// Returns the type of the request's elements.
    #[inline]
    pub(super) fn dtype(&self) -> DType {
        match self.kind {
            RequestKind::Collective(call) => call.dtype,
            RequestKind::Message { dtype, .. } => dtype,
        }
    }

    /// Returns the lengths of a collective's blocks.
    #[inline]
    pub(super) fn blocks(&self) -> Blocks<'_> {
        self.lengths.as_deref().map_or(Blocks::Even, Lengths::blocks)
    }
}

/// Whether this rank has a buffer of one block per rank.
#[inline(always)]
fn has_all_blocks(shape: &CallShape, info: RankInfo, operation: &Operation<'_>) -> bool {
    let is_root = info.rank == operation.root;
    let is_all =
        |buffer: BufferShape| buffer.blocks == collectives::Blocks::PerRank && buffer.is_present(is_root);
    is_all(shape.send) || is_all(shape.recv)
}

/// Returns input and output of a call in place: `data`, or the block of this rank in it.
#[inline(always)]
fn overlapping<'m>(
    shape: &CallShape,
    info: RankInfo,
    operation: &Operation<'_>,
    data: ElementsMut<'m>,
    count: usize,
) -> Result<(Span<'m>, SpanMut<'m>)> {
    let all = data.bytes;
    let has_all = has_all_blocks(shape, info, operation);
    let own = || {
        let bytes = count * data.dtype.size();
        all.sub(info.rank.index() * bytes, bytes)
    };
    match shape.in_place {
        Overlap::SendInRecv if has_all => Ok((own().as_span(), all)),
        Overlap::RecvInSend if has_all => Ok((all.as_span(), own())),
        Overlap::Never => Err(no_form_in_place(shape)),
        _ => Ok((all.as_span(), all)),
    }
}

#[cold]
fn no_form_in_place(shape: &CallShape) -> Error {
    Error::InvalidArgument(format!("{} has no form in place", shape.names.rust))
}
