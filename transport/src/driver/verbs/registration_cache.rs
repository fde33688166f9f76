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
//! Invariant: memory that an operation in progress uses stays registered until the operation has ended.

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

/// Range of user memory.
#[derive(Debug)]
struct Range {
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
}

/// All ranges of user memory, and the budget of their registrations.
#[derive(Debug)]
pub(super) struct RegistrationCache {
    ranges: Vec<Range>,
    budget: Budget,
    segment_bytes: usize,
    operations: u64,
}

impl RegistrationCache {
    pub(super) fn new(budget: Budget, segment_bytes: usize) -> RegistrationCache {
        RegistrationCache { ranges: Vec::new(), budget, segment_bytes, operations: 0 }
    }

    /// Adds a range. Returns false if part of it belongs to another range.
    pub(super) fn add(&mut self, start: usize, len: usize) -> bool {
        let overlaps =
            self.ranges.iter().any(|range| start < range.start + range.len && range.start < start + len);
        if !overlaps {
            self.ranges.push(Range { start, len, active_uses: 0, last_use: 0, is_registered: false });
        }
        !overlaps
    }

    /// Removes a range, and ends its registration with all devices.
    pub(super) fn remove(&mut self, start: usize, ports: &mut [Port]) {
        self.ranges.retain(|range| range.start != start);
        ports.iter_mut().for_each(|port| port.keys.deregister(start));
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
        let Some(index) = self.ranges.iter().position(|range| range.covers(start, len)) else { return };
        let range = &mut self.ranges[index];
        range.active_uses += 1;
        range.last_use = operation;
        if range.is_registered || !self.make_room(index, ports) {
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
        if let Some(range) = self.ranges.iter_mut().find(|range| range.covers(start, len)) {
            range.active_uses = range.active_uses.saturating_sub(1);
        }
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
        assert!(cache.add(4096, 4096));
        for (start, len) in [(4096, 4096), (4000, 97), (8191, 1), (0, 1 << 20), (5000, 10)] {
            assert!(!cache.add(start, len), "{start}+{len}");
        }
        assert!(cache.add(8192, 4096) && cache.add(0, 4096));
        cache.remove(4096, &mut []);
        assert!(cache.add(5000, 10));
    }

    #[test]
    fn only_registered_memory_is_found_and_only_as_a_whole() {
        let mut cache = cache();
        cache.add(4096, 4096);
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
        starts.iter().for_each(|start| assert!(cache.add(*start, 1 << 18)));
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
        assert!(cache.add(1 << 30, (1 << 20) + 1));
        cache.begin_use(1 << 30, 8, &mut []);
        assert_eq!(cache.locate((1usize << 30) as *const u8, 8), None);
    }
}
