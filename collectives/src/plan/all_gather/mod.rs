//! Everyone's block to everyone.

pub mod direct;
pub mod ring;
