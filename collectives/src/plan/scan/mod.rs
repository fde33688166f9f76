//! Planners of the scan: every rank receives the reduction of the blocks of lower ranks and its own.

pub mod chain;
pub mod direct;
pub mod recursive_doubling;
pub mod spanning_tree;
