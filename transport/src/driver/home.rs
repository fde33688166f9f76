//! What a rank has that shares memory with the others of its host, for the driver that reaches the rest.
//!
//! Memory that is registered lies in the arena, so that peers of the host read it in place; a driver whose device must know
//! it takes its slab from there too, and the same bytes are reachable by both.

use crate::{
    TransportError,
    memory::{Arena, Slab},
};
use rustix::fd::OwnedFd;

/// A rank's place among the hosts of a job, and its arena.
#[derive(Debug)]
pub struct Home {
    hosts: Vec<u32>,
    arena: Arena,
    object: OwnedFd,
    /// The slab that a driver has asked for.
    given: Option<Slab>,
}

impl Home {
    pub(super) fn new(hosts: Vec<u32>, arena: Arena, object: OwnedFd) -> Home {
        Home { hosts, arena, object, given: None }
    }

    /// By rank: a number that only ranks of its host share. The same on all ranks.
    #[must_use]
    pub fn hosts(&self) -> &[u32] {
        &self.hosts
    }

    /// Are there ranks on other hosts?
    pub(super) fn has_others(&self) -> bool {
        self.hosts.iter().any(|host| *host != self.hosts[0])
    }

    /// The allocator of the first `bytes` of the arena's slab, or of all of it if it is smaller, for a device. To be asked
    /// for once.
    ///
    /// # Errors
    /// When there is no room for a descriptor.
    pub fn slab(&mut self, bytes: u64, line: u64) -> Result<Slab, TransportError> {
        assert!(self.given.is_none(), "one driver has the slab");
        let slab = Slab::for_device(&self.arena, self.descriptor()?, bytes, line);
        Ok(self.given.insert(slab).clone())
    }

    /// The allocator of registered memory, now that it is settled which driver reaches the others: that driver's, where it
    /// lies in our arena, or one of our own.
    pub(super) fn settle(&mut self, theirs: Option<&Slab>) -> Result<Slab, TransportError> {
        if let Some(slab) = theirs.filter(|slab| slab.is_in(&self.arena)) {
            return Ok(slab.clone());
        }
        let object = self.descriptor()?;
        Ok(match self.given.take() {
            Some(former) => Slab::after(&former, &self.arena, object),
            None => Slab::new(&self.arena, Some(object)),
        })
    }

    fn descriptor(&self) -> Result<OwnedFd, TransportError> {
        self.object.try_clone().map_err(|source| TransportError::Memory {
            what: "a second descriptor of shared memory".into(),
            source,
            remedy: "raise the limit of open files (ulimit -n)".into(),
        })
    }
}
