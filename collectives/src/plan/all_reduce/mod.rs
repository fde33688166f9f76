//! Planners of all-reduce: every rank receives the reduction of all blocks.

pub mod bidirectional_ring;
pub mod double_binary_tree;
pub mod hierarchical;
pub mod mesh;
pub mod multi_ring;
pub mod rabenseifner;
pub mod recursive_doubling;
pub mod reduce_broadcast;
pub mod reduce_scatter_all_gather;
pub mod ring;
pub mod spanning_tree;
pub mod torus;
