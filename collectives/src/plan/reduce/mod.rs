//! Planners of reduce: the root receives the reduction of all blocks.

pub mod binomial;
pub mod chain;
pub mod direct;
pub mod double_tree;
pub mod knomial;
pub mod reduce_scatter_gather;
pub mod spanning_tree;
