//! Memory regions: checks keys, and finds the memory that they name.
//!
//! # Safety
//! Addresses come from registrations, whose owners promised that the memory is theirs. A region of another
//! process is marked as in use in that process's file; its owner does not end the registration before the
//! mark is gone.

use super::{copy::Location, wraparound};
use crate::{
    shm::{MrRecord, Process, QpFixed, Unreached, View},
    sync::{AtomicU32, AtomicU64},
};
use std::{
    hint,
    sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst},
    thread,
};
use verbs_sys::AccessFlags;

/// An access to registered memory: the owner, the protection domain, and the permissions that it needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access<'a> {
    pub(super) view: &'a View,
    pub(super) pd: u32,
    pub(super) flags: AccessFlags,
    /// Serial number of the newest region that is usable.
    pub(super) newest: u32,
}

/// Marks a region of another process as in use, until it is dropped.
#[derive(Debug)]
pub(super) struct RegionGuard<'a>(Option<&'a AtomicU64>);

impl RegionGuard<'_> {
    /// Returns a guard for memory that needs no mark.
    pub(super) fn none() -> Self {
        RegionGuard(None)
    }
}

impl Drop for RegionGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(word) = self.0 {
            word.store(0, Release);
        }
    }
}

/// The error of an access that the key does not permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Denied;

/// Returns the record of a valid key.
#[inline]
fn find(view: &View, key: u32) -> Option<&MrRecord> {
    let mr = view.mr(key >> 8)?;
    (key != 0 && mr.key.load(Acquire) == key).then_some(mr)
}

impl<'a> Access<'a> {
    /// Returns an access of a queue pair to the memory of its own process.
    pub(super) fn of_qp(view: &'a View, fixed: &QpFixed, flags: AccessFlags) -> Access<'a> {
        Access { view, pd: fixed.pd.load(Relaxed), flags, newest: fixed.newest_mr.load(Relaxed) }
    }

    /// Checks an access to `len` bytes. Returns the region, and the offset of `address` in it.
    #[inline]
    pub(super) fn check(&self, key: u32, address: u64, len: u64) -> Result<(&MrRecord, u64), Denied> {
        let mr = find(self.view, key).ok_or(Denied)?;
        let offset = address.checked_sub(mr.iova.load(Relaxed)).ok_or(Denied)?;
        let total = mr.len.load(Relaxed);
        let is_inside = offset <= total && len <= total - offset;
        let is_allowed = AccessFlags(mr.access.load(Relaxed)).contains(self.flags);
        let is_bound = mr.serial.load(Relaxed) <= self.newest;
        let is_ours = mr.pd.load(Relaxed) == self.pd;
        if is_inside && is_allowed && is_bound && is_ours { Ok((mr, offset)) } else { Err(Denied) }
    }
}

/// The registered memory that a process reaches: its own and that of its peers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Regions<'a> {
    process: &'a Process,
}

impl<'a> Regions<'a> {
    #[inline]
    pub(super) fn new(process: &'a Process) -> Regions<'a> {
        Regions { process }
    }

    /// Whether a process is this one.
    #[inline]
    pub(super) fn is_own(self, view: &View) -> bool {
        view.owner == self.process.me
    }

    /// Finds bytes that an access permits, and marks their region as in use.
    ///
    /// Refuses bytes that a device with 32-bit addresses would access elsewhere; see [`wraparound`].
    #[inline]
    pub(super) fn locate(
        self,
        access: &Access<'a>,
        key: u32,
        address: u64,
        len: usize,
    ) -> Result<(Location, RegionGuard<'a>), Denied> {
        let guard = self.mark_unless_own(access.view, key);
        let (mr, offset) = access.check(key, address, len as u64)?;
        if wraparound::wraps(mr, mr.address.load(Relaxed).wrapping_add(offset), len) {
            return Err(Denied);
        }
        Ok((self.location(access.view, mr, offset, len)?, guard))
    }

    /// Finds bytes of a region that no request has named, and marks the region as in use.
    #[cold]
    pub(super) fn locate_within(
        self,
        view: &'a View,
        key: u32,
        offset: u64,
        len: usize,
    ) -> Result<(Location, RegionGuard<'a>), Denied> {
        let guard = self.mark_unless_own(view, key);
        let mr = find(view, key).ok_or(Denied)?;
        Ok((self.location(view, mr, offset, len)?, guard))
    }

    /// Returns the location of bytes whose offset and length were checked.
    #[inline]
    fn location(self, view: &View, mr: &MrRecord, offset: u64, len: usize) -> Result<Location, Denied> {
        let start = mr.address.load(Relaxed).wrapping_add(offset);
        if self.is_own(view) {
            return Ok(Location::Mapped(start as *mut u8));
        }
        Ok(match mr.shared_at.load(Relaxed) {
            u64::MAX => Location::Remote { pid: view.pid, address: start },
            shared_at => match self.process.pages(view) {
                Ok(pages) => {
                    Location::Mapped(pages.range().bytes(shared_at.wrapping_add(offset), len).ok_or(Denied)?)
                }
                // The kernel copies in the meantime: a device needs no descriptor.
                Err(Unreached::NoResources) => Location::Remote { pid: view.pid, address: start },
                Err(Unreached::Gone) => return Err(Denied),
            },
        })
    }

    /// Marks a region of another process as in use.
    ///
    /// The owner first revokes the key and then looks for marks; this process first marks and then checks the
    /// key. So one of the two sees the other.
    #[inline]
    fn mark_unless_own(self, view: &'a View, key: u32) -> RegionGuard<'a> {
        if self.is_own(view) {
            return RegionGuard::none();
        }
        let words = &view.header().marks[self.process.me.slot as usize].0;
        loop {
            for word in words {
                if word.compare_exchange(0, mark_of(key), SeqCst, Relaxed).is_ok() {
                    return RegionGuard(Some(word));
                }
            }
            hint::spin_loop();
        }
    }

    /// Revokes the key in `word`, and waits until no living process uses the region.
    pub(super) fn revoke(self, word: &AtomicU32) {
        let mark = mark_of(word.swap(0, SeqCst));
        let own = self.process.own();
        for (slot, marks) in own.header().marks.iter().enumerate() {
            let is_marked = || marks.0.iter().any(|word| word.load(SeqCst) == mark);
            let mut turns = 0u32;
            while is_marked() {
                turns += 1;
                thread::yield_now();
                let is_gone = || match self.process.find(slot as u32, 0) {
                    Ok(view) => view.is_dead(),
                    Err(unreached) => unreached == Unreached::Gone,
                };
                if turns.is_multiple_of(64) && is_gone() {
                    break;
                }
            }
        }
    }
}

/// Returns the word that marks the region of a key as in use. It is never zero.
fn mark_of(key: u32) -> u64 {
    u64::from(key) | 1 << 32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{super::member::tests::open, *};

    const KEY: u32 = 5 << 8 | 1;

    /// Registers `bytes` under [`KEY`] in domain 7, with the serial number 2.
    fn register(process: &Process, bytes: &[u8]) {
        let mr = process.own().mr(KEY >> 8).expect("a record");
        mr.pd.store(7, Relaxed);
        mr.access.store(AccessFlags::REMOTE_READ.0, Relaxed);
        mr.serial.store(2, Relaxed);
        mr.iova.store(1000, Relaxed);
        mr.address.store(bytes.as_ptr() as u64, Relaxed);
        mr.len.store(bytes.len() as u64, Relaxed);
        mr.shared_at.store(u64::MAX, Relaxed);
        mr.key.store(KEY, SeqCst);
    }

    #[test]
    fn a_key_permits_what_it_was_made_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let process = Process::join(open(&folder).0, 0).expect("a slot");
        let bytes = [0u8; 100];
        register(&process, &bytes);
        let good = Access { view: process.own(), pd: 7, flags: AccessFlags::REMOTE_READ, newest: 2 };
        let is_denied = |access: &Access<'_>, key, address, len| access.check(key, address, len).is_err();
        assert_eq!(good.check(KEY, 1010, 90).map(|(_, offset)| offset), Ok(10));
        assert!(is_denied(&good, KEY, 1010, 91) && is_denied(&good, KEY, 999, 1));
        assert!(is_denied(&good, KEY + 1, 1000, 1) && is_denied(&good, 0, 1000, 1));
        assert!(is_denied(&Access { pd: 8, ..good }, KEY, 1000, 1));
        assert!(is_denied(&Access { newest: 1, ..good }, KEY, 1000, 1));
        assert!(is_denied(&Access { flags: AccessFlags::REMOTE_WRITE, ..good }, KEY, 1000, 1));
    }

    #[test]
    fn a_key_is_revoked_once_the_region_is_unused() {
        let folder = tempfile::tempdir().expect("a folder");
        let [owner, peer] = [0; 2].map(|_| Process::join(open(&folder).0, 0).expect("a slot"));
        let bytes = [0u8; 100];
        register(&owner, &bytes);
        let view = peer.view(owner.me.slot, 0).expect("the owner");
        let access = Access { view, pd: 7, flags: AccessFlags::REMOTE_READ, newest: 2 };
        let (location, guard) = Regions::new(&peer).locate(&access, KEY, 1010, 90).expect("permitted");
        let address = bytes.as_ptr() as u64 + 10;
        assert!(matches!(location, Location::Remote { address: found, .. } if found == address));
        thread::scope(|scope| {
            let word = &owner.own().mr(KEY >> 8).expect("a record").key;
            let revoking = scope.spawn(|| Regions::new(&owner).revoke(word));
            while word.load(SeqCst) != 0 {
                thread::yield_now();
            }
            assert!(access.check(KEY, 1010, 90).is_err() && !revoking.is_finished());
            drop(guard);
        });
        assert!(Regions::new(&peer).locate(&access, KEY, 1010, 90).is_err());
    }
}
