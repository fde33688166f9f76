//! Collective communication for Macs and PCs wired together with Thunderbolt.

pub mod launch;
