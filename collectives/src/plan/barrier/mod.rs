//! Planners of the barrier: no rank leaves before every rank has entered.

pub mod binomial;
pub mod dissemination;
pub mod mesh;
pub mod recursive_doubling;
pub mod ring;
pub mod spanning_tree;
