//! Segments: every chunk is cut, so that transfers and reductions overlap.
//!
//! A block of `chunks` chunks becomes one of `chunks * k`, and each step on a chunk becomes `k` steps on its
//! pieces. A piece depends on the same pieces of the step's dependencies, so that stages overlap: while a
//! rank works on piece 2 of a stage, the next stage has piece 1.
//!
//! Steps are listed in the order in which a pipeline would run them: by stage + segment, then by stage, then
//! in list order. A message has the same stage on both sides, and in every FIFO stages never go down, so
//! sends still meet their receives. Nor do they go down along a dependency: every step waits only for earlier
//! ones in that order, so a schedule that was safe with zero credits stays so.
//!
//! A step over several chunks is first split into steps over one.

use crate::schedule::{Action, ChunkRange, DraftStep};

/// The pieces of a rank's steps, in the order of a pipeline.
pub(super) fn cut(steps: &[DraftStep], segments: u32) -> Vec<DraftStep> {
    let mut pieces = Vec::new();
    for (index, step) in (0u32..).zip(steps) {
        let len = step.action.ranges().next().map_or(1, |range| range.len);
        for chunk in 0..len {
            pieces.extend(
                (0..segments).map(|segment| (step.stage + segment, step.stage, index, chunk, segment)),
            );
        }
    }
    pieces.sort_unstable();
    let cut = |(_, stage, index, chunk, segment): (u32, u32, u32, u32, u32)| {
        let step = steps[index as usize];
        DraftStep { action: piece(step.action, chunk, segment, segments), stage, ..step }
    };
    pieces.into_iter().map(cut).collect()
}

/// Segment `segment` of the `chunk`-th chunk that an action works on.
fn piece(action: Action, chunk: u32, segment: u32, segments: u32) -> Action {
    action.map_ranges(|range| ChunkRange::one(range.buffer, (range.first + chunk) * segments + segment))
}
