//! Shared memory of a rank's host, as the inter-host driver sees it.
//!
//! Registered memory lies in the arena, so that ranks of the host read it in place. A driver whose device
//! must register memory takes its slab from the same arena, so the same bytes serve both.

use crate::{
    TransportError,
    memory::{Arena, Slab},
};
use rustix::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// Host number of each rank, and this rank's arena.
#[derive(Debug)]
pub struct HostMemory {
    hosts: Vec<u32>,
    arena: Arena,
    object: Arc<OwnedFd>,
    /// The slab that the inter-host driver has requested.
    device_slab: Arc<OnceLock<Slab>>,
}

/// Memory of a rank's arena from which the inter-host driver takes its slab, once it knows the size.
#[derive(Debug)]
pub struct SlabSource {
    arena: Arena,
    object: Arc<OwnedFd>,
    device_slab: Arc<OnceLock<Slab>>,
}

impl SlabSource {
    /// Returns a device's allocator over the first `bytes` of the arena's slab, or all of it if smaller.
    ///
    /// No buffer crosses a multiple of `line` bytes.
    ///
    /// # Errors
    /// [`TransportError::Memory`] if the process has no free file descriptor.
    ///
    /// # Panics
    /// On the second call.
    pub fn slab(&self, bytes: u64, line: u64) -> Result<Slab, TransportError> {
        let slab = Slab::for_device(&self.arena, descriptor(&self.object)?, bytes, line);
        self.device_slab.set(slab.clone()).expect("the device slab is requested once");
        Ok(slab)
    }
}

impl HostMemory {
    pub(super) fn new(hosts: Vec<u32>, arena: Arena, object: OwnedFd) -> HostMemory {
        HostMemory { hosts, arena, object: Arc::new(object), device_slab: Arc::default() }
    }

    /// Returns the host number of each rank, equal on all ranks. Ranks with equal numbers share memory.
    #[must_use]
    pub fn hosts(&self) -> &[u32] {
        &self.hosts
    }

    /// Whether the job has ranks on other hosts.
    pub(super) fn spans_hosts(&self) -> bool {
        self.hosts.iter().any(|host| *host != self.hosts[0])
    }

    /// Returns the memory from which the inter-host driver can take its slab.
    #[must_use]
    pub fn slab_source(&self) -> SlabSource {
        let (object, device_slab) = (Arc::clone(&self.object), Arc::clone(&self.device_slab));
        SlabSource { arena: self.arena.clone(), object, device_slab }
    }

    /// Chooses the allocator of registered memory once the inter-host driver is known: its slab `driver_slab`
    /// if that lies in this arena, otherwise a new one.
    pub(super) fn choose_slab(&self, driver_slab: Option<&Slab>) -> Result<Slab, TransportError> {
        if let Some(slab) = driver_slab.filter(|slab| slab.is_in(&self.arena)) {
            return Ok(slab.clone());
        }
        let object = descriptor(&self.object)?;
        Ok(match self.device_slab.get() {
            Some(former) => Slab::replacing(former, &self.arena, object),
            None => Slab::new(&self.arena, Some(object)),
        })
    }
}

/// Returns another descriptor of the same object.
fn descriptor(object: &OwnedFd) -> Result<OwnedFd, TransportError> {
    object.try_clone().map_err(|source| TransportError::Memory {
        what: "duplicating the descriptor of shared memory".into(),
        source,
        remedy: "raise the limit of open files (ulimit -n)".into(),
    })
}
