//! Buffers in memory that peers read in place, as [`super::Communicator::alloc`] makes them.
//!
//! # Safety
//! The only unsafe code sees the bytes of a [`Registered`] as elements.

use crate::Element;
use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};
use transport::memory::Registered;

/// A slice of elements in registered memory, zero when new.
///
/// Collectives on it move its bytes without copying them on the way. It may outlive its communicator.
pub struct Buffer<T> {
    memory: Registered,
    count: usize,
    elements: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    pub(super) fn new(memory: Registered) -> Buffer<T> {
        let count = memory.len() / size_of::<T>();
        assert!(memory.as_ptr().cast::<T>().is_aligned(), "slab memory is aligned to its blocks");
        Buffer { memory, count, elements: PhantomData }
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the memory holds `count` elements, is aligned (checked when made), belongs to this buffer,
        // and holds elements: zero is one of every type, and only elements are written through `DerefMut`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), self.count) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`; the borrow is exclusive. Peers read the memory only during an operation,
        // which holds a borrow of its own.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().cast(), self.count) }
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
