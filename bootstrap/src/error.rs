//! Errors of the bootstrap: why the ranks of a job could not be brought together.

use std::{io, sync::Arc};
use thiserror::Error;
use topology::Rank;

/// The result of a step of the bootstrap.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure to bring ranks together.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid argument.
    #[error("{0}")]
    InvalidArgument(String),
    /// A rendezvous that could not be opened, reached or completed.
    #[error("{0}")]
    Rendezvous(String),
    /// Ranks that did not reach the rendezvous of a communicator that is made from another one.
    #[error("{why}")]
    Absent {
        /// The missing ranks, as numbered in the parent communicator.
        ranks: Vec<Rank>,
        /// The full sentence for the user.
        why: String,
    },
    /// A system call that failed.
    #[error("{what}: {source}{}", remedy.as_ref().map(|r| format!("; {r}")).unwrap_or_default())]
    System {
        /// The operation that failed, as the beginning of a sentence.
        what: String,
        /// The system's error.
        source: Arc<io::Error>,
        /// Advice for the user, if the error's number suggests any.
        remedy: Option<&'static str>,
    },
}

impl Error {
    /// Wraps a system error, with the remedy that its number suggests.
    #[must_use]
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        let source = source.into();
        let remedy = remedy(&source);
        Error::System { what: what.into(), source: Arc::new(source), remedy }
    }
}

/// Returns advice for the user on a system error whose number suggests some.
fn remedy(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => Some("raise the limit on open files (ulimit -n)"),
        Some(libc::EAGAIN) => Some("raise the limit on processes (ulimit -u)"),
        Some(libc::ENOMEM) => Some("free memory, or use fewer ranks"),
        _ => None,
    }
}
