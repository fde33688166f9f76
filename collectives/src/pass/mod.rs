//! Passes: from a schedule to a schedule that computes the same in another way.

mod segment;

pub use segment::segment;
