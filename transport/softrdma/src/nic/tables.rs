//! Allocation of records in this process's tables, and serial numbers of its objects.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU32, Ordering::Relaxed},
};

/// The lock of the tables, and the counter of objects.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    lock: Mutex<()>,
    /// Protection domains, registrations and queue pairs created so far.
    serials: AtomicU32,
}

impl Tables {
    /// Locks the tables while a record is taken.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a new serial number. The first is 1.
    pub(crate) fn next_serial(&self) -> u32 {
        self.serials.fetch_add(1, Relaxed) + 1
    }

    /// Returns the serial number that was given out last.
    pub(crate) fn last_serial(&self) -> u32 {
        self.serials.load(Relaxed)
    }
}
