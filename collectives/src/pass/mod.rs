//! Passes: from a plan to a plan that computes the same in another way.

pub(crate) mod segment;

pub use segment::segment;
