//! The blocks of the ranks up to and with the own one, reduced.

pub mod chain;
pub mod direct;
pub mod recursive_doubling;
