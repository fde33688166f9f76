//! Planners of all-gather: every rank receives the blocks of all ranks.

pub mod bidirectional_ring;
pub mod bruck;
pub mod direct;
pub mod hierarchical;
pub mod neighbour_exchange;
pub mod pat;
pub mod recursive_doubling;
pub mod ring;
pub mod spanning_tree;
