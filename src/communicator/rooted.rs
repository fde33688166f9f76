//! The calls that have a root, and the scans, on slices of elements.
//!
//! # Safety
//! As in `typed`, from which the spans come.

use super::{
    Communicator,
    call::Call,
    typed::{call, lengths, settled, span_mut},
};
use crate::{Element, element::bytes_of, error::Result};
use collectives::{Collective, ReduceOp, schedule::InPlace};
use topology::Rank;
use transport::memory::Span;

impl Communicator {
    /// Everyone's `send`, reduced element by element, in the root's `recv`, which is as long. Others' `recv` is left
    /// alone, and may be empty.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn reduce<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp, root: Rank) -> Result<()> {
        self.check_rank("root", root)?;
        if self.rank() == root {
            lengths("recv", recv.len(), send.len())?;
        }
        let call = call::<T>(Collective::Reduce, send.len(), InPlace::No).with_op(op);
        let done = self.collective(&Call { root, ..call }, Span::from(bytes_of(send)), span_mut(recv));
        settled(recv);
        done
    }

    /// As [`Communicator::reduce`], with the root's input where its output will be. Others' `data` is not changed.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn reduce_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp, root: Rank) -> Result<()> {
        self.check_rank("root", root)?;
        let call = call::<T>(Collective::Reduce, data.len(), InPlace::Yes).with_op(op);
        let output = span_mut(data);
        let done = self.collective(&Call { root, ..call }, output.as_span(), output);
        settled(data);
        done
    }

    /// Everyone's `send`, side by side in rank order, in the root's `recv` (`size` times as long). Others' `recv` is
    /// left alone, and may be empty.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn gather<T: Element>(&mut self, send: &[T], recv: &mut [T], root: Rank) -> Result<()> {
        self.check_rank("root", root)?;
        if self.rank() == root {
            lengths("recv", recv.len(), self.times_size(send.len())?)?;
        }
        let call = Call { root, ..call::<T>(Collective::Gather, send.len(), InPlace::No) };
        let done = self.collective(&call, Span::from(bytes_of(send)), span_mut(recv));
        settled(recv);
        done
    }

    /// As [`Communicator::gather`], with the root's own block in place: its `data` has `size` blocks, of which block
    /// `rank` is its own. Everyone else's `data` is one block, which is not changed.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn gather_in_place<T: Element>(&mut self, data: &mut [T], root: Rank) -> Result<()> {
        self.check_rank("root", root)?;
        let at_root = self.rank() == root;
        let count = if at_root { self.block_of(data.len())? } else { data.len() };
        let call = Call { root, ..call::<T>(Collective::Gather, count, InPlace::Yes) };
        let output = span_mut(data);
        let block = count * size_of::<T>();
        let own = if at_root { self.rank().index() * block } else { 0 };
        let done = self.collective(&call, output.as_span().sub(own, block), output);
        settled(data);
        done
    }

    /// Block `rank` of the root's `send` (`size` times as long as `recv`) in everyone's `recv`. Others' `send` is not
    /// read, and may be empty.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn scatter<T: Element>(&mut self, send: &[T], recv: &mut [T], root: Rank) -> Result<()> {
        self.check_rank("root", root)?;
        if self.rank() == root {
            lengths("send", send.len(), self.times_size(recv.len())?)?;
        }
        let call = Call { root, ..call::<T>(Collective::Scatter, recv.len(), InPlace::No) };
        let done = self.collective(&call, Span::from(bytes_of(send)), span_mut(recv));
        settled(recv);
        done
    }

    /// As [`Communicator::scatter`], with the root's own block left where it is: its `data` has `size` blocks, everyone
    /// else's is the one block that it gets.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn scatter_in_place<T: Element>(&mut self, data: &mut [T], root: Rank) -> Result<()> {
        self.check_rank("root", root)?;
        let at_root = self.rank() == root;
        let count = if at_root { self.block_of(data.len())? } else { data.len() };
        let call = Call { root, ..call::<T>(Collective::Scatter, count, InPlace::Yes) };
        let all = span_mut(data);
        let block = count * size_of::<T>();
        let own = if at_root { self.rank().index() * block } else { 0 };
        let done = self.collective(&call, all.as_span(), all.sub(own, block));
        settled(data);
        done
    }

    /// The `send` of the ranks up to and with this one, reduced element by element, in `recv`. Both have the same length
    /// on all ranks. There is no average.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn scan<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        self.prefix(Collective::Scan, send, recv, op)
    }

    /// As [`Communicator::scan`], with the input where the output will be.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn scan_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.prefix_in_place(Collective::Scan, data, op)
    }

    /// The `send` of the ranks before this one, reduced element by element, in `recv`; rank 0's `recv` is left as it
    /// is. Both have the same length on all ranks. There is no average.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn exclusive_scan<T: Element>(&mut self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        self.prefix(Collective::ExclusiveScan, send, recv, op)
    }

    /// As [`Communicator::exclusive_scan`], with the input where the output will be.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn exclusive_scan_in_place<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.prefix_in_place(Collective::ExclusiveScan, data, op)
    }

    fn prefix<T: Element>(
        &mut self,
        collective: Collective,
        send: &[T],
        recv: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        lengths("recv", recv.len(), send.len())?;
        let call = call::<T>(collective, send.len(), InPlace::No).with_op(op);
        let done = self.collective(&call, Span::from(bytes_of(send)), span_mut(recv));
        settled(recv);
        done
    }

    fn prefix_in_place<T: Element>(
        &mut self,
        collective: Collective,
        data: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let call = call::<T>(collective, data.len(), InPlace::Yes).with_op(op);
        let output = span_mut(data);
        let done = self.collective(&call, output.as_span(), output);
        settled(data);
        done
    }
}
