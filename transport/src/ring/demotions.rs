//! Lines that are moved to the cache that the cores share as soon as they have been stored.
//!
//! A core that reads a line which another core has stored gets it from there only after the other core has
//! been asked. Processors of Intel since Sapphire Rapids have an instruction that moves a line out of the
//! caches of a core, to the one that the cores share, from which the receiver gets it sooner. It is for short
//! messages: in longer ones it costs some 10 ns for each line, and 16 KiB took up to twice as long with it.
//!
//! Time of calls of two ranks on two cores of an Intel Xeon (Emerald Rapids), in nanoseconds; medians of 5 to
//! 7 launches in turns. Messages of 64 bytes are in both lines of a cell, of which the receiver polls the
//! first one.
//!
//! | lines that are moved | half a round trip, 64 B | 256 B | 512 B | 1 K | `all_reduce` 64 B | 512 B | 1 K |
//! |---|---:|---:|---:|---:|---:|---:|---:|
//! | none | 275 | 275 | 366 | 431 | 276 | 387 | 464 |
//! | all | 245 | 221 | 261 | 354 | 160 | 262 | 354 |
//!
//! They gain nothing for a message in a single line, which the receiver takes as soon as it is stored, and
//! take longer for messages that are sent on without an answer: a `broadcast` of 1 KiB, whose root stages its
//! pieces, took 540 instead of 430. So the lines of cells in two lines are moved, and those of buffers that
//! change hands.
//!
//! # Safety
//! The instruction changes no memory.

use super::RingLayout;
#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
use std::arch::asm;
use std::sync::OnceLock;

/// Longest message whose lines are moved. 1.5 and 2 KiB gained 5 to 10 % by it.
const MOST_BYTES: usize = 1024;

/// Returns the length of the longest message whose lines are moved; 0 where the processor cannot move lines.
pub(super) fn most_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| if can_move() { MOST_BYTES } else { 0 })
}

#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
fn can_move() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx >> 25 & 1 == 1
}

#[cfg(not(all(target_arch = "x86_64", not(miri), not(loom))))]
fn can_move() -> bool {
    false
}

/// Moves the lines of `len` bytes from `start` on. They may be anywhere.
#[inline]
pub(super) fn demote(start: *const u8, len: usize) {
    for line in (0..len).step_by(RingLayout::LINE) {
        #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
        // SAFETY: the instruction changes no memory and cannot fault. Processors that don't have it do
        // nothing.
        unsafe {
            asm!("cldemote [{0}]", in(reg) start.wrapping_add(line), options(nostack, preserves_flags));
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri), not(loom))))]
        let _ = start.wrapping_add(line);
    }
}

#[cfg(all(test, not(loom), not(miri), target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn lines_are_moved_where_the_system_says_that_the_processor_can() {
        let info = std::fs::read_to_string("/proc/cpuinfo").expect("the processors");
        let can_move = info.split_whitespace().any(|flag| flag == "cldemote");
        assert_eq!(most_bytes(), if can_move { MOST_BYTES } else { 0 });
    }

    #[test]
    fn the_bytes_of_moved_lines_stay_as_they_are() {
        let bytes: Vec<u8> = (0..1000).map(|at| at as u8).collect();
        demote(bytes.as_ptr(), bytes.len());
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }
}
