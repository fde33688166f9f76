//! What calls by address there are, and what each looks at.

#[cfg(doc)]
use crate::communicator::Communicator;
use crate::communicator::scale::Scale;
use collectives::{Codec, ReduceOp};
use std::sync::Arc;
use topology::Rank;

/// What a raw call does. A rank is the root, or the other end of a message.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RawWhat {
    /// As [`Communicator::all_reduce`]; in place if `send` equals `recv`.
    AllReduce(ReduceOp),
    /// The same, with every rank's contribution multiplied first by a factor that is its own.
    AllReduceScaled(ReduceOp, Scale),
    /// As [`Communicator::all_reduce_quantized`]; in place if `send` equals `recv`.
    AllReduceQuantized(ReduceOp, Codec),
    /// As [`Communicator::reduce`]; in place if `send` equals `recv` at the root. Others' `recv` is not looked at.
    Reduce(ReduceOp, Rank),
    /// The same, with every rank's contribution multiplied first.
    ReduceScaled(ReduceOp, Rank, Scale),
    /// As [`Communicator::broadcast_from`]; in place if `send` equals `recv` at the root. Others' `send` is not looked at.
    Broadcast(Rank),
    /// As [`Communicator::all_gather`]; `count` elements are sent. In place if `send` is block `rank` of `recv`.
    AllGather,
    /// As [`Communicator::reduce_scatter`]; `count` elements are received. In place if `recv` is block `rank` of `send`,
    /// whose other blocks are undefined afterwards.
    ReduceScatter(ReduceOp),
    /// The same, with every rank's contribution multiplied first.
    ReduceScatterScaled(ReduceOp, Scale),
    /// As [`Communicator::all_to_all`]; `count` elements go to each rank. Not in place.
    AllToAll,
    /// As [`Communicator::gather`]; `count` elements are sent. In place if `send` is block `rank` of `recv` at the root.
    /// Others' `recv` is not looked at.
    Gather(Rank),
    /// As [`Communicator::scatter`]; `count` elements are received. In place if `recv` is block `rank` of `send` at the
    /// root. Others' `send` is not looked at.
    Scatter(Rank),
    /// As [`Communicator::scan`]; in place if `send` equals `recv`.
    Scan(ReduceOp),
    /// As [`Communicator::exclusive_scan`]; in place if `send` equals `recv`.
    ExclusiveScan(ReduceOp),
    /// As [`Communicator::barrier`]; of the call nothing else is looked at.
    Barrier,
    /// As [`Communicator::send`].
    Send(Rank),
    /// As [`Communicator::recv`].
    Recv(Rank),
    /// As [`Communicator::all_gather_v`]. Here and in the other forms with lengths the call's `count` is not looked at, and
    /// nothing is in place.
    AllGatherV(Arc<[usize]>),
    /// As [`Communicator::reduce_scatter_v`].
    ReduceScatterV(ReduceOp, Arc<[usize]>),
    /// As [`Communicator::gather_v`]; others' `recv` is not looked at.
    GatherV(Rank, Arc<[usize]>),
    /// As [`Communicator::scatter_v`]; others' `send` is not looked at.
    ScatterV(Rank, Arc<[usize]>),
    /// As [`Communicator::all_to_all_v`].
    AllToAllV {
        /// The lengths of this rank's blocks of `send`.
        send: Arc<[usize]>,
        /// The lengths of this rank's blocks of `recv`.
        recv: Arc<[usize]>,
    },
}
