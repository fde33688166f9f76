//! Ranks that are threads of one process.

use super::ring_link::RingLink;
use crate::{
    Link, TransportError,
    memory::{Arena, ArenaLayout},
};

/// One arena per rank.
///
/// # Errors
/// When the memory is not to be had.
pub fn arenas(layout: ArenaLayout) -> Result<Vec<Arena>, TransportError> {
    (0..layout.ranks).map(|_| Arena::private(layout)).collect()
}

/// The link from `rank` to `peer` on `lane`. To be made once at each end.
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
