//! What a driver without shared memory offers a rank while the ranks come together.
//!
//! The ranks' side channel carries what [`Endpoint::introduction`] gives to everyone, and everyone's to
//! [`Endpoint::connect`]; links exist from then on. No link is used before all ranks have connected, which the side
//! channel makes sure of.

use crate::{Link, TransportError, memory::Slab};
use std::fmt::Debug;

/// One rank's part of a driver. It stays alive as long as its links.
pub trait Endpoint: Debug + Send {
    /// What the peers must know to reach this rank.
    fn introduction(&self) -> Vec<u8>;

    /// Gets ready to reach every peer, and to be reached. `introductions` are in rank order, our own among them.
    ///
    /// # Errors
    /// When a peer can't be reached, or its introduction isn't one.
    fn connect(&mut self, introductions: &[Vec<u8>]) -> Result<(), TransportError>;

    /// The link to `peer` on `lane`. To be made once at each end, after [`Endpoint::connect`].
    fn link(&mut self, peer: u32, lane: u8) -> Box<dyn Link>;

    /// The memory that this driver's links move without copying it.
    fn slab(&self) -> &Slab;
}
