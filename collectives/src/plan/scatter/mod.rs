//! Planners of scatter: rank `r` receives block `r` of the root.

pub mod binomial;
pub mod chain;
pub mod direct;
pub mod spanning_tree;
