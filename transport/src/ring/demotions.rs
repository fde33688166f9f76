//! Lines that are moved to the cache that the cores share as soon as they have been stored.
//!
//! A core that reads a line which another core has stored gets it from there only after the other core has
//! been asked. Processors of Intel since Sapphire Rapids have an instruction that moves a line out of the
//! caches of a core. The receiver then finds it one way nearer. Each such instruction takes about as long as
//! a transfer of a line, and few are under way at a time, so they are for short messages: 16 KiB took twice
//! as long with them.
//!
//! Time of calls of two ranks on two cores of an Intel Xeon (Emerald Rapids), in nanoseconds; medians of 5 to
//! 7 launches in turns. Messages of 64 bytes are in both lines of a cell, of which the receiver polls the
//! first one.
//!
//! | lines that are moved | half a round trip, 64 B | 256 B | 512 B | 1 K | `all_reduce` 64 B | 512 B | 1 K |
//! |---|---:|---:|---:|---:|---:|---:|---:|
//! | none | 275 | 275 | 366 | 431 | 276 | 330 | 409 |
//! | all | 245 | 221 | 261 | 354 | 160 | 262 | 336 |
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
use std::arch::{asm, x86_64::__cpuid_count};

/// Longest message whose lines are moved. 1.5 and 2 KiB gained 5 to 10 % by it.
const MOST_BYTES: usize = 1024;

/// Returns the length of the longest message whose lines are moved; 0 where the processor cannot move lines.
pub(super) fn most_bytes() -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    if __cpuid_count(7, 0).ecx >> 25 & 1 == 1 {
        return MOST_BYTES;
    }
    0
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
