//! The root's block to everyone.

pub mod binomial;
pub mod chain;
pub mod direct;
pub mod double_tree;
pub mod knomial;
pub mod scatter_all_gather;
