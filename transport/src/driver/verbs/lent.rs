//! Memory of the caller's that devices may be told of: a cache of registrations.
//!
//! A caller lends memory and promises that it stays where it is. It is registered when an operation first uses it, with
//! every device, and stays so until the caller takes it back or others need the room: registrations are counted, in
//! regions and bytes, against a budget and against what the devices take. Where there is no room, or a device
//! knows no memory that is registered after its connections, bytes are copied as they are from any other memory.
//!
//! A place in lent memory is its address with the highest bit set, so that it can't be one in the slab.
//!
//! Invariant: memory that an operation under way uses stays registered until that has ended.

use super::{memory::Keys, port::Port};

/// Marks places in lent memory.
pub(super) const LENT: usize = 1 << (usize::BITS - 1);

/// What may be registered at a time, with each device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    pub(super) regions: usize,
    pub(super) bytes: u64,
}

/// Something lent.
#[derive(Debug)]
struct Range {
    start: usize,
    len: usize,
    /// Operations under way that use it.
    uses: u32,
    /// When an operation last began to use it, by their number.
    last_use: u64,
    is_registered: bool,
}

impl Range {
    fn covers(&self, start: usize, len: usize) -> bool {
        start >= self.start && start - self.start <= self.len && len <= self.len - (start - self.start)
    }
}

/// All that is lent.
#[derive(Debug)]
pub(super) struct Lent {
    ranges: Vec<Range>,
    budget: Budget,
    segment_bytes: usize,
    uses: u64,
}

impl Lent {
    pub(super) fn new(budget: Budget, segment_bytes: usize) -> Lent {
        Lent { ranges: Vec::new(), budget, segment_bytes, uses: 0 }
    }

    /// Takes memory; false when some of it is lent already.
    pub(super) fn lend(&mut self, start: usize, len: usize) -> bool {
        let is_taken =
            self.ranges.iter().any(|range| start < range.start + range.len && range.start < start + len);
        if !is_taken {
            self.ranges.push(Range { start, len, uses: 0, last_use: 0, is_registered: false });
        }
        !is_taken
    }

    /// Gives memory back; no device knows it any more.
    pub(super) fn give_back(&mut self, start: usize, ports: &mut [Port]) {
        self.ranges.retain(|range| range.start != start);
        ports.iter_mut().for_each(|port| port.keys.forget(start));
    }

    /// Where in lent and registered memory this lies, if it does.
    #[inline]
    pub(super) fn locate(&self, start: *const u8, len: usize) -> Option<usize> {
        if self.ranges.is_empty() {
            return None;
        }
        let start = start as usize;
        self.ranges
            .iter()
            .any(|range| range.is_registered && range.covers(start, len))
            .then_some(start | LENT)
    }

    /// An operation begins to use memory, which is registered if it is lent and there is room.
    pub(super) fn begin_use(&mut self, start: usize, len: usize, ports: &mut [Port]) {
        self.uses += 1;
        let uses = self.uses;
        let Some(index) = self.ranges.iter().position(|range| range.covers(start, len)) else { return };
        let range = &mut self.ranges[index];
        range.uses += 1;
        range.last_use = uses;
        if range.is_registered || !self.make_room(index, ports) {
            return;
        }
        // A device that has no room by its own account may have it when something else is forgotten.
        while !self.register(index, ports) {
            if !self.evict(ports) {
                return;
            }
        }
    }

    /// An operation has ended that used this memory.
    pub(super) fn end_use(&mut self, start: usize, len: usize) {
        if let Some(range) = self.ranges.iter_mut().find(|range| range.covers(start, len)) {
            range.uses = range.uses.saturating_sub(1);
        }
    }

    fn regions_of(&self, range: &Range) -> usize {
        range.len.div_ceil(self.segment_bytes)
    }

    /// Forgets what was not used for longest until the budget has room for a range.
    fn make_room(&mut self, index: usize, ports: &mut [Port]) -> bool {
        loop {
            let of_budget =
                self.ranges.iter().enumerate().filter(|(i, range)| range.is_registered || *i == index);
            let (regions, bytes) = of_budget.fold((0, 0), |(regions, bytes), (_, range)| {
                (regions + self.regions_of(range), bytes + range.len as u64)
            });
            if regions <= self.budget.regions && bytes <= self.budget.bytes {
                return true;
            }
            if !self.evict(ports) {
                return false;
            }
        }
    }

    /// Forgets what was not used for longest; false when all is in use.
    fn evict(&mut self, ports: &mut [Port]) -> bool {
        let idle = self.ranges.iter_mut().filter(|range| range.is_registered && range.uses == 0);
        let Some(oldest) = idle.min_by_key(|range| range.last_use) else { return false };
        oldest.is_registered = false;
        ports.iter_mut().for_each(|port| port.keys.forget(oldest.start));
        true
    }

    fn register(&mut self, index: usize, ports: &mut [Port]) -> bool {
        let segment_bytes = self.segment_bytes;
        let range = &mut self.ranges[index];
        let known = |port: &mut Port| {
            port.abilities.late_registration && port.keys.learn(range.start, range.len, segment_bytes)
        };
        range.is_registered = ports.iter_mut().all(known);
        if !range.is_registered {
            ports.iter_mut().for_each(|port: &mut Port| Keys::forget(&mut port.keys, range.start));
        }
        range.is_registered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lent() -> Lent {
        Lent::new(Budget { regions: 2, bytes: 1 << 20 }, 1 << 20)
    }

    #[test]
    fn what_is_lent_cannot_be_lent_again() {
        let mut lent = lent();
        assert!(lent.lend(4096, 4096));
        for (start, len) in [(4096, 4096), (4000, 97), (8191, 1), (0, 1 << 20), (5000, 10)] {
            assert!(!lent.lend(start, len), "{start}+{len}");
        }
        assert!(lent.lend(8192, 4096) && lent.lend(0, 4096));
        lent.give_back(4096, &mut []);
        assert!(lent.lend(5000, 10));
    }

    #[test]
    fn only_registered_memory_is_found_and_only_as_a_whole() {
        let mut lent = lent();
        lent.lend(4096, 4096);
        assert_eq!(lent.locate(5000 as *const u8, 10), None);
        lent.begin_use(5000, 10, &mut []);
        for (start, len, found) in
            [(4096, 4096, true), (4095, 2, false), (8000, 192, true), (8000, 193, false)]
        {
            assert_eq!(lent.locate(start as *const u8, len), found.then_some(start | LENT), "{start}+{len}");
        }
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room_unless_it_is_in_use() {
        let mut lent = lent();
        let starts = [1usize << 30, 2 << 30, 3 << 30, 4 << 30];
        let found = |lent: &Lent| starts.map(|start| lent.locate(start as *const u8, 8).is_some());
        starts.iter().for_each(|start| assert!(lent.lend(*start, 1 << 18)));
        for start in &starts[..3] {
            lent.begin_use(*start, 8, &mut []);
            lent.end_use(*start, 8);
        }
        assert_eq!(found(&lent), [false, true, true, false], "two regions are allowed");
        lent.begin_use(starts[1], 8, &mut []);
        lent.begin_use(starts[3], 8, &mut []);
        assert_eq!(found(&lent), [false, true, false, true]);
        lent.begin_use(starts[0], 8, &mut []);
        assert_eq!(found(&lent), [false, true, false, true], "all are in use");
        lent.end_use(starts[3], 8);
        lent.end_use(starts[0], 8);
        lent.begin_use(starts[0], 8, &mut []);
        assert_eq!(found(&lent), [true, true, false, false]);
    }

    #[test]
    fn what_is_larger_than_the_budget_is_not_registered() {
        let mut lent = lent();
        assert!(lent.lend(1 << 30, (1 << 20) + 1));
        lent.begin_use(1 << 30, 8, &mut []);
        assert_eq!(lent.locate((1usize << 30) as *const u8, 8), None);
    }
}
