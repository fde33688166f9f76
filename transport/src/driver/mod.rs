//! The drivers: ways to get links between ranks.

pub mod local;
mod pull;
mod ring_link;
pub mod shm;
pub mod verbs;
