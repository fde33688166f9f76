//! The planner of send-receive: every rank sends its block to the next rank.

pub mod shift;
