//! The shape of every collective: which buffers a call has, how they may overlap, which variants it offers,
//! and which inputs its result is made of.
//!
//! This table is the one description of a collective. The runtime checks arguments by it, the verifier and
//! the benchmark check results by it, and the Python module numbers its operations by it. Tests compare the C
//! and Python interfaces and the command's help with it. It knows nothing of algorithms: `plan` has those.

use crate::Collective;
use topology::Rank;

/// Blocks that a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// No block: the call has no such buffer.
    None,
    /// One block.
    One,
    /// One block per rank, in rank order.
    PerRank,
}

/// One buffer of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferShape {
    /// Blocks that the buffer holds.
    pub blocks: Blocks,
    /// Whether only the root has the buffer. The buffers of other ranks are not accessed.
    pub is_root_only: bool,
}

impl BufferShape {
    /// Returns the blocks of the buffer on `ranks` ranks, on a rank that has the buffer.
    #[must_use]
    pub const fn count(self, ranks: u32) -> u32 {
        match self.blocks {
            Blocks::None => 0,
            Blocks::One => 1,
            Blocks::PerRank => ranks,
        }
    }

    /// Whether a rank has the buffer.
    #[must_use]
    pub const fn is_present(self, is_root: bool) -> bool {
        is_root || !self.is_root_only
    }
}

/// The relation of `send` and `recv` in a call in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// `send` equals `recv`.
    Same,
    /// `send` is block `rank` of `recv`.
    SendInRecv,
    /// `recv` is block `rank` of `send`, whose other blocks are undefined afterwards.
    RecvInSend,
    /// The call has no form in place.
    Never,
}

/// The ranks that know the lengths of blocks in a call's vector form, whose blocks have unequal lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorCounts {
    /// All ranks pass the same list: the length of every rank's block.
    Common,
    /// Each rank passes the lengths of its own blocks: one list for `send`, one for `recv`.
    Own,
}

/// The ranks whose inputs make up a rank's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultRule {
    /// All ranks' inputs, reduced.
    ReduceAll,
    /// The inputs of the ranks up to and with this one, reduced.
    ReduceThrough,
    /// The inputs of the ranks before this one, reduced. Rank 0's output is unchanged.
    ReduceBefore,
    /// Each block of the result comes from the rank with the number of the block.
    RankOfBlock,
    /// The root's input.
    Root,
    /// The input of the previous rank in the ring.
    Previous,
}

/// The ranks whose inputs make up one block of one rank's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// All ranks.
    All,
    /// One rank.
    One(Rank),
    /// The ranks below this one, of which there is at least one.
    Below(Rank),
    /// Unspecified: the block may hold anything, or nothing.
    Any,
}

impl ResultRule {
    /// Whether a result depends on no rank after its own.
    #[must_use]
    pub const fn is_prefix(self) -> bool {
        matches!(self, ResultRule::ReduceThrough | ResultRule::ReduceBefore)
    }

    /// Returns the sources of a block of `rank`'s result in a call on `ranks` ranks.
    #[must_use]
    pub fn sources(self, ranks: u32, root: Rank, rank: Rank, block: u32) -> Sources {
        match self {
            ResultRule::ReduceAll => Sources::All,
            ResultRule::ReduceThrough => Sources::Below(Rank(rank.0 + 1)),
            ResultRule::ReduceBefore if rank.0 == 0 => Sources::Any,
            ResultRule::ReduceBefore => Sources::Below(rank),
            ResultRule::RankOfBlock => Sources::One(Rank(block)),
            ResultRule::Root => Sources::One(root),
            ResultRule::Previous => Sources::One(rank.behind(1, ranks)),
        }
    }
}

/// Names of a call's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallNames {
    /// The method of `tbccl::Communicator`: `all_reduce`. The vector form's ends with `_v`.
    pub rust: &'static str,
    /// The C function without its prefix `tbccl`: `AllReduce`. The vector form's ends with `V`.
    pub c: Option<&'static str>,
    /// The method of Python's `Communicator`: `all_reduce`. The vector form's ends with `_v`.
    pub python: Option<&'static str>,
}

/// The arguments of a call, and its variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallShape {
    /// The buffer that is read.
    pub send: BufferShape,
    /// The buffer that is written.
    pub recv: BufferShape,
    /// The relation of both buffers in place.
    pub in_place: Overlap,
    /// Whether one rank is the root.
    pub has_root: bool,
    /// Whether elements are combined by an operation.
    pub reduces: bool,
    /// Whether all ranks' elements are combined, so that they have an average and contributions may be
    /// scaled.
    pub averages: bool,
    /// Whether messages may travel packed by a codec.
    pub quantizes: bool,
    /// Lengths of the vector form, if there is one.
    pub vector: Option<VectorCounts>,
    /// Names of the functions.
    pub names: CallNames,
}

const NONE: BufferShape = BufferShape { blocks: Blocks::None, is_root_only: false };
const ONE: BufferShape = BufferShape { blocks: Blocks::One, is_root_only: false };
const PER_RANK: BufferShape = BufferShape { blocks: Blocks::PerRank, is_root_only: false };

const fn root_only(buffer: BufferShape) -> BufferShape {
    BufferShape { is_root_only: true, ..buffer }
}

impl CallShape {
    /// A message to one rank.
    pub const SEND: CallShape = CallShape::moving(ONE, NONE, Overlap::Never, names("send", "Send"));

    /// A message from one rank.
    pub const RECV: CallShape = CallShape::moving(NONE, ONE, Overlap::Never, names("recv", "Recv"));

    /// A call without root, operation and variants.
    const fn moving(send: BufferShape, recv: BufferShape, in_place: Overlap, names: CallNames) -> CallShape {
        CallShape {
            send,
            recv,
            in_place,
            has_root: false,
            reduces: false,
            averages: false,
            quantizes: false,
            vector: None,
            names,
        }
    }

    /// A call that combines the elements of all ranks.
    const fn averaging(self) -> CallShape {
        CallShape { reduces: true, averages: true, ..self }
    }

    const fn rooted(self) -> CallShape {
        CallShape { has_root: true, ..self }
    }

    const fn with_vector(self, counts: VectorCounts) -> CallShape {
        CallShape { vector: Some(counts), ..self }
    }
}

const fn names(name: &'static str, c: &'static str) -> CallNames {
    CallNames { rust: name, c: Some(c), python: Some(name) }
}

impl Collective {
    /// Returns the arguments of the collective's calls, and their variants.
    #[must_use]
    #[inline]
    pub const fn shape(self) -> &'static CallShape {
        use Overlap::{Never, RecvInSend, Same, SendInRecv};
        use VectorCounts::{Common, Own};
        const fn moving(
            send: BufferShape,
            recv: BufferShape,
            in_place: Overlap,
            names: CallNames,
        ) -> CallShape {
            CallShape::moving(send, recv, in_place, names)
        }
        match self {
            Collective::AllReduce => {
                const {
                    let shape = moving(ONE, ONE, Same, names("all_reduce", "AllReduce")).averaging();
                    &CallShape { quantizes: true, ..shape }
                }
            }
            Collective::AllGather => {
                const {
                    let names = names("all_gather", "AllGather");
                    &moving(ONE, PER_RANK, SendInRecv, names).with_vector(Common)
                }
            }
            Collective::ReduceScatter => {
                const {
                    let names = names("reduce_scatter", "ReduceScatter");
                    &moving(PER_RANK, ONE, RecvInSend, names).averaging().with_vector(Common)
                }
            }
            Collective::Broadcast => {
                const { &moving(root_only(ONE), ONE, Same, names("broadcast", "Broadcast")).rooted() }
            }
            Collective::AllToAll => {
                const { &moving(PER_RANK, PER_RANK, Never, names("all_to_all", "AlltoAll")).with_vector(Own) }
            }
            Collective::Reduce => {
                const {
                    let shape = moving(ONE, root_only(ONE), Same, names("reduce", "Reduce"));
                    &shape.averaging().rooted()
                }
            }
            Collective::Gather => {
                const {
                    let shape = moving(ONE, root_only(PER_RANK), SendInRecv, names("gather", "Gather"));
                    &shape.rooted().with_vector(Common)
                }
            }
            Collective::Scatter => {
                const {
                    let shape = moving(root_only(PER_RANK), ONE, RecvInSend, names("scatter", "Scatter"));
                    &shape.rooted().with_vector(Common)
                }
            }
            Collective::Scan => {
                const { &CallShape { reduces: true, ..moving(ONE, ONE, Same, names("scan", "Scan")) } }
            }
            Collective::ExclusiveScan => {
                const {
                    let shape = moving(ONE, ONE, Same, names("exclusive_scan", "ExclusiveScan"));
                    &CallShape { reduces: true, ..shape }
                }
            }
            Collective::SendRecv => {
                const {
                    let names = CallNames { rust: "send_recv", c: None, python: None };
                    &moving(ONE, ONE, Never, names)
                }
            }
            Collective::Barrier => const { &moving(NONE, NONE, Never, names("barrier", "Barrier")) },
        }
    }

    /// Returns the ranks whose inputs make up a rank's result.
    ///
    /// Of each input the result takes the block [`Collective::source_block`]. The result of a barrier is the
    /// knowledge that all ranks have entered.
    #[must_use]
    pub const fn result_rule(self) -> ResultRule {
        match self {
            Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce | Collective::Barrier => {
                ResultRule::ReduceAll
            }
            Collective::AllGather | Collective::Gather | Collective::AllToAll => ResultRule::RankOfBlock,
            Collective::Broadcast | Collective::Scatter => ResultRule::Root,
            Collective::Scan => ResultRule::ReduceThrough,
            Collective::ExclusiveScan => ResultRule::ReduceBefore,
            Collective::SendRecv => ResultRule::Previous,
        }
    }

    /// Returns the block of the sources' inputs that `rank`'s result takes.
    #[must_use]
    pub const fn source_block(self, rank: Rank) -> u32 {
        match self.shape().send.blocks {
            Blocks::PerRank => rank.0,
            Blocks::None | Blocks::One => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_overlap_in_place_only_where_their_blocks_allow_it() {
        for collective in Collective::ALL {
            let CallShape { send, recv, in_place, .. } = *collective.shape();
            let fits = match in_place {
                Overlap::Same => (send.blocks, recv.blocks) == (Blocks::One, Blocks::One),
                Overlap::SendInRecv => (send.blocks, recv.blocks) == (Blocks::One, Blocks::PerRank),
                Overlap::RecvInSend => (send.blocks, recv.blocks) == (Blocks::PerRank, Blocks::One),
                Overlap::Never => true,
            };
            assert!(fits, "{collective}");
        }
    }

    #[test]
    fn only_calls_with_a_root_have_buffers_of_the_root_alone() {
        for collective in Collective::ALL {
            let CallShape { send, recv, has_root, .. } = *collective.shape();
            assert_eq!(send.is_root_only || recv.is_root_only, has_root, "{collective}");
        }
    }

    #[test]
    fn results_follow_from_the_buffers() {
        for collective in Collective::ALL {
            let (shape, rule) = (collective.shape(), collective.result_rule());
            let reduces = matches!(rule, ResultRule::ReduceAll) || rule.is_prefix();
            assert_eq!(reduces, shape.reduces || collective == Collective::Barrier, "{collective}");
            assert_eq!(rule == ResultRule::Root, shape.send.is_root_only, "{collective}");
            assert_eq!(rule == ResultRule::RankOfBlock, shape.recv.blocks == Blocks::PerRank, "{collective}");
        }
    }

    #[test]
    fn a_vector_form_has_a_buffer_of_all_blocks() {
        for collective in Collective::ALL {
            let CallShape { send, recv, vector, .. } = *collective.shape();
            let buffers = [send.blocks, recv.blocks].into_iter().filter(|blocks| *blocks == Blocks::PerRank);
            let wanted = match vector {
                Some(VectorCounts::Common) => 1,
                Some(VectorCounts::Own) => 2,
                None => 0,
            };
            assert_eq!(buffers.count(), wanted, "{collective}");
        }
    }
}
