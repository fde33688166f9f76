//! Detection of forked processes.
//!
//! A child that is forked from a process with the library has none of the threads of its parent, and its
//! peers take it for its parent. The C, Python and MPI interfaces check for it, refuse calls, and drop
//! nothing that would wait for a thread. The library itself does not check.
//!
//! # Safety
//! The only unsafe code registers a handler with the C library that runs in forked children. It stores one
//! flag.

use std::sync::{
    Once,
    atomic::{AtomicBool, Ordering},
};

/// The error of a call in a forked child, as the beginning of a sentence.
pub const FORKED: &str = "this process was forked from one that uses tbccl, and can't use it";

static IS_CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn in_the_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
}

/// Registers the fork handler, after which [`is_child`] reports children of this process. Called before
/// anything exists that a child could not use. The calling code must stay loaded until the process ends,
/// since the handler cannot be removed.
pub fn register_handler() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        // SAFETY: the function stays loaded until the process ends, as the caller ensures, and does nothing
        // that is forbidden in the child of a process with threads.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
        debug_assert_eq!(refused, 0, "there is no memory for one more entry");
    });
}

/// Whether this process was forked from one that has called [`register_handler`].
#[inline]
#[must_use]
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}
