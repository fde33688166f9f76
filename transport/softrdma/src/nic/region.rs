//! Registered memory: what a key allows, and where its bytes are from here.
//!
//! # Safety
//! Addresses come from registrations, whose owners promised that the memory is theirs. A region of another
//! process that is in use here is marked in that process's file; its owner does not end the registration
//! before the mark is gone.

use super::{Nic, stray};
use crate::{
    shm::{MrRecord, QpFixed, View},
    sync::{AtomicU32, AtomicU64},
};
use std::{
    hint,
    sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst},
    thread,
};
use verbs_sys::AccessFlags;

/// What is about to be done to memory, and by whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need<'a> {
    pub(crate) view: &'a View,
    pub(crate) pd: u32,
    pub(crate) access: AccessFlags,
    /// Regions registered after this one are not usable.
    pub(crate) newest: u32,
}

impl<'a> Need<'a> {
    /// What a queue pair needs of its own process's memory.
    pub(crate) fn of(view: &'a View, fixed: &QpFixed, access: AccessFlags) -> Need<'a> {
        Need { view, pd: fixed.pd.load(Relaxed), access, newest: fixed.newest_mr.load(Relaxed) }
    }
}

/// Where bytes are, seen from this process.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// In memory that is mapped here.
    Here(*mut u8),
    /// In the memory of another process.
    There { pid: u32, address: u64 },
}

/// Marks a region of another process as in use; no more when dropped.
#[derive(Debug)]
pub(super) struct Mark<'a>(Option<&'a AtomicU64>);

impl Mark<'_> {
    /// For memory that needs none.
    pub(super) fn none() -> Self {
        Mark(None)
    }
}

impl Drop for Mark<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(word) = self.0 {
            word.store(0, Release);
        }
    }
}

/// The key does not allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Denied;

/// The record of a key that is in force.
#[inline]
pub(crate) fn find(view: &View, key: u32) -> Option<&MrRecord> {
    let mr = view.mr(key >> 8)?;
    (key != 0 && mr.key.load(Acquire) == key).then_some(mr)
}

impl Need<'_> {
    /// How far into its region an allowed access begins.
    #[inline]
    pub(super) fn check(&self, key: u32, address: u64, len: u64) -> Result<(&MrRecord, u64), Denied> {
        let mr = find(self.view, key).ok_or(Denied)?;
        let offset = address.checked_sub(mr.iova.load(Relaxed)).ok_or(Denied)?;
        let total = mr.len.load(Relaxed);
        let is_inside = offset <= total && len <= total - offset;
        let is_allowed = AccessFlags(mr.access.load(Relaxed)).contains(self.access);
        let is_bound = mr.serial.load(Relaxed) <= self.newest;
        let is_ours = mr.pd.load(Relaxed) == self.pd;
        if is_inside && is_allowed && is_bound && is_ours { Ok((mr, offset)) } else { Err(Denied) }
    }
}

impl Nic {
    /// Where allowed bytes are, and a mark that keeps them there. Refuses those that go astray, see `stray`.
    #[inline]
    pub(super) fn locate<'a>(
        &'a self,
        need: &Need<'a>,
        key: u32,
        address: u64,
        len: usize,
    ) -> Result<(Place, Mark<'a>), Denied> {
        let is_own = need.view.owner == self.process.me;
        let mark = if is_own { Mark(None) } else { self.mark(need.view, key) };
        let (mr, offset) = need.check(key, address, len as u64)?;
        if stray::strays(mr, mr.address.load(Relaxed).wrapping_add(offset), len) {
            return Err(Denied);
        }
        Ok((self.place(need.view, mr, offset, len)?, mark))
    }

    /// Where bytes of a region are that no request has named.
    #[cold]
    pub(super) fn locate_within<'a>(
        &'a self,
        view: &'a View,
        key: u32,
        offset: u64,
        len: usize,
    ) -> Result<(Place, Mark<'a>), Denied> {
        let mark = if view.owner == self.process.me { Mark(None) } else { self.mark(view, key) };
        let mr = find(view, key).ok_or(Denied)?;
        Ok((self.place(view, mr, offset, len)?, mark))
    }

    /// Where bytes of a region are; the offset and the length were checked.
    #[inline]
    fn place(&self, view: &View, mr: &MrRecord, offset: u64, len: usize) -> Result<Place, Denied> {
        let start = mr.address.load(Relaxed).wrapping_add(offset);
        if view.owner == self.process.me {
            return Ok(Place::Here(start as *mut u8));
        }
        Ok(match mr.shared_at.load(Relaxed) {
            u64::MAX => Place::There { pid: view.pid, address: start },
            shared_at => {
                let pages = self.process.pages(view).ok_or(Denied)?;
                Place::Here(pages.area().bytes(shared_at.wrapping_add(offset), len).ok_or(Denied)?)
            }
        })
    }

    /// Announces the use of a region. Whoever ends the registration takes the key away first and looks for
    /// marks then, and we check the key after we have marked: one of the two sees the other.
    #[inline]
    fn mark<'a>(&self, view: &'a View, key: u32) -> Mark<'a> {
        let words = &view.header().marks[self.process.me.slot as usize].0;
        loop {
            for word in words {
                if word.compare_exchange(0, u64::from(key) | 1 << 32, SeqCst, Relaxed).is_ok() {
                    return Mark(Some(word));
                }
            }
            hint::spin_loop();
        }
    }

    /// Takes a key away and waits until nobody uses the region any more.
    pub(crate) fn withdraw(&self, word: &AtomicU32) {
        let key = word.swap(0, SeqCst);
        let mine = u64::from(key) | 1 << 32;
        let own = self.process.own();
        for (slot, marks) in own.header().marks.iter().enumerate() {
            let is_marked = || marks.0.iter().any(|word| word.load(SeqCst) == mine);
            let mut turns = 0u32;
            while is_marked() {
                turns += 1;
                thread::yield_now();
                let is_gone = |view: &View| view.is_dead();
                if turns.is_multiple_of(64) && self.process.view(slot as u32, 0).is_none_or(is_gone) {
                    break;
                }
            }
        }
    }
}
