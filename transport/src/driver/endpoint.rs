//! Interface between the runtime and a driver: set-up rounds, links, registered memory.
//!
//! Set-up runs in rounds. In each round every rank contributes a message and receives the messages of all
//! ranks ([`Endpoint::exchange`]). Links exist once the driver returns `None`; no rank gets there before all
//! ranks have connected.
//!
//! # Safety
//! The function that registers the caller's memory is unsafe to call; its contract stands there.

use crate::{
    Link, Sleeper, TransportError,
    memory::{Slab, Span},
};
use std::{fmt::Debug, sync::Arc, time::Duration};

/// A cable between two ranks, as one of them sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct RailInfo {
    /// Our device.
    pub ours: String,
    /// The peer's device.
    pub theirs: String,
    /// Signaling rate of the local port in each direction, in Gb/s. The payload rate is lower.
    pub gigabits: Option<f64>,
    /// Whether the local device reports that the rail runs over Thunderbolt.
    pub is_thunderbolt: bool,
    /// Whether the rail is up.
    pub is_up: bool,
}

/// Memory that is lent to a driver; it is taken back when this is dropped. May outlive the endpoint.
pub trait RegistrationGuard: Debug + Send {}

/// Progress of a driver while its rank waits for another driver's link. Peers may wait for answers that only
/// this rank gives.
pub trait ProgressHandle: Debug + Send + Sync {
    /// Takes what has come, and answers.
    ///
    /// # Errors
    /// When a peer is lost, or a device.
    fn progress(&self) -> Result<(), TransportError>;
}

/// One rank's part of a driver. It stays alive as long as its links.
pub trait Endpoint: Debug + Send {
    /// Name of the driver; valid after set-up.
    fn name(&self) -> &'static str;

    /// Processes the messages of the last round, by rank, and returns the next message; `None` ends set-up.
    ///
    /// The first call gets no messages. A rank enters the last round only once peers can reach it, so a rank
    /// that has finished set-up may send at once.
    ///
    /// # Errors
    /// When a peer is unreachable, or its message is malformed.
    fn exchange(&mut self, messages: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError>;

    /// Whether ranks `a` and `b` can reach each other; valid after set-up, and equal on all ranks.
    fn connects(&self, a: u32, b: u32) -> bool;

    /// Host number of each rank, if the driver knows which ranks share memory.
    ///
    /// Valid after set-up, and equal on all ranks.
    fn hosts(&self) -> Option<&[u32]> {
        None
    }

    /// The link to `peer`, which we reach, on `lane`. To be made once at each end, after the conversation.
    fn link(&mut self, peer: u32, lane: u8) -> Box<dyn Link>;

    /// The memory that this driver's links move without copying it.
    fn slab(&self) -> &Slab;

    /// Announces memory of the caller that links may move without a copy, until the lease is dropped.
    ///
    /// Returns `None` if the driver has no use for it. The driver registers the memory when an operation uses
    /// it, while there is room.
    ///
    /// # Errors
    /// When part of the memory is lent already.
    ///
    /// # Safety
    /// The memory must not be empty and must not move or be freed before the lease is dropped.
    unsafe fn register(
        &mut self,
        _start: *mut u8,
        _len: usize,
    ) -> Result<Option<Box<dyn RegistrationGuard>>, TransportError> {
        Ok(None)
    }

    /// Marks lent memory as used by an operation, which keeps it registered until [`Endpoint::end_use`].
    fn begin_use(&mut self, _memory: Span<'_>) {}

    /// An operation has ended that used this memory.
    fn end_use(&mut self, _memory: Span<'_>) {}

    /// Sleeper that wakes this rank when a link can make progress, if the driver has one.
    fn sleeper(&self) -> Option<Arc<dyn Sleeper>> {
        None
    }

    /// Progress handle to poll while this rank waits on links of another driver, if this driver needs
    /// polling.
    fn progress_handle(&self) -> Option<Arc<dyn ProgressHandle>> {
        None
    }

    /// Rails to a peer, in the order in which both ends number them; empty if the only path has no name.
    fn rails(&self, _peer: u32) -> Vec<RailInfo> {
        Vec::new()
    }

    /// Restricts transfers with a peer to one rail; `None` uses all rails again.
    ///
    /// Both ends must call this. While the rail is down, transfers use the other rails.
    fn prefer_rail(&mut self, _peer: u32, _rail: Option<usize>) {}

    /// Waits for at most `within` until everything sent has arrived.
    ///
    /// Returns false if something has not arrived and still may. Peers for which `is_gone` is true are
    /// ignored.
    fn flush(&mut self, _within: Duration, _is_gone: &dyn Fn(u32) -> bool) -> bool {
        true
    }

    /// Closes the endpoint in order: waits for at most `patience` until everything sent has arrived.
    ///
    /// Peers may observe the end of the connection from this call on, or only once the endpoint is dropped.
    fn close(&mut self, timeout: Duration);
}
