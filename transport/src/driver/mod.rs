//! The drivers: ways to get links between ranks.

mod endpoint;
pub mod local;
pub mod mixed;
mod pull;
pub mod rehearsal;
mod ring_link;
pub mod shm;
mod silence;
pub mod tcp;
pub mod verbs;

pub use endpoint::{Endpoint, Lease, RailInfo};
pub use silence::{SILENCE, SILENCE_MOST, silence};
