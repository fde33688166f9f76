//! Registration of the program's own memory with devices, as `CommRegister` does.
//!
//! # Safety
//! A driver may use the memory until its lease is dropped. The guard borrows the memory exclusively for
//! longer than the lease lives. A leaked guard leaves the memory registered: the device keeps its pages
//! pinned, and uses them only in a call on that very memory.

use super::Communicator;
use crate::{Element, Result, error::Error, forks};
use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
};
use transport::{driver::RegistrationGuard, forks::Origin};

/// A slice of the program's memory that collectives move without copies, where transport and devices allow
/// that.
///
/// It is used as the slice itself. Dropping it ends the registration. It may outlive its communicator.
pub struct RegisteredSlice<'m, T> {
    /// Declared before the memory, so that it is dropped first.
    registration: Registration,
    memory: &'m mut [T],
}

/// The registration of the program's memory with devices, until it is dropped.
///
/// It may outlive its communicator.
#[derive(Debug)]
#[must_use = "dropping it ends the registration"]
pub struct Registration {
    lease: Option<Box<dyn RegistrationGuard>>,
    origin: Origin,
    /// Counts registrations, so that calls know whether there are any. Declared after the lease, so that it
    /// is dropped last.
    _counted: Arc<()>,
}

impl Communicator {
    /// Registers the program's memory with devices, so that calls on it move it without copies.
    ///
    /// Calls work as before where the transport does not register memory, or where a device cannot register
    /// memory after its connections are made (Apple's). Memory from [`Communicator::alloc`] is moved without
    /// copies on every transport.
    ///
    /// Devices register the memory when a call first uses it, within the limits `TBCCL_CACHE_REGIONS` and
    /// `TBCCL_CACHE_BYTES`. Beyond them, the least recently used memory makes room.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if part of the memory is registered already.
    pub fn register<'m, T: Element>(&mut self, memory: &'m mut [T]) -> Result<RegisteredSlice<'m, T>> {
        let (start, len) = (memory.as_mut_ptr().cast::<u8>(), size_of_val(memory));
        // SAFETY: the guard keeps the borrow until it has dropped the registration; the module docs describe
        // the effect of a leaked guard.
        let registration = unsafe { self.register_raw(start, len)? };
        Ok(RegisteredSlice { registration, memory })
    }

    /// Registers memory by address, as [`Communicator::register`].
    ///
    /// # Errors
    /// Those of [`Communicator::register`].
    ///
    /// # Safety
    /// The memory is the program's, readable and writable, and stays so until the registration is dropped.
    pub unsafe fn register_raw(&mut self, start: *mut u8, bytes: usize) -> Result<Registration> {
        forks::check(self.origin)?;
        let lease = match &mut self.endpoint {
            Some(endpoint) if bytes > 0 => {
                // SAFETY: the caller guarantees the validity of the memory.
                let lent = unsafe { endpoint.register(start, bytes) };
                lent.map_err(|e| Error::InvalidArgument(e.to_string()))?
            }
            _ => None,
        };
        Ok(Registration { lease, origin: self.origin, _counted: Arc::clone(&self.lending) })
    }
}

impl Registration {
    /// Whether calls on the memory may move it without copies.
    #[must_use]
    pub fn is_known_to_devices(&self) -> bool {
        self.lease.is_some()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // In a forked child the memory is still registered for the parent.
        if !self.origin.is_here() {
            std::mem::forget(self.lease.take());
        }
    }
}

impl<T> RegisteredSlice<'_, T> {
    /// Whether calls on the slice may move it without copies.
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
