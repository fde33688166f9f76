//! Whether this process was forked from one that uses the library.
//!
//! Such a child has none of the threads of its parent, and its peers take it for its parent. Faces of the library that can be
//! called in one (C, Python, MPI) ask here, refuse what is called, and drop nothing that would wait for a thread. The
//! library itself does not ask.
//!
//! # Safety
//! The only unsafe code asks the C library to tell us when this process forks. What it calls in the child stores one flag.

use std::sync::{
    Once,
    atomic::{AtomicBool, Ordering},
};

/// What is wrong with a call in such a child, to begin a sentence with.
pub const FORKED: &str = "this process was forked from one that uses tbccl, and can't use it";

static IS_CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn in_the_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
}

/// From now on [`is_child`] tells a child that is forked from this process. Called before there is anything that a child could
/// not use. The code that calls this must stay loaded until the process ends, since the C library can't be asked to forget.
pub fn notice() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        // SAFETY: the function is there until the process ends, as whoever calls this sees to, and does nothing that may
        // not be done in the child of a process with threads.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
        debug_assert_eq!(refused, 0, "there is no memory for one more entry");
    });
}

/// Is this a process that was forked from one that has asked to [`notice`] it?
#[inline]
#[must_use]
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}
