//! The calls that have a root, and the scans, on slices of elements: what their arguments must be, and the calls
//! themselves.

use super::{
    Communicator,
    call::Call,
    request::{Request, Us},
    typed::{between, call, from_own_block, into_own_block, lengths, within},
};
use crate::{Element, error::Result};
use collectives::{Collective, ReduceOp, schedule::InPlace};
use topology::Rank;

impl Us {
    pub(super) fn broadcast<T: Element>(self, data: &mut [T], root: Rank) -> Result<Request<'_>> {
        self.check_rank("root", root)?;
        let call = call::<T>(Collective::Broadcast, data.len(), InPlace::Yes);
        Ok(within(Call { root, ..call }, data))
    }

    pub(super) fn broadcast_from<'m, T: Element>(
        self,
        send: &'m [T],
        recv: &'m mut [T],
        root: Rank,
    ) -> Result<Request<'m>> {
        self.check_rank("root", root)?;
        if self.rank == root {
            lengths("send", send.len(), recv.len())?;
        }
        let call = call::<T>(Collective::Broadcast, recv.len(), InPlace::No);
        Ok(between(Call { root, ..call }, send, recv))
    }

    pub(super) fn reduce<'m, T: Element>(
        self,
        send: &'m [T],
        recv: &'m mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<Request<'m>> {
        self.check_rank("root", root)?;
        if self.rank == root {
            lengths("recv", recv.len(), send.len())?;
        }
        let call = call::<T>(Collective::Reduce, send.len(), InPlace::No).with_op(op);
        Ok(between(Call { root, ..call }, send, recv))
    }

    pub(super) fn reduce_in_place<T: Element>(
        self,
        data: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<Request<'_>> {
        self.check_rank("root", root)?;
        let call = call::<T>(Collective::Reduce, data.len(), InPlace::Yes).with_op(op);
        Ok(within(Call { root, ..call }, data))
    }

    pub(super) fn gather<'m, T: Element>(
        self,
        send: &'m [T],
        recv: &'m mut [T],
        root: Rank,
    ) -> Result<Request<'m>> {
        self.check_rank("root", root)?;
        if self.rank == root {
            lengths("recv", recv.len(), self.times_size(send.len())?)?;
        }
        let call = call::<T>(Collective::Gather, send.len(), InPlace::No);
        Ok(between(Call { root, ..call }, send, recv))
    }

    pub(super) fn gather_in_place<T: Element>(self, data: &mut [T], root: Rank) -> Result<Request<'_>> {
        let call = self.in_place_at(Collective::Gather, data, root)?;
        Ok(if self.rank == root { from_own_block(self, call, data) } else { within(call, data) })
    }

    pub(super) fn scatter<'m, T: Element>(
        self,
        send: &'m [T],
        recv: &'m mut [T],
        root: Rank,
    ) -> Result<Request<'m>> {
        self.check_rank("root", root)?;
        if self.rank == root {
            lengths("send", send.len(), self.times_size(recv.len())?)?;
        }
        let call = call::<T>(Collective::Scatter, recv.len(), InPlace::No);
        Ok(between(Call { root, ..call }, send, recv))
    }

    pub(super) fn scatter_in_place<T: Element>(self, data: &mut [T], root: Rank) -> Result<Request<'_>> {
        let call = self.in_place_at(Collective::Scatter, data, root)?;
        Ok(if self.rank == root { into_own_block(self, call, data) } else { within(call, data) })
    }

    /// A call in place whose `data` has all blocks at the root, and one elsewhere.
    fn in_place_at<T: Element>(
        self,
        collective: Collective,
        data: &[T],
        root: Rank,
    ) -> Result<Call<'static>> {
        self.check_rank("root", root)?;
        let count = if self.rank == root { self.block_of(data.len())? } else { data.len() };
        Ok(Call { root, ..call::<T>(collective, count, InPlace::Yes) })
    }

    pub(super) fn scan<'m, T: Element>(
        self,
        send: &'m [T],
        recv: &'m mut [T],
        op: ReduceOp,
    ) -> Result<Request<'m>> {
        lengths("recv", recv.len(), send.len())?;
        Ok(between(call::<T>(Collective::Scan, send.len(), InPlace::No).with_op(op), send, recv))
    }

    pub(super) fn scan_in_place<T: Element>(self, data: &mut [T], op: ReduceOp) -> Result<Request<'_>> {
        Ok(within(call::<T>(Collective::Scan, data.len(), InPlace::Yes).with_op(op), data))
    }

    pub(super) fn exclusive_scan<'m, T: Element>(
        self,
        send: &'m [T],
        recv: &'m mut [T],
        op: ReduceOp,
    ) -> Result<Request<'m>> {
        lengths("recv", recv.len(), send.len())?;
        Ok(between(call::<T>(Collective::ExclusiveScan, send.len(), InPlace::No).with_op(op), send, recv))
    }

    pub(super) fn exclusive_scan_in_place<T: Element>(
        self,
        data: &mut [T],
        op: ReduceOp,
    ) -> Result<Request<'_>> {
        Ok(within(call::<T>(Collective::ExclusiveScan, data.len(), InPlace::Yes).with_op(op), data))
    }
}

impl Communicator {
    /// The root's `data` in everyone's `data`.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn broadcast<T: Element>(&mut self, data: &mut [T], root: Rank) -> Result<()> {
        self.at_once::<T>(&self.us().broadcast(data, root)?)
    }

    /// The root's `send` in everyone's `recv`. Others' `send` is not read, and may be empty.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn broadcast_from<T: Element>(&mut self, send: &[T], recv: &mut [T], root: Rank) -> Result<()> {
        self.at_once::<T>(&self.us().broadcast_from(send, recv, root)?)
    }

    /// Everyone's `send`, reduced element by element, in the root's `recv`, which is as long. Others' `recv` is left
    /// alone, and may be empty.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn reduce<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp, root: Rank) -> Result<()> {
        self.at_once::<T>(&self.us().reduce(send, recv, op, root)?)
    }

    /// As [`Communicator::reduce`], with the root's input where its output will be. Others' `data` is not changed.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn reduce_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp, root: Rank) -> Result<()> {
        self.at_once::<T>(&self.us().reduce_in_place(data, op, root)?)
    }

    /// Everyone's `send`, side by side in rank order, in the root's `recv` (`size` times as long). Others' `recv` is
    /// left alone, and may be empty.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn gather<T: Element>(&mut self, send: &[T], recv: &mut [T], root: Rank) -> Result<()> {
        self.at_once::<T>(&self.us().gather(send, recv, root)?)
    }

    /// As [`Communicator::gather`], with the root's own block in place: its `data` has `size` blocks, of which block
    /// `rank` is its own. Everyone else's `data` is one block, which is not changed.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn gather_in_place<T: Element>(&mut self, data: &mut [T], root: Rank) -> Result<()> {
        self.at_once::<T>(&self.us().gather_in_place(data, root)?)
    }

    /// Block `rank` of the root's `send` (`size` times as long as `recv`) in everyone's `recv`. Others' `send` is not
    /// read, and may be empty.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn scatter<T: Element>(&mut self, send: &[T], recv: &mut [T], root: Rank) -> Result<()> {
        self.at_once::<T>(&self.us().scatter(send, recv, root)?)
    }

    /// As [`Communicator::scatter`], with the root's own block left where it is: its `data` has `size` blocks, everyone
    /// else's is the one block that it gets.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn scatter_in_place<T: Element>(&mut self, data: &mut [T], root: Rank) -> Result<()> {
        self.at_once::<T>(&self.us().scatter_in_place(data, root)?)
    }

    /// The `send` of the ranks up to and with this one, reduced element by element, in `recv`. Both have the same length
    /// on all ranks. There is no average.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn scan<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        self.at_once::<T>(&self.us().scan(send, recv, op)?)
    }

    /// As [`Communicator::scan`], with the input where the output will be.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn scan_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.at_once::<T>(&self.us().scan_in_place(data, op)?)
    }

    /// The `send` of the ranks before this one, reduced element by element, in `recv`; rank 0's `recv` is left as it
    /// is. Both have the same length on all ranks. There is no average.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn exclusive_scan<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        self.at_once::<T>(&self.us().exclusive_scan(send, recv, op)?)
    }

    /// As [`Communicator::exclusive_scan`], with the input where the output will be.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn exclusive_scan_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.at_once::<T>(&self.us().exclusive_scan_in_place(data, op)?)
    }
}
