//! Steps before their order is derived, as planners give them and passes rewrite them.

use super::Action;

/// A step without its order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftStep {
    pub(crate) action: Action,
    pub(crate) lane: u8,
    /// The position in the course of the whole plan.
    pub(crate) stage: u32,
}
