//! Fences that other threads pass: membarrier(2), where there is that.
//!
//! What it does not do: it knows nothing of seats, and asks the system once.

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{MembarrierCommand, membarrier};
    use std::sync::LazyLock;

    /// Whether the system grants this process the fence. Old systems and some containers refuse.
    static CAN: LazyLock<bool> =
        LazyLock::new(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok());

    pub(crate) fn others_can() -> bool {
        *CAN
    }

    pub(crate) fn others() {
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
    pub(crate) fn others_can() -> bool {
        false
    }

    pub(crate) fn others() {
        unreachable!("this system has no fence for others")
    }
}

/// Whether all threads of this process can be made to pass a fence.
pub(super) fn others_can() -> bool {
    system::others_can()
}

/// Returns when each thread of this process has passed a fence since this was called. Only where they can.
pub(super) fn others() {
    system::others();
}
