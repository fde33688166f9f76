//! Everyone's block to the next rank.

pub mod shift;
