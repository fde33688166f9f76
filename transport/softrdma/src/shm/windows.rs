//! Windows: the addresses of this process that have a place in its file of shared pages.
//!
//! A window is a run of addresses that is contiguous in the file as it is in memory. It is as large as the
//! program's own mapping. So registrations that overlap or touch in memory do so in the file, and each is one
//! run of the file. A window takes up no pages; pages of registrations are put into it.

use super::heap::Heap;

/// The windows, and the free ranges of the file.
#[derive(Debug)]
pub(crate) struct Windows {
    room: Heap,
    list: Vec<Window>,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    start: u64,
    end: u64,
    /// Offset and length in the file.
    range: (u64, u64),
}

impl Windows {
    pub(crate) fn new(bytes: u64) -> Windows {
        Windows { room: Heap::new(0, bytes), list: Vec::new() }
    }

    /// Returns the offset in the file of these addresses: in a window that holds all of them, or in a new
    /// window.
    ///
    /// A new window is as large as the mapping `around` the addresses, as far as that is free. `None` if the
    /// addresses are partly in another window, or if there is no room.
    pub(crate) fn place(&mut self, start: u64, end: u64, around: (u64, u64)) -> Option<u64> {
        let overlaps = |window: &&Window| window.start < end && start < window.end;
        if let Some(window) = self.list.iter().find(overlaps) {
            let is_inside = window.start <= start && end <= window.end;
            return is_inside.then(|| window.range.0 + (start - window.start));
        }
        let below = self.list.iter().map(|window| window.end).filter(|&edge| edge <= start).max();
        let above = self.list.iter().map(|window| window.start).filter(|&edge| edge >= end).min();
        let wide = (around.0.max(below.unwrap_or(0)), around.1.min(above.unwrap_or(u64::MAX)));
        let mut take = |(start, end): (u64, u64)| {
            let range = self.room.allocate(end - start)?;
            self.list.push(Window { start, end, range });
            Some(range.0)
        };
        take(wide).map(|offset| offset + (start - wide.0)).or_else(|| take((start, end)))
    }

    /// Removes windows of which nothing is used, and returns their ranges of the file.
    pub(crate) fn release(&mut self, is_used: impl Fn(u64, u64) -> bool) -> Vec<(u64, u64)> {
        let unused = |window: &mut Window| !is_used(window.range.0, window.range.0 + window.range.1);
        let gone: Vec<_> = self.list.extract_if(.., unused).map(|window| window.range).collect();
        gone.iter().for_each(|&range| self.room.free(range));
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn neighbours_in_memory_are_neighbours_in_the_file() {
        let mut windows = Windows::new(64 * MIB);
        let mapping = (16 * MIB, 32 * MIB);
        let first = windows.place(20 * MIB, 21 * MIB, mapping).expect("room");
        assert_eq!(windows.place(19 * MIB, 23 * MIB, mapping), Some(first - MIB));
        assert_eq!(windows.place(31 * MIB, 33 * MIB, (31 * MIB, 40 * MIB)), None, "in part");
        let next = windows.place(32 * MIB, 33 * MIB, (16 * MIB, 40 * MIB)).expect("room");
        assert!(next >= first + 12 * MIB || next + MIB <= first - 4 * MIB, "apart from the first");
    }

    #[test]
    fn what_is_not_used_is_given_back() {
        let mut windows = Windows::new(8 * MIB);
        assert!(windows.place(0, MIB, (0, 1 << 40)).is_some(), "no room for all of the mapping");
        let second = windows.place(2 * MIB, 4 * MIB, (2 * MIB, 9 * MIB)).expect("room");
        assert_eq!(windows.place(16 * MIB, 24 * MIB, (16 * MIB, 24 * MIB)), None);
        assert_eq!(windows.release(|start, _| start == second), [(0, MIB)]);
        assert_eq!(windows.release(|_, _| false), [(second, 7 * MIB)]);
        assert_eq!(windows.place(16 * MIB, 24 * MIB, (16 * MIB, 24 * MIB)), Some(0));
    }
}
