//! Handles: the numbers by which C programs know communicators, requests, registrations and operations.
//!
//! A handle is a number, and never an address: the index of a slot in a table, the slot's generation (how
//! often it was taken before), and the kind of its value. So a lookup recognizes a handle that was freed, is
//! of another kind, or never was one. Slots are never freed, so a lookup is safe for any number, and takes no
//! lock.
//!
//! A slot is vacant, live or closing. A lookup holds the value until its [`Held`] is dropped. A value that is
//! removed meanwhile is closing: no lookup finds it, and the last holder drops it.
//!
//! Values that are locked to be used, as communicators during a call, are held by their lock alone
//! ([`Table::lock`]). The lock is taken first, then the handle is compared; nothing is taken out of a slot
//! while its lock is held. Locks live as long as the process, so a lookup may take a lock that belongs to
//! another value by now; the handle shows that.
//!
//! Invariants: a value is put into a slot only while the slot is vacant and on no list. It is taken out only
//! by the thread that made the slot vacant again and holds its lock. A slot's generation grows each time, and
//! its lock is set before it becomes live.
//!
//! Limit: after 2^29 uses of a slot (2^14 for operations) its generations repeat, and an old handle may fit
//! again.
//!
//! # Safety
//! A value is seen through a shared reference while its slot counts a user that came when it was live, or
//! while its lock is held by a thread that found the slot live after taking the lock. It is changed only
//! while no thread can see it: before the slot becomes live, or when it is vacant again, its last user has
//! left, and its lock is held.

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

use std::{
    cell::UnsafeCell,
    fmt,
    ops::Deref,
    ptr,
    sync::{OnceLock, PoisonError, atomic::Ordering},
};
use tbccl::shared::{
    BiasedGuard, BiasedLock,
    sync::{AtomicPtr, AtomicU32, AtomicU64, Mutex, mark_read, mark_write},
};

/// Slots of the first chunk; each further chunk has twice as many.
const FIRST_CHUNK: u32 = if cfg!(loom) { 2 } else { 64 };

/// Most chunks of a table.
const MAX_CHUNKS: usize = 17;

/// Most slots of a table.
const MAX_SLOTS: u32 = FIRST_CHUNK * ((1 << MAX_CHUNKS) - 1);

/// First byte of handles that are pointers in C. No address of the known machines begins with it.
const MAGIC: u64 = 0x7b;

/// Generations that handles tell apart.
const GENERATIONS: u64 = 1 << 29;

const VACANT: u64 = 0;
const LIVE: u64 = 1;
const CLOSING: u64 = 2;

/// A slot and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u64,
}

/// Kind of a handle's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Comm = 1,
    Request = 2,
    Registration = 3,
}

impl Key {
    /// Returns the number that C sees as a pointer: magic, kind, generation, slot, and a last bit that no
    /// aligned address has.
    pub(crate) fn to_bits(self, kind: Kind) -> u64 {
        MAGIC << 56 | (kind as u64) << 53 | self.generation << 24 | u64::from(self.index) << 1 | 1
    }

    /// Returns the key in a number that has the form of this kind.
    #[inline]
    pub(crate) fn from_bits(bits: u64, kind: Kind) -> Option<Key> {
        let frame = MAGIC << 3 | kind as u64;
        (bits >> 53 == frame && bits & 1 == 1).then_some(Key {
            index: (bits >> 1) as u32 & (MAX_SLOTS.next_power_of_two() - 1),
            generation: bits >> 24 & (GENERATIONS - 1),
        })
    }

    /// Returns the number of an operation: a bit that no other operation has, 14 bits of the generation, and
    /// the slot.
    pub(crate) fn to_op(self) -> Option<i32> {
        let place = u16::try_from(self.index).ok()?;
        Some(1 << 30 | ((self.generation & 0x3fff) as i32) << 16 | i32::from(place))
    }

    /// Returns the slot of an operation, and the known bits of its generation.
    #[inline]
    pub(crate) fn from_op(number: i32) -> Option<(u32, u64)> {
        (number >> 30 == 1).then_some((number as u32 & 0xffff, (number >> 16) as u64 & 0x3fff))
    }
}

/// Room for a value.
struct Slot<T> {
    /// Generation, state and users, from the upper bits down: 30, 2 and 32.
    word: AtomicU64,
    /// The value's lock, if it has one. Set while the slot is vacant and on no list.
    biased_lock: AtomicPtr<BiasedLock>,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: values are shared between threads and dropped by any of them, so both are asked of `T`; the rest is
// atomic.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T> Slot<T> {
    const USERS: u64 = u32::MAX as u64;

    const fn new() -> Slot<T> {
        Slot {
            word: AtomicU64::new(0),
            biased_lock: AtomicPtr::new(ptr::null_mut()),
            value: UnsafeCell::new(None),
        }
    }

    fn state(word: u64) -> u64 {
        word >> 32 & 3
    }

    fn generation(word: u64) -> u64 {
        word >> 34
    }

    /// Whether the slot is live in this generation.
    #[inline]
    fn is_of(&self, key: Key) -> bool {
        // A slot's generation is below `GENERATIONS`, too.
        self.word.load(Ordering::Acquire) >> 32 == key.generation << 2 | LIVE
    }

    /// Returns the slot's lock; it may be the one of an earlier or a later value.
    #[inline]
    fn biased_lock(&self) -> Option<&'static BiasedLock> {
        // SAFETY: the pointer is null or was made of a reference to a lock that lives as long as the process.
        unsafe { self.biased_lock.load(Ordering::Acquire).as_ref() }
    }
}

/// All handles of one kind.
pub(crate) struct Table<T> {
    /// The first chunk, in which most lookups end: it is found without a look at the others.
    first: [Slot<T>; FIRST_CHUNK as usize],
    /// The other chunks.
    chunks: [OnceLock<Box<[Slot<T>]>>; MAX_CHUNKS - 1],
    /// Number of slots that were ever taken.
    taken: AtomicU32,
    vacant: Mutex<Vec<u32>>,
}

/// A value whose lock is held. It stays in place as long as this lives.
pub(crate) struct Locked<T: 'static> {
    slot: &'static Slot<T>,
    taken: BiasedGuard,
}

/// A value that stays in place as long as this lives.
pub(crate) struct Held<T: 'static> {
    table: &'static Table<T>,
    slot: &'static Slot<T>,
    index: u32,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Table<T> {
        Table {
            first: [const { Slot::new() }; FIRST_CHUNK as usize],
            chunks: [const { OnceLock::new() }; MAX_CHUNKS - 1],
            taken: AtomicU32::new(0),
            vacant: Mutex::new(Vec::new()),
        }
    }

    /// Returns the chunk of a slot, and the index in it.
    #[inline]
    fn split(index: u32) -> (usize, usize) {
        let chunk = (index / FIRST_CHUNK + 1).ilog2();
        (chunk as usize, (index - FIRST_CHUNK * ((1 << chunk) - 1)) as usize)
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        if index < FIRST_CHUNK {
            return Some(&self.first[index as usize]);
        }
        let (chunk, at) = Self::split(index);
        self.chunks.get(chunk - 1)?.get()?.get(at)
    }

    /// Returns a slot that no other thread has.
    fn free_slot(&self) -> Option<(u32, &Slot<T>)> {
        let used = self.vacant.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let index = match used {
            Some(index) => index,
            None => self
                .taken
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < MAX_SLOTS).then_some(n + 1))
                .ok()?,
        };
        if index < FIRST_CHUNK {
            return Some((index, &self.first[index as usize]));
        }
        let (chunk, at) = Self::split(index);
        let new = || (0..FIRST_CHUNK << chunk).map(|_| Slot::new()).collect();
        let slots = self.chunks[chunk - 1].get_or_init(new);
        Some((index, &slots[at]))
    }

    /// Adds a value; `None` if the table is full.
    pub(crate) fn insert(&self, value: T) -> Option<Key> {
        self.insert_with(value, None)
    }

    /// Adds a value with the lock that its users hold; `None` if the table is full.
    pub(crate) fn insert_with(&self, value: T, biased_lock: Option<&'static BiasedLock>) -> Option<Key> {
        let (index, slot) = self.free_slot()?;
        let biased_lock =
            biased_lock.map_or(ptr::null_mut(), |biased_lock| ptr::from_ref(biased_lock).cast_mut());
        slot.biased_lock.store(biased_lock, Ordering::Release);
        mark_write(slot.value.get().cast(), size_of::<Option<T>>());
        // SAFETY: the slot is vacant and on no list but this thread's, so no other thread reads or changes
        // its value.
        unsafe { *slot.value.get() = Some(value) };
        let before = slot.word.fetch_add(LIVE << 32, Ordering::Release);
        Some(Key { index, generation: Slot::<T>::generation(before) % GENERATIONS })
    }
}

impl<T> Table<T> {
    /// Returns the value of a key, if it is live.
    #[inline]
    pub(crate) fn get(&'static self, key: Key) -> Option<Held<T>> {
        self.look(key.index, key.generation, GENERATIONS - 1)
    }

    /// Locks the value of a key, if it is live, has a lock, and no thread holds it.
    // Always: otherwise the result is written to memory and read again at once.
    #[inline(always)]
    pub(crate) fn lock(&'static self, key: Key) -> Option<Locked<T>> {
        let slot = self.slot(key.index)?;
        let biased_lock = slot.biased_lock()?;
        let taken = biased_lock.try_take()?;
        // Compared after taking the lock: a live slot has its own lock, and it is this one.
        let is_ours = slot.is_of(key) && slot.biased_lock().is_some_and(|now| ptr::eq(now, biased_lock));
        is_ours.then_some(Locked { slot, taken })
    }

    /// Whether the value of a key is live. It may have been closed when this returns.
    #[inline]
    pub(crate) fn is_live(&self, key: Key) -> bool {
        self.slot(key.index).is_some_and(|slot| slot.is_of(key))
    }

    /// Returns the value of an operation's number, if it is live.
    pub(crate) fn get_op(&'static self, number: i32) -> Option<Held<T>> {
        let (index, generation) = Key::from_op(number)?;
        self.look(index, generation, 0x3fff)
    }

    #[inline]
    fn look(&'static self, index: u32, generation: u64, mask: u64) -> Option<Held<T>> {
        let slot = self.slot(index)?;
        let before = slot.word.fetch_add(1, Ordering::Acquire);
        // Dropped again if it is of another generation.
        let held = Held { table: self, slot, index };
        let fits = Slot::<T>::state(before) == LIVE && Slot::<T>::generation(before) & mask == generation;
        fits.then_some(held)
    }

    /// Closes a handle that is held: later lookups do not find it. False if another thread was first.
    pub(crate) fn close(held: &Held<T>) -> bool {
        let closing = |word| (Slot::<T>::state(word) == LIVE).then_some(word + ((CLOSING - LIVE) << 32));
        held.slot.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, closing).is_ok()
    }

    /// Counts live and closing values.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.taken.load(Ordering::Relaxed) as usize - self.vacant.lock().expect("no panic").len()
    }
}

impl<T: 'static> Locked<T> {
    /// Returns the value and its lock.
    #[inline]
    pub(crate) fn split(&mut self) -> (&T, &mut BiasedGuard) {
        mark_read(self.slot.value.get().cast(), size_of::<Option<T>>());
        // SAFETY: the slot was live after its lock was taken, and no thread takes its value out without the
        // lock.
        let value = unsafe { &*self.slot.value.get() };
        (value.as_ref().expect("a live place has a value"), &mut self.taken)
    }
}

impl<T: 'static> Deref for Held<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        mark_read(self.slot.value.get().cast(), size_of::<Option<T>>());
        // SAFETY: this is counted among the slot's users, and the slot was live at that time, so its value
        // stays.
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
    /// Takes a value out of a closing slot without users, unless another thread does so.
    #[cold]
    fn clear(&self, seen: u64) {
        let next = (Slot::<T>::generation(seen) + 1) % GENERATIONS;
        let vacant = next << 34 | VACANT << 32;
        if self.slot.word.compare_exchange(seen, vacant, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Another thread looks at the slot and will be its last user, or was it already.
            return;
        }
        // A thread that holds the lock found the slot live, and may still read the value.
        let taken = self.slot.biased_lock().map(BiasedLock::take);
        mark_write(self.slot.value.get().cast(), size_of::<Option<T>>());
        // SAFETY: the slot was closing, so no lookup has found its value since, and it had no user left. Now
        // it is vacant and on no list, and no thread holds its lock, or takes the lock and finds the slot
        // live.
        let value = unsafe { (*self.slot.value.get()).take() };
        drop(taken);
        self.table.vacant.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
        drop(value);
    }
}

impl<T: fmt::Debug + 'static> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
