//! The drivers: ways to get links between ranks.

mod endpoint;
mod home;
pub mod local;
pub mod mixed;
mod preferred;
mod pull;
pub mod rehearsal;
mod ring_link;
pub mod shm;
mod silence;
pub mod tcp;
pub mod verbs;

pub use endpoint::{Drive, Endpoint, Lease, RailInfo};
pub use home::Home;
pub use preferred::{Preferred, Tell};
pub use silence::{SILENCE, SILENCE_MOST, silence};
