//! The blocks of the ranks up to and with the own one, reduced.

pub mod chain;
