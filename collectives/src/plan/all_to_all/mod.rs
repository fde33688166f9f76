//! Block `j` of rank `i` to block `i` of rank `j`.

pub mod direct;
pub mod ring;
