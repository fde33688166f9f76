//! The model checker's atomics, fences and locks, in the place of the standard library's.
//!
//! The model checker, Loom, runs a model once for each interleaving of its threads, up to a number of
//! preemptions, and for each value that a load may see. It needs an object of its own for each atomic. Shared
//! memory is made of zeroed pages, though, and its layout must be the production one. So an atomic here is
//! the number in memory, and the model checker's object is found by the address of the number. Objects are
//! made before a run begins, since all threads must see their first values; the first access takes one. The
//! object holds the difference to the number in memory, which does not change. Outside of models the number
//! itself is used.
//!
//! Loom treats a sequentially consistent access as one that only acquires and releases, but honors
//! sequentially consistent fences. So such a store is followed by a fence, and a read-modify-write has a
//! fence on either side, as in the instructions that compilers generate for x86-64.
//!
//! A wait with a time limit ends at once: callers must not depend on being woken.
//!
//! Threads of a model are coroutines of one thread of the system, so objects are kept in a thread-local.
//!
//! # Safety
//! A guard of a lock outlives no lock: they are kept together.

use loom::cell::UnsafeCell;
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    fmt,
    ops::{Deref, DerefMut},
    rc::Rc,
    sync::{
        LockResult, PoisonError,
        atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst},
    },
    time::Duration,
};

pub use loom::{sync::Arc, thread};

/// Preemptions of a run.
const PREEMPTIONS: usize = 3;
/// Atomics, locks and places of plain memory that a run may use.
const ATOMICS: usize = 80;
const LOCKS: usize = 4;
const PLACES: usize = 12;

/// The model checker's objects.
struct Objects {
    /// Atomics, locks and plain memory in use, by address.
    atomics: HashMap<usize, Rc<Object>>,
    locks: HashMap<usize, Rc<loom::sync::Mutex<()>>>,
    memory: HashMap<usize, Rc<UnsafeCell<()>>>,
    /// Unused ones.
    spare_atomics: Vec<Object>,
    spare_locks: Vec<loom::sync::Mutex<()>>,
    spare_memory: Vec<UnsafeCell<()>>,
    /// Number of threads that have asked for their number.
    threads: usize,
}

/// The model checker's atomic, which begins with 0.
type Object = loom::sync::atomic::AtomicU64;

impl Objects {
    fn new() -> Objects {
        Objects {
            atomics: HashMap::new(),
            locks: HashMap::new(),
            memory: HashMap::new(),
            spare_atomics: (0..ATOMICS).map(|_| Object::new(0)).collect(),
            spare_locks: (0..LOCKS).map(|_| loom::sync::Mutex::new(())).collect(),
            spare_memory: (0..PLACES).map(|_| UnsafeCell::new(())).collect(),
            threads: 0,
        }
    }
}

thread_local! {
    /// Objects of the present run; none outside of models.
    static OBJECTS: RefCell<Option<Objects>> = const { RefCell::new(None) };
    /// Runs of the present model.
    static RUNS: Cell<u64> = const { Cell::new(0) };
}

loom::thread_local! {
    static THREAD: usize = OBJECTS.with_borrow_mut(|objects| {
        let objects = objects.as_mut().expect("a model runs");
        objects.threads += 1;
        objects.threads
    });
}

/// Whether a model runs on this thread.
fn is_running() -> bool {
    OBJECTS.with_borrow(Option::is_some)
}

/// Returns the number of this thread of a model, from 1.
pub fn thread_number() -> usize {
    THREAD.with(|number| *number)
}

/// Runs a model for all interleavings with up to three preemptions, and prints their number.
///
/// # Panics
/// As the model does in any of them, and for data races and deadlocks.
pub fn explore(name: &str, model: impl Fn() + Send + Sync + 'static) {
    explore_with(name, PREEMPTIONS, model);
}

/// Runs a model for all interleavings with up to `preemptions` preemptions, and prints their number.
///
/// # Panics
/// As [`explore`].
#[expect(clippy::print_stdout, reason = "the number is the result")]
pub fn explore_with(name: &str, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 50_000;
    RUNS.set(0);
    builder.check(move || {
        OBJECTS.set(Some(Objects::new()));
        model();
        // Within the run, as the model checker requires.
        drop(OBJECTS.take());
        RUNS.set(RUNS.get() + 1);
    });
    println!("loom: {} interleavings of {name}", RUNS.get());
}

/// Returns the object of an address; `None` outside of models.
fn object(address: usize) -> Option<Rc<Object>> {
    OBJECTS.with_borrow_mut(|objects| {
        let Objects { atomics, spare_atomics, .. } = objects.as_mut()?;
        let take = || Rc::new(spare_atomics.pop().expect("a model with fewer atomics"));
        Some(Rc::clone(atomics.entry(address).or_insert_with(take)))
    })
}

/// Forgets the object of an address, whose memory is used otherwise.
fn forget(address: usize) {
    // A thread-local that is gone has no objects.
    let _ = OBJECTS.try_with(|objects| {
        let taken = objects.borrow_mut().as_mut().and_then(|objects| objects.atomics.remove(&address));
        drop(taken);
    });
}

/// Issues a fence.
pub fn fence(order: Ordering) {
    if is_running() { loom::sync::atomic::fence(order) } else { std::sync::atomic::fence(order) }
}

/// Lets other threads run.
pub fn spin_loop() {
    if is_running() { thread::yield_now() } else { std::hint::spin_loop() }
}

/// Lets other threads run; sleeps outside of models.
pub fn sleep(duration: Duration) {
    if is_running() { thread::yield_now() } else { std::thread::sleep(duration) }
}

/// Returns the object of plain memory; `None` outside of models.
fn memory(start: *const u8) -> Option<Rc<UnsafeCell<()>>> {
    OBJECTS.with_borrow_mut(|objects| {
        let Objects { memory, spare_memory, .. } = objects.as_mut()?;
        let take = || Rc::new(spare_memory.pop().expect("a model with less memory"));
        Some(Rc::clone(memory.entry(start.addr()).or_insert_with(take)))
    })
}

/// Marks a read of plain memory; the model fails if a write that begins there is not ordered before or after.
pub fn mark_read(start: *const u8, _len: usize) {
    if let Some(memory) = memory(start) {
        memory.with(|_| ());
    }
}

/// Marks a write to plain memory; the model fails if another access that begins there is not ordered before
/// or after.
pub fn mark_write(start: *const u8, _len: usize) {
    if let Some(memory) = memory(start) {
        memory.with_mut(|_| ());
    }
}

/// A value that is kept as its difference to another one.
trait Value: Copy {
    fn to_difference(self, first: Self) -> u64;
    fn from_difference(difference: u64, first: Self) -> Self;
}

macro_rules! number_value {
    ($($number:ty),*) => {
        $(impl Value for $number {
            fn to_difference(self, first: Self) -> u64 {
                (self as u64).wrapping_sub(first as u64)
            }

            fn from_difference(difference: u64, first: Self) -> Self {
                (first as u64).wrapping_add(difference) as $number
            }
        })*
    };
}

number_value!(u32, u64, usize);

impl Value for bool {
    fn to_difference(self, first: Self) -> u64 {
        u64::from(self != first)
    }

    fn from_difference(difference: u64, first: Self) -> Self {
        (difference == 1) != first
    }
}

impl<T> Value for *mut T {
    fn to_difference(self, first: Self) -> u64 {
        (self.expose_provenance() as u64).wrapping_sub(first.expose_provenance() as u64)
    }

    fn from_difference(difference: u64, first: Self) -> Self {
        std::ptr::with_exposed_provenance_mut(
            (first.expose_provenance() as u64).wrapping_add(difference) as usize
        )
    }
}

macro_rules! atomic {
    ($name:ident $(<$parameter:ident>)?, $value:ty, {$($arithmetic:tt)*}) => {
        /// An atomic that the model checker sees.
        #[repr(transparent)]
        pub struct $name$(<$parameter>)?(std::sync::atomic::$name$(<$parameter>)?);

        #[allow(dead_code, reason = "each type is used for a part of it")]
        impl$(<$parameter>)? $name$(<$parameter>)? {
            #[doc = "Returns an atomic with a value."]
            pub const fn new(value: $value) -> Self {
                $name(std::sync::atomic::$name::new(value))
            }

            /// Returns the model checker's object and the first value.
            fn object(&self) -> Option<(Rc<Object>, $value)> {
                Some((object(std::ptr::from_ref(self).addr())?, self.0.load(Relaxed)))
            }

            #[doc = "Loads the value."]
            pub fn load(&self, order: Ordering) -> $value {
                let Some((object, first)) = self.object() else { return self.0.load(order) };
                Value::from_difference(object.load(if order == SeqCst { Acquire } else { order }), first)
            }

            #[doc = "Stores a value."]
            pub fn store(&self, value: $value, order: Ordering) {
                let Some((object, first)) = self.object() else { return self.0.store(value, order) };
                let difference = value.to_difference(first);
                if order != SeqCst {
                    return object.store(difference, order);
                }
                object.store(difference, Release);
                fence(SeqCst);
            }

            #[doc = "Stores a value and returns the previous one."]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                let Some((object, first)) = self.object() else { return self.0.swap(value, order) };
                let difference = value.to_difference(first);
                Value::from_difference(change(order, |order| object.swap(difference, order)), first)
            }

            #[doc = "Stores a value if the present one is `current`."]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let Some((object, first)) = self.object() else {
                    return self.0.compare_exchange(current, new, success, failure);
                };
                let failure = if failure == SeqCst { Acquire } else { failure };
                let (current, new) = (current.to_difference(first), new.to_difference(first));
                let exchanged =
                    change(success, |order| object.compare_exchange(current, new, order, failure));
                let value = |difference| Value::from_difference(difference, first);
                exchanged.map(value).map_err(value)
            }

            #[doc = "Changes the value unless `f` returns `None`; returns the previous one."]
            pub fn fetch_update(
                &self,
                set_order: Ordering,
                fetch_order: Ordering,
                mut f: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut previous = self.load(fetch_order);
                while let Some(next) = f(previous) {
                    match self.compare_exchange(previous, next, set_order, fetch_order) {
                        Ok(previous) => return Ok(previous),
                        Err(now) => previous = now,
                    }
                }
                Err(previous)
            }

            $($arithmetic)*
        }

        impl$(<$parameter>)? Drop for $name$(<$parameter>)? {
            fn drop(&mut self) {
                forget(std::ptr::from_ref(self).addr());
            }
        }

        impl$(<$parameter>)? fmt::Debug for $name$(<$parameter>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

macro_rules! number {
    ($name:ident, $number:ty) => {
        atomic!($name, $number, {
            #[doc = "Adds to the value; returns the previous one."]
            pub fn fetch_add(&self, value: $number, order: Ordering) -> $number {
                let Some((object, first)) = self.object() else { return self.0.fetch_add(value, order) };
                Value::from_difference(change(order, |order| object.fetch_add(value as u64, order)), first)
            }

            #[doc = "Subtracts from the value; returns the previous one."]
            pub fn fetch_sub(&self, value: $number, order: Ordering) -> $number {
                let Some((object, first)) = self.object() else { return self.0.fetch_sub(value, order) };
                Value::from_difference(change(order, |order| object.fetch_sub(value as u64, order)), first)
            }
        });

        impl Default for $name {
            fn default() -> Self {
                $name::new(0)
            }
        }
    };
}

number!(AtomicU32, u32);
number!(AtomicU64, u64);
number!(AtomicUsize, usize);
atomic!(AtomicBool, bool, {});
atomic!(AtomicPtr<T>, *mut T, {});

/// Calls a read-modify-write with the order that Loom honors, between the fences that make up for the rest.
fn change<T>(order: Ordering, change: impl FnOnce(Ordering) -> T) -> T {
    if order != SeqCst {
        return change(order);
    }
    fence(SeqCst);
    let result = change(AcqRel);
    fence(SeqCst);
    result
}

/// A mutex that the model checker sees.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

/// A locked mutex.
#[derive(Debug)]
pub struct MutexGuard<'m, T> {
    /// The value; dropped before the model checker's lock is released.
    value: Option<std::sync::MutexGuard<'m, T>>,
    lock: Option<ModelGuard>,
    mutex: &'m Mutex<T>,
}

/// The model checker's lock, held.
#[derive(Debug)]
struct ModelGuard {
    /// Dropped before the lock.
    guard: Option<loom::sync::MutexGuard<'static, ()>>,
    _lock: Rc<loom::sync::Mutex<()>>,
}

impl Drop for ModelGuard {
    fn drop(&mut self) {
        drop(self.guard.take());
    }
}

impl ModelGuard {
    /// Takes the lock of an address; `None` outside of models.
    fn take(address: usize) -> Option<ModelGuard> {
        let lock = OBJECTS.with_borrow_mut(|objects| {
            let Objects { locks, spare_locks, .. } = objects.as_mut()?;
            let take = || Rc::new(spare_locks.pop().expect("a model with fewer locks"));
            Some(Rc::clone(locks.entry(address).or_insert_with(take)))
        })?;
        let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the lock outlives its guard: `ModelGuard` has both, and drops the guard first.
        let guard = unsafe {
            std::mem::transmute::<loom::sync::MutexGuard<'_, ()>, loom::sync::MutexGuard<'static, ()>>(guard)
        };
        Some(ModelGuard { guard: Some(guard), _lock: lock })
    }
}

impl<T> Mutex<T> {
    /// Returns a mutex with a value.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    /// Locks the mutex.
    ///
    /// # Errors
    /// If a thread has panicked while it held the lock.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let lock = ModelGuard::take(std::ptr::from_ref(self).addr());
        let guard = |value| MutexGuard { value: Some(value), lock, mutex: self };
        match self.0.lock() {
            Ok(value) => Ok(guard(value)),
            Err(poisoned) => Err(PoisonError::new(guard(poisoned.into_inner()))),
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("locked")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("locked")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.value.take());
        drop(self.lock.take());
    }
}

/// A condition variable whose waits end at once in a model.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Returns a condition variable.
    pub const fn new() -> Condvar {
        Condvar(std::sync::Condvar::new())
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Releases the lock, and takes it again after a notification or the timeout.
    ///
    /// # Errors
    /// If a thread has panicked while it held the lock.
    pub fn wait_timeout<'m, T>(
        &self,
        mut guard: MutexGuard<'m, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'m, T>, bool)> {
        let mutex = guard.mutex;
        if is_running() {
            drop(guard);
            thread::yield_now();
            let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
            return Ok((guard, true));
        }
        let value = guard.value.take().expect("locked");
        drop(guard);
        let wrap = |value| MutexGuard { value: Some(value), lock: None, mutex };
        match self.0.wait_timeout(value, timeout) {
            Ok((value, result)) => Ok((wrap(value), result.timed_out())),
            Err(poisoned) => {
                let (value, result) = poisoned.into_inner();
                Err(PoisonError::new((wrap(value), result.timed_out())))
            }
        }
    }
}
