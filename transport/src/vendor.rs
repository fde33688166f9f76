//! The maker of this machine's processor, for ways of shared memory that are fast on some processors only.

use std::sync::OnceLock;

/// Whether Intel has made the processor, which is queried once.
#[must_use]
pub fn is_intel() -> bool {
    static IS_INTEL: OnceLock<bool> = OnceLock::new();
    *IS_INTEL.get_or_init(query)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn query() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn query() -> bool {
    false
}
