//! Passes over finished schedules: segments, replicas and stripes.
//!
//! A planner's steps go through these passes before the builder derives their order. Here the steps of a
//! finished schedule go through them again, and the builder derives the order anew.

use crate::{
    PlanError, Weights,
    analysis::{Flow, Matching},
    builder::Builder,
    pass::{Cuts, WHOLE_MESSAGES},
    schedule::{Schedule, StepId},
    verify::structure,
};
use topology::Rank;

/// Makes `replicas` copies of `schedule`, each with an equal part of every chunk, on lanes of their own.
///
/// # Errors
/// [`PlanError::Replicas`] for none, [`PlanError::Lanes`] and [`PlanError::TooLarge`] for too many, and
/// [`PlanError::Unsegmentable`] when the schedule is malformed or not safe with zero credits.
pub fn replicate(schedule: &Schedule, replicas: u8) -> Result<Schedule, PlanError> {
    if replicas == 0 {
        return Err(PlanError::Replicas { collective: schedule.collective, replicas });
    }
    apply(Cuts { replicas, ..Cuts::NONE }, schedule)
}

/// Cuts every chunk of `schedule` into `segments` pieces. The stage of a step, which a planner would know, is
/// the length of the longest chain that ends at it.
///
/// # Errors
/// [`PlanError::Segments`] for none, [`PlanError::TooLarge`] for too many to list, and
/// [`PlanError::Unsegmentable`] when the schedule is malformed or not safe with zero credits.
pub fn segment(schedule: &Schedule, segments: u32) -> Result<Schedule, PlanError> {
    if segments == 0 {
        return Err(PlanError::Segments { collective: schedule.collective, segments });
    }
    apply(Cuts { segments, ..Cuts::NONE }, schedule)
}

/// Splits the messages of `schedule` over lanes by these shares.
///
/// # Errors
/// [`PlanError::Lanes`] and [`PlanError::TooLarge`] when there would be too many lanes or pieces, and
/// [`PlanError::Unsegmentable`] when the schedule is malformed or not safe with zero credits.
pub fn stripe(schedule: &Schedule, weights: Weights) -> Result<Schedule, PlanError> {
    if let Some(packing) = schedule.packing.filter(|_| weights.lanes() > 1) {
        let (collective, codec, why) = (schedule.collective, packing.codec, WHOLE_MESSAGES);
        return Err(PlanError::Unpackable { collective, codec, why });
    }
    apply(Cuts { weights, ..Cuts::NONE }, schedule)
}

/// Applies passes to a finished schedule.
fn apply(cuts: Cuts, schedule: &Schedule) -> Result<Schedule, PlanError> {
    let collective = schedule.collective;
    let unsegmentable = || PlanError::Unsegmentable { algorithm: schedule.algorithm.clone(), collective };
    structure::check(schedule).map_err(|_| unsegmentable())?;
    let matching = Matching::new(schedule).map_err(|_| unsegmentable())?;
    let flow = Flow::new(schedule, &matching, 0).map_err(|_| unsegmentable())?;
    let shape = Schedule { programs: Vec::new(), ..schedule.clone() };
    let mut builder = Builder::with_shape(shape, schedule.ranks(), cuts);
    for (rank, program) in (0..).zip(&schedule.programs) {
        for (index, step) in (0..).zip(&program.steps) {
            builder.stage(flow.stages[matching.number(StepId { rank, step: index })]);
            builder.step(Rank(rank), step.action, step.lane);
        }
    }
    builder.finish()
}
