//! The processor's counter of time, which takes less time to read than the system's clock.
//!
//! The counter is used where the system itself counts time by it: on x86-64 under Linux if the time stamp
//! counter is invariant and the kernel's clock source, on AArch64 under Linux if the system counter is the
//! kernel's clock source, and on AArch64 under macOS. The kernel has tested then that all cores agree.
//! This module knows no unit of the counter: [`clock`](super::clock) relates it to the system's clock.
//!
//! # Safety
//! The instructions read registers that programs may read, and change no memory. A kernel that forbids them
//! does not count time by these counters.

#[cfg(target_arch = "aarch64")]
use std::arch::asm;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__cpuid, _mm_lfence, _rdtsc};

/// File of Linux with the name of its clock source.
#[cfg(target_os = "linux")]
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Whether the system counts time by the processor's counter.
pub(super) fn is_usable() -> bool {
    is_invariant() && is_the_systems()
}

#[cfg(target_os = "linux")]
fn is_the_systems() -> bool {
    let name = if cfg!(target_arch = "x86_64") { "tsc" } else { "arch_sys_counter" };
    std::fs::read_to_string(CLOCK_SOURCE).is_ok_and(|source| source.trim() == name)
}

#[cfg(not(target_os = "linux"))]
fn is_the_systems() -> bool {
    cfg!(all(target_os = "macos", target_arch = "aarch64"))
}

/// Whether the counter has one rate in all states of the processor.
#[cfg(target_arch = "x86_64")]
fn is_invariant() -> bool {
    const POWER: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & INVARIANT != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn is_invariant() -> bool {
    cfg!(target_arch = "aarch64")
}

/// Reads the counter. The processor may carry out the reading before earlier loads have their values.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn read() -> u64 {
    // SAFETY: all x86-64 processors have the instruction, and Linux lets programs use its clock source.
    unsafe { _rdtsc() }
}

/// Reads the counter after earlier loads have their values.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn read_after_loads() -> u64 {
    // SAFETY: as in `read`; the fence belongs to SSE2, which all x86-64 processors have.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

/// Reads the counter. The processor may carry out the reading before earlier loads have their values.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(super) fn read() -> u64 {
    let count;
    // SAFETY: the instruction reads a register that Linux and macOS let programs read.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags)) };
    count
}

/// Reads the counter after the loads that earlier branches depend on have their values.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(super) fn read_after_loads() -> u64 {
    let count;
    // SAFETY: as in `read`. Without `nomem` the compiler moves no load across the instructions. The barrier
    // is not complete before earlier branches are decided.
    unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) count, options(nostack, preserves_flags)) };
    count
}

/// Never called: no other processor's counter is usable.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn read() -> u64 {
    unreachable!("no counter of this processor is usable")
}

/// Never called: no other processor's counter is usable.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn read_after_loads() -> u64 {
    read()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usable_counter_goes_forward() {
        if is_usable() {
            let begin = read();
            let times: Vec<u64> = (0..1000).map(|_| read_after_loads()).collect();
            assert!(begin < times[0] && times.is_sorted() && times[0] < times[999], "{times:?}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_counter_that_the_kernel_does_not_trust_is_not_used() {
        let source = std::fs::read_to_string(CLOCK_SOURCE).unwrap_or_default();
        assert!(!is_usable() || ["tsc", "arch_sys_counter"].contains(&source.trim()), "{source}");
    }
}
