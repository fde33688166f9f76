//! Shared memory of a rank's host, as the inter-host driver sees it.
//!
//! Registered memory lies in the arena, so that ranks of the host read it in place. A driver whose device
//! must register memory takes its slab from the same arena, so the same bytes serve both.

use crate::{
    TransportError,
    memory::{Arena, Slab},
};
use rustix::fd::OwnedFd;

/// Host number of each rank, and this rank's arena.
#[derive(Debug)]
pub struct HostMemory {
    hosts: Vec<u32>,
    arena: Arena,
    object: OwnedFd,
    /// The slab that the inter-host driver has requested.
    device_slab: Option<Slab>,
}

impl HostMemory {
    pub(super) fn new(hosts: Vec<u32>, arena: Arena, object: OwnedFd) -> HostMemory {
        HostMemory { hosts, arena, object, device_slab: None }
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

    /// Returns a device's allocator over the first `bytes` of the arena's slab, or all of it if smaller.
    ///
    /// No buffer crosses a multiple of `line` bytes.
    ///
    /// # Errors
    /// [`TransportError::Memory`] if the process has no free file descriptor.
    ///
    /// # Panics
    /// On the second call.
    pub fn slab(&mut self, bytes: u64, line: u64) -> Result<Slab, TransportError> {
        assert!(self.device_slab.is_none(), "the device slab is requested once");
        let slab = Slab::for_device(&self.arena, self.descriptor()?, bytes, line);
        Ok(self.device_slab.insert(slab).clone())
    }

    /// Chooses the allocator of registered memory once the inter-host driver is known: its slab `driver_slab`
    /// if that lies in this arena, otherwise a new one.
    pub(super) fn choose_slab(&mut self, driver_slab: Option<&Slab>) -> Result<Slab, TransportError> {
        if let Some(slab) = driver_slab.filter(|slab| slab.is_in(&self.arena)) {
            return Ok(slab.clone());
        }
        let object = self.descriptor()?;
        Ok(match self.device_slab.take() {
            Some(former) => Slab::replacing(&former, &self.arena, object),
            None => Slab::new(&self.arena, Some(object)),
        })
    }

    fn descriptor(&self) -> Result<OwnedFd, TransportError> {
        self.object.try_clone().map_err(|source| TransportError::Memory {
            what: "duplicating the descriptor of shared memory".into(),
            source,
            remedy: "raise the limit of open files (ulimit -n)".into(),
        })
    }
}
