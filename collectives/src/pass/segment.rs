//! Cuts every chunk into segments, so that transfers and reductions overlap.
//!
//! A block of `chunks` chunks becomes one of `chunks * k`, and each step on a chunk becomes `k` steps on its
//! pieces. A piece depends on what the step depended on, restricted to the same piece, so that stages
//! overlap: while a rank works on piece 2 of a stage, the next stage has piece 1.
//!
//! Steps are listed in the order in which a pipeline would run them: by stage + segment, then by stage, then as they
//! were listed. A message has the same stage on both sides, and in every FIFO stages never go down, so sends still meet
//! their receives. Nor do they go down along a dependency: everything waits only for what comes earlier in that order,
//! so a schedule that was safe with zero credits stays so.
//!
//! A step over several chunks is first split into steps over one.

use crate::PlanError;
use crate::analysis::{Flow, Matching, StepId};
use crate::schedule::{Action, Builder, ChunkRange, Drafted, Schedule};
use crate::spec::MAX_STEPS;
use crate::verify::structure;
use topology::Rank;

/// Cuts every chunk of `schedule` into `segments` pieces. Planners have the same done to theirs while they are built,
/// with the stages that they know; here stages are found: the longest chain that ends at each step.
///
/// # Errors
/// [`PlanError::Segments`] when there would be none, [`PlanError::TooLarge`] when there would be too many to
/// list, and [`PlanError::Unsegmentable`] when the schedule is malformed or not safe with zero credits.
pub fn segment(schedule: &Schedule, segments: u32) -> Result<Schedule, PlanError> {
    let collective = schedule.collective;
    let unsegmentable = || PlanError::Unsegmentable { algorithm: schedule.algorithm.clone(), collective };
    structure::check(schedule).map_err(|_| unsegmentable())?;
    let matching = Matching::new(schedule).map_err(|_| unsegmentable())?;
    let flow = Flow::new(schedule, &matching, 0).map_err(|_| unsegmentable())?;
    if segments == 0 {
        return Err(PlanError::Segments { collective, segments });
    }
    let shape = Schedule { programs: Vec::new(), ..schedule.clone() };
    let mut builder = Builder::with_shape(shape, schedule.ranks(), segments);
    for (rank, program) in (0..).zip(&schedule.programs) {
        for (index, step) in (0..).zip(&program.steps) {
            builder.stage(flow.stages[matching.number(StepId { rank, step: index })]);
            builder.step(Rank(rank), step.action, step.lane);
        }
    }
    builder.finish()
}

/// The shape of a schedule of so many steps once its chunks are cut.
///
/// # Errors
/// [`PlanError::TooLarge`].
pub(crate) fn cut_shape(
    shape: Schedule,
    ranks: u32,
    segments: u32,
    steps: u64,
) -> Result<Schedule, PlanError> {
    let collective = shape.collective;
    let steps = steps * u64::from(segments);
    let shape = Schedule { chunks: shape.chunks.saturating_mul(segments), ..shape };
    let too_large = steps > MAX_STEPS || structure::check_shape(&shape, u64::from(ranks)).is_err();
    if segments > 1 && too_large {
        return Err(PlanError::TooLarge { collective, segments, steps });
    }
    Ok(shape)
}

/// The pieces of a rank's steps, in the order of a pipeline.
pub(crate) fn cut(steps: &[Drafted], segments: u32) -> Vec<Drafted> {
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
        Drafted { action: piece(step.action, chunk, segment, segments), stage, ..step }
    };
    pieces.into_iter().map(cut).collect()
}

/// Segment `segment` of the `chunk`-th chunk that an action works on.
fn piece(action: Action, chunk: u32, segment: u32, segments: u32) -> Action {
    action.map_ranges(|range| ChunkRange::one(range.buffer, (range.first + chunk) * segments + segment))
}
