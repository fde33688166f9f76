//! What a driver without shared memory offers a rank while the ranks come together.
//!
//! The ranks' side channel carries words from everyone to everyone, round after round, until the driver has said all:
//! [`Endpoint::converse`]. Links exist from then on; no rank is through with it before all have connected.

use crate::{Link, TransportError, memory::Slab};
use std::{fmt::Debug, time::Duration};

/// One rank's part of a driver. It stays alive as long as its links.
pub trait Endpoint: Debug + Send {
    /// Takes everyone's latest words, by rank, and says the next one; `None` when all is said. Begins with no words. The
    /// last round is one that a rank enters only when it can be reached, so that whoever is through may send.
    ///
    /// # Errors
    /// When a peer can't be reached, or its words are none of ours.
    fn converse(&mut self, heard: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError>;

    /// Do these two ranks reach each other? After the conversation; the same on all ranks.
    fn connects(&self, a: u32, b: u32) -> bool;

    /// The link to `peer`, which we reach, on `lane`. To be made once at each end, after the conversation.
    fn link(&mut self, peer: u32, lane: u8) -> Box<dyn Link>;

    /// The memory that this driver's links move without copying it.
    fn slab(&self) -> &Slab;

    /// Ends it in good order: waits, for so long at most, until all that was sent has arrived, and tells the peers.
    fn close(&mut self, patience: Duration);
}
