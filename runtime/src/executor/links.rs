//! The links of one rank, by peer and lane: made in advance, or on demand.

use std::fmt;
use transport::{Counters, Link, PollCounters};

/// A function that makes the link with an index.
pub(crate) type LinkMaker = Box<dyn FnMut(usize) -> Box<dyn Link> + Send>;

/// The links of one rank. Some are made on demand: in a job of a thousand ranks, a rank communicates with
/// ten.
pub(crate) struct Links {
    /// Links by peer and lane; `None` for this rank itself, and for links not made yet.
    made: Vec<Option<Box<dyn Link>>>,
    make: Option<LinkMaker>,
}

impl Links {
    pub(super) fn new(made: Vec<Option<Box<dyn Link>>>) -> Links {
        Links { made, make: None }
    }

    /// Sets the function that makes missing links on demand.
    pub(super) fn set_maker(&mut self, make: LinkMaker) {
        self.make = Some(make);
    }

    /// Returns the sum of the counters of all links.
    pub(crate) fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.iter().for_each(|link| sum += link.counters());
        sum
    }

    /// Returns the sum of the poll counters of all links.
    pub(crate) fn poll_counters(&self) -> PollCounters {
        let mut sum = PollCounters::default();
        self.iter().for_each(|link| sum += link.poll_counters());
        sum
    }

    /// Returns the counters of existing links, by index.
    pub(crate) fn counters_by_index(&self) -> impl Iterator<Item = (usize, Counters)> {
        let there = self.made.iter().enumerate();
        there.filter_map(|(index, link)| Some((index, link.as_ref()?.counters())))
    }

    /// Returns the existing links.
    pub(super) fn iter(&self) -> impl Iterator<Item = &dyn Link> {
        self.made.iter().flatten().map(AsRef::as_ref)
    }

    /// Returns the existing links.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Link>> {
        self.made.iter_mut().flatten()
    }

    /// Returns the link with an index, to a reachable peer.
    #[inline]
    pub(super) fn at(&mut self, index: usize) -> &mut Box<dyn Link> {
        let link = &mut self.made[index];
        if link.is_none() {
            *link = self.make.as_mut().map(|make| make(index));
        }
        link.as_mut().expect("a link to every peer")
    }

    /// Replaces the link with an index by what is made of it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn wrap(&mut self, index: usize, wrap: impl FnOnce(Box<dyn Link>) -> Box<dyn Link>) {
        self.at(index);
        self.made[index] = self.made[index].take().map(wrap);
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
