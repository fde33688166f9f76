//! Everyone's block, side by side, to the root.

pub mod binomial;
pub mod chain;
pub mod direct;
