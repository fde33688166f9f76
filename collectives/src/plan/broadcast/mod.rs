//! Planners of broadcast: every rank receives the root's block.

pub mod binomial;
pub mod chain;
pub mod direct;
pub mod double_tree;
pub mod knomial;
pub mod scatter_all_gather;
pub mod spanning_tree;
