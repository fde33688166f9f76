//! Memory of the program's own that devices may know: what `CommRegister` gives.
//!
//! # Safety
//! A driver may use the memory until its lease is dropped. The guard borrows it exclusively for longer than the lease
//! lives. A guard that is leaked leaves the memory registered: a device then goes on to know pages that it has pinned,
//! and is only ever asked to use them in a call that was given that very memory.

use super::Communicator;
use crate::{Element, Result, error::Error};
use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
};
use transport::driver::Lease;

/// A slice of the program's that collectives move without copying it on the way, where the transport and its devices
/// allow that. Used as the slice that it is; its registration ends when it is dropped. It may outlive its communicator.
pub struct RegisteredSlice<'m, T> {
    /// Before the memory.
    registration: Registration,
    memory: &'m mut [T],
}

/// That devices may know memory of the program's own, until it is dropped. It may outlive its communicator.
#[derive(Debug)]
#[must_use = "dropping it ends the registration"]
pub struct Registration {
    lease: Option<Box<dyn Lease>>,
    /// Held so that calls know that there is such memory. After the lease.
    _counted: Arc<()>,
}

impl Communicator {
    /// Lets devices know memory of the program's own, so that calls on it copy nothing on the way. Where the transport has
    /// no use for that, or a device knows no memory later than its connections (Apple's), calls on it do what they do
    /// anyway; memory from [`Communicator::alloc`] is moved without copies everywhere.
    ///
    /// The devices register it when a call first uses it, as long as there is room (`TBCCL_CACHE_REGIONS`,
    /// `TBCCL_CACHE_BYTES`); then what was not used for longest makes room.
    ///
    /// # Errors
    /// When some of it is registered already.
    pub fn register<'m, T: Element>(&mut self, memory: &'m mut [T]) -> Result<RegisteredSlice<'m, T>> {
        let (start, len) = (memory.as_mut_ptr().cast::<u8>(), size_of_val(memory));
        // SAFETY: the guard keeps the borrow until it has dropped the registration; see the module for one that is leaked.
        let registration = unsafe { self.register_raw(start, len)? };
        Ok(RegisteredSlice { registration, memory })
    }

    /// As [`Communicator::register`], for memory by address.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// The memory is the program's, readable and writable, and stays so until the registration is dropped.
    pub unsafe fn register_raw(&mut self, start: *mut u8, bytes: usize) -> Result<Registration> {
        let lease = match &mut self.endpoint {
            Some(endpoint) if bytes > 0 => {
                // SAFETY: the caller's promise.
                let lent = unsafe { endpoint.lend(start, bytes) };
                lent.map_err(|e| Error::InvalidArgument(e.to_string()))?
            }
            _ => None,
        };
        Ok(Registration { lease, _counted: Arc::clone(&self.lending) })
    }
}

impl Registration {
    /// May calls on the memory move it without copying it?
    #[must_use]
    pub fn is_known_to_devices(&self) -> bool {
        self.lease.is_some()
    }
}

impl<T> RegisteredSlice<'_, T> {
    /// May calls on it move it without copying it?
    #[must_use]
    pub fn is_known_to_devices(&self) -> bool {
        self.registration.is_known_to_devices()
    }
}

impl<T> Deref for RegisteredSlice<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.memory
    }
}

impl<T> DerefMut for RegisteredSlice<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.memory
    }
}

impl<T: fmt::Debug> fmt::Debug for RegisteredSlice<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
