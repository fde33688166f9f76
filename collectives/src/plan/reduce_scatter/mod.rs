//! Block `r` of everyone, reduced, to rank `r`.

pub mod direct;
pub mod ring;
