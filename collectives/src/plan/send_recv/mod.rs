//! Planners of send-receive: every rank sends its block to the next rank.

pub mod shift;
pub mod spanning_tree;
