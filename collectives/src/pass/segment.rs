//! Cuts every chunk into segments, so that transfers and reductions overlap.
//!
//! A block of `chunks` chunks becomes one of `chunks * k`, and each step on a chunk becomes `k` steps on its
//! pieces. A piece depends on what the step depended on, restricted to the same piece, so that stages
//! overlap: while a rank works on piece 2 of a stage, the next stage has piece 1.
//!
//! Steps are listed in the order in which a pipeline would run them: by stage + segment, then by stage. A
//! message has the same stage on both sides, and two messages of one FIFO never do, so sends still meet their
//! receives; and since everything waits only for what comes earlier in that order, a schedule that was safe
//! with zero credits stays so.
//!
//! A step over several chunks is first split into steps over one.

use crate::PlanError;
use crate::analysis::{Flow, Matching, StepId};
use crate::schedule::{Action, Builder, ChunkRange, Schedule};
use crate::spec::MAX_STEPS;
use crate::verify::structure;
use topology::Rank;

/// Cuts every chunk of `schedule` into `segments` pieces.
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
    let steps = matching.total() as u64 * u64::from(segments);
    let chunks = schedule.chunks.saturating_mul(segments);
    let shape = Schedule { chunks, programs: Vec::new(), ..schedule.clone() };
    if steps > MAX_STEPS || structure::check_shape(&shape, u64::from(schedule.ranks())).is_err() {
        return Err(PlanError::TooLarge { collective, segments, steps });
    }
    let mut builder = Builder::with_shape(shape, schedule.ranks());
    for (rank, program) in schedule.programs.iter().enumerate() {
        let rank = Rank(rank as u32);
        let mut pieces = Vec::new();
        for (index, step) in program.steps.iter().enumerate() {
            let stage = flow.stages[matching.number(StepId { rank: rank.0, step: index as u32 })];
            let len = step.action.ranges().next().map_or(1, |range| range.len);
            for chunk in 0..len {
                for segment in 0..segments {
                    pieces.push((stage + segment, stage, index, chunk, segment));
                }
            }
        }
        pieces.sort_unstable();
        for (_, _, index, chunk, segment) in pieces {
            let step = &program.steps[index];
            builder.step(rank, piece(step.action, chunk, segment, segments), step.lane);
        }
    }
    Ok(builder.finish_unmarked())
}

/// Segment `segment` of the `chunk`-th chunk that an action works on.
fn piece(action: Action, chunk: u32, segment: u32, segments: u32) -> Action {
    action.map_ranges(|range| ChunkRange::one(range.buffer, (range.first + chunk) * segments + segment))
}
