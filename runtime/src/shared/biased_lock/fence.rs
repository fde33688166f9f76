//! Fences that other threads pass: membarrier(2), where there is that.
//!
//! What it does not do: it knows nothing of seats, and asks the system once.

#[cfg(target_os = "linux")]
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
        // A child that was forked may have to ask again.
        let passed = membarrier(MembarrierCommand::PrivateExpedited).or_else(|_| {
            membarrier(MembarrierCommand::RegisterPrivateExpedited)?;
            membarrier(MembarrierCommand::PrivateExpedited)
        });
        // Asked for only where it was granted, and what could be done once can be done again.
        assert!(passed.is_ok(), "membarrier: {passed:?}, which was granted before");
    }
}

#[cfg(not(target_os = "linux"))]
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

/// Returns when each thread of this process has passed a fence since this was called. Only where they can.
pub(super) fn fence_all_threads() {
    system::fence_all_threads();
}
