//! Stripes: every message is split over lanes of different speeds, each with its own share.
//!
//! With shares 3:1 a chunk becomes four pieces; of a message on lane `l`, the first three travel on lane `2l`
//! and the last one on lane `2l + 1`. Steps without a message stay whole, and wait for all stripes that they
//! need.
//!
//! The stripes of a message follow each other on both sides, each on a lane with those of other messages in
//! the same order as before. So stripes can follow one another wherever whole messages could: no deadlock
//! arises.

use crate::schedule::{ChunkRange, DraftStep};
use crate::weights::Weights;

/// The steps with their messages split.
pub(super) fn split(steps: &[DraftStep], weights: Weights) -> Vec<DraftStep> {
    let pieces = weights.sum();
    let mut split = Vec::with_capacity(steps.len() * usize::from(weights.lanes()));
    for step in steps {
        if step.action.message().is_none() {
            let whole = |range: ChunkRange| ChunkRange {
                first: range.first * pieces,
                len: range.len * pieces,
                ..range
            };
            split.push(DraftStep { action: step.action.map_ranges(whole), ..*step });
            continue;
        }
        for chunk in 0..step.action.payload().map_or(1, |range| range.len) {
            for (stripe, (before, share)) in (0..).zip(weights.shares()) {
                let part = |range: ChunkRange| {
                    let first = (range.first + chunk) * pieces + before;
                    ChunkRange { first, len: share, ..range }
                };
                let lane = step.lane * weights.lanes() + stripe;
                split.push(DraftStep { action: step.action.map_ranges(part), lane, stage: step.stage });
            }
        }
    }
    split
}
