//! Refusal of calls in forked processes.
//!
//! A child that is forked from a process with the library has none of the threads of its parent, and its
//! peers take it for its parent. Its calls on values of the parent are errors, and dropping these values
//! releases nothing ([`Origin`]). The C, Python and MPI interfaces refuse all calls in such a child.

use crate::error::{Error, Result};
use std::sync::OnceLock;
use transport::forks::Origin;

/// The error of a call in a forked child, as the beginning of a sentence.
pub const FORKED: &str = transport::forks::FORKED;

static HOME: OnceLock<Origin> = OnceLock::new();

/// Detects forks from now on, after which [`is_child`] reports children of this process. Called before
/// anything exists that a child could not use. The calling code must stay loaded until the process ends.
pub fn register_handler() {
    HOME.get_or_init(Origin::here);
}

/// Whether this process was forked from one that has called [`register_handler`].
#[inline]
#[must_use]
pub fn is_child() -> bool {
    HOME.get().is_some_and(|home| !home.is_here())
}

/// Fails in a child of the process in which a value was made.
#[inline]
pub(crate) fn check(origin: Origin) -> Result<()> {
    if origin.is_here() { Ok(()) } else { Err(forked()) }
}

#[cold]
fn forked() -> Error {
    Error::InvalidArgument(format!(
        "{FORKED}; start a program in it, or fork before the first communicator is made"
    ))
}
