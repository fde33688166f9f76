//! The root's block to everyone.

pub mod binomial;
pub mod chain;
