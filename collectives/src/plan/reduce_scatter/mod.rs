//! Planners of reduce-scatter: rank `r` receives the reduction of block `r` of all ranks.

pub mod bidirectional_ring;
pub mod direct;
pub mod pairwise;
pub mod pat;
pub mod recursive_halving;
pub mod ring;
pub mod spanning_tree;
