//! The boundary around every function of `tbccl.h`: it lets no panic out, and keeps the latest error of each
//! thread.

use crate::{codes::Coded, failure::Failure};
use std::{
    any::Any,
    cell::RefCell,
    ffi::CString,
    panic::{AssertUnwindSafe, catch_unwind},
};
use tbccl::forks;

/// Result of a function inside the boundary.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Watches for forks from now on: a forked child gets an error from every function, since the library is
/// never unloaded (`build.rs`).
pub(crate) use forks::register_handler as register_fork_handler;

/// Runs a function of the interface and returns its result as a number.
#[inline]
pub(crate) fn boundary(body: impl FnOnce() -> Outcome) -> i32 {
    if forks::is_child() {
        return remember(forked());
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => remember(failure),
        Err(panic) => remember(defect(&*panic)),
    }
}

#[cold]
fn forked() -> Failure {
    Failure::usage(format!(
        "{}; start a program in it, or fork before the first communicator is made",
        forks::FORKED
    ))
}

#[cold]
fn defect(panic: &(dyn Any + Send)) -> Failure {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Failure::internal(said.unwrap_or("a panic that says nothing"))
}

/// The latest error of a thread.
struct Last {
    failure: Failure,
    /// The error's text, for C.
    text: CString,
}

thread_local! {
    static LAST: RefCell<Option<Box<Last>>> = const { RefCell::new(None) };
}

/// Keeps an error as this thread's latest, and returns its number.
#[cold]
pub(crate) fn remember(failure: Failure) -> i32 {
    let code = failure.code().code();
    let text = c_string(failure.text());
    // A thread that is about to end has no thread-local variables left.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = Some(Box::new(Last { failure, text }));
        }
    });
    code
}

/// Looks at this thread's latest error, if there is one.
pub(crate) fn with_last<R>(look: impl FnOnce(Option<(&Failure, &CString)>) -> R) -> Option<R> {
    let looked = LAST.try_with(|last| {
        let last = last.try_borrow().ok()?;
        Some(look(last.as_ref().map(|last| (&last.failure, &last.text))))
    });
    looked.ok().flatten()
}

/// Returns a text for C, up to its first zero.
pub(crate) fn c_string(text: &str) -> CString {
    let until = text.split('\0').next().unwrap_or_default();
    CString::new(until).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::ResultCode;

    fn last() -> Option<String> {
        with_last(|last| last.map(|(_, text)| text.to_string_lossy().into_owned())).flatten()
    }

    #[test]
    fn a_panic_becomes_a_number_and_its_words_are_kept() {
        assert_eq!(last(), None, "nothing has failed on this thread");
        assert_eq!(boundary(|| panic!("the {}", "sky falls")), ResultCode::InternalError.code());
        assert!(last().is_some_and(|text| text.contains("the sky falls")));
        assert_eq!(boundary(|| Err(Failure::argument("count\0is odd"))), ResultCode::InvalidArgument.code());
        assert_eq!(last().as_deref(), Some("count"));
        assert_eq!(boundary(|| Ok(())), 0);
        assert!(last().is_some(), "success leaves it");
        let elsewhere = std::thread::spawn(last).join().expect("no panic");
        assert_eq!(elsewhere, None, "each thread has its own");
    }
}
