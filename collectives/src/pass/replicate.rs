//! Replicas: copies of a whole plan on several lanes, each with an equal part of every chunk.
//!
//! Copy `j` of a message on lane `l` is on lane `l * k + j`, and carries piece `j` of each of its chunks. The
//! copies share no memory and no FIFO, so each runs as if it were alone: it neither waits for another one nor
//! can it cause a deadlock. So lanes that are cables of their own are all in use at any time.

use crate::schedule::{ChunkRange, DraftStep};

/// The steps of all copies. The copies of a step follow each other.
pub(super) fn deal(steps: &[DraftStep], replicas: u8) -> Vec<DraftStep> {
    let pieces = u32::from(replicas);
    let copies = steps.iter().flat_map(|step| {
        let len = step.action.ranges().next().map_or(1, |range| range.len);
        (0..len).flat_map(move |chunk| {
            (0..replicas).map(move |copy| {
                let lane = if step.action.message().is_some() { step.lane * replicas + copy } else { 0 };
                let piece = |range: ChunkRange| {
                    ChunkRange::one(range.buffer, (range.first + chunk) * pieces + u32::from(copy))
                };
                DraftStep { action: step.action.map_ranges(piece), lane, stage: step.stage }
            })
        })
    });
    copies.collect()
}
