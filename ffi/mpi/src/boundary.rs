//! The boundary that every function stands behind: no panic leaves it, and whatever fails is told.

use crate::throw::throw;
use std::{
    any::Any,
    ffi::c_int,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};
use tbccl::forks;

/// What MPI's functions return when all is well.
pub(crate) const SUCCESS: c_int = 0;

/// What those return that must not throw: something else has failed (`MPI_ERR_OTHER`).
const OTHER: c_int = 16;

/// Why a function has failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What tbccl says.
    Tbccl(tbccl::Error),
    /// What is wrong with what was passed, or with the order of calls.
    Wrong(String),
}

/// The result of what stands behind the boundary.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn wrong(what: impl Into<String>) -> Failure {
        Failure::Wrong(what.into())
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
            Failure::Wrong(what) => f.write_str(what),
        }
    }
}

/// From now on a child that is forked from this process is told that it can't use the library, which is never unloaded
/// (`build.rs`).
pub(crate) use forks::notice as notice_forks;

/// Carries out a function that may throw.
#[inline]
pub(crate) fn or_throw(name: &str, body: impl FnOnce() -> Outcome) -> c_int {
    match tried(body) {
        Ok(()) => SUCCESS,
        Err(why) => throw(&format!("[tbccl] {name}: {why}")),
    }
}

/// Carries out a function that C++ calls where nothing may be thrown. A child that was forked has nothing to end.
pub(crate) fn or_code(body: impl FnOnce() -> Outcome) -> c_int {
    if forks::is_child() {
        return SUCCESS;
    }
    tried(body).map_or(OTHER, |()| SUCCESS)
}

/// What became of it, with what to say if it has failed.
fn tried(body: impl FnOnce() -> Outcome) -> Result<(), String> {
    if forks::is_child() {
        return Err(format!(
            "{}; start a program in it, or fork before the first group is made",
            forks::FORKED
        ));
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(done) => done.map_err(|failure| failure.to_string()),
        Err(panic) => Err(format!("a defect of tbccl, please report it: {}", words_of(&*panic))),
    }
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    let said = panic.downcast_ref::<&str>().copied();
    said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic that says nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_words() {
        let why = tried(|| panic!("the {}", "sky falls")).expect_err("it has failed");
        assert!(why.contains("the sky falls") && why.contains("report it"), "{why}");
        assert_eq!(tried(|| Err(Failure::wrong("no"))), Err("no".to_owned()));
        assert_eq!(or_code(|| panic!("again")), OTHER);
        assert_eq!(or_code(|| Ok(())), SUCCESS);
    }
}
