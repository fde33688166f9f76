//! The table of calls on slices: the methods of [`Communicator`], and those of [`Group`] with the same names.
//!
//! Each row has a name, its arguments, and the operation that they make. `request` checks slices against the
//! shape of the operation, so rows do not repeat the rules of arguments.
//!
//! A method is generic over the elements only to turn slices into bytes; what it calls then is compiled once,
//! not once per type in each program.

use super::{
    Buffer, Communicator, Group,
    elements::{Elements, ElementsMut},
    operation::Operation,
    rank_info::RankInfo,
    request::Request,
};
use crate::{
    Element,
    error::{Error, Result},
};
use collectives::{Codec, Collective, ReduceOp};
use topology::Rank;

impl Communicator {
    /// Returns the rank and size, against which arguments are checked.
    #[inline]
    pub(super) fn rank_info(&self) -> RankInfo {
        RankInfo { rank: self.rank(), size: self.size() }
    }

    /// Allocates a buffer of `count` elements, zeroed, in memory that peers read in place.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more elements than memory can hold, [`Error::Transport`] if the slab or
    /// the system has no memory left.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Buffer<T>> {
        let bytes = count.checked_mul(size_of::<T>()).ok_or_else(|| {
            Error::InvalidArgument(format!("{count} elements are more than memory can hold"))
        })?;
        Ok(Buffer::new(self.slab.allocate(bytes)?))
    }

    /// Runs any operation, from `send` to `recv`.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`]; [`Error::InvalidArgument`] for an operation with a scale.
    pub fn call<T: Element>(&mut self, operation: &Operation<'_>, send: &[T], recv: &mut [T]) -> Result<()> {
        operation.refuse_scale()?;
        self.execute_apart(operation, send.into(), recv.into())
    }

    /// Runs any operation in place.
    ///
    /// `data` has all blocks on a rank that has a buffer of all blocks, and one block elsewhere.
    ///
    /// # Errors
    /// Those of [`Communicator::call`]; [`Error::InvalidArgument`] for an operation without a form in place.
    pub fn call_in_place<T: Element>(&mut self, operation: &Operation<'_>, data: &mut [T]) -> Result<()> {
        operation.refuse_scale()?;
        self.execute_in_place(operation, data.into())
    }

    /// Runs a call from `send` to `recv`.
    fn execute_apart(
        &mut self,
        operation: &Operation<'_>,
        send: Elements<'_>,
        recv: ElementsMut<'_>,
    ) -> Result<()> {
        self.execute(&Request::apart(self.rank_info(), operation, send, recv)?)
    }

    /// Runs a call in place.
    fn execute_in_place(&mut self, operation: &Operation<'_>, data: ElementsMut<'_>) -> Result<()> {
        self.execute(&Request::in_place(self.rank_info(), operation, data)?)
    }

    /// Waits until every rank has called it.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`] that are not about arguments.
    pub fn barrier(&mut self) -> Result<()> {
        let nothing = (Elements::from(&[0u8; 0][..]), ElementsMut::from(&mut [0u8; 0][..]));
        let operation = Operation::new(Collective::Barrier);
        self.execute(&Request::apart(self.rank_info(), &operation, nothing.0, nothing.1)?)
    }
}

impl<'m> Group<'_, 'm> {
    /// Adds any operation, as [`Communicator::call`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] names an argument; the group is as it was then.
    pub fn call<T: Element>(
        &mut self,
        operation: &Operation<'_>,
        send: &'m [T],
        recv: &'m mut [T],
    ) -> Result<()> {
        operation.refuse_scale()?;
        self.apart(operation, send.into(), recv.into())
    }

    /// Adds any operation in place, as [`Communicator::call_in_place`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] names an argument; the group is as it was then.
    pub fn call_in_place<T: Element>(&mut self, operation: &Operation<'_>, data: &'m mut [T]) -> Result<()> {
        operation.refuse_scale()?;
        self.in_place(operation, data.into())
    }

    /// Adds a call from `send` to `recv`.
    fn apart(&mut self, operation: &Operation<'_>, send: Elements<'m>, recv: ElementsMut<'m>) -> Result<()> {
        self.push(Request::apart(self.rank_info(), operation, send, recv)?)
    }

    /// Adds a call in place.
    fn in_place(&mut self, operation: &Operation<'_>, data: ElementsMut<'m>) -> Result<()> {
        self.push(Request::in_place(self.rank_info(), operation, data)?)
    }
}

/// Makes a method of [`Communicator`] and one of [`Group`] of each row: of calls from `send` to `recv`, of
/// calls in place, and of messages.
macro_rules! calls {
    (apart: $($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) = $operation:expr;)*) => {
        calls! { @each
            (send: &'m [T] as Elements<'_>, recv: &'m mut [T] as ElementsMut<'_>) => apart;
            $($(#[$doc])* $name($($argument: $type),*) = $operation;)*
        }
    };
    (in place: $($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) = $operation:expr;)*) => {
        calls! { @each
            (data: &'m mut [T] as ElementsMut<'_>) => in_place;
            $($(#[$doc])* $name($($argument: $type),*) = $operation;)*
        }
    };
    (@each $buffers:tt => $check:ident;
     $($(#[$doc:meta])* $name:ident $arguments:tt = $operation:expr;)*) => {
        $(calls! { @one $buffers => $check; $(#[$doc])* $name $arguments = $operation; })*
    };
    (@one ($($buffer:ident: $slice:ty as $elements:ty),*) => $check:ident;
        $(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) = $operation:expr;) => {
        impl Communicator {
            $(#[$doc])*
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] names an argument, [`Error::IllegalOp`] an operation that the
            /// elements do not have, [`Error::Plan`] an algorithm that cannot do the call: nothing has moved
            /// then. All other variants fail the communicator, and every later call with it.
            #[inline]
            pub fn $name<'m, T: Element>(
                &mut self,
                $($buffer: $slice,)*
                $($argument: $type),*
            ) -> Result<()> {
                fn untyped(
                    comm: &mut Communicator,
                    $($buffer: $elements,)*
                    $($argument: $type),*
                ) -> Result<()> {
                    comm.execute(&Request::$check(comm.rank_info(), &$operation, $($buffer),*)?)
                }
                untyped(self, $($buffer.into(),)* $($argument),*)
            }
        }

        impl<'m> Group<'_, 'm> {
            #[doc = concat!("Adds a call as [`Communicator::", stringify!($name), "`].")]
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] names an argument; the group is as it was then.
            pub fn $name<T: Element>(&mut self, $($buffer: $slice,)* $($argument: $type),*) -> Result<()> {
                self.$check(&$operation, $($buffer.into()),*)
            }
        }
    };
}

const ALL_REDUCE: Operation<'static> = Operation::new(Collective::AllReduce);
const ALL_GATHER: Operation<'static> = Operation::new(Collective::AllGather);
const REDUCE_SCATTER: Operation<'static> = Operation::new(Collective::ReduceScatter);
const BROADCAST: Operation<'static> = Operation::new(Collective::Broadcast);
const REDUCE: Operation<'static> = Operation::new(Collective::Reduce);
const GATHER: Operation<'static> = Operation::new(Collective::Gather);
const SCATTER: Operation<'static> = Operation::new(Collective::Scatter);
const SCAN: Operation<'static> = Operation::new(Collective::Scan);
const EXCLUSIVE_SCAN: Operation<'static> = Operation::new(Collective::ExclusiveScan);

calls! { apart:
    /// Reduces `send` element by element over all ranks and stores the result in `recv`.
    ///
    /// Both have the same length on all ranks.
    all_reduce(op: ReduceOp) = ALL_REDUCE.with_op(op);

    /// Gathers every rank's `send`, in rank order, in `recv` on all ranks.
    ///
    /// `recv` is `size` times as long as `send`.
    all_gather() = ALL_GATHER;

    /// Gathers blocks of unequal lengths, in rank order, in `recv` on all ranks.
    ///
    /// Rank `r` sends `counts[r]` elements. All ranks pass the same `counts`, or the call fails on all of
    /// them.
    all_gather_v(counts: &[usize]) = ALL_GATHER.with_counts(counts);

    /// Reduces block `rank` of every rank's `send` and stores the result in `recv`.
    ///
    /// `send` is `size` times as long as `recv`.
    reduce_scatter(op: ReduceOp) = REDUCE_SCATTER.with_op(op);

    /// Reduces blocks of unequal lengths: block `r` of every rank's `send` goes to rank `r`'s `recv`.
    ///
    /// Block `r` has `counts[r]` elements. All ranks pass the same `counts`, or the call fails on all of
    /// them.
    reduce_scatter_v(counts: &[usize], op: ReduceOp) = REDUCE_SCATTER.with_op(op).with_counts(counts);

    /// Copies the root's `send` to every rank's `recv`.
    ///
    /// Other ranks' `send` is not read, and may be empty.
    broadcast_from(root: Rank) = BROADCAST.with_root(root);

    /// Reduces `send` element by element over all ranks and stores the result in the root's `recv`.
    ///
    /// `send` has the same length on all ranks, and so has the root's `recv`. Other ranks' `recv` is left
    /// alone, and may be empty.
    reduce(op: ReduceOp, root: Rank) = REDUCE.with_op(op).with_root(root);

    /// Gathers every rank's `send`, in rank order, in the root's `recv`.
    ///
    /// The root's `recv` is `size` times as long as `send`. Other ranks' is left alone, and may be empty.
    gather(root: Rank) = GATHER.with_root(root);

    /// Gathers blocks of unequal lengths, in rank order, in the root's `recv`.
    ///
    /// Rank `r` sends `counts[r]` elements. All ranks pass the same `counts`, or the call fails on all of
    /// them. Other ranks' `recv` is left alone, and may be empty.
    gather_v(counts: &[usize], root: Rank) = GATHER.with_root(root).with_counts(counts);

    /// Copies block `r` of the root's `send` to rank `r`'s `recv`.
    ///
    /// The root's `send` is `size` times as long as `recv`. Other ranks' is not read, and may be empty.
    scatter(root: Rank) = SCATTER.with_root(root);

    /// Copies blocks of unequal lengths: block `r` of the root's `send` goes to rank `r`'s `recv`.
    ///
    /// Block `r` has `counts[r]` elements. All ranks pass the same `counts`, or the call fails on all of
    /// them. Other ranks' `send` is not read, and may be empty.
    scatter_v(counts: &[usize], root: Rank) = SCATTER.with_root(root).with_counts(counts);

    /// Reduces `send` element by element over the ranks up to and with this one, and stores the result in
    /// `recv`.
    ///
    /// Both have the same length on all ranks. There is no average.
    scan(op: ReduceOp) = SCAN.with_op(op);

    /// Reduces `send` element by element over the ranks before this one, and stores the result in `recv`.
    ///
    /// Both have the same length on all ranks. Rank 0's `recv` is left as it is. There is no average.
    exclusive_scan(op: ReduceOp) = EXCLUSIVE_SCAN.with_op(op);

    /// Exchanges blocks: block `j` of rank `i`'s `send` becomes block `i` of rank `j`'s `recv`.
    ///
    /// Both have the same length on all ranks, a multiple of `size`.
    all_to_all() = Operation::new(Collective::AllToAll);

    /// Sends `send` to the next rank and receives the previous rank's in `recv`, in a ring.
    ///
    /// Both have the same length on all ranks.
    send_recv() = Operation::new(Collective::SendRecv);
}

calls! { in place:
    /// Reduces in place, as [`Communicator::all_reduce`] with `data` as `send` and `recv`.
    all_reduce_in_place(op: ReduceOp) = ALL_REDUCE.with_op(op);

    /// Gathers in place, as [`Communicator::all_gather`] with block `rank` of `data` as `send` and `data` as
    /// `recv`.
    all_gather_in_place() = ALL_GATHER;

    /// Reduces in place, as [`Communicator::reduce_scatter`] with `data` as `send` and its block `rank` as
    /// `recv`.
    ///
    /// The other blocks are undefined afterwards.
    reduce_scatter_in_place(op: ReduceOp) = REDUCE_SCATTER.with_op(op);

    /// Copies the root's `data` to every rank's `data`.
    broadcast(root: Rank) = BROADCAST.with_root(root);

    /// Reduces in place, as [`Communicator::reduce`] with the root's `data` as `send` and `recv`.
    ///
    /// Other ranks' `data` is not changed.
    reduce_in_place(op: ReduceOp, root: Rank) = REDUCE.with_op(op).with_root(root);

    /// Gathers in place, as [`Communicator::gather`] with the root's own block in its `data`.
    ///
    /// The root's `data` has `size` blocks, of which block `rank` is its own. Other ranks' `data` is one
    /// block, which is not changed.
    gather_in_place(root: Rank) = GATHER.with_root(root);

    /// Scatters in place, as [`Communicator::scatter`] with the root's own block left in its `data`.
    ///
    /// The root's `data` has `size` blocks. Other ranks' is the one block that they receive.
    scatter_in_place(root: Rank) = SCATTER.with_root(root);

    /// Reduces in place, as [`Communicator::scan`] with `data` as `send` and `recv`.
    scan_in_place(op: ReduceOp) = SCAN.with_op(op);

    /// Reduces in place, as [`Communicator::exclusive_scan`] with `data` as `send` and `recv`.
    exclusive_scan_in_place(op: ReduceOp) = EXCLUSIVE_SCAN.with_op(op);
}

/// Calls that do not fit the table: those of one element type or another order of arguments, and messages.
impl Communicator {
    /// Reduces as [`Communicator::all_reduce`], with every message packed by `codec`.
    ///
    /// `int8` needs a quarter of the bytes, `bf16` half. All ranks get the same bits, off by at most
    /// [`Codec::error_bound`].
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`]; [`Error::InvalidArgument`] for another operation than `sum` and
    /// `avg`, [`Error::Plan`] while results are to be reproducible.
    pub fn all_reduce_quantized(
        &mut self,
        send: &[f32],
        recv: &mut [f32],
        op: ReduceOp,
        codec: Codec,
    ) -> Result<()> {
        let operation = ALL_REDUCE.with_op(op).with_codec(codec);
        self.execute(&Request::apart(self.rank_info(), &operation, send.into(), recv.into())?)
    }

    /// Reduces in place, as [`Communicator::all_reduce_quantized`] with `data` as `send` and `recv`.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce_quantized`].
    pub fn all_reduce_quantized_in_place(
        &mut self,
        data: &mut [f32],
        op: ReduceOp,
        codec: Codec,
    ) -> Result<()> {
        let operation = ALL_REDUCE.with_op(op).with_codec(codec);
        self.execute(&Request::in_place(self.rank_info(), &operation, data.into())?)
    }

    /// Exchanges blocks of unequal lengths: block `j` of rank `i`'s `send` becomes block `i` of rank `j`'s
    /// `recv`.
    ///
    /// Block `j` of `send` has `send_counts[j]` elements, block `i` of `recv` has `recv_counts[i]`. A rank
    /// passes only its own lengths; the call fails on all ranks if one sends another length than its peer
    /// expects. Where not every rank has a cable to every other, ranks first exchange all lengths, and ranks
    /// in between forward blocks.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`].
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &[T],
        send_counts: &[usize],
        recv: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        let operation = Operation::new(Collective::AllToAll).with_own_counts(send_counts, recv_counts);
        self.execute_apart(&operation, send.into(), recv.into())
    }

    /// Sends `data` to rank `to`, which must call [`Communicator::recv`] with the same length.
    ///
    /// Messages between two ranks arrive in order. Returns when `data` may be changed, which may be before it
    /// has arrived.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`].
    pub fn send<T: Element>(&mut self, data: &[T], to: Rank) -> Result<()> {
        fn untyped(comm: &mut Communicator, data: Elements<'_>, to: Rank) -> Result<()> {
            let nothing = ElementsMut::none(data.dtype);
            comm.execute(&Request::apart(comm.rank_info(), &Operation::send(to), data, nothing)?)
        }
        untyped(self, data.into(), to)
    }

    /// Receives into `data` the message that rank `from` sends.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`].
    pub fn recv<T: Element>(&mut self, data: &mut [T], from: Rank) -> Result<()> {
        fn untyped(comm: &mut Communicator, data: ElementsMut<'_>, from: Rank) -> Result<()> {
            let nothing = Elements::none(data.dtype);
            comm.execute(&Request::apart(comm.rank_info(), &Operation::recv(from), nothing, data)?)
        }
        untyped(self, data.into(), from)
    }
}

/// Calls of a group that do not fit the table.
impl<'m> Group<'_, 'm> {
    /// Adds a call as [`Communicator::all_to_all_v`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] names an argument; the group is as it was then.
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &'m [T],
        send_counts: &[usize],
        recv: &'m mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        let operation = Operation::new(Collective::AllToAll).with_own_counts(send_counts, recv_counts);
        self.apart(&operation, send.into(), recv.into())
    }

    /// Adds a message as [`Communicator::send`].
    ///
    /// Rank `to` may send to this one in the same group. It may be this rank, which then receives the message
    /// in the same group.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] names an argument; the group is as it was then.
    pub fn send<T: Element>(&mut self, data: &'m [T], to: Rank) -> Result<()> {
        self.apart(&Operation::send(to), data.into(), ElementsMut::none(T::DTYPE))
    }

    /// Adds a message as [`Communicator::recv`].
    ///
    /// Rank `from` may be this rank, which then sends the message in the same group.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] names an argument; the group is as it was then.
    pub fn recv<T: Element>(&mut self, data: &'m mut [T], from: Rank) -> Result<()> {
        self.apart(&Operation::recv(from), Elements::none(T::DTYPE), data.into())
    }
}
