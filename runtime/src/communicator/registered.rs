//! Registration of the program's own memory with devices, as `CommRegister` does.
//!
//! Registered memory belongs to its guard. A guard that borrowed the memory could be leaked, and the memory
//! freed and mapped anew at the same address: devices would go on using the pages of the former mapping. A
//! leaked owner leaks its memory, so no other memory gets the address.
//!
//! # Safety
//! A driver may use the memory until its registration is dropped. The guard owns the memory, never moves or
//! resizes it, and drops the registration first.

use super::Communicator;
use crate::{Element, Result, error::Error, forks};
use std::{
    fmt,
    mem::{forget, take},
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use transport::{
    driver::{Endpoint, RegistrationGuard},
    forks::Origin,
};

/// A vector that collectives move without copies, where transport and devices allow that.
///
/// It is used as a slice. Dropping it ends the registration and frees the memory;
/// [`RegisteredVec::into_vec`] returns the memory. It may outlive its communicator.
pub struct RegisteredVec<T> {
    /// Declared before the memory, so that it is dropped first.
    registration: Registration,
    memory: Vec<T>,
}

/// The registration of the program's memory with devices, until it is dropped.
///
/// It may outlive its communicator.
#[derive(Debug)]
#[must_use = "dropping it ends the registration"]
pub struct Registration {
    lease: Option<Box<dyn RegistrationGuard>>,
    origin: Origin,
    /// Counts registrations, so that calls know whether there are any, and their bytes. Declared after the
    /// lease, so that it is dropped last.
    counted: Arc<AtomicU64>,
    bytes: u64,
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
    /// [`Error::InvalidArgument`] in a forked child, or if part of the memory was registered by address. The
    /// memory is freed then.
    pub fn register<T: Element>(&mut self, mut memory: Vec<T>) -> Result<RegisteredVec<T>> {
        let (start, len) = (memory.as_mut_ptr().cast::<u8>(), size_of_val(memory.as_slice()));
        // SAFETY: the guard owns the memory, does not move it, and drops the registration before it.
        let registration = unsafe { self.register_raw(start, len)? };
        Ok(RegisteredVec { registration, memory })
    }

    /// Registers memory by address, as [`Communicator::register`].
    ///
    /// # Errors
    /// Those of [`Communicator::register`]; [`Error::InvalidArgument`] if part of the memory is registered
    /// already.
    ///
    /// # Safety
    /// The memory is the program's, readable and writable, and stays so until the registration is dropped.
    /// Memory whose registration was leaked must stay mapped until the process ends.
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
        let bytes = bytes as u64;
        self.lending.fetch_add(bytes, Relaxed);
        Ok(Registration { lease, origin: self.origin, counted: Arc::clone(&self.lending), bytes })
    }

    /// Returns the endpoint if memory of the program is registered, and calls have to tell which they use.
    #[inline]
    pub(super) fn lender(&mut self) -> Option<&mut Box<dyn Endpoint>> {
        self.endpoint.as_mut().filter(|_| self.lending.load(Relaxed) > 0)
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
            forget(self.lease.take());
        }
        self.counted.fetch_sub(self.bytes, Relaxed);
    }
}

impl<T> RegisteredVec<T> {
    /// Whether calls on the memory may move it without copies.
    #[must_use]
    pub fn is_known_to_devices(&self) -> bool {
        self.registration.is_known_to_devices()
    }

    /// Ends the registration and returns the memory.
    ///
    /// The vector is empty in a forked child, which may lack the pages of registered memory.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<T> {
        self.leak_in_child();
        take(&mut self.memory)
    }

    /// Leaks the memory in a forked child, which may lack its pages (`MADV_DONTFORK`).
    fn leak_in_child(&mut self) {
        if !self.registration.origin.is_here() {
            forget(take(&mut self.memory));
        }
    }
}

impl<T> Drop for RegisteredVec<T> {
    fn drop(&mut self) {
        self.leak_in_child();
    }
}

impl<T> Deref for RegisteredVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.memory
    }
}

impl<T> DerefMut for RegisteredVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory
    }
}

impl<T: fmt::Debug> fmt::Debug for RegisteredVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, ReduceOp};
    use std::{sync::atomic::AtomicU32, time::Duration};
    use transport::{
        Link, TransportError,
        memory::{Slab, Span},
    };

    /// Counts the uses of memory that calls tell it.
    #[derive(Debug)]
    struct Counting(Arc<AtomicU32>, Slab);

    impl Endpoint for Counting {
        fn name(&self) -> &'static str {
            "counting"
        }

        fn exchange(&mut self, _: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError> {
            Ok(None)
        }

        fn connects(&self, _: u32, _: u32) -> bool {
            true
        }

        fn link(&mut self, _: u32, _: u8) -> Box<dyn Link> {
            unreachable!("the links are those of threads")
        }

        fn slab(&self) -> &Slab {
            &self.1
        }

        fn close(&mut self, _: Duration) {}

        fn begin_use(&mut self, _: Span<'_>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// The gauge of registered bytes shares the counter. A count of its owners said that there always was
    /// registered memory, so each call locked the engine of the devices four times.
    #[test]
    fn calls_tell_an_endpoint_which_memory_they_use_only_while_memory_is_registered() {
        let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
        let mut comm = Communicator::local(1, &config).expect("memory for a test").remove(0);
        let uses = Arc::new(AtomicU32::new(0));
        comm.endpoint = Some(Box::new(Counting(Arc::clone(&uses), comm.slab.clone())));
        let call = |comm: &mut Communicator| {
            let before = uses.load(Relaxed);
            comm.all_reduce_in_place(&mut [1, 2], ReduceOp::Sum).expect("one rank");
            uses.load(Relaxed) - before
        };
        assert_eq!(call(&mut comm), 0, "nothing is registered");
        let registered = comm.register(vec![0u8; 4096]).expect("memory of our own");
        assert_eq!(call(&mut comm), 2, "input and output");
        drop(registered);
        assert_eq!(call(&mut comm), 0, "nothing is registered any more");
    }
}
