//! The C interface: functions with the names and the ABI of libibverbs.
//!
//! Every function casts its pointers and delegates to the object behind them. A panic does not cross into C:
//! it becomes an error.
//!
//! Modules, each above those that it uses:
//!
//! - `open`: opens devices, with the tables of functions of a context
//! - `events`, `cq_events`: asynchronous events and completion events
//! - `qp_modify`, `qp_create`, `qp_ex`, `post_recv`, `qp`: queue pairs
//! - `cq_ex`, `cq`, `channel`: completion queues and channels
//! - `srq`, `receive_queue`, `mr`, `pd`: shared receive queues, memory regions, protection domains
//! - `context`, `device`: open devices and the list of devices
//! - `acks`, `watched`, `strings`: acknowledgements, event sources, names of numbers
//!
//! # Safety
//! Callers are C programs, which promise what the verbs manual asks for: pointers to objects that this
//! library made and that have not been destroyed, and to structures that stay valid during the call. A C
//! structure is the first member of our object, or at a known offset in it, so a pointer to one is a pointer
//! to the other.

mod acks;
mod channel;
mod context;
mod cq;
mod cq_events;
mod cq_ex;
mod device;
mod events;
mod mr;
mod open;
mod pd;
mod post_recv;
mod qp;
mod qp_create;
mod qp_ex;
mod qp_modify;
mod receive_queue;
mod srq;
mod strings;
mod watched;

pub use device::device_list;

use rustix::io::Errno;
use std::{
    ffi::c_int,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::atomic::{
        AtomicBool,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// Runs the body of a function that returns zero or an error number.
#[inline]
fn status_of(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            set_errno(error);
            error.raw_os_error()
        }
        Err(_) => Errno::IO.raw_os_error(),
    }
}

/// Runs the body of a function that returns a new object, or null with `errno` set.
fn pointer_of<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno::IO));
    result.unwrap_or_else(|error| {
        set_errno(error);
        ptr::null_mut()
    })
}

/// Runs the body of a function that can't report errors. Returns `fallback` after a panic.
#[inline]
fn value_of<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
}

fn set_errno(error: Errno) {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = error.raw_os_error() };
}

/// Returns the error of a profile's error number.
fn errno(number: i32) -> Errno {
    Errno::from_raw_os_error(number)
}

/// Reads a structure that a C program passes by address.
fn input<'a, T>(pointer: *const T) -> Result<&'a T, Errno> {
    // SAFETY: null, or valid during the call, as the module's section says.
    unsafe { pointer.as_ref() }.ok_or(Errno::INVAL)
}

/// Returns the place of a result that a C program passes by address.
fn output<'a, T>(pointer: *mut T) -> Result<&'a mut T, Errno> {
    // SAFETY: null, or valid during the call and not otherwise in use, as the module's section says.
    unsafe { pointer.as_mut() }.ok_or(Errno::INVAL)
}

/// An object that C programs name by the address of its first member, a C structure.
///
/// # Safety
/// `Self` must be `repr(C)` and begin with a `C`, and every `C` that C programs have must have been made as
/// part of a `Self`.
unsafe trait Object<C>: Sized {
    /// Returns the object that a C program names.
    #[inline]
    fn from_c<'a>(pointer: *mut C) -> Result<&'a Self, Errno> {
        // SAFETY: null, or part of a living `Self`, by the promises of the implementation and of the callers.
        unsafe { pointer.cast::<Self>().as_ref() }.ok_or(Errno::INVAL)
    }

    /// Moves a new object to the heap, and returns its address for a C program.
    fn into_c(self) -> *mut C {
        Box::into_raw(Box::new(self)).cast()
    }

    /// Takes back an object that a C program destroys.
    ///
    /// # Safety
    /// It must come from `into_c` and never be used again.
    unsafe fn take_back(pointer: *mut C) -> Box<Self> {
        // SAFETY: the caller's promise.
        unsafe { Box::from_raw(pointer.cast::<Self>()) }
    }
}

/// A lock between threads of this process, held for a few loads and stores.
#[derive(Debug, Default)]
struct SpinLock(AtomicBool);

impl SpinLock {
    #[inline]
    fn acquire(&self) {
        let mut turn = 0u32;
        while self.0.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
            turn += 1;
            if turn.is_multiple_of(128) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    #[inline]
    fn release(&self) {
        self.0.store(false, Release);
    }

    #[inline]
    fn lock(&self) -> SpinGuard<'_> {
        self.acquire();
        SpinGuard(self)
    }
}

/// A held [`SpinLock`].
#[derive(Debug)]
struct SpinGuard<'a>(&'a SpinLock);

impl Drop for SpinGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.release();
    }
}
