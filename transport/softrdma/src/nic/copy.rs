//! Moving bytes from one list of pieces to another.
//!
//! Programs watch the last byte of a message to learn that it is there. So it is stored last, after a fence:
//! here by a store of its own, in another process by a second range of the same system call.
//!
//! # Safety
//! Every address was found by [`Nic::locate`] for as many bytes as are copied and is marked meanwhile; or it
//! is within a ring's slot, whose lock is held. The memory belongs to programs that may change it at any
//! time, so it is only ever accessed through raw pointers. Process identifiers belong to processes whose life
//! was seen and that share our user.

use super::{
    Nic,
    region::{Denied, Mark, Need, Place},
};
use crate::shm::Sge;
use std::{
    io, ptr,
    sync::atomic::{AtomicU8, AtomicU64, Ordering::Release, fence},
};

/// A list of pieces of memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum List<'a> {
    /// Registered memory, by pieces that lie in a ring.
    Pieces { need: Need<'a>, first: *const Sge, count: u32 },
    /// Bytes at an address here.
    Plain { start: *mut u8, len: usize },
}

/// A place within a list.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    list: List<'a>,
    index: u32,
    offset: usize,
}

/// Why bytes could not be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The memory they come from is not accessible.
    Source,
    /// The memory they go to is not accessible.
    Destination,
    /// The other process is gone, or not ours to touch.
    Gone,
}

impl<'a> List<'a> {
    fn piece(&self, index: u32) -> Option<Sge> {
        match *self {
            List::Pieces { first, count, .. } if index < count => {
                // SAFETY: `count` pieces lie in the slot that `first` is in, checked by whoever made the
                // list, and its queue is locked.
                Some(unsafe { first.add(index as usize).read() })
            }
            List::Plain { start, len } if index == 0 => {
                Some(Sge { addr: start as u64, len: u32::try_from(len).ok()?, lkey: 0 })
            }
            _ => None,
        }
    }

    /// Bytes of all pieces together.
    pub(super) fn total(&self) -> u64 {
        (0..).map_while(|index| self.piece(index)).map(|piece| u64::from(piece.len)).sum()
    }

    /// Are all pieces accessible?
    #[inline]
    pub(super) fn check(&self) -> Result<(), Denied> {
        let List::Pieces { need, .. } = self else { return Ok(()) };
        (0..)
            .map_while(|index| self.piece(index))
            .filter(|piece| piece.len > 0)
            .try_for_each(|piece| need.check(piece.lkey, piece.addr, u64::from(piece.len)).map(|_| ()))
    }

    pub(super) fn cursor(self) -> Cursor<'a> {
        Cursor { list: self, index: 0, offset: 0 }
    }
}

impl<'a> Cursor<'a> {
    /// Bytes until the end of the piece that comes next.
    fn left(&mut self) -> Option<usize> {
        loop {
            let left = self.list.piece(self.index)?.len as usize - self.offset;
            if left > 0 {
                return Some(left);
            }
            self.index += 1;
            self.offset = 0;
        }
    }

    /// What is left of the piece that comes next.
    #[inline]
    pub(super) fn next_piece(&self) -> Option<Sge> {
        let Sge { addr, len, lkey } = self.list.piece(self.index)?;
        Some(Sge { addr: addr.wrapping_add(self.offset as u64), len: len - self.offset as u32, lkey })
    }

    pub(super) fn list(&self) -> &List<'a> {
        &self.list
    }

    /// Were the bytes those of a living process? Pages that a dead one has shared are given back, and read as zeroes
    /// from then on, but not before its file does, of which we know.
    #[inline]
    fn is_sound(&self, nic: &Nic) -> Result<(), Fault> {
        match self.list {
            List::Pieces { need, .. } if need.view.owner != nic.process.me && need.view.is_wiped() => {
                Err(Fault::Gone)
            }
            _ => Ok(()),
        }
    }

    /// Leaves out `len` bytes, which are of one piece.
    #[inline]
    pub(super) fn skip(&mut self, len: usize) {
        self.offset += len;
    }

    /// Where the next `len` bytes are, which are of one piece.
    #[inline]
    fn at(&self, nic: &'a Nic, len: usize) -> Result<(Place, Option<Mark<'a>>), Denied> {
        let piece = self.next_piece().ok_or(Denied)?;
        match &self.list {
            List::Plain { .. } => Ok((Place::Here(piece.addr as *mut u8), None)),
            List::Pieces { need, .. } => {
                let (place, mark) = nic.locate(need, piece.lkey, piece.addr, len)?;
                Ok((place, Some(mark)))
            }
        }
    }
}

impl Nic {
    /// Moves `len` bytes from one cursor to another.
    #[inline]
    pub(super) fn transfer<'a>(
        &'a self,
        from: &mut Cursor<'a>,
        to: &mut Cursor<'a>,
        mut len: usize,
    ) -> Result<(), Fault> {
        while len > 0 {
            let source_left = from.left().ok_or(Fault::Source)?;
            let chunk = len.min(source_left).min(to.left().ok_or(Fault::Destination)?);
            if let Ok((source, _source_mark)) = from.at(self, chunk)
                && let Ok((destination, _mark)) = to.at(self, chunk)
            {
                copy(destination, source, chunk)?;
                from.skip(chunk);
                to.skip(chunk);
                len -= chunk;
            } else {
                len -= self.move_astray(from, to, chunk)?;
            }
        }
        from.is_sound(self)
    }

    /// Turns one bit of a list around, so many bytes behind `skip`.
    #[cold]
    pub(super) fn flip<'a>(&'a self, list: List<'a>, skip: usize, bit: u64) -> Result<(), Fault> {
        let mut cursor = list.cursor();
        let mut skip = skip + (bit / 8) as usize;
        loop {
            let left = cursor.left().ok_or(Fault::Destination)?;
            cursor.offset += skip.min(left);
            if skip < left {
                break;
            }
            skip -= left;
        }
        let (_, place) = self.aim(&cursor, 1).map_err(|Denied| Fault::Destination)?;
        let Some((place, _mark)) = place else { return Ok(()) };
        let mut byte = 0u8;
        copy(Place::Here(&raw mut byte), place, 1)?;
        byte ^= 1 << (bit % 8);
        copy(place, Place::Here(&raw mut byte), 1)
    }
}

/// Copies `len` bytes, the last ones last.
#[inline]
pub(super) fn copy(destination: Place, source: Place, len: usize) -> Result<(), Fault> {
    match (destination, source) {
        (Place::Here(to), Place::Here(from)) => {
            store(to, from, len);
            Ok(())
        }
        (Place::There { pid, address }, Place::Here(from)) => {
            let split = len.saturating_sub(8);
            let local = [libc::iovec { iov_base: from.cast(), iov_len: len }];
            let remote = ranges(address as *mut u8, split, len);
            // SAFETY: `from` is valid for `len` bytes; the kernel checks the other process's addresses.
            let moved = unsafe {
                libc::process_vm_writev(pid as libc::pid_t, local.as_ptr(), 1, remote.as_ptr(), 2, 0)
            };
            check(moved, len, Fault::Destination)
        }
        (Place::Here(to), Place::There { pid, address }) => {
            let split = len.saturating_sub(8);
            let local = ranges(to, split, len);
            let remote = [libc::iovec { iov_base: address as *mut libc::c_void, iov_len: len }];
            // SAFETY: `to` is valid for `len` bytes; the kernel checks the other process's addresses.
            let moved = unsafe {
                libc::process_vm_readv(pid as libc::pid_t, local.as_ptr(), 2, remote.as_ptr(), 1, 0)
            };
            check(moved, len, Fault::Source)
        }
        // Whoever carries out a request is one of its two ends.
        (Place::There { .. }, Place::There { .. }) => Err(Fault::Gone),
    }
}

fn ranges(start: *mut u8, split: usize, len: usize) -> [libc::iovec; 2] {
    let range = |from: usize, to: usize| libc::iovec {
        iov_base: start.wrapping_add(from).cast(),
        iov_len: to - from,
    };
    [range(0, split), range(split, len)]
}

fn check(moved: isize, len: usize, fault: Fault) -> Result<(), Fault> {
    if moved == len as isize {
        return Ok(());
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::ESRCH | libc::EPERM) if moved < 0 => Err(Fault::Gone),
        _ => Err(fault),
    }
}

/// Copies within memory that is mapped here. The stores of the last aligned word's bytes come after all
/// others.
#[inline]
fn store(to: *mut u8, from: *const u8, len: usize) {
    let end = to as usize + len;
    let last = (end - 1) & !7;
    let head = last.saturating_sub(to as usize);
    let tail = len - head;
    // SAFETY: both ranges are valid for `len` bytes; `head + tail` is `len` and `tail` is 1 to 8. An aligned
    // tail of 8 bytes is one store; a shorter one is stored with its last byte by itself. Memmove, as a
    // program may send from where it receives.
    unsafe {
        if tail == 8 {
            let word = from.add(head).cast::<u64>().read_unaligned();
            ptr::copy(from, to, head);
            fence(Release);
            AtomicU64::from_ptr(to.add(head).cast()).store(word, Release);
        } else {
            let byte = from.add(len - 1).read();
            ptr::copy(from, to, len - 1);
            fence(Release);
            AtomicU8::from_ptr(to.add(len - 1)).store(byte, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_whole() {
        let source: Vec<u8> = (1..=64).collect();
        for start in 0..8 {
            for len in 1..=40 {
                let mut target = [0u8; 64];
                store(target.as_mut_ptr().wrapping_add(start), source.as_ptr(), len);
                assert_eq!(target[start..start + len], source[..len]);
                assert!(target[..start].iter().chain(&target[start + len..]).all(|&byte| byte == 0));
            }
        }
    }

    #[test]
    fn memory_of_another_process_is_written_through_the_kernel() {
        let source = [7u8; 100];
        let mut target = [0u8; 100];
        let there = Place::There { pid: std::process::id(), address: target.as_mut_ptr() as u64 };
        assert_eq!(copy(there, Place::Here(source.as_ptr().cast_mut()), 100), Ok(()));
        assert_eq!(target, source);
        let nowhere = Place::There { pid: std::process::id(), address: 8 };
        assert_eq!(copy(nowhere, Place::Here(source.as_ptr().cast_mut()), 100), Err(Fault::Destination));
        let nobody = Place::There { pid: i32::MAX as u32, address: 8 };
        assert_eq!(copy(nobody, Place::Here(source.as_ptr().cast_mut()), 100), Err(Fault::Gone));
    }

    /// Its pages have been given back by whoever found it dead, maybe while we copied from them.
    #[cfg(not(loom))]
    #[test]
    fn what_comes_from_the_dead_is_not_believed() {
        let folder = tempfile::tempdir().expect("a folder");
        let nic = super::super::rounds::tests::nic(&folder);
        let digest = nic.process.directory.header().digest.load(std::sync::atomic::Ordering::Relaxed);
        let directory = crate::shm::Directory::open(folder.path(), digest).expect("a folder");
        let other = crate::shm::Process::join(directory.into(), 0).expect("a place");
        let view = nic.process.view(other.me.slot, 0).expect("the other");
        let need = Need { view, pd: 0, access: verbs_sys::AccessFlags::NONE, newest: 0 };
        let from = List::Pieces { need, first: ptr::null(), count: 0 };
        assert_eq!(from.cursor().is_sound(&nic), Ok(()));
        drop(other);
        assert!(view.is_dead());
        assert_eq!(from.cursor().is_sound(&nic), Err(Fault::Gone));
    }
}
