//! Lists of scatter/gather elements, and positions in them.
//!
//! # Safety
//! The elements of a list lie in a slot of a ring. The maker of the list has checked that `count` elements
//! are in the slot, and holds the lock of the queue.

use super::region::{Access, Denied};
use crate::shm::Sge;

/// A list of pieces of memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum SgeList<'a> {
    /// Registered memory, by elements that lie in a ring.
    Registered { access: Access<'a>, first: *const Sge, count: u32 },
    /// One piece of this process's memory that needs no registration.
    Local { start: *mut u8, len: usize },
}

/// A position in a list.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    list: SgeList<'a>,
    index: u32,
    offset: usize,
}

impl<'a> SgeList<'a> {
    fn element(&self, index: u32) -> Option<Sge> {
        match *self {
            SgeList::Registered { first, count, .. } if index < count => {
                // SAFETY: see the module.
                Some(unsafe { first.add(index as usize).read() })
            }
            SgeList::Local { start, len } if index == 0 => {
                Some(Sge { addr: start as u64, len: u32::try_from(len).ok()?, lkey: 0 })
            }
            _ => None,
        }
    }

    /// Returns the bytes of all elements together.
    pub(super) fn total(&self) -> u64 {
        (0..).map_while(|index| self.element(index)).map(|element| u64::from(element.len)).sum()
    }

    /// Checks that all elements are accessible.
    #[inline]
    pub(super) fn check(&self) -> Result<(), Denied> {
        let SgeList::Registered { access, .. } = self else { return Ok(()) };
        (0..).map_while(|index| self.element(index)).filter(|element| element.len > 0).try_for_each(
            |element| access.check(element.lkey, element.addr, u64::from(element.len)).map(|_| ()),
        )
    }

    pub(super) fn cursor(self) -> Cursor<'a> {
        Cursor { list: self, index: 0, offset: 0 }
    }
}

impl<'a> Cursor<'a> {
    /// Returns the bytes until the end of the current element, and skips empty elements. `None` at the end of
    /// the list.
    pub(super) fn remaining(&mut self) -> Option<usize> {
        loop {
            let remaining = self.list.element(self.index)?.len as usize - self.offset;
            if remaining > 0 {
                return Some(remaining);
            }
            self.index += 1;
            self.offset = 0;
        }
    }

    /// Returns the rest of the current element.
    #[inline]
    pub(super) fn rest(&self) -> Option<Sge> {
        let Sge { addr, len, lkey } = self.list.element(self.index)?;
        Some(Sge { addr: addr.wrapping_add(self.offset as u64), len: len - self.offset as u32, lkey })
    }

    pub(super) fn list(&self) -> &SgeList<'a> {
        &self.list
    }

    /// Skips `len` bytes, which are in the current element.
    #[inline]
    pub(super) fn skip(&mut self, len: usize) {
        self.offset += len;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use verbs_sys::AccessFlags;

    #[test]
    fn a_cursor_passes_empty_elements() {
        let folder = tempfile::tempdir().expect("a folder");
        let member = super::super::member::tests::member(&folder);
        let elements = [(100, 4), (200, 0), (300, 2)].map(|(addr, len)| Sge { addr, len, lkey: 0 });
        let access = Access { view: member.process().own(), pd: 0, flags: AccessFlags::NONE, newest: 0 };
        let list = SgeList::Registered { access, first: elements.as_ptr(), count: 3 };
        assert_eq!(list.total(), 6);
        assert_eq!(list.check(), Err(Denied), "nothing is registered");
        let mut cursor = list.cursor();
        assert_eq!(cursor.remaining(), Some(4));
        cursor.skip(3);
        assert_eq!((cursor.remaining(), cursor.rest().map(|rest| rest.addr)), (Some(1), Some(103)));
        cursor.skip(1);
        assert_eq!((cursor.remaining(), cursor.rest().map(|rest| rest.addr)), (Some(2), Some(300)));
        cursor.skip(2);
        assert_eq!(cursor.remaining(), None);
    }
}
