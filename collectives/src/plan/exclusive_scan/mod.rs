//! The blocks of the ranks before the own one, reduced.

pub mod chain;
pub mod direct;
pub mod recursive_doubling;
