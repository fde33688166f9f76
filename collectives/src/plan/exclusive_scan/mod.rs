//! The blocks of the ranks before the own one, reduced.

pub mod chain;
