//! Block `r` of everyone, reduced, to rank `r`.

pub mod bidirectional_ring;
pub mod direct;
pub mod pairwise;
pub mod pat;
pub mod recursive_halving;
pub mod ring;
