//! Block `j` of rank `i` to block `i` of rank `j`.

pub mod bruck;
pub mod direct;
pub mod pairwise;
pub mod ring;
