//! Registration cache: user memory that devices register when an operation uses it.
//!
//! User memory is memory that the caller has registered with the endpoint and promises not to move. An
//! operation that uses it registers it with every device. It stays registered until the caller takes it back
//! or another range needs the room: registrations are limited, in regions and bytes, by a budget and by the
//! devices. If there is no room, or a device does not support registration after its queue pairs are
//! connected, bytes are copied as for any other memory.
//!
//! An offset in user memory is its address with the highest bit set, so that it can't be an offset in the
//! slab.
//!
//! Several endpoints of a process may register the same memory, in ranges of any extent.
//!
//! Invariants: memory that an operation in progress uses stays registered until the operation has ended; no
//! two ranges that overlap are registered with the devices.

use super::{
    memory::{DeviceKeys, USER_MEMORY_BIT},
    port::Port,
};

/// Maximum registrations at a time, on each device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    pub(super) regions: usize,
    pub(super) bytes: u64,
}

/// Name of a range of user memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RangeId(u64);

/// Range of user memory.
#[derive(Debug)]
struct Range {
    id: RangeId,
    /// The endpoint that has registered it.
    owner: usize,
    start: usize,
    len: usize,
    /// Operations in progress that use the range.
    active_uses: u32,
    /// Number of the last operation that began to use the range.
    last_use: u64,
    is_registered: bool,
}

impl Range {
    fn covers(&self, start: usize, len: usize) -> bool {
        start >= self.start && start - self.start <= self.len && len <= self.len - (start - self.start)
    }

    fn overlaps(&self, start: usize, len: usize) -> bool {
        start < self.start + self.len && self.start < start + len
    }
}

/// All ranges of user memory, and the budget of their registrations.
#[derive(Debug)]
pub(super) struct RegistrationCache {
    ranges: Vec<Range>,
    budget: Budget,
    segment_bytes: usize,
    operations: u64,
    /// Number of ranges so far.
    added: u64,
}

impl RegistrationCache {
    pub(super) fn new(budget: Budget, segment_bytes: usize) -> RegistrationCache {
        RegistrationCache { ranges: Vec::new(), budget, segment_bytes, operations: 0, added: 0 }
    }

    /// Adds a range of an endpoint. Returns `None` if part of it belongs to another range of that endpoint.
    pub(super) fn add(&mut self, owner: usize, start: usize, len: usize) -> Option<RangeId> {
        if self.ranges.iter().any(|range| range.owner == owner && range.overlaps(start, len)) {
            return None;
        }
        self.added += 1;
        let id = RangeId(self.added);
        self.ranges.push(Range { id, owner, start, len, active_uses: 0, last_use: 0, is_registered: false });
        Some(id)
    }

    /// Removes a range, and ends its registration with all devices.
    pub(super) fn remove(&mut self, id: RangeId, ports: &mut [Port]) {
        let Some(index) = self.ranges.iter().position(|range| range.id == id) else { return };
        let range = self.ranges.swap_remove(index);
        if range.is_registered {
            ports.iter_mut().for_each(|port| port.keys.deregister(range.start));
        }
    }

    /// Returns the offset of memory that lies completely in one registered range.
    #[inline]
    pub(super) fn locate(&self, start: *const u8, len: usize) -> Option<usize> {
        if self.ranges.is_empty() {
            return None;
        }
        let start = start as usize;
        self.ranges
            .iter()
            .any(|range| range.is_registered && range.covers(start, len))
            .then_some(start | USER_MEMORY_BIT)
    }

    /// Marks memory as used by an operation, and registers its range if there is room.
    pub(super) fn begin_use(&mut self, start: usize, len: usize, ports: &mut [Port]) {
        self.operations += 1;
        let operation = self.operations;
        let mut largest = None;
        let mut is_registered = false;
        for (index, range) in self.ranges.iter_mut().enumerate().filter(|(_, range)| range.covers(start, len))
        {
            range.active_uses += 1;
            range.last_use = operation;
            is_registered |= range.is_registered;
            largest = largest.max(Some((range.len, index)));
        }
        let Some((_, index)) = largest else { return };
        if is_registered || !self.end_overlapping(index, ports) || !self.make_room(index, ports) {
            return;
        }
        // A device that refuses a registration may accept it after another range is evicted.
        while !self.register(index, ports) {
            if !self.evict(ports) {
                return;
            }
        }
    }

    /// Ends a use of memory that [`RegistrationCache::begin_use`] marked.
    pub(super) fn end_use(&mut self, start: usize, len: usize) {
        for range in self.ranges.iter_mut().filter(|range| range.covers(start, len)) {
            range.active_uses = range.active_uses.saturating_sub(1);
        }
    }

    /// Ends the registrations of ranges that overlap a range. Returns false if one of them is in use.
    fn end_overlapping(&mut self, index: usize, ports: &mut [Port]) -> bool {
        let Range { start, len, .. } = self.ranges[index];
        let overlaps = |range: &Range| range.is_registered && range.overlaps(start, len);
        if self.ranges.iter().any(|range| overlaps(range) && range.active_uses > 0) {
            return false;
        }
        for range in self.ranges.iter_mut().filter(|range| overlaps(range)) {
            range.is_registered = false;
            ports.iter_mut().for_each(|port| port.keys.deregister(range.start));
        }
        true
    }

    fn regions_of(&self, range: &Range) -> usize {
        range.len.div_ceil(self.segment_bytes)
    }

    /// Evicts the least recently used ranges until the budget has room for a range.
    fn make_room(&mut self, index: usize, ports: &mut [Port]) -> bool {
        loop {
            let counted =
                self.ranges.iter().enumerate().filter(|(i, range)| range.is_registered || *i == index);
            let (regions, bytes) = counted.fold((0, 0), |(regions, bytes), (_, range)| {
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

    /// Evicts the least recently used range. Returns false if all ranges are in use.
    fn evict(&mut self, ports: &mut [Port]) -> bool {
        let idle = self.ranges.iter_mut().filter(|range| range.is_registered && range.active_uses == 0);
        let Some(least_recent) = idle.min_by_key(|range| range.last_use) else { return false };
        least_recent.is_registered = false;
        ports.iter_mut().for_each(|port| port.keys.deregister(least_recent.start));
        true
    }

    fn register(&mut self, index: usize, ports: &mut [Port]) -> bool {
        let segment_bytes = self.segment_bytes;
        let range = &mut self.ranges[index];
        let register = |port: &mut Port| {
            port.capabilities.late_registration
                && port.keys.register_user_memory(range.start, range.len, segment_bytes)
        };
        range.is_registered = ports.iter_mut().all(register);
        if !range.is_registered {
            ports.iter_mut().for_each(|port: &mut Port| DeviceKeys::deregister(&mut port.keys, range.start));
        }
        range.is_registered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> RegistrationCache {
        RegistrationCache::new(Budget { regions: 2, bytes: 1 << 20 }, 1 << 20)
    }

    #[test]
    fn what_is_lent_cannot_be_lent_again() {
        let mut cache = cache();
        let id = cache.add(0, 4096, 4096).expect("new");
        for (start, len) in [(4096, 4096), (4000, 97), (8191, 1), (0, 1 << 20), (5000, 10)] {
            assert_eq!(cache.add(0, start, len), None, "{start}+{len}");
        }
        assert!(cache.add(0, 8192, 4096).is_some() && cache.add(0, 0, 4096).is_some());
        cache.remove(id, &mut []);
        assert!(cache.add(0, 5000, 10).is_some());
    }

    #[test]
    fn two_endpoints_lend_overlapping_memory_and_one_range_of_it_is_registered_at_a_time() {
        let mut cache = cache();
        let small = cache.add(1, 4096, 4096).expect("new");
        let large = cache.add(2, 0, 1 << 16).expect("of another endpoint");
        let found =
            |cache: &RegistrationCache| [5000, 9000].map(|at| cache.locate(at as *const u8, 8).is_some());
        cache.begin_use(5000, 8, &mut []);
        cache.end_use(5000, 8);
        assert_eq!(found(&cache), [true, true], "the larger one serves both");
        cache.remove(large, &mut []);
        assert_eq!(found(&cache), [false, false]);
        cache.begin_use(5000, 8, &mut []);
        assert_eq!(found(&cache), [true, false]);
        cache.add(3, 5000, 1 << 16).expect("of another endpoint");
        cache.begin_use(9000, 8, &mut []);
        assert_eq!(found(&cache), [true, false], "the smaller one is in use");
        cache.end_use(5000, 8);
        cache.end_use(9000, 8);
        cache.begin_use(9000, 8, &mut []);
        assert_eq!(found(&cache), [true, true]);
        cache.remove(small, &mut []);
    }

    #[test]
    fn only_registered_memory_is_found_and_only_as_a_whole() {
        let mut cache = cache();
        cache.add(0, 4096, 4096);
        assert_eq!(cache.locate(5000 as *const u8, 10), None);
        cache.begin_use(5000, 10, &mut []);
        for (start, len, found) in
            [(4096, 4096, true), (4095, 2, false), (8000, 192, true), (8000, 193, false)]
        {
            assert_eq!(
                cache.locate(start as *const u8, len),
                found.then_some(start | USER_MEMORY_BIT),
                "{start}+{len}"
            );
        }
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room_unless_it_is_in_use() {
        let mut cache = cache();
        let starts = [1usize << 30, 2 << 30, 3 << 30, 4 << 30];
        let found =
            |cache: &RegistrationCache| starts.map(|start| cache.locate(start as *const u8, 8).is_some());
        starts.iter().for_each(|start| assert!(cache.add(0, *start, 1 << 18).is_some()));
        for start in &starts[..3] {
            cache.begin_use(*start, 8, &mut []);
            cache.end_use(*start, 8);
        }
        assert_eq!(found(&cache), [false, true, true, false], "two regions are allowed");
        cache.begin_use(starts[1], 8, &mut []);
        cache.begin_use(starts[3], 8, &mut []);
        assert_eq!(found(&cache), [false, true, false, true]);
        cache.begin_use(starts[0], 8, &mut []);
        assert_eq!(found(&cache), [false, true, false, true], "all are in use");
        cache.end_use(starts[3], 8);
        cache.end_use(starts[0], 8);
        cache.begin_use(starts[0], 8, &mut []);
        assert_eq!(found(&cache), [true, true, false, false]);
    }

    #[test]
    fn what_is_larger_than_the_budget_is_not_registered() {
        let mut cache = cache();
        assert!(cache.add(0, 1 << 30, (1 << 20) + 1).is_some());
        cache.begin_use(1 << 30, 8, &mut []);
        assert_eq!(cache.locate((1usize << 30) as *const u8, 8), None);
    }
}
