//! Block `r` of the root to rank `r`.

pub mod binomial;
pub mod chain;
pub mod direct;
