//! What a driver without shared memory offers a rank while the ranks come together.
//!
//! The ranks' side channel carries words from everyone to everyone, round after round, until the driver has said all:
//! [`Endpoint::converse`]. Links exist from then on; no rank is through with it before all have connected.
//!
//! # Safety
//! Memory of the caller's is lent by a function that is unsafe to call: its contract stands there.

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
    /// What our port says of its speed in each direction, in Gb/s as signalled; what arrives of it is less.
    pub gigabits: Option<f64>,
    /// Does Thunderbolt run on it, as our device says?
    pub is_thunderbolt: bool,
    /// Can it be used now?
    pub is_up: bool,
}

/// Memory that is lent to a driver; it is taken back when this is dropped. May outlive the endpoint.
pub trait Lease: Debug + Send {}

/// What a driver does while a rank waits for something else: peers may wait for an answer of ours that nobody else gives.
pub trait Drive: Debug + Send + Sync {
    /// Takes what has come, and answers.
    ///
    /// # Errors
    /// When a peer is lost, or a device.
    fn drive(&self) -> Result<(), TransportError>;
}

/// One rank's part of a driver. It stays alive as long as its links.
pub trait Endpoint: Debug + Send {
    /// What it is called. After the conversation.
    fn name(&self) -> &'static str;

    /// Takes everyone's latest words, by rank, and says the next one; `None` when all is said. Begins with no words. The
    /// last round is one that a rank enters only when it can be reached, so that whoever is through may send.
    ///
    /// # Errors
    /// When a peer can't be reached, or its words are none of ours.
    fn converse(&mut self, heard: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError>;

    /// Do these two ranks reach each other? After the conversation; the same on all ranks.
    fn connects(&self, a: u32, b: u32) -> bool;

    /// By rank: a number of its host, where the driver knows who shares memory. After the conversation; the same on all
    /// ranks.
    fn hosts(&self) -> Option<&[u32]> {
        None
    }

    /// The link to `peer`, which we reach, on `lane`. To be made once at each end, after the conversation.
    fn link(&mut self, peer: u32, lane: u8) -> Box<dyn Link>;

    /// The memory that this driver's links move without copying it.
    fn slab(&self) -> &Slab;

    /// Takes note of memory of the caller's that links are to move without copying it, until the lease is dropped; nothing
    /// if this driver has no use for that. It is registered while there is room, when an operation uses it.
    ///
    /// # Errors
    /// When some of it is lent already.
    ///
    /// # Safety
    /// The memory stays where it is until the lease is dropped, and is not empty.
    unsafe fn lend(
        &mut self,
        _start: *mut u8,
        _len: usize,
    ) -> Result<Option<Box<dyn Lease>>, TransportError> {
        Ok(None)
    }

    /// An operation begins to use memory that may be lent, and needs it registered until [`Endpoint::end_use`].
    fn begin_use(&mut self, _memory: Span<'_>) {}

    /// An operation has ended that used this memory.
    fn end_use(&mut self, _memory: Span<'_>) {}

    /// What a rank that waits can be woken by, where the driver has that.
    fn sleeper(&self) -> Option<Arc<dyn Sleeper>> {
        None
    }

    /// What must go on while this rank waits for links of another driver, where only polling does that.
    fn driven(&self) -> Option<Arc<dyn Drive>> {
        None
    }

    /// The rails to a peer, in the order that both ends number them; none where there is one way and it has no name.
    fn rails(&self, _peer: u32) -> Vec<RailInfo> {
        Vec::new()
    }

    /// From now on what goes to a peer, and what is asked of it, takes that rail; all of them again with `None`. To be
    /// said at both ends. A rail that is down is not waited for: the others are used while it is.
    fn prefer_rail(&mut self, _peer: u32, _rail: Option<usize>) {}

    /// Waits, for so long at most, until all that was sent has arrived. False if some of it has not, and still may. Peers that
    /// are gone need nothing any more.
    fn settle(&mut self, _within: Duration, _is_gone: &dyn Fn(u32) -> bool) -> bool {
        true
    }

    /// Ends it in good order: waits, for so long at most, until all that was sent has arrived. Peers may notice that nothing
    /// more comes from now on, or from when it is dropped on.
    fn close(&mut self, patience: Duration);
}
