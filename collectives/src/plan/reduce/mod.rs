//! Everyone's block, reduced, to the root.

pub mod binomial;
pub mod chain;
pub mod direct;
pub mod double_tree;
pub mod knomial;
pub mod reduce_scatter_gather;
