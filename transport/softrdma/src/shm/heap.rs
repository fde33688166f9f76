//! Allocation of ring space in a process's own file. Only the owner allocates, so the list of free ranges is
//! private.

use std::collections::BTreeMap;

/// Free ranges of a file by offset: disjoint and not adjacent.
#[derive(Debug)]
pub(crate) struct Heap(BTreeMap<u64, u64>);

impl Heap {
    /// Unit of ranges: a page, so that freed ranges can be returned to the system.
    pub(crate) const UNIT: u64 = 4096;

    pub(crate) fn new(start: u64, len: u64) -> Heap {
        Heap(BTreeMap::from([(start, len)]))
    }

    /// Takes the first range that fits. Returns its offset and length.
    pub(crate) fn allocate(&mut self, len: u64) -> Option<(u64, u64)> {
        let len = len.max(1).checked_next_multiple_of(Self::UNIT)?;
        let (&offset, &room) = self.0.iter().find(|&(_, &room)| room >= len)?;
        self.0.remove(&offset);
        if room > len {
            self.0.insert(offset + len, room - len);
        }
        Some((offset, len))
    }

    /// Returns a range, and joins it with its neighbors.
    pub(crate) fn free(&mut self, (mut offset, mut len): (u64, u64)) {
        if let Some((&before, &room)) = self.0.range(..offset).next_back()
            && before + room == offset
        {
            self.0.remove(&before);
            (offset, len) = (before, room + len);
        }
        if let Some(room) = self.0.remove(&(offset + len)) {
            len += room;
        }
        self.0.insert(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_disjoint_and_join_again() {
        let mut heap = Heap::new(8192, 16384);
        let first = heap.allocate(1).expect("room");
        let second = heap.allocate(5000).expect("room");
        assert_eq!((first, second), ((8192, 4096), (12288, 8192)));
        assert_eq!(heap.allocate(8192), None);
        heap.free(first);
        heap.free(second);
        assert_eq!(heap.allocate(16384), Some((8192, 16384)));
        assert_eq!(heap.allocate(1), None);
    }
}
