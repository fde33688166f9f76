//! Splits every message over lanes that differ in speed, each with a share of its own.
//!
//! With shares 3:1 a chunk becomes four pieces; of a message on lane `l`, the first three go on lane `2l` and the last one
//! on lane `2l + 1`. Steps without a message stay whole, and wait for all stripes that they need.
//!
//! The stripes of a message follow each other on both sides, each on a lane with those of other messages in the same
//! order as before. So where whole messages could follow one another, stripes can: no deadlock comes about.

use super::Cuts;
use crate::PlanError;
use crate::schedule::{ChunkRange, Drafted, Schedule};
use crate::weights::Weights;

/// Splits the messages of `schedule` over lanes by these shares.
///
/// # Errors
/// [`PlanError::Lanes`] and [`PlanError::TooLarge`] when there would be too many lanes or pieces, and
/// [`PlanError::Unsegmentable`] when the schedule is malformed or not safe with zero credits.
pub fn stripe(schedule: &Schedule, weights: Weights) -> Result<Schedule, PlanError> {
    if let Some(packing) = schedule.packing.filter(|_| weights.lanes() > 1) {
        let (collective, codec, why) = (schedule.collective, packing.codec, super::WHOLE_MESSAGES);
        return Err(PlanError::Unpackable { collective, codec, why });
    }
    Cuts { weights, ..Cuts::NONE }.apply(schedule)
}

/// The steps with their messages split.
pub(super) fn split(steps: &[Drafted], weights: Weights) -> Vec<Drafted> {
    let pieces = weights.sum();
    let mut split = Vec::with_capacity(steps.len() * usize::from(weights.lanes()));
    for step in steps {
        if step.action.message().is_none() {
            let whole = |range: ChunkRange| ChunkRange {
                first: range.first * pieces,
                len: range.len * pieces,
                ..range
            };
            split.push(Drafted { action: step.action.map_ranges(whole), ..*step });
            continue;
        }
        for chunk in 0..step.action.payload().map_or(1, |range| range.len) {
            for (stripe, (before, share)) in (0..).zip(weights.shares()) {
                let part = |range: ChunkRange| {
                    let first = (range.first + chunk) * pieces + before;
                    ChunkRange { first, len: share, ..range }
                };
                let lane = step.lane * weights.lanes() + stripe;
                split.push(Drafted { action: step.action.map_ranges(part), lane, stage: step.stage });
            }
        }
    }
    split
}
