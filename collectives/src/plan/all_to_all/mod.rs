//! Planners of all-to-all: block `j` of rank `i` becomes block `i` of rank `j`.

pub mod bruck;
pub mod direct;
pub mod pairwise;
pub mod ring;
pub mod spanning_tree;
