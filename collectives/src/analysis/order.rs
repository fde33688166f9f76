//! Which step of a rank is complete before which other one starts.
//!
//! Two things order the steps of a rank: `after`, and the FIFO of each (peer, direction, lane). Receives of
//! one FIFO are processed one by one. Sends of one FIFO start in order and complete in order, though several
//! may be under way; that is enough to let an edge between them count like the others, since two sends never
//! conflict: a path into the later send ends where the earlier one starts, and a path out of it begins where
//! the earlier one has completed, too.
//!
//! The answer is kept as a vector clock: steps are dealt into chains whose members are ordered among
//! themselves (each FIFO is one; local steps share chains where they happen to be ordered), and each step
//! knows how many members of every chain precede it.

use crate::schedule::{Action, Direction};
use std::collections::HashMap;
use topology::Rank;

/// The steps of one rank so far, partially ordered.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// The chain of each FIFO.
    fifos: HashMap<(Rank, Direction, u8), u32>,
    /// The chains of local steps.
    local: Vec<u32>,
    /// The last step of each chain.
    tails: Vec<u32>,
    /// Each step's chain and its place therein.
    places: Vec<(u32, u32)>,
    /// `clocks[s][c]`: how many members of chain `c` precede step `s`. Chains younger than `s` are left out.
    clocks: Vec<Box<[u32]>>,
}

impl Order {
    /// The step that precedes the next one because both use the same FIFO.
    pub(crate) fn fifo_tail(&self, action: &Action, lane: u8) -> Option<u32> {
        let (peer, direction) = action.message()?;
        self.fifos.get(&(peer, direction, lane)).map(|chain| self.tails[*chain as usize])
    }

    /// Is step `a` complete before step `b` starts?
    pub(crate) fn precedes(&self, a: u32, b: u32) -> bool {
        let (chain, place) = self.places[a as usize];
        self.clocks[b as usize].get(chain as usize).is_some_and(|count| *count > place)
    }

    /// How many of the first messages of a step's FIFO are complete before `after` lets the step start.
    pub(crate) fn settled(&self, step: u32, after: &[u32]) -> u32 {
        let (fifo, _) = self.places[step as usize];
        let known = |before: &u32| {
            let (chain, place) = self.places[*before as usize];
            let count = self.clocks[*before as usize].get(fifo as usize).copied().unwrap_or(0);
            if chain == fifo { place + 1 } else { count }
        };
        after.iter().map(known).max().unwrap_or(0)
    }

    /// The place of a step in its FIFO, and a number for the FIFO.
    pub(crate) fn place(&self, step: u32) -> (u32, u32) {
        let (chain, place) = self.places[step as usize];
        (place, chain)
    }

    /// Adds the next step.
    pub(crate) fn push(&mut self, action: &Action, lane: u8, after: &[u32]) {
        let step = self.places.len() as u32;
        let fifo = self.fifo_tail(action, lane);
        let mut clock = vec![0; self.tails.len()];
        for before in after.iter().copied().chain(fifo) {
            for (mine, theirs) in clock.iter_mut().zip(&self.clocks[before as usize]) {
                *mine = (*mine).max(*theirs);
            }
            let (chain, place) = self.places[before as usize];
            clock[chain as usize] = clock[chain as usize].max(place + 1);
        }
        self.clocks.push(clock.into_boxed_slice());
        let chain = self.chain_for(action, lane, step);
        let place = match self.tails.get_mut(chain as usize) {
            Some(tail) => {
                let place = self.places[*tail as usize].1 + 1;
                *tail = step;
                place
            }
            None => {
                self.tails.push(step);
                0
            }
        };
        self.places.push((chain, place));
    }

    /// The chain that the newest step joins; the number past the end stands for a new one.
    fn chain_for(&mut self, action: &Action, lane: u8, step: u32) -> u32 {
        let fresh = self.tails.len() as u32;
        match action.message() {
            Some((peer, direction)) => *self.fifos.entry((peer, direction, lane)).or_insert(fresh),
            None => {
                let joinable = |chain: &u32| self.precedes(self.tails[*chain as usize], step);
                let found = self.local.iter().copied().find(joinable);
                found.unwrap_or_else(|| {
                    self.local.push(fresh);
                    fresh
                })
            }
        }
    }
}
