//! Address wraparound: memory that crosses a 4 GiB line on a device that keeps 32 bits of an address.
//!
//! Such a device adds the low half of an address to the upper half of the region's start. So bytes beyond the
//! line are written, and read, exactly 4 GiB lower (or a multiple of it). `transfer` moves the bytes there.

use crate::shm::MrRecord;
use std::sync::atomic::Ordering::Relaxed;

/// Distance of the lines at which a device that keeps 32 bits of addresses fails.
pub(super) const LINE: u64 = 1 << 32;

/// Whether an access leaves the 4 GiB in which its region begins.
#[inline]
pub(super) fn wraps(mr: &MrRecord, start: u64, len: usize) -> bool {
    mr.wraps.load(Relaxed) != 0 && (start.wrapping_add(len as u64).wrapping_sub(1) ^ base(mr)) >= LINE
}

/// Returns the address that the device accesses instead of `start`.
pub(super) fn wrapped(mr: &MrRecord, start: u64) -> u64 {
    base(mr) | (start % LINE)
}

/// Returns the start of the 4 GiB in which a region begins.
fn base(mr: &MrRecord) -> u64 {
    mr.address.load(Relaxed) & !(LINE - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_line_are_4_gib_lower() {
        let folder = tempfile::tempdir().expect("a folder");
        let member = super::super::member::tests::member(&folder);
        let mr = member.process().own().mr(1).expect("a record");
        mr.address.store(5 * LINE - 100, Relaxed);
        assert!(!wraps(mr, 5 * LINE, 1), "on other devices");
        mr.wraps.store(1, Relaxed);
        assert!(!wraps(mr, 5 * LINE - 100, 100));
        assert!(wraps(mr, 5 * LINE - 100, 101));
        assert_eq!(wrapped(mr, 5 * LINE + 7), 4 * LINE + 7);
    }
}
