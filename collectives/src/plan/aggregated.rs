//! The order of blocks in memory with which parallel aggregated trees (PAT) send each round as one message.
//!
//! Every rank's block travels down a binomial tree of distances, the largest first: from offset `x` (the
//! distance of the block from its owner) to `x + d`, for `d` = ..., 4, 2, 1, as long as `x + d` is less than
//! n. The trees differ only in the owner, so every rank treats its offsets alike. A round sends all blocks a
//! rank holds, except at most the one with the largest offset, which would exceed n. Received blocks go
//! behind the blocks already there, or in front of them if the largest offset was left out. The largest
//! offset is therefore always last, and the sent blocks are one run.

use std::collections::VecDeque;
use std::ops::Range;

/// The messages of one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Round {
    /// The distance from sender to receiver, in ranks.
    pub(super) distance: u32,
    /// The slots of the sent blocks.
    pub(super) sent: Range<u32>,
    /// The slots of these blocks on the receiver.
    pub(super) received: Range<u32>,
}

/// The slots of blocks, and the rounds.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// The offset of the block in each slot.
    pub(super) offsets: Vec<u32>,
    /// The rounds, the largest distance first.
    pub(super) rounds: Vec<Round>,
}

impl Layout {
    /// Computes the layout for `n` ranks; `n` is at least 1.
    pub(super) fn new(n: u32) -> Layout {
        let mut held = VecDeque::from([0]);
        let mut rounds = Vec::new();
        // The slot of the first held block, relative to the slot of offset 0.
        let mut start = 0i64;
        for level in (0..n.next_power_of_two().ilog2()).rev() {
            let distance = 1 << level;
            let last = *held.back().expect("offset 0");
            let exceeds = last + distance >= n;
            let sent: Vec<u32> = held.iter().copied().filter(|x| x + distance < n).collect();
            let (len, end) = (sent.len() as i64, start + held.len() as i64);
            let at = if exceeds { start - len } else { end };
            rounds.push((distance, start..start + len, at..at + len));
            if exceeds {
                start = at;
                sent.iter().rev().for_each(|x| held.push_front(x + distance));
            } else {
                held.extend(sent.iter().map(|x| x + distance));
            }
        }
        let slot = |at: i64| (at - start) as u32;
        let slots = |run: Range<i64>| slot(run.start)..slot(run.end);
        let round =
            |(distance, sent, received)| Round { distance, sent: slots(sent), received: slots(received) };
        Layout { offsets: held.into(), rounds: rounds.into_iter().map(round).collect() }
    }

    /// Returns the slot of offset 0, the rank's own block.
    pub(super) fn own_slot(&self) -> u32 {
        self.offsets.iter().position(|x| *x == 0).expect("offset 0") as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_brings_what_was_sent_further_and_all_offsets_come_once() {
        for n in 1..300 {
            let layout = Layout::new(n);
            let mut known = vec![layout.own_slot()];
            for Round { distance, sent, received } in &layout.rounds {
                assert_eq!(sent.len(), received.len());
                for (from, to) in sent.clone().zip(received.clone()) {
                    assert!(known.contains(&from), "n {n}: sends what it has not");
                    let (x, y) = (layout.offsets[from as usize], layout.offsets[to as usize]);
                    assert_eq!(x + distance, y, "n {n}");
                }
                known.extend(received.clone());
            }
            known.sort_unstable();
            assert!(known.into_iter().eq(0..n), "n {n}");
            let mut offsets = layout.offsets;
            offsets.sort_unstable();
            assert!(offsets.into_iter().eq(0..n), "n {n}");
        }
    }
}
