//! Passes: rewriting of a plan's steps to others that compute the same.
//!
//! They rewrite the steps of a planner, before the builder derives their order, so they work for one rank's
//! part of a plan as for all. Several passes are applied in this order: packing of messages (`quantize`),
//! segments (`segment`), replicas (`replicate`), stripes (`stripe`). At the end, sends that may
//! [follow](fuse()) a receive are marked.

pub(crate) mod fuse;
pub(crate) mod quantize;
pub(crate) mod replicate;
pub(crate) mod segment;
pub(crate) mod stripe;

use crate::schedule::{DraftStep, Schedule};
use crate::spec::MAX_STEPS;
use crate::verify::structure;
use crate::weights::Weights;
use crate::{Collective, PlanError, Spec};

pub use fuse::{fuse, unfuse};

/// The reason why messages that are split over lanes are not packed as well.
pub(crate) const WHOLE_MESSAGES: &str =
    "packed chunks do not lie side by side, so they cannot be split over lanes";

/// The passes over a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cuts {
    /// Number of pieces of a chunk, processed one after the other.
    pub(crate) segments: u32,
    /// Number of copies of the plan, each with a piece of every segment.
    pub(crate) replicas: u8,
    /// The shares of the lanes in every message.
    pub(crate) weights: Weights,
}

impl Cuts {
    /// No passes.
    pub(crate) const NONE: Cuts = Cuts { segments: 1, replicas: 1, weights: Weights::ONE };

    pub(crate) const fn of(spec: &Spec) -> Cuts {
        Cuts { segments: spec.segments(), replicas: spec.replicas(), weights: spec.weights() }
    }

    const fn is_none(self) -> bool {
        self.segments == 1 && self.replicas == 1 && self.weights.lanes() == 1
    }

    /// Returns the number of pieces that a chunk becomes.
    fn pieces(self) -> u32 {
        self.segments.saturating_mul(u32::from(self.replicas)).saturating_mul(self.weights.sum())
    }

    /// Returns the shape of a schedule of `steps` steps once its chunks are cut.
    ///
    /// # Errors
    /// [`PlanError::TooLarge`], [`PlanError::Lanes`].
    pub(crate) fn shape(self, shape: Schedule, ranks: u32, steps: u64) -> Result<Schedule, PlanError> {
        let (collective, lanes) = (shape.collective, self.lanes(shape.collective, shape.lanes)?);
        let copies = u64::from(self.segments) * u64::from(self.replicas) * u64::from(self.weights.lanes());
        let steps = steps * copies;
        let shape = Schedule { chunks: shape.chunks.saturating_mul(self.pieces()), lanes, ..shape };
        let too_large = steps > MAX_STEPS || structure::check_shape(&shape, u64::from(ranks)).is_err();
        if !self.is_none() && too_large {
            return Err(PlanError::TooLarge { collective, segments: self.segments, steps });
        }
        Ok(shape)
    }

    fn lanes(self, collective: Collective, lanes: u8) -> Result<u8, PlanError> {
        let lanes = u32::from(lanes) * u32::from(self.replicas) * u32::from(self.weights.lanes());
        u8::try_from(lanes).map_err(|_| PlanError::Lanes { collective, lanes })
    }

    /// Applies the passes to a rank's steps.
    pub(crate) fn steps(self, mut steps: Vec<DraftStep>) -> Vec<DraftStep> {
        if self.segments > 1 {
            steps = segment::cut(&steps, self.segments);
        }
        if self.replicas > 1 {
            steps = replicate::deal(&steps, self.replicas);
        }
        if self.weights.lanes() > 1 {
            steps = stripe::split(&steps, self.weights);
        }
        steps
    }
}
