//! Operations: a collective or a message with its parameters, apart from memory and element type.
//!
//! An operation is checked against the shape of its collective ([`collectives::CallShape`]), so one check
//! serves every call: typed, by address, alone and in a group.

#[cfg(doc)]
use super::Communicator;
use super::{rank_info::RankInfo, scale::Scale};
use crate::{
    call::CallKind,
    error::{Error, Result},
};
use collectives::{CallShape, Codec, Collective, DType, ReduceOp, VectorCounts};
use std::borrow::Cow;
use topology::Rank;

/// A collective or a message with its parameters.
///
/// ```
/// use tbccl::{Collective, Operation, Rank, ReduceOp};
///
/// let sum = Operation::new(Collective::Reduce).with_op(ReduceOp::Sum).with_root(Rank(2));
/// let gather = Operation::new(Collective::AllGather).with_counts(vec![3, 0, 5]);
/// let message = Operation::send(Rank(1));
/// # assert_ne!(sum, gather);
/// # assert_ne!(gather, message);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Operation<'c> {
    pub(super) kind: CallKind,
    pub(super) op: Option<ReduceOp>,
    /// The root, or the other rank of a message.
    pub(super) root: Rank,
    pub(super) scale: Option<Scale>,
    pub(super) codec: Option<Codec>,
    pub(super) counts: Counts<'c>,
}

/// Elements of each block.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Counts<'c> {
    /// All blocks have the call's count.
    Even,
    /// The length of every rank's block, the same list on all ranks.
    Common(Cow<'c, [usize]>),
    /// The lengths of this rank's blocks.
    Own { send: Cow<'c, [usize]>, recv: Cow<'c, [usize]> },
}

/// The kind of an operation, with the shape of its arguments.
///
/// Functions take it beside the operation, so that calls of a known collective are compiled for its shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signature {
    pub(super) kind: CallKind,
    pub(super) shape: &'static CallShape,
}

impl Signature {
    #[inline]
    pub(super) const fn new(kind: CallKind) -> Signature {
        let shape = match kind {
            CallKind::Collective(collective) => collective.shape(),
            CallKind::Send => &CallShape::SEND,
            CallKind::Recv => &CallShape::RECV,
        };
        Signature { kind, shape }
    }
}

impl<'c> Operation<'c> {
    /// Creates a collective. Collectives that combine elements need an operation ([`Operation::with_op`]).
    /// Those with a root use rank 0 unless [`Operation::with_root`] names another.
    #[must_use]
    #[inline]
    pub const fn new(collective: Collective) -> Operation<'c> {
        Operation::of_kind(CallKind::Collective(collective), Rank(0))
    }

    /// Creates a message to a rank, as [`Communicator::send`].
    #[must_use]
    #[inline]
    pub const fn send(to: Rank) -> Operation<'c> {
        Operation::of_kind(CallKind::Send, to)
    }

    /// Creates a message from a rank, as [`Communicator::recv`].
    #[must_use]
    #[inline]
    pub const fn recv(from: Rank) -> Operation<'c> {
        Operation::of_kind(CallKind::Recv, from)
    }

    #[inline]
    const fn of_kind(kind: CallKind, root: Rank) -> Operation<'c> {
        Operation { kind, op: None, root, scale: None, codec: None, counts: Counts::Even }
    }

    /// Sets the operation that combines elements.
    #[must_use]
    #[inline]
    pub const fn with_op(mut self, op: ReduceOp) -> Operation<'c> {
        self.op = Some(op);
        self
    }

    /// Sets the root.
    #[must_use]
    #[inline]
    pub const fn with_root(mut self, root: Rank) -> Operation<'c> {
        self.root = root;
        self
    }

    /// Multiplies this rank's contribution by `scale` first. For `all_reduce`, `reduce` and `reduce_scatter`.
    #[must_use]
    #[inline]
    pub const fn with_scale(mut self, scale: Scale) -> Operation<'c> {
        self.scale = Some(scale);
        self
    }

    /// Packs messages by `codec`, as [`Communicator::all_reduce_quantized`].
    #[must_use]
    #[inline]
    pub const fn with_codec(mut self, codec: Codec) -> Operation<'c> {
        self.codec = Some(codec);
        self
    }

    /// Gives every rank's block a length of its own, as [`Communicator::all_gather_v`]: one length per rank,
    /// the same on all ranks.
    #[must_use]
    pub fn with_counts(self, counts: impl Into<Cow<'c, [usize]>>) -> Operation<'c> {
        Operation { counts: Counts::Common(counts.into()), ..self }
    }

    /// Sets the lengths of this rank's blocks of `send` and of `recv`, as [`Communicator::all_to_all_v`].
    #[must_use]
    pub fn with_own_counts(
        self,
        send: impl Into<Cow<'c, [usize]>>,
        recv: impl Into<Cow<'c, [usize]>>,
    ) -> Operation<'c> {
        Operation { counts: Counts::Own { send: send.into(), recv: recv.into() }, ..self }
    }

    /// Returns the shape of the operation's arguments.
    #[must_use]
    #[inline]
    pub const fn shape(&self) -> &'static CallShape {
        self.signature().shape
    }

    /// Returns the operation's kind, with the shape of its arguments.
    #[inline]
    pub(super) const fn signature(&self) -> Signature {
        Signature::new(self.kind)
    }

    /// Refuses a scale, for calls on slices.
    pub(super) fn refuse_scale(&self) -> Result<()> {
        match self.scale {
            Some(_) => Err(Error::InvalidArgument("a scale is for calls by address (call_raw)".into())),
            None => Ok(()),
        }
    }

    /// Whether all blocks have the same length.
    #[inline(always)]
    pub(super) fn is_even(&self) -> bool {
        matches!(self.counts, Counts::Even)
    }

    /// Checks the parameters against the operation's signature.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the parameter.
    #[inline(always)]
    pub(super) fn check(
        &self,
        Signature { kind, shape }: Signature,
        info: RankInfo,
        dtype: DType,
    ) -> Result<()> {
        match kind {
            CallKind::Send => info.check_rank("to", self.root)?,
            CallKind::Recv => info.check_rank("from", self.root)?,
            CallKind::Collective(_) if shape.has_root => info.check_rank("root", self.root)?,
            CallKind::Collective(_) => {}
        }
        let is_plain = self.scale.is_none() && self.codec.is_none() && self.is_even();
        if is_plain && self.op.is_some() == shape.reduces {
            return Ok(());
        }
        self.check_variant(shape, dtype)
    }

    /// Checks the parameters that only some collectives have.
    #[cold]
    fn check_variant(&self, shape: &CallShape, dtype: DType) -> Result<()> {
        let name = shape.names.rust;
        let refused = |why: &str| Err(Error::InvalidArgument(format!("{name} {why}")));
        let fits = match self.counts {
            Counts::Even => true,
            Counts::Common(_) => shape.vector == Some(VectorCounts::Common),
            Counts::Own { .. } => shape.vector == Some(VectorCounts::Own),
        };
        match self.op {
            None if shape.reduces => return refused("needs an operation, e.g. sum"),
            Some(_) if !shape.reduces => return refused("combines no elements and takes no operation"),
            _ if !fits && shape.vector.is_none() => return refused("has one count for all blocks"),
            _ if !fits => return refused("needs other lists of counts"),
            _ if self.scale.is_some() && !shape.averages => {
                let why = "takes no scale; all_reduce, reduce and reduce_scatter do";
                return refused(why);
            }
            _ if self.scale.is_some() && !(self.is_even() && self.codec.is_none()) => {
                return refused("takes a scale only with one count for all blocks and without a codec");
            }
            _ => {}
        }
        match self.codec {
            Some(_) if !(shape.quantizes && self.is_even()) => refused("cannot be packed; all_reduce can"),
            Some(codec) => self.check_packing(codec, dtype),
            None => Ok(()),
        }
    }

    fn check_packing(&self, codec: Codec, dtype: DType) -> Result<()> {
        if dtype != DType::F32 {
            let what = format!("{dtype} cannot be packed by {codec}; give f32, or call all_reduce");
            return Err(Error::InvalidArgument(what));
        }
        match self.op {
            Some(op) if !matches!(op, ReduceOp::Sum | ReduceOp::Avg) => Err(Error::InvalidArgument(format!(
                "{op} of packed elements is not defined; choose sum or avg, or call all_reduce"
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(operation: &Operation<'_>) -> Option<String> {
        let info = RankInfo { rank: Rank(0), size: 2 };
        operation.check(operation.signature(), info, DType::F32).err().map(|error| error.to_string())
    }

    #[test]
    fn a_parameter_that_a_collective_does_not_have_is_named() {
        let new = Operation::new;
        let sum = ReduceOp::Sum;
        for (operation, says) in [
            (new(Collective::AllReduce), "all_reduce needs an operation"),
            (new(Collective::AllGather).with_op(sum), "all_gather combines no elements"),
            (new(Collective::Broadcast).with_counts(vec![1, 1]), "broadcast has one count"),
            (
                new(Collective::AllGather).with_own_counts(vec![1, 1], vec![1, 1]),
                "all_gather needs other lists",
            ),
            (new(Collective::AllToAll).with_counts(vec![1, 1]), "all_to_all needs other lists"),
            (new(Collective::Scan).with_op(sum).with_scale(Scale::new(1.0f32)), "scan takes no scale"),
            (new(Collective::AllGather).with_codec(Codec::Bf16), "all_gather cannot be packed"),
            (Operation::send(Rank(0)).with_codec(Codec::Bf16), "send cannot be packed"),
        ] {
            let refusal = refusal(&operation).unwrap_or_default();
            assert!(refusal.contains(says), "{operation:?}: {refusal}");
        }
    }

    #[test]
    fn every_collective_has_its_plain_form() {
        for collective in Collective::ALL {
            let plain = Operation::new(collective);
            let plain = if collective.reduces() { plain.with_op(ReduceOp::Max) } else { plain };
            assert_eq!(refusal(&plain), None, "{collective}");
        }
    }
}
