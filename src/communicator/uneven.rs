//! The vector forms of the calls: blocks of unequal lengths, side by side.
//!
//! Lengths are known to all ranks, which check that they know the same, but for [`Communicator::all_to_all_v`], where a
//! rank knows what it sends and what it gets.
//!
//! # Safety
//! As in `typed`, from which the spans come.

use super::{
    Communicator,
    call::{Blocks, Call},
    typed::{call, lengths, settled, span_mut},
};
use crate::{
    Element,
    element::bytes_of,
    error::{Error, Result},
};
use collectives::{Collective, ReduceOp, schedule::InPlace};
use topology::Rank;
use transport::memory::Span;

/// The lengths of blocks, and their sum.
struct Counts {
    each: Vec<u64>,
    total: usize,
}

impl Counts {
    /// One for each rank.
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

    /// The call, with these lengths known to all ranks; a rank's own buffer has `own`, the other one all of them.
    fn of<'c, T: Element>(&'c self, collective: Collective, own: &'c [u64], in_place: InPlace) -> Call<'c> {
        let all = &self.each[..];
        let (input, output) = match collective {
            Collective::AllGather | Collective::Gather => (own, all),
            _ => (all, own),
        };
        // The same on all ranks, and near enough to choose a plan by.
        let mean = self.total / all.len().max(1);
        Call {
            blocks: Blocks::Uneven { input, output, all: Some(all) },
            ..call::<T>(collective, mean, in_place)
        }
    }
}

impl Communicator {
    /// Everyone's `send`, side by side in rank order, in everyone's `recv`. Rank `r` sends `counts[r]` elements; all ranks
    /// give the same `counts`.
    ///
    /// # Errors
    /// See [`Error`]; on all ranks when their `counts` differ.
    pub fn all_gather_v<T: Element>(&mut self, send: &[T], recv: &mut [T], counts: &[usize]) -> Result<()> {
        let counts = Counts::new("counts", counts, self.size())?;
        let own = &counts.each[self.rank().index()..][..1];
        lengths("send", send.len(), own[0] as usize)?;
        lengths("recv", recv.len(), counts.total)?;
        let call = counts.of::<T>(Collective::AllGather, own, InPlace::No);
        let done = self.collective(&call, Span::from(bytes_of(send)), span_mut(recv));
        settled(recv);
        done
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
        let counts = Counts::new("counts", counts, self.size())?;
        let own = &counts.each[self.rank().index()..][..1];
        lengths("send", send.len(), counts.total)?;
        lengths("recv", recv.len(), own[0] as usize)?;
        let call = counts.of::<T>(Collective::ReduceScatter, own, InPlace::No).with_op(op);
        let done = self.collective(&call, Span::from(bytes_of(send)), span_mut(recv));
        settled(recv);
        done
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
        self.check_rank("root", root)?;
        let counts = Counts::new("counts", counts, self.size())?;
        let own = &counts.each[self.rank().index()..][..1];
        lengths("send", send.len(), own[0] as usize)?;
        if self.rank() == root {
            lengths("recv", recv.len(), counts.total)?;
        }
        let call = Call { root, ..counts.of::<T>(Collective::Gather, own, InPlace::No) };
        let done = self.collective(&call, Span::from(bytes_of(send)), span_mut(recv));
        settled(recv);
        done
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
        self.check_rank("root", root)?;
        let counts = Counts::new("counts", counts, self.size())?;
        let own = &counts.each[self.rank().index()..][..1];
        if self.rank() == root {
            lengths("send", send.len(), counts.total)?;
        }
        lengths("recv", recv.len(), own[0] as usize)?;
        let call = Call { root, ..counts.of::<T>(Collective::Scatter, own, InPlace::No) };
        let done = self.collective(&call, Span::from(bytes_of(send)), span_mut(recv));
        settled(recv);
        done
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
        let sent = Counts::new("send_counts", send_counts, self.size())?;
        let received = Counts::new("recv_counts", recv_counts, self.size())?;
        lengths("send", send.len(), sent.total)?;
        lengths("recv", recv.len(), received.total)?;
        let own = self.rank().index();
        lengths("the own block of recv", recv_counts[own], send_counts[own])?;
        let blocks = Blocks::Uneven { input: &sent.each, output: &received.each, all: None };
        let call = Call { blocks, ..call::<T>(Collective::AllToAll, 0, InPlace::No) };
        if self.plans.lacks_cables(&self.shape_of(&call)) {
            return self.all_to_all_relayed(send, &sent.each, recv, &received.each);
        }
        let done = self.collective(&call, Span::from(bytes_of(send)), span_mut(recv));
        settled(recv);
        done
    }
}
