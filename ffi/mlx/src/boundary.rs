//! Boundary of every exported function: catches panics and reports failures to the caller.

use crate::throw::throw;
use std::{
    any::Any,
    ffi::{CString, c_char, c_int},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};
use tbccl::forks;

/// Return value of MPI's functions on success (`MPI_SUCCESS`).
pub const SUCCESS: c_int = 0;

/// Return value of functions that must not throw, on any failure (`MPI_ERR_OTHER`).
const ERR_OTHER: c_int = 16;

/// Reason why a function failed.
#[derive(Debug)]
pub enum Failure {
    /// Error of tbccl.
    Tbccl(tbccl::Error),
    /// Invalid argument, or a call at the wrong time.
    Usage(String),
}

/// Result of the code behind the boundary.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Returns the failure of an invalid argument, or of a call at the wrong time.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::Usage(message.into())
    }
}

impl From<tbccl::Error> for Failure {
    fn from(error: tbccl::Error) -> Failure {
        Failure::Tbccl(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Tbccl(error) => error.fmt(f),
            Failure::Usage(message) => f.write_str(message),
        }
    }
}

/// Starts fork detection: from now on, a child forked from this process gets an error from every call. The
/// library with this code is never unloaded.
pub use forks::register_handler as register_fork_handler;

/// Runs a function that may throw, and throws if it failed.
#[inline]
pub fn or_throw(name: &str, body: impl FnOnce() -> Outcome) -> c_int {
    match catch(body) {
        Ok(()) => SUCCESS,
        Err(why) => throw(&format!("[tbccl] {name}: {why}")),
    }
}

/// Runs a function that C++ calls where nothing may be thrown, and returns an error code if it failed.
///
/// Returns success in a forked child, which has nothing to release.
pub fn or_code(body: impl FnOnce() -> Outcome) -> c_int {
    if forks::is_child() {
        return SUCCESS;
    }
    catch(body).map_or(ERR_OTHER, |()| SUCCESS)
}

/// Runs a function for a caller that reports failures by itself, and returns the message of its failure or
/// panic.
pub fn catch(body: impl FnOnce() -> Outcome) -> Result<(), String> {
    if forks::is_child() {
        return Err(format!(
            "{}; start a program in it, or fork before the first group is made",
            forks::FORKED
        ));
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(done) => done.map_err(|failure| failure.to_string()),
        Err(panic) => Err(format!("a defect of tbccl, please report it: {}", panic_message(&*panic))),
    }
}

/// Runs a function, and returns null or the message of its failure, to be freed by `CString::from_raw`.
pub(crate) fn message_of(name: &str, body: impl FnOnce() -> Outcome) -> *mut c_char {
    match catch(body) {
        Ok(()) => std::ptr::null_mut(),
        Err(why) => {
            let text = format!("[tbccl] {name}: {why}").replace('\0', " ");
            CString::new(text).unwrap_or_default().into_raw()
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let message = panic.downcast_ref::<&str>().copied();
    message
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_words() {
        let why = catch(|| panic!("the {}", "sky falls")).expect_err("it has failed");
        assert!(why.contains("the sky falls") && why.contains("report it"), "{why}");
        assert_eq!(catch(|| Err(Failure::usage("no"))), Err("no".to_owned()));
        assert_eq!(or_code(|| panic!("again")), ERR_OTHER);
        assert_eq!(or_code(|| Ok(())), SUCCESS);
    }
}
