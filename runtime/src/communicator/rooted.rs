//! The calls that have a root, and the scans, on slices of elements: what their arguments must be, and the calls
//! themselves.

use super::{
    Communicator,
    call::Call,
    elements::{Elements, ElementsMut},
    request::{Request, Us},
    typed::{between, call, from_own_block, into_own_block, lengths, within},
};
use crate::{Element, error::Result};
use collectives::{Collective, ReduceOp, schedule::InPlace};
use topology::Rank;

impl Us {
    pub(super) fn broadcast(self, data: ElementsMut<'_>, root: Rank) -> Result<Request<'_>> {
        self.check_rank("root", root)?;
        let call = call(Collective::Broadcast, data.dtype, data.count, InPlace::Yes);
        Ok(within(Call { root, ..call }, data))
    }

    pub(super) fn broadcast_from<'m>(
        self,
        send: Elements<'m>,
        recv: ElementsMut<'m>,
        root: Rank,
    ) -> Result<Request<'m>> {
        self.check_rank("root", root)?;
        if self.rank == root {
            lengths("send", send.count, recv.count)?;
        }
        let call = call(Collective::Broadcast, recv.dtype, recv.count, InPlace::No);
        Ok(between(Call { root, ..call }, send, recv))
    }

    pub(super) fn reduce<'m>(
        self,
        send: Elements<'m>,
        recv: ElementsMut<'m>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<Request<'m>> {
        self.check_rank("root", root)?;
        if self.rank == root {
            lengths("recv", recv.count, send.count)?;
        }
        let call = call(Collective::Reduce, send.dtype, send.count, InPlace::No).with_op(op);
        Ok(between(Call { root, ..call }, send, recv))
    }

    pub(super) fn reduce_in_place(
        self,
        data: ElementsMut<'_>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<Request<'_>> {
        self.check_rank("root", root)?;
        let call = call(Collective::Reduce, data.dtype, data.count, InPlace::Yes).with_op(op);
        Ok(within(Call { root, ..call }, data))
    }

    pub(super) fn gather<'m>(
        self,
        send: Elements<'m>,
        recv: ElementsMut<'m>,
        root: Rank,
    ) -> Result<Request<'m>> {
        self.check_rank("root", root)?;
        if self.rank == root {
            lengths("recv", recv.count, self.times_size(send.count)?)?;
        }
        let call = call(Collective::Gather, send.dtype, send.count, InPlace::No);
        Ok(between(Call { root, ..call }, send, recv))
    }

    pub(super) fn gather_in_place(self, data: ElementsMut<'_>, root: Rank) -> Result<Request<'_>> {
        let call = self.in_place_at(Collective::Gather, data, root)?;
        Ok(if self.rank == root { from_own_block(self, call, data) } else { within(call, data) })
    }

    pub(super) fn scatter<'m>(
        self,
        send: Elements<'m>,
        recv: ElementsMut<'m>,
        root: Rank,
    ) -> Result<Request<'m>> {
        self.check_rank("root", root)?;
        if self.rank == root {
            lengths("send", send.count, self.times_size(recv.count)?)?;
        }
        let call = call(Collective::Scatter, recv.dtype, recv.count, InPlace::No);
        Ok(between(Call { root, ..call }, send, recv))
    }

    pub(super) fn scatter_in_place(self, data: ElementsMut<'_>, root: Rank) -> Result<Request<'_>> {
        let call = self.in_place_at(Collective::Scatter, data, root)?;
        Ok(if self.rank == root { into_own_block(self, call, data) } else { within(call, data) })
    }

    /// A call in place whose `data` has all blocks at the root, and one elsewhere.
    fn in_place_at(self, collective: Collective, data: ElementsMut<'_>, root: Rank) -> Result<Call> {
        self.check_rank("root", root)?;
        let count = if self.rank == root { self.block_of(data.count)? } else { data.count };
        Ok(Call { root, ..call(collective, data.dtype, count, InPlace::Yes) })
    }

    pub(super) fn scan<'m>(
        self,
        send: Elements<'m>,
        recv: ElementsMut<'m>,
        op: ReduceOp,
    ) -> Result<Request<'m>> {
        lengths("recv", recv.count, send.count)?;
        Ok(between(call(Collective::Scan, send.dtype, send.count, InPlace::No).with_op(op), send, recv))
    }

    pub(super) fn scan_in_place(self, data: ElementsMut<'_>, op: ReduceOp) -> Result<Request<'_>> {
        Ok(within(call(Collective::Scan, data.dtype, data.count, InPlace::Yes).with_op(op), data))
    }

    pub(super) fn exclusive_scan<'m>(
        self,
        send: Elements<'m>,
        recv: ElementsMut<'m>,
        op: ReduceOp,
    ) -> Result<Request<'m>> {
        lengths("recv", recv.count, send.count)?;
        Ok(between(
            call(Collective::ExclusiveScan, send.dtype, send.count, InPlace::No).with_op(op),
            send,
            recv,
        ))
    }

    pub(super) fn exclusive_scan_in_place(self, data: ElementsMut<'_>, op: ReduceOp) -> Result<Request<'_>> {
        Ok(within(call(Collective::ExclusiveScan, data.dtype, data.count, InPlace::Yes).with_op(op), data))
    }
}

impl Communicator {
    /// The root's `data` in everyone's `data`.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn broadcast<T: Element>(&mut self, data: &mut [T], root: Rank) -> Result<()> {
        self.at_once(&self.us().broadcast(data.into(), root)?)
    }

    /// The root's `send` in everyone's `recv`. Others' `send` is not read, and may be empty.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn broadcast_from<T: Element>(&mut self, send: &[T], recv: &mut [T], root: Rank) -> Result<()> {
        self.at_once(&self.us().broadcast_from(send.into(), recv.into(), root)?)
    }

    /// Everyone's `send`, reduced element by element, in the root's `recv`, which is as long. Others' `recv` is left
    /// alone, and may be empty.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn reduce<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp, root: Rank) -> Result<()> {
        self.at_once(&self.us().reduce(send.into(), recv.into(), op, root)?)
    }

    /// As [`Communicator::reduce`], with the root's input where its output will be. Others' `data` is not changed.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn reduce_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp, root: Rank) -> Result<()> {
        self.at_once(&self.us().reduce_in_place(data.into(), op, root)?)
    }

    /// Everyone's `send`, side by side in rank order, in the root's `recv` (`size` times as long). Others' `recv` is
    /// left alone, and may be empty.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn gather<T: Element>(&mut self, send: &[T], recv: &mut [T], root: Rank) -> Result<()> {
        self.at_once(&self.us().gather(send.into(), recv.into(), root)?)
    }

    /// As [`Communicator::gather`], with the root's own block in place: its `data` has `size` blocks, of which block
    /// `rank` is its own. Everyone else's `data` is one block, which is not changed.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn gather_in_place<T: Element>(&mut self, data: &mut [T], root: Rank) -> Result<()> {
        self.at_once(&self.us().gather_in_place(data.into(), root)?)
    }

    /// Block `rank` of the root's `send` (`size` times as long as `recv`) in everyone's `recv`. Others' `send` is not
    /// read, and may be empty.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn scatter<T: Element>(&mut self, send: &[T], recv: &mut [T], root: Rank) -> Result<()> {
        self.at_once(&self.us().scatter(send.into(), recv.into(), root)?)
    }

    /// As [`Communicator::scatter`], with the root's own block left where it is: its `data` has `size` blocks, everyone
    /// else's is the one block that it gets.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn scatter_in_place<T: Element>(&mut self, data: &mut [T], root: Rank) -> Result<()> {
        self.at_once(&self.us().scatter_in_place(data.into(), root)?)
    }

    /// The `send` of the ranks up to and with this one, reduced element by element, in `recv`. Both have the same length
    /// on all ranks. There is no average.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn scan<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        self.at_once(&self.us().scan(send.into(), recv.into(), op)?)
    }

    /// As [`Communicator::scan`], with the input where the output will be.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn scan_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.at_once(&self.us().scan_in_place(data.into(), op)?)
    }

    /// The `send` of the ranks before this one, reduced element by element, in `recv`; rank 0's `recv` is left as it
    /// is. Both have the same length on all ranks. There is no average.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn exclusive_scan<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        self.at_once(&self.us().exclusive_scan(send.into(), recv.into(), op)?)
    }

    /// As [`Communicator::exclusive_scan`], with the input where the output will be.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn exclusive_scan_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.at_once(&self.us().exclusive_scan_in_place(data.into(), op)?)
    }
}
