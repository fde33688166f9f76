//! Names of steps.

use super::{Schedule, Step};

/// A step of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StepId {
    /// The rank.
    pub(crate) rank: u32,
    /// The index within the rank's program.
    pub(crate) step: u32,
}

impl StepId {
    /// The step itself.
    pub(crate) fn of(self, schedule: &Schedule) -> &Step {
        &schedule.programs[self.rank as usize].steps[self.step as usize]
    }
}
