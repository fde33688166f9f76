//! Fences that other threads of the process pass: membarrier(2), where it exists.
//!
//! This module knows nothing of locks, and queries the system once.

#[cfg(all(target_os = "linux", not(any(loom, miri))))]
mod system {
    use rustix::thread::{MembarrierCommand, membarrier};
    use std::sync::LazyLock;

    /// Whether the system grants this process the fence. Old systems and some containers refuse.
    static IS_AVAILABLE: LazyLock<bool> =
        LazyLock::new(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok());

    pub(crate) fn is_available() -> bool {
        *IS_AVAILABLE
    }

    pub(crate) fn fence_all_threads() {
        // A forked child may have to register again.
        let passed = membarrier(MembarrierCommand::PrivateExpedited).or_else(|_| {
            membarrier(MembarrierCommand::RegisterPrivateExpedited)?;
            membarrier(MembarrierCommand::PrivateExpedited)
        });
        // Called only where the fence was granted, and it can be granted again.
        assert!(passed.is_ok(), "membarrier: {passed:?}, which was granted before");
    }
}

/// Loom has no such fence. A fence of the caller stands for it, and one of the owner for the check of the
/// compiler: an asymmetric fence orders as two fences do.
#[cfg(loom)]
mod system {
    pub(crate) fn is_available() -> bool {
        true
    }

    pub(crate) fn fence_all_threads() {
        transport::sync::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(not(any(all(target_os = "linux", not(miri)), loom)))]
mod system {
    pub(crate) fn is_available() -> bool {
        false
    }

    pub(crate) fn fence_all_threads() {
        unreachable!("this system has no fence for others")
    }
}

/// Whether all threads of this process can be made to pass a fence.
pub(super) fn is_available() -> bool {
    system::is_available()
}

/// Makes each thread of this process pass a fence. Requires [`is_available`].
pub(super) fn fence_all_threads() {
    system::fence_all_threads();
}
