//! Handles: what C programs hold of communicators, requests, registrations and operations.
//!
//! A handle is a number, and never the address of anything: a place in a table, how often that place was taken before
//! (its generation), and what kind of thing it is. So a handle that was freed, is of another kind, or was never one is
//! found out by looking it up. Places are never given back to the system, so looking up is safe whatever the number is, and
//! takes no lock.
//!
//! A place is vacant, live or closing. Whoever looks something up holds it until its [`Held`] is dropped; what is removed
//! meanwhile is closing, found by nobody any more, and is dropped by the last to let go of it.
//!
//! Invariants: a value is put into a place only while that is vacant and on no list, and taken out only by the one who made
//! it vacant again; a place's generation grows each time.
//!
//! What it does not do: a place that has been taken 2^29 times (2^14 for operations) has had each of its generations once, and
//! an old handle may fit again.
//!
//! # Safety
//! A value is seen through a shared reference while its place counts a user who came when it was live, and changed only
//! while nobody can see it: before the place becomes live, or after the last user of a closing one has left.

use std::{
    cell::UnsafeCell,
    fmt,
    ops::Deref,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

/// Places of the first chunk; each further one has twice as many.
const FIRST: u32 = 64;

/// How many chunks there may be.
const CHUNKS: usize = 17;

/// The places that a table can have.
const MOST: u32 = FIRST * ((1 << CHUNKS) - 1);

/// Numbers of handles that are pointers in C begin with this. No address does on the machines we know.
const MAGIC: u64 = 0x7b;

/// Generations that are told apart.
const GENERATIONS: u64 = 1 << 29;

const VACANT: u64 = 0;
const LIVE: u64 = 1;
const CLOSING: u64 = 2;

/// A place, and which of its tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u64,
}

/// What kind of thing a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Comm = 1,
    Request = 2,
    Registration = 3,
}

impl Key {
    /// The number that C sees as a pointer: magic, kind, generation, place, and a last bit that no aligned address has.
    pub(crate) fn to_bits(self, kind: Kind) -> u64 {
        MAGIC << 56 | (kind as u64) << 53 | self.generation << 24 | u64::from(self.index) << 1 | 1
    }

    /// The key in such a number, if it has the form of one of this kind.
    #[inline]
    pub(crate) fn from_bits(bits: u64, kind: Kind) -> Option<Key> {
        let frame = MAGIC << 3 | kind as u64;
        (bits >> 53 == frame && bits & 1 == 1).then_some(Key {
            index: (bits >> 1) as u32 & (MOST.next_power_of_two() - 1),
            generation: bits >> 24 & (GENERATIONS - 1),
        })
    }

    /// The number of an operation: a bit that no other operation has, 14 bits of the generation, and the place.
    pub(crate) fn to_op(self) -> Option<i32> {
        let place = u16::try_from(self.index).ok()?;
        Some(1 << 30 | ((self.generation & 0x3fff) as i32) << 16 | i32::from(place))
    }

    /// The place of an operation and what is known of its generation.
    #[inline]
    pub(crate) fn from_op(number: i32) -> Option<(u32, u64)> {
        (number >> 30 == 1).then_some((number as u32 & 0xffff, (number >> 16) as u64 & 0x3fff))
    }
}

/// Where a value is, or may be.
struct Slot<T> {
    /// Generation, state and users, from the upper bits down: 30, 2 and 32.
    word: AtomicU64,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: values are shared between threads and dropped by any of them, so both are asked of `T`; the rest is atomic.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T> Slot<T> {
    const USERS: u64 = u32::MAX as u64;

    fn state(word: u64) -> u64 {
        word >> 32 & 3
    }

    fn generation(word: u64) -> u64 {
        word >> 34
    }
}

/// All handles of one kind.
pub(crate) struct Table<T> {
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    /// How many places were ever taken.
    taken: AtomicU32,
    vacant: Mutex<Vec<u32>>,
}

/// A value that stays where it is as long as this lives.
pub(crate) struct Held<T: 'static> {
    table: &'static Table<T>,
    slot: &'static Slot<T>,
    index: u32,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Table<T> {
        Table {
            chunks: [const { OnceLock::new() }; CHUNKS],
            taken: AtomicU32::new(0),
            vacant: Mutex::new(Vec::new()),
        }
    }

    /// The chunk of a place, and where in it.
    #[inline]
    fn split(index: u32) -> (usize, usize) {
        let chunk = (index / FIRST + 1).ilog2();
        (chunk as usize, (index - FIRST * ((1 << chunk) - 1)) as usize)
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let (chunk, at) = Self::split(index);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// A place that nobody else has.
    fn room(&self) -> Option<(u32, &Slot<T>)> {
        let used = self.vacant.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let index = match used {
            Some(index) => index,
            None => self
                .taken
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < MOST).then_some(n + 1))
                .ok()?,
        };
        let (chunk, at) = Self::split(index);
        let slots = self.chunks[chunk].get_or_init(|| {
            let vacant = || Slot { word: AtomicU64::new(0), value: UnsafeCell::new(None) };
            (0..FIRST << chunk).map(|_| vacant()).collect()
        });
        Some((index, &slots[at]))
    }

    /// Takes something in; `None` when there are too many.
    pub(crate) fn insert(&self, value: T) -> Option<Key> {
        let (index, slot) = self.room()?;
        // SAFETY: the place is vacant and was on no list but ours, so nobody looks at its value or changes it.
        unsafe { *slot.value.get() = Some(value) };
        let before = slot.word.fetch_add(LIVE << 32, Ordering::Release);
        Some(Key { index, generation: Slot::<T>::generation(before) % GENERATIONS })
    }
}

impl<T> Table<T> {
    /// What a key is of, if it is live.
    #[inline]
    pub(crate) fn get(&'static self, key: Key) -> Option<Held<T>> {
        self.look(key.index, key.generation, GENERATIONS - 1)
    }

    /// What an operation's number is of, if it is live.
    pub(crate) fn get_op(&'static self, number: i32) -> Option<Held<T>> {
        let (index, generation) = Key::from_op(number)?;
        self.look(index, generation, 0x3fff)
    }

    #[inline]
    fn look(&'static self, index: u32, generation: u64, mask: u64) -> Option<Held<T>> {
        let slot = self.slot(index)?;
        let before = slot.word.fetch_add(1, Ordering::Acquire);
        // Lets go again when it is another one.
        let held = Held { table: self, slot, index };
        let fits = Slot::<T>::state(before) == LIVE && Slot::<T>::generation(before) & mask == generation;
        fits.then_some(held)
    }

    /// Ends a handle that is held: from now on nobody finds it. False when another thread was first.
    pub(crate) fn close(held: &Held<T>) -> bool {
        let closing = |word| (Slot::<T>::state(word) == LIVE).then_some(word + ((CLOSING - LIVE) << 32));
        held.slot.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, closing).is_ok()
    }

    /// How many are live or closing.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.taken.load(Ordering::Relaxed) as usize - self.vacant.lock().expect("no panic").len()
    }
}

impl<T: 'static> Deref for Held<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: we are counted among the place's users, and it was live when we came, so its value is there and stays.
        let value = unsafe { &*self.slot.value.get() };
        value.as_ref().expect("a live place has a value")
    }
}

impl<T: 'static> Drop for Held<T> {
    #[inline]
    fn drop(&mut self) {
        let left = self.slot.word.fetch_sub(1, Ordering::Release) - 1;
        if left & Slot::<T>::USERS == 0 && Slot::<T>::state(left) == CLOSING {
            self.clear(left);
        }
    }
}

impl<T: 'static> Held<T> {
    /// Takes a value out of a closing place that nobody uses, unless somebody is doing so.
    #[cold]
    fn clear(&self, seen: u64) {
        let next = (Slot::<T>::generation(seen) + 1) % GENERATIONS;
        let vacant = next << 34 | VACANT << 32;
        if self.slot.word.compare_exchange(seen, vacant, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Somebody looks at the place and will be the last to leave it, or was it already.
            return;
        }
        // SAFETY: the place was closing, so nobody can have come to see its value since, and it had no user left; now it is
        // vacant and on no list.
        let value = unsafe { (*self.slot.value.get()).take() };
        self.table.vacant.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
        drop(value);
    }
}

impl<T: fmt::Debug + 'static> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Arc, thread};

    /// A table that outlives the test's threads.
    fn table<T>() -> &'static Table<T> {
        Box::leak(Box::new(Table::new()))
    }

    #[test]
    fn a_handle_finds_its_own_until_it_is_closed_and_never_another() {
        let table = table();
        let first = table.insert("first").expect("room");
        let second = table.insert("second").expect("room");
        assert_eq!(
            (*table.get(first).expect("live"), *table.get(second).expect("live")),
            ("first", "second")
        );
        let held = table.get(first).expect("live");
        assert!(Table::close(&held) && !Table::close(&held), "it is closed once");
        assert!(table.get(first).is_none(), "closed, and still held");
        assert_eq!(*held, "first", "who holds it sees it");
        drop(held);
        let third = table.insert("third").expect("room");
        assert_eq!(third.index, first.index, "places are used again");
        assert!(table.get(first).is_none(), "of an earlier generation");
        assert_eq!((*table.get(third).expect("live"), table.count()), ("third", 2));
    }

    #[test]
    fn numbers_that_are_no_handles_find_nothing() {
        let table = table();
        let key = table.insert(1u8).expect("room");
        let bits = key.to_bits(Kind::Comm);
        assert_eq!(Key::from_bits(bits, Kind::Comm), Some(key));
        assert_eq!(Key::from_bits(bits, Kind::Request), None, "another kind");
        for bit in 0..64 {
            let other = Key::from_bits(bits ^ 1 << bit, Kind::Comm);
            assert!(other.and_then(|key| table.get(key)).is_none(), "bit {bit} changed");
        }
        for bits in [0, 1, u64::MAX, 0x7fff_1234_5678, std::ptr::from_ref(&bits) as u64] {
            assert_eq!(Key::from_bits(bits, Kind::Comm), None, "{bits:#x}");
        }
        assert!(table.get(key).is_some() && table.count() == 1);
    }

    #[test]
    fn numbers_of_operations_fit_an_int_and_tell_generations_apart() {
        let table = table();
        let key = table.insert(1u8).expect("room");
        let number = key.to_op().expect("a low place");
        assert!(number >= 1 << 30 && table.get_op(number).is_some());
        for other in [number + 1, number ^ 1 << 16, 0, -1, 4, i32::MAX, i32::MIN] {
            assert!(table.get_op(other).is_none(), "{other}");
        }
        Table::close(&table.get(key).expect("live"));
        assert!(table.get_op(number).is_none());
    }

    #[test]
    fn chunks_lie_side_by_side() {
        let mut expected = (0, 0);
        for index in 0..10_000 {
            assert_eq!(Table::<u8>::split(index), expected, "{index}");
            expected.1 += 1;
            if expected.1 == (FIRST as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(MOST.next_power_of_two() <= 1 << 23, "a place fits its bits");
        assert_eq!(Table::<u8>::split(MOST - 1).0, CHUNKS - 1);
    }

    #[test]
    fn what_is_closed_while_others_hold_it_is_dropped_once_by_the_last() {
        let table = table();
        let drops = Arc::new(AtomicU32::new(0));
        struct Counted(Arc<AtomicU32>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        const ROUNDS: u32 = 2000;
        for round in 0..ROUNDS {
            let key = table.insert(Counted(Arc::clone(&drops))).expect("room");
            let found: u32 = thread::scope(|scope| {
                let threads: Vec<_> = (0..3)
                    .map(|at| {
                        scope.spawn(move || match table.get(key) {
                            Some(held) => {
                                assert!(held.0.load(Ordering::Relaxed) <= round, "seen after it was dropped");
                                if at == 0 { u32::from(Table::close(&held)) } else { 0 }
                            }
                            None => 0,
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
            });
            assert_eq!((found, drops.load(Ordering::Relaxed), table.count()), (1, round + 1, 0));
        }
        assert_eq!(table.taken.load(Ordering::Relaxed), 1, "one place served all");
    }
}
