//! Everyone's block, reduced, to the root.

pub mod binomial;
pub mod chain;
