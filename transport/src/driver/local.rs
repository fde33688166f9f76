//! Driver for ranks that are threads of one process.

use super::ring_link::RingLink;
use crate::{
    Link, TransportError,
    memory::{Arena, ArenaLayout},
};

/// Allocates one arena per rank.
///
/// # Errors
/// [`TransportError::Memory`] if the memory can't be allocated.
pub fn arenas(layout: ArenaLayout) -> Result<Vec<Arena>, TransportError> {
    (0..layout.ranks).map(|_| Arena::private(layout)).collect()
}

/// Returns the link from `rank` to `peer` on `lane`. Each end must call this exactly once per link.
#[must_use]
pub fn link(arenas: &[Arena], rank: u32, peer: u32, lane: u8) -> Box<dyn Link> {
    Box::new(RingLink::new(
        "local",
        (rank, &arenas[rank as usize]),
        (peer, &arenas[peer as usize]),
        lane,
        None,
    ))
}
