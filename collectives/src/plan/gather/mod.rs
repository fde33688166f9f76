//! Planners of gather: the root receives the blocks of all ranks, in rank order.

pub mod binomial;
pub mod chain;
pub mod direct;
pub mod spanning_tree;
