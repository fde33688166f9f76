//! The vector forms of the calls: blocks of unequal lengths, side by side. What their arguments must be, and the calls
//! themselves.
//!
//! Lengths are known to all ranks, which check that they know the same, but for [`Communicator::all_to_all_v`], where a
//! rank knows what it sends and what it gets.

use super::{
    Communicator,
    call::Call,
    elements::{Elements, ElementsMut},
    request::{Known, Lengths, Request, Us, What},
    typed::{between, call, lengths},
};
use crate::{
    Element,
    error::{Error, Result},
};
use collectives::{Collective, ReduceOp, schedule::InPlace};
use topology::Rank;

/// The lengths of blocks, one for each rank, and their sum.
struct Counts {
    each: Vec<u64>,
    total: usize,
}

impl Counts {
    fn new(what: &str, counts: &[usize], ranks: u32) -> Result<Counts> {
        if counts.len() != ranks as usize {
            let given = counts.len();
            return Err(Error::InvalidArgument(format!(
                "{what} has {given} lengths, and there are {ranks} ranks; give one for each"
            )));
        }
        let total =
            counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count)).ok_or_else(|| {
                Error::InvalidArgument(format!("{what} come to more elements than memory can hold"))
            })?;
        Ok(Counts { each: counts.iter().map(|count| *count as u64).collect(), total })
    }
}

/// The elements of all blocks of these lengths, if there is one for each rank.
pub(super) fn total_of(what: &str, counts: &[usize], ranks: u32) -> Result<usize> {
    Counts::new(what, counts, ranks).map(|counts| counts.total)
}

impl Us {
    pub(super) fn all_gather_v<'m>(
        self,
        send: Elements<'m>,
        recv: ElementsMut<'m>,
        counts: &[usize],
    ) -> Result<Request<'m>> {
        self.vector(call(Collective::AllGather, send.dtype, 0, InPlace::No), send, recv, counts)
    }

    pub(super) fn reduce_scatter_v<'m>(
        self,
        send: Elements<'m>,
        recv: ElementsMut<'m>,
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<Request<'m>> {
        let call = call(Collective::ReduceScatter, send.dtype, 0, InPlace::No).with_op(op);
        self.vector(call, send, recv, counts)
    }

    pub(super) fn gather_v<'m>(
        self,
        send: Elements<'m>,
        recv: ElementsMut<'m>,
        counts: &[usize],
        root: Rank,
    ) -> Result<Request<'m>> {
        let call = call(Collective::Gather, send.dtype, 0, InPlace::No);
        self.vector(Call { root, ..call }, send, recv, counts)
    }

    pub(super) fn scatter_v<'m>(
        self,
        send: Elements<'m>,
        recv: ElementsMut<'m>,
        counts: &[usize],
        root: Rank,
    ) -> Result<Request<'m>> {
        let call = call(Collective::Scatter, send.dtype, 0, InPlace::No);
        self.vector(Call { root, ..call }, send, recv, counts)
    }

    /// A call with lengths that are known to all ranks. One of its buffers has the block of this rank, the other one all
    /// blocks, where there is one.
    fn vector<'m>(
        self,
        call: Call,
        send: Elements<'m>,
        recv: ElementsMut<'m>,
        counts: &[usize],
    ) -> Result<Request<'m>> {
        self.check_rank("root", call.root)?;
        let Counts { each, total } = Counts::new("counts", counts, self.size)?;
        let own = counts[self.rank.index()];
        let gathers = matches!(call.collective, Collective::AllGather | Collective::Gather);
        let has_all = self.has_all_blocks(call.collective, call.root);
        let (sent, received) = if gathers { (own, total) } else { (total, own) };
        if gathers || has_all {
            lengths("send", send.count, sent)?;
        }
        if !gathers || has_all {
            lengths("recv", recv.count, received)?;
        }
        // The same on all ranks, and near enough to choose a plan by.
        let mean = total / counts.len();
        let (own, all) = (vec![own as u64], each);
        let lengths = if gathers {
            Lengths { input: own, output: all, known: Known::Output }
        } else {
            Lengths { input: all, output: own, known: Known::Input }
        };
        let request = between(Call { count: mean as u64, ..call }, send, recv);
        Ok(Request { lengths: Some(Box::new(lengths)), ..request })
    }

    pub(super) fn all_to_all_v<'m>(
        self,
        send: Elements<'m>,
        send_counts: &[usize],
        recv: ElementsMut<'m>,
        recv_counts: &[usize],
    ) -> Result<Request<'m>> {
        let sent = Counts::new("send_counts", send_counts, self.size)?;
        let received = Counts::new("recv_counts", recv_counts, self.size)?;
        lengths("send", send.count, sent.total)?;
        lengths("recv", recv.count, received.total)?;
        let own = self.rank.index();
        lengths("the own block of recv", recv_counts[own], send_counts[own])?;
        let lengths = Lengths { input: sent.each, output: received.each, known: Known::Neither };
        let request = between(call(Collective::AllToAll, send.dtype, 0, InPlace::No), send, recv);
        Ok(Request { lengths: Some(Box::new(lengths)), ..request })
    }
}

impl Communicator {
    /// Everyone's `send`, side by side in rank order, in everyone's `recv`. Rank `r` sends `counts[r]` elements; all ranks
    /// give the same `counts`.
    ///
    /// # Errors
    /// See [`Error`]; on all ranks when their `counts` differ.
    pub fn all_gather_v<T: Element>(&mut self, send: &[T], recv: &mut [T], counts: &[usize]) -> Result<()> {
        self.at_once(&self.us().all_gather_v(send.into(), recv.into(), counts)?)
    }

    /// Block `r` of everyone's `send`, reduced, in rank `r`'s `recv`. Block `r` has `counts[r]` elements; all ranks give
    /// the same `counts`.
    ///
    /// # Errors
    /// See [`Error`]; on all ranks when their `counts` differ.
    pub fn reduce_scatter_v<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<()> {
        self.at_once(&self.us().reduce_scatter_v(send.into(), recv.into(), counts, op)?)
    }

    /// Everyone's `send`, side by side in rank order, in the root's `recv`. Rank `r` sends `counts[r]` elements; all
    /// ranks give the same `counts`. Others' `recv` is left alone, and may be empty.
    ///
    /// # Errors
    /// See [`Error`]; on all ranks when their `counts` differ.
    pub fn gather_v<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        root: Rank,
    ) -> Result<()> {
        self.at_once(&self.us().gather_v(send.into(), recv.into(), counts, root)?)
    }

    /// Block `r` of the root's `send` in rank `r`'s `recv`. Block `r` has `counts[r]` elements; all ranks give the same
    /// `counts`. Others' `send` is not read, and may be empty.
    ///
    /// # Errors
    /// See [`Error`]; on all ranks when their `counts` differ.
    pub fn scatter_v<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        root: Rank,
    ) -> Result<()> {
        self.at_once(&self.us().scatter_v(send.into(), recv.into(), counts, root)?)
    }

    /// Block `j` of rank `i`'s `send`, which has `send_counts[j]` elements there, becomes block `i` of rank `j`'s `recv`,
    /// which has as many `recv_counts[i]`. A rank gives its own lengths only. Where not every rank has a cable to every
    /// other, ranks tell each other all lengths, and those in between pass blocks on.
    ///
    /// # Errors
    /// See [`Error`]; on all ranks when what one sends is not as long as another one expects.
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &[T],
        send_counts: &[usize],
        recv: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        let request = self.us().all_to_all_v(send.into(), send_counts, recv.into(), recv_counts)?;
        self.all_to_all_v_at_once(&request)
    }

    /// Carries out an `all_to_all_v`: ranks in between pass blocks on where not every rank reaches every other.
    pub(super) fn all_to_all_v_at_once(&mut self, request: &Request<'_>) -> Result<()> {
        if let (What::Collective(call), Some(lengths)) = (request.what, &request.lengths)
            && self.plans.lacks_cables(&self.shape_of(&call, request.blocks()))
        {
            let (sent, expected) = (&lengths.input, &lengths.output);
            return self.all_to_all_relayed(call.dtype, (request.input, sent), (request.output, expected));
        }
        self.at_once(request)
    }
}
