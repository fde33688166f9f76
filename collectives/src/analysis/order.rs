//! The order of the steps of a rank: which one is complete before which other one starts.
//!
//! Two things order the steps of a rank: `after`, and the FIFO of each (peer, direction, lane). Receives of
//! one FIFO are processed one by one. Sends of one FIFO start in order and complete in order, though several
//! may be in flight; that is enough to treat an edge between them like the others, since two sends never
//! conflict: a path into the later send ends where the earlier one starts, and a path out of it begins where
//! the earlier one has completed, too.
//!
//! With every step added as a [local](Turn::Local) one, the result holds without FIFOs: the builder does so,
//! so that data is safe even where messages overtake each other.
//!
//! The result is a vector clock: steps are assigned to chains whose members are ordered among themselves
//! (each FIFO is one; other steps join a chain that ends before them, if there is one), and each step knows
//! the number of members of every chain before it. Clocks are sparse, since most steps come after few: a rank
//! that exchanges messages with a thousand others, each for itself, has a thousand short ones. Where many
//! steps join again and again, as in a sum of many messages, the chains that have ended there are continued,
//! so there are no more chains than mutually unordered steps.

use std::ops::Range;

/// The steps of one rank so far, partially ordered.
#[derive(Debug, Default)]
pub(crate) struct Order {
    chains: Vec<Chain>,
    /// Each step's chain and its place therein.
    places: Vec<(u32, u32)>,
    /// The numbers of members per chain before a step, for all steps in a row. Chains with none are left out.
    clocks: Vec<(u32, u32)>,
    /// The end of each step's clock.
    ends: Vec<u32>,
    /// A clock under construction: members of each chain; 0 for those that `touched` leaves out.
    counts: Vec<u32>,
    touched: Vec<u32>,
}

/// Steps that are ordered among themselves.
#[derive(Clone, Copy, Debug)]
struct Chain {
    /// Number of members.
    len: u32,
    /// Whether the members are those of a FIFO.
    fifo: bool,
}

/// The predecessor of a step beside those it comes `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// None.
    Local,
    /// The first step of its FIFO.
    First,
    /// The step before it in its FIFO.
    Behind(u32),
}

impl Order {
    /// Forgets all steps.
    pub(crate) fn clear(&mut self) {
        let Order { chains, places, clocks, ends, counts, touched } = self;
        chains.clear();
        places.clear();
        clocks.clear();
        ends.clear();
        counts.clear();
        touched.clear();
    }

    /// Whether step `a` is complete before step `b` starts.
    pub(crate) fn precedes(&self, a: u32, b: u32) -> bool {
        let (chain, place) = self.places[a as usize];
        self.preceding(b, chain) > place
    }

    /// Returns the number of members of a chain that precede a step.
    fn preceding(&self, step: u32, chain: u32) -> u32 {
        let clock = &self.clocks[self.clock(step)];
        clock.binary_search_by_key(&chain, |entry| entry.0).map_or(0, |at| clock[at].1)
    }

    /// Returns the range of a step's clock.
    fn clock(&self, step: u32) -> Range<usize> {
        let start = step.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        start as usize..self.ends[step as usize] as usize
    }

    /// Removes steps that other steps among them come after.
    pub(crate) fn keep_latest(&mut self, steps: &mut Vec<u32>) {
        if steps.len() < 2 {
            return;
        }
        steps.iter().for_each(|step| self.gather(*step));
        let Order { places, counts, .. } = self;
        steps.retain(|step| {
            let (chain, place) = places[*step as usize];
            counts[chain as usize] <= place
        });
        self.touched.drain(..).for_each(|chain| self.counts[chain as usize] = 0);
    }

    /// Merges the clock of a step into the clock under construction.
    fn gather(&mut self, step: u32) {
        for at in self.clock(step) {
            let (chain, count) = self.clocks[at];
            self.count(chain, count);
        }
    }

    fn count(&mut self, chain: u32, count: u32) {
        let known = &mut self.counts[chain as usize];
        if *known == 0 {
            self.touched.push(chain);
        }
        *known = count.max(*known);
    }

    /// Returns how many of the first messages of a step's FIFO are complete before `after` lets the step
    /// start.
    pub(crate) fn settled(&self, step: u32, after: &[u32]) -> u32 {
        let (fifo, _) = self.places[step as usize];
        let known = |before: &u32| {
            let (chain, place) = self.places[*before as usize];
            if chain == fifo { place + 1 } else { self.preceding(*before, fifo) }
        };
        after.iter().map(known).max().unwrap_or(0)
    }

    /// Returns the position of a step in its FIFO, and a number for the FIFO.
    pub(crate) fn place(&self, step: u32) -> (u32, u32) {
        let (chain, place) = self.places[step as usize];
        (place, chain)
    }

    /// Adds the next step.
    pub(crate) fn push(&mut self, turn: Turn, after: &[u32]) {
        match turn {
            Turn::Local => {
                self.tick(after.iter().copied());
                let chain = self.chain_after(after);
                self.join(chain, false);
            }
            Turn::First => {
                self.tick(after.iter().copied());
                self.join(self.chains.len() as u32, true);
            }
            Turn::Behind(before) => {
                self.tick(after.iter().copied().chain([before]));
                self.join(self.places[before as usize].0, true);
            }
        }
    }

    /// Adds the clock of a step that comes after several steps.
    fn tick(&mut self, mut after: impl Iterator<Item = u32>) {
        let (first, second) = (after.next(), after.next());
        if let (Some(only), None) = (first, second) {
            return self.tick_after(only);
        }
        for before in first.into_iter().chain(second).chain(after) {
            self.gather(before);
            let (chain, place) = self.places[before as usize];
            self.count(chain, place + 1);
        }
        self.touched.sort_unstable();
        for chain in self.touched.drain(..) {
            self.clocks.push((chain, std::mem::take(&mut self.counts[chain as usize])));
        }
        self.ends.push(self.clocks.len() as u32);
    }

    /// Adds the clock of a step that comes after one step, as most do: no clocks are merged.
    fn tick_after(&mut self, before: u32) {
        let (start, clock) = (self.clocks.len(), self.clock(before));
        self.clocks.extend_from_within(clock);
        let (chain, place) = self.places[before as usize];
        match self.clocks[start..].binary_search_by_key(&chain, |entry| entry.0) {
            Ok(at) => self.clocks[start + at].1 = place + 1,
            Err(at) => self.clocks.insert(start + at, (chain, place + 1)),
        }
        self.ends.push(self.clocks.len() as u32);
    }

    /// Puts the newest step at the end of a chain, or of a new one if no chain has this number.
    fn join(&mut self, chain: u32, fifo: bool) {
        if chain as usize == self.chains.len() {
            self.chains.push(Chain { len: 0, fifo });
            self.counts.push(0);
        }
        let len = &mut self.chains[chain as usize].len;
        self.places.push((chain, *len));
        *len += 1;
    }

    /// Returns a chain, of no FIFO, whose members all precede the newest step, which comes after these; else
    /// a new one.
    fn chain_after(&self, after: &[u32]) -> u32 {
        let ends = |chain: u32, count: u32| {
            let Chain { len, fifo } = self.chains[chain as usize];
            !fifo && len == count
        };
        // Most often it is the chain of a step that it comes after.
        let mut direct = after.iter().map(|before| self.places[*before as usize]);
        if let Some((chain, _)) = direct.find(|(chain, place)| ends(*chain, place + 1)) {
            return chain;
        }
        let clock = &self.clocks[self.clock(self.places.len() as u32)];
        let ended = clock.iter().find(|(chain, count)| ends(*chain, *count));
        ended.map_or(self.chains.len() as u32, |(chain, _)| *chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_that_have_come_together_are_gone_on_with() {
        let mut order = Order::default();
        for round in 0..100 {
            // Two steps come after the sum of the previous round, and are summed up.
            let sum: Vec<u32> = (round > 0).then(|| 3 * round - 1).into_iter().collect();
            order.push(Turn::Local, &sum);
            order.push(Turn::Local, &sum);
            order.push(Turn::Local, &[3 * round, 3 * round + 1]);
        }
        assert_eq!(order.chains.len(), 2);
        assert!(order.precedes(0, 299) && order.precedes(3, 5) && order.precedes(5, 7));
        assert!(!order.precedes(3, 4) && !order.precedes(4, 3) && !order.precedes(5, 4));
    }

    #[test]
    fn a_step_between_two_of_a_fifo_does_not_become_one_of_it() {
        let mut order = Order::default();
        order.push(Turn::First, &[]);
        order.push(Turn::Local, &[0]);
        order.push(Turn::Behind(0), &[]);
        assert!(order.precedes(0, 1) && order.precedes(0, 2));
        assert!(!order.precedes(1, 2));
    }
}
