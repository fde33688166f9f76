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
//! What is locked to be used anyway, as communicators are during a call, is held by its lock alone ([`Table::lock`]): the
//! lock is taken first, then the handle is looked at, and nothing is taken out of a place while its lock is held. A lock is
//! there as long as the process, so that one may be taken that belongs to something else by now; the handle tells.
//!
//! Invariants: a value is put into a place only while that is vacant and on no list, and taken out only by the one who made
//! it vacant again and has its lock; a place's generation grows each time, and its lock is set before it becomes live.
//!
//! What it does not do: a place that has been taken 2^29 times (2^14 for operations) has had each of its generations once, and
//! an old handle may fit again.
//!
//! # Safety
//! A value is seen through a shared reference while its place counts a user who came when it was live, or while its lock is
//! held by one who found it live after that was taken. It is changed only while nobody can see it: before the place becomes
//! live, or when it is vacant again, its last user has left, and its lock is held.

#[cfg(test)]
mod tests;

use std::{
    cell::UnsafeCell,
    fmt,
    ops::Deref,
    ptr,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering},
    },
};
use tbccl::shared::{Seat, Taken};

/// Places of the first chunk; each further one has twice as many.
const FIRST_CHUNK: u32 = 64;

/// How many chunks there may be.
const MAX_CHUNKS: usize = 17;

/// The places that a table can have.
const MAX_SLOTS: u32 = FIRST_CHUNK * ((1 << MAX_CHUNKS) - 1);

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
            index: (bits >> 1) as u32 & (MAX_SLOTS.next_power_of_two() - 1),
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
    /// Its lock, if it has one. Set while the place is vacant and on no list.
    seat: AtomicPtr<Seat>,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: values are shared between threads and dropped by any of them, so both are asked of `T`; the rest is atomic.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T> Slot<T> {
    const USERS: u64 = u32::MAX as u64;

    const fn new() -> Slot<T> {
        Slot { word: AtomicU64::new(0), seat: AtomicPtr::new(ptr::null_mut()), value: UnsafeCell::new(None) }
    }

    fn state(word: u64) -> u64 {
        word >> 32 & 3
    }

    fn generation(word: u64) -> u64 {
        word >> 34
    }

    /// Is it live, and that tenant's?
    #[inline]
    fn is_of(&self, key: Key) -> bool {
        // A place's generation is below `GENERATIONS`, too.
        self.word.load(Ordering::Acquire) >> 32 == key.generation << 2 | LIVE
    }

    /// Its lock, or that of what was here before, or will be.
    #[inline]
    fn seat(&self) -> Option<&'static Seat> {
        // SAFETY: it is null or was made of a reference to what is there as long as the process.
        unsafe { self.seat.load(Ordering::Acquire).as_ref() }
    }
}

/// All handles of one kind.
pub(crate) struct Table<T> {
    /// The first chunk, which is where most look: it is found without a look at what else there is.
    first: [Slot<T>; FIRST_CHUNK as usize],
    /// The others.
    chunks: [OnceLock<Box<[Slot<T>]>>; MAX_CHUNKS - 1],
    /// How many places were ever taken.
    taken: AtomicU32,
    vacant: Mutex<Vec<u32>>,
}

/// A value whose lock is held. It stays where it is as long as this lives.
pub(crate) struct Locked<T: 'static> {
    slot: &'static Slot<T>,
    taken: Taken,
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
            first: [const { Slot::new() }; FIRST_CHUNK as usize],
            chunks: [const { OnceLock::new() }; MAX_CHUNKS - 1],
            taken: AtomicU32::new(0),
            vacant: Mutex::new(Vec::new()),
        }
    }

    /// The chunk of a place, and where in it.
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

    /// A place that nobody else has.
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

    /// Takes something in; `None` when there are too many.
    pub(crate) fn insert(&self, value: T) -> Option<Key> {
        self.insert_with(value, None)
    }

    /// Takes something in that has a lock, which is held by whoever uses it.
    pub(crate) fn insert_with(&self, value: T, seat: Option<&'static Seat>) -> Option<Key> {
        let (index, slot) = self.free_slot()?;
        let seat = seat.map_or(ptr::null_mut(), |seat| ptr::from_ref(seat).cast_mut());
        slot.seat.store(seat, Ordering::Release);
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

    /// Locks what a key is of, if that is live, has a lock, and nobody holds it.
    // Always: what it gives is written to memory otherwise, and read again at once.
    #[inline(always)]
    pub(crate) fn lock(&'static self, key: Key) -> Option<Locked<T>> {
        let slot = self.slot(key.index)?;
        let seat = slot.seat()?;
        let taken = seat.try_take()?;
        // Only now, and in this order: a live place has its own lock, and it is this one.
        let is_ours = slot.is_of(key) && slot.seat().is_some_and(|now| ptr::eq(now, seat));
        is_ours.then_some(Locked { slot, taken })
    }

    /// Is what a key is of live? It may not be any more when this has told.
    #[inline]
    pub(crate) fn is_live(&self, key: Key) -> bool {
        self.slot(key.index).is_some_and(|slot| slot.is_of(key))
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

impl<T: 'static> Locked<T> {
    /// The value, and its lock.
    #[inline]
    pub(crate) fn split(&mut self) -> (&T, &mut Taken) {
        // SAFETY: the place was live after we had its lock, and nobody takes its value out without that.
        let value = unsafe { &*self.slot.value.get() };
        (value.as_ref().expect("a live place has a value"), &mut self.taken)
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
        // Who has the lock found the place live, and may still look.
        let taken = self.slot.seat().map(Seat::take);
        // SAFETY: the place was closing, so nobody can have come to see its value since, and it had no user left; now it is
        // vacant and on no list, and nobody has its lock, or gets it and finds the place live.
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
