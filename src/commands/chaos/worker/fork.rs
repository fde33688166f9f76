//! Forked children of a rank.
//!
//! # Safety
//! A forked child runs one closure and leaves by `_exit`, which runs none of the parent's destructors. The
//! forking thread holds no lock. An alarm ends a child that waits for a lock of another thread.

use std::{io, panic::AssertUnwindSafe};

/// Seconds after which an alarm ends a child.
const ALARM: u32 = 20;

/// Exit status of a child whose calls were not refused.
const NOT_REFUSED: i32 = 1;

/// Exit status of a child that panicked.
const PANICKED: i32 = 2;

/// A forked child.
#[derive(Debug)]
pub(super) struct Child(libc::pid_t);

/// Runs a closure in a forked child. The closure returns whether all went well.
pub(super) fn in_child(body: impl FnOnce() -> bool) -> Option<Child> {
    // SAFETY: the child runs the closure and exits; see the module.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: an alarm changes nothing but the end of this child.
        unsafe { libc::alarm(ALARM) };
        let status = match std::panic::catch_unwind(AssertUnwindSafe(body)) {
            Ok(true) => 0,
            Ok(false) => NOT_REFUSED,
            Err(_) => PANICKED,
        };
        // SAFETY: `_exit` runs no code of the parent.
        unsafe { libc::_exit(status) };
    }
    (pid > 0).then_some(Child(pid))
}

impl Child {
    /// Waits for the child, whose alarm bounds the wait.
    ///
    /// # Errors
    /// A description of anything but success.
    pub(super) fn wait(self) -> Result<(), String> {
        let mut status = 0;
        // SAFETY: the process is a child of this one; the pointer is a valid place for its status.
        let waited = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        if waited != self.0 {
            return Err(format!("a forked child can't be waited for: {}", io::Error::last_os_error()));
        }
        match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
            (true, 0) => Ok(()),
            (true, NOT_REFUSED) => Err("a call in a forked child was not refused".to_owned()),
            (true, PANICKED) => Err("a forked child panicked".to_owned()),
            (true, other) => Err(format!("a forked child exited with status {other}")),
            (false, _) => Err(format!("a forked child was killed by signal {}", libc::WTERMSIG(status))),
        }
    }
}
