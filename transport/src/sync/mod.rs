//! Atomics, fences and locks of code that several threads or processes run at a time.
//!
//! They are the standard library's. With `--cfg loom` they are those of a model checker while a model runs
//! (`models` of each package), and the standard library's otherwise.
//!
//! [`mark_read`] and [`mark_write`] tell the model checker of accesses to plain memory, which it cannot see.
//! They are nothing in other builds.

#[cfg(loom)]
pub mod model;

#[cfg(not(loom))]
pub use std::{
    hint::spin_loop,
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence},
    },
    thread::sleep,
};

#[cfg(loom)]
pub use model::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, fence, mark_read,
    mark_write, sleep, spin_loop,
};

/// Marks a read of plain memory.
#[cfg(not(loom))]
#[inline(always)]
pub fn mark_read(_start: *const u8, _len: usize) {}

/// Marks a write to plain memory.
#[cfg(not(loom))]
#[inline(always)]
pub fn mark_write(_start: *const u8, _len: usize) {}

/// The half of an asymmetric fence that costs nothing: other threads make this one pass the other half.
#[inline(always)]
pub fn light_fence() {
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    #[cfg(loom)]
    fence(std::sync::atomic::Ordering::SeqCst);
}
