//! Planners of the exclusive scan: every rank receives the reduction of the blocks of lower ranks.

pub mod chain;
pub mod direct;
pub mod recursive_doubling;
pub mod spanning_tree;
