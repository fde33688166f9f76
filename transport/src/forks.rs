//! Detection of forked children, for values whose state a child shares with its parent.
//!
//! A forked child has copies of its parent's values, but not its threads, and the state behind the copies is
//! still the parent's: shared memory, sockets, objects of devices. A value with such state keeps its
//! [`Origin`]. In a child of that process its drop releases nothing, and its use is an error.
//!
//! # Safety
//! The only unsafe code registers a handler with the C library that runs in forked children. The handler
//! increments one counter.

use std::sync::{
    Once,
    atomic::{AtomicU32, Ordering::Relaxed},
};

/// The error of a call in a forked child, as the beginning of a sentence.
pub const FORKED: &str = "this process was forked from one that uses tbccl, and can't use it";

/// Number of forks between the first process that asked for an origin and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_the_child() {
    FORKS.fetch_add(1, Relaxed);
}

/// The process in which a value was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(u32);

impl Origin {
    /// Returns this process, and detects forks from now on.
    ///
    /// The calling code stays loaded until the process ends, since the handler can't be removed.
    #[must_use]
    pub fn here() -> Origin {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // Miri has no forks.
            if cfg!(miri) {
                return;
            }
            // SAFETY: the function stays loaded until the process ends, as the caller ensures, and does
            // nothing that is forbidden in the child of a process with threads.
            let refused = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
            debug_assert_eq!(refused, 0, "there is no memory for one more entry");
        });
        Origin(FORKS.load(Relaxed))
    }

    /// Whether this process is the origin, and not a forked child of it.
    #[inline]
    #[must_use]
    pub fn is_here(self) -> bool {
        FORKS.load(Relaxed) == self.0
    }
}
