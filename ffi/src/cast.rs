//! Conversions of what C passes: the only module in which a C pointer becomes something else.
//!
//! Pointers to results are `Option<&mut MaybeUninit<T>>` in the functions themselves: null is `None`, and the
//! value is only written. Memory of calls stays an address until `tbccl` uses it. This module has the rest:
//! handles, texts, lists, and structures that state their own size.
//!
//! # Safety
//! All of it rests on what `tbccl.h` asks of its callers: a pointer is null or points to a value of its type
//! while the call lasts. Handles may be anything: they are numbers here.

use crate::{
    boundary::Outcome,
    failure::Failure,
    handle::{Key, Kind},
};
use std::{
    ffi::{CStr, c_char},
    mem::MaybeUninit,
};

/// Returns the number that a handle is.
#[inline]
pub(crate) fn bits_of<T>(handle: *const T) -> u64 {
    handle.addr() as u64
}

/// Returns the handle of a key.
pub(crate) fn handle_of<T>(key: Key, kind: Kind) -> *mut T {
    std::ptr::without_provenance_mut(key.to_bits(kind) as usize)
}

/// Returns the place for a result. `what` names the argument.
#[inline]
pub(crate) fn out<'a, T>(
    what: &str,
    place: Option<&'a mut MaybeUninit<T>>,
) -> Outcome<&'a mut MaybeUninit<T>> {
    place.ok_or_else(|| null(what))
}

#[cold]
fn null(what: &str) -> Failure {
    Failure::argument(format!("{what} is NULL"))
}

/// The place of a result that is written when the group ends.
pub(crate) struct DeferredOut<T>(*mut T);

// SAFETY: one thread writes to the address, while the thread that gave it waits for that one. The value was
// made on the writing thread, and is plain data for C.
unsafe impl<T> Send for DeferredOut<T> {}

impl<T> DeferredOut<T> {
    pub(crate) fn new(place: &mut MaybeUninit<T>) -> DeferredOut<T> {
        DeferredOut(place.as_mut_ptr())
    }

    /// Writes the result.
    pub(crate) fn put(self, value: T) {
        // SAFETY: as `tbccl.h` says, the place stays where it is until the group has ended, and it has not
        // yet.
        unsafe { self.0.write(value) };
    }
}

/// Reads a text; null is none.
///
/// # Safety
/// The pointer is null or points to a text that ends with a zero and stays as it is while `'a` lasts.
pub(crate) unsafe fn text<'a>(what: &str, pointer: *const c_char) -> Outcome<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| Failure::argument(format!("{what} is not UTF-8")))
}

/// Copies a list of `len` values.
///
/// # Safety
/// The pointer is null or points to `len` values.
pub(crate) unsafe fn list<T: Copy>(what: &str, pointer: *const T, len: usize) -> Outcome<Vec<T>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    if pointer.is_null() {
        return Err(null(what));
    }
    if !pointer.is_aligned() {
        return Err(Failure::argument(format!("{what} is not aligned to its elements")));
    }
    // SAFETY: neither null nor misaligned; the rest is what the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) }.to_vec())
}

/// Copies `len` bytes, of any alignment.
///
/// # Safety
/// The pointer is null or points to `len` bytes.
pub(crate) unsafe fn bytes(what: &str, pointer: *const u8, len: usize) -> Outcome<Vec<u8>> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null; the rest is what the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) }.to_vec())
}

/// Writes values to a list.
///
/// # Safety
/// The pointer is null or points to room for all values.
pub(crate) unsafe fn fill_list<T: Copy>(what: &str, pointer: *mut T, values: &[T]) -> Outcome {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller promises room; the values are this library's own and do not overlap with it.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), pointer, values.len()) };
    Ok(())
}

/// First fields of every structure that may grow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    size: usize,
    magic: u32,
    version: u32,
}

/// Structures that begin with a [`Head`] and consist of plain numbers and pointers, so that any bits are a
/// value.
///
/// # Safety
/// The type is `repr(C)`, begins with the fields of a `Head`, and any bits are a value of it.
pub(crate) unsafe trait Versioned: Copy {
    /// Value of the field `magic`.
    const MAGIC: u32;
    /// Name of the initializer.
    const INITIALIZER: &'static str;
    /// Bytes of the structure's first version. A constant: the type grows, and programs compiled with older
    /// headers do not.
    const MIN_SIZE: usize;
    /// A structure with no field set.
    const UNSET: Self;
}

fn check<T: Versioned>(what: &str, head: Head) -> Outcome<usize> {
    if head.magic != T::MAGIC || head.size < T::MIN_SIZE {
        let how = T::INITIALIZER;
        return Err(Failure::argument(format!("{what} was not initialized: begin with {how}")));
    }
    if head.size > size_of::<T>() {
        return Err(Failure::argument(format!(
            "{what} is of a tbccl.h of version {}, which is newer than this library",
            head.version
        )));
    }
    Ok(head.size)
}

/// Reads a structure that the program filled in; fields that an older header did not have are unset. Null is
/// none.
///
/// # Safety
/// The pointer is null or points to a structure of the size that it states itself.
pub(crate) unsafe fn read_versioned<T: Versioned>(what: &str, pointer: *const T) -> Outcome<Option<T>> {
    if pointer.is_null() {
        return Ok(None);
    }
    aligned(what, pointer)?;
    // SAFETY: every version of the structure begins with a head.
    let head = unsafe { pointer.cast::<Head>().read() };
    let size = check::<T>(what, head)?;
    let mut value = T::UNSET;
    // SAFETY: both have at least `size` bytes, as checked and promised; any bits are a value.
    unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut value).cast::<u8>(), size) };
    Ok(Some(value))
}

fn aligned<T>(what: &str, pointer: *const T) -> Outcome {
    if pointer.is_aligned() {
        return Ok(());
    }
    Err(Failure::argument(format!("{what} is not aligned")))
}

/// Writes a structure that the caller has initialized, as far as its header knows the fields.
///
/// # Safety
/// As for [`read_versioned`]; nothing else uses the structure meanwhile.
pub(crate) unsafe fn write_versioned<T: Versioned>(what: &str, pointer: *mut T, value: &T) -> Outcome {
    if pointer.is_null() {
        return Err(null(what));
    }
    aligned(what, pointer)?;
    let head = size_of::<Head>();
    // SAFETY: every version of the structure begins with a head.
    let size = check::<T>(what, unsafe { pointer.cast::<Head>().read() })?;
    // SAFETY: both have at least `size` bytes; the head stays as the caller wrote it.
    unsafe {
        let (from, to) = (std::ptr::from_ref(value).cast::<u8>(), pointer.cast::<u8>());
        std::ptr::copy_nonoverlapping(from.add(head), to.add(head), size - head);
    }
    Ok(())
}

/// Returns a text in a field of fixed size: cut between characters if too long, and ended by a zero.
pub(crate) fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    let mut most = N - 1;
    while !text.is_char_boundary(most.min(text.len())) {
        most -= 1;
    }
    for (to, byte) in field.iter_mut().zip(text.bytes().take(most)) {
        *to = byte as c_char;
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown<const N: usize>(text: &str) -> Vec<u8> {
        field::<N>(text).iter().map(|c| *c as u8).collect()
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(shown::<4>("ab"), b"ab\0\0");
        assert_eq!(shown::<4>("abcdef"), b"abc\0");
        assert_eq!(shown::<4>("ab\u{e4}"), b"ab\0\0", "half an umlaut is none");
        assert_eq!(shown::<5>("ab\u{e4}"), [b'a', b'b', 0xc3, 0xa4, 0]);
    }

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Growing {
        size: usize,
        magic: u32,
        version: u32,
        old: u64,
        new: u64,
    }

    // SAFETY: plain numbers after those of a head.
    unsafe impl Versioned for Growing {
        const MAGIC: u32 = 77;
        const INITIALIZER: &'static str = "GROWING_INITIALIZER";
        const MIN_SIZE: usize = 24;
        const UNSET: Growing = Growing { size: 0, magic: 77, version: 1, old: 1, new: 2 };
    }

    #[test]
    fn a_structure_of_an_older_header_keeps_what_it_does_not_know() {
        let given = Growing { size: 24, magic: 77, version: 1, old: 10, new: 20 };
        // SAFETY: these structures state their size, or a smaller one.
        let read = |given: &Growing| unsafe { read_versioned("config", given) };
        let seen = read(&given).expect("initialized").expect("given");
        assert_eq!((seen.old, seen.new), (10, 2));
        for bad in [
            Growing { magic: 0, ..given },
            Growing { size: 0, ..given },
            Growing { size: 23, ..given },
            Growing { size: 33, ..given },
        ] {
            assert!(read(&bad).is_err(), "{bad:?}");
        }
        let mut to = given;
        // SAFETY: as above.
        unsafe { write_versioned("info", &raw mut to, &Growing { old: 5, new: 6, ..Growing::UNSET }) }
            .expect("initialized");
        assert_eq!(
            to,
            Growing { old: 5, ..given },
            "neither the head nor what it has no room for is written"
        );
    }
}
