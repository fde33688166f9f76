//! Interface between the runtime and a driver: set-up rounds, links, registered memory.
//!
//! Set-up runs in rounds. In each round every rank contributes a message and receives the messages of all
//! ranks ([`Endpoint::exchange`]). Links exist once the driver returns `None`, and a driver returns `None`
//! only after all ranks have connected.
//!
//! # Safety
//! [`Endpoint::register`] is unsafe to call; its documentation has the contract.

use crate::{
    Link, Sleeper, TransportError,
    memory::{Arena, Slab, Span},
};
use std::{fmt::Debug, sync::Arc, time::Duration};

/// A cable between two ranks, as one of them sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct RailInfo {
    /// Name of the local device.
    pub ours: String,
    /// Name of the peer's device.
    pub theirs: String,
    /// Signaling rate of the local port in each direction, in Gb/s. The payload rate is lower.
    pub gigabits: Option<f64>,
    /// Whether the local device reports that the rail runs over Thunderbolt.
    pub is_thunderbolt: bool,
    /// Whether the rail is up.
    pub is_up: bool,
    /// Bytes posted to the rail by this end since it was made, where the driver counts them.
    pub sent_bytes: Option<u64>,
    /// Bytes received from the rail since it was made, where the driver counts them.
    pub received_bytes: Option<u64>,
}

/// Registration of user memory with a driver; it ends when the guard is dropped.
///
/// The guard may outlive the endpoint.
pub trait RegistrationGuard: Debug + Send {}

/// Progress of a driver while its rank waits for another driver's link.
///
/// A peer may wait for an answer that only this rank can give.
pub trait ProgressHandle: Debug + Send + Sync {
    /// Processes received messages and answers them.
    ///
    /// # Errors
    /// Any [`TransportError`] when a peer or a device is lost.
    fn progress(&self) -> Result<(), TransportError>;
}

/// The memory of ranks that are processes of one host.
#[derive(Debug)]
pub struct SharedMemory {
    /// The arena of each rank.
    pub arenas: Vec<Arena>,
    /// The allocator of registered memory in this rank's arena.
    pub slab: Slab,
}

/// One rank's endpoint of a driver. It stays alive as long as its links.
pub trait Endpoint: Debug + Send {
    /// Name of the driver; valid after set-up.
    fn name(&self) -> &'static str;

    /// Processes the messages of the last round, by rank, and returns the next message; `None` ends set-up.
    ///
    /// The first call gets no messages. A rank enters the last round only once peers can reach it, so a rank
    /// that has finished set-up may send at once.
    ///
    /// # Errors
    /// Any [`TransportError`] when a peer is unreachable or its message is malformed.
    fn exchange(&mut self, messages: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError>;

    /// Whether ranks `a` and `b` can reach each other; valid after set-up, and equal on all ranks.
    fn connects(&self, a: u32, b: u32) -> bool;

    /// Whether schedules may send between ranks `a` and `b`, which connect; equal on all ranks.
    ///
    /// False for ranks whose only path is much slower than the way along other ranks.
    fn is_for_schedules(&self, a: u32, b: u32) -> bool {
        self.connects(a, b)
    }

    /// Returns the host number of each rank, if the driver knows which ranks share memory.
    ///
    /// Valid after set-up, and equal on all ranks.
    fn hosts(&self) -> Option<&[u32]> {
        None
    }

    /// Returns the memory of all ranks, if they share it and need no other transport: all ranks get it, or
    /// none. Valid after set-up and before any link; the endpoint is of no further use then.
    fn take_shared_memory(&mut self) -> Option<SharedMemory> {
        None
    }

    /// Returns the link to `peer` on `lane`.
    ///
    /// Each end calls this once per link, after set-up, and only for a peer that it
    /// [connects](Self::connects) to.
    fn link(&mut self, peer: u32, lane: u8) -> Box<dyn Link>;

    /// Returns the allocator of the memory that this driver's links move without a copy.
    fn slab(&self) -> &Slab;

    /// Registers memory of the caller, which links may then move without a copy, until the guard is dropped.
    ///
    /// Returns `None` if the driver has no use for it. The driver registers the memory with its devices when
    /// an operation uses it, as far as their limits allow.
    ///
    /// # Errors
    /// [`TransportError::AlreadyRegistered`] when part of the memory is registered already.
    ///
    /// # Safety
    /// The memory must not be empty and must not move or be freed before the guard is dropped.
    unsafe fn register(
        &mut self,
        _start: *mut u8,
        _len: usize,
    ) -> Result<Option<Box<dyn RegistrationGuard>>, TransportError> {
        Ok(None)
    }

    /// Marks registered memory as used by an operation; devices keep it registered until
    /// [`Endpoint::end_use`].
    fn begin_use(&mut self, _memory: Span<'_>) {}

    /// Ends the use of memory that [`Endpoint::begin_use`] marked.
    fn end_use(&mut self, _memory: Span<'_>) {}

    /// Returns a sleeper that wakes this rank when a link can make progress, if the driver has one.
    fn sleeper(&self) -> Option<Arc<dyn Sleeper>> {
        None
    }

    /// Returns the handle to poll while this rank waits on links of another driver, if this driver needs
    /// polling.
    fn progress_handle(&self) -> Option<Arc<dyn ProgressHandle>> {
        None
    }

    /// Returns the rails to a peer, in the order in which both ends number them.
    ///
    /// The list is empty if the only path has no name.
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

    /// Closes the endpoint in order: waits for at most `timeout` until everything sent has arrived.
    ///
    /// Peers may observe the end of the connection from this call on, or only once the endpoint is dropped.
    fn close(&mut self, timeout: Duration);
}
