//! Copies a whole plan to several lanes, each copy with an equal part of every chunk.
//!
//! Copy `j` of a message on lane `l` is on lane `l * k + j`, and carries piece `j` of each of its chunks. The copies touch
//! no memory in common and share no FIFO, so each runs as if it were alone: it neither waits for another one nor can it
//! bring about a deadlock. That uses lanes that are cables of their own, all of the time.

use super::Cuts;
use crate::PlanError;
use crate::schedule::{ChunkRange, Drafted, Schedule};

/// Makes `replicas` copies of `schedule`, each with so many parts less of every chunk, on lanes of their own.
///
/// # Errors
/// [`PlanError::Replicas`] for none, [`PlanError::Lanes`] and [`PlanError::TooLarge`] for too many, and
/// [`PlanError::Unsegmentable`] when the schedule is malformed or not safe with zero credits.
pub fn replicate(schedule: &Schedule, replicas: u8) -> Result<Schedule, PlanError> {
    if replicas == 0 {
        return Err(PlanError::Replicas { collective: schedule.collective, replicas });
    }
    Cuts { replicas, ..Cuts::NONE }.apply(schedule)
}

/// The steps of all copies. The copies of a step follow each other.
pub(super) fn deal(steps: &[Drafted], replicas: u8) -> Vec<Drafted> {
    let pieces = u32::from(replicas);
    let copies = steps.iter().flat_map(|step| {
        let len = step.action.ranges().next().map_or(1, |range| range.len);
        (0..len).flat_map(move |chunk| {
            (0..replicas).map(move |copy| {
                let lane = if step.action.message().is_some() { step.lane * replicas + copy } else { 0 };
                let piece = |range: ChunkRange| {
                    ChunkRange::one(range.buffer, (range.first + chunk) * pieces + u32::from(copy))
                };
                Drafted { action: step.action.map_ranges(piece), lane, stage: step.stage }
            })
        })
    });
    copies.collect()
}
