//! Block `r` of the root to rank `r`.

pub mod chain;
pub mod direct;
