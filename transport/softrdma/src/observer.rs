//! Access to a fabric from a process that takes no part in it.

use crate::{
    control::Control,
    shm::{Directory, holds_lock},
};
use std::{fmt, io, path::Path};

/// An observer of a fabric: reads its counters and may inject faults. No process of the fabric waits for it.
#[derive(Debug)]
pub struct Observer(Directory);

/// An error from opening a fabric's folder.
#[derive(Debug)]
pub struct ObserveError {
    path: std::path::PathBuf,
    error: rustix::io::Errno,
}

impl Observer {
    /// Opens the folder of the fabric with this digest. The folder may be new.
    ///
    /// # Errors
    /// Fails if the folder can't be written, or belongs to another fabric or version of softrdma.
    pub fn open(folder: &Path, digest: u64) -> Result<Observer, ObserveError> {
        Directory::open(folder, digest)
            .map(Observer)
            .map_err(|error| ObserveError { path: folder.to_owned(), error })
    }

    /// Wakes all processes that sleep, so that they see a fault. They may be waiting for asynchronous events.
    pub fn wake_all(&self) {
        self.0.wake_all();
    }

    /// Whether a process holds a lock of the fabric, for which other processes wait.
    #[must_use]
    pub fn holds_lock(&self, pid: u32) -> bool {
        holds_lock(&self.0, pid)
    }

    /// Returns the fabric's control block.
    #[must_use]
    pub fn control(&self) -> &Control {
        &self.0.header().control
    }
}

impl fmt::Display for ObserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.error {
            rustix::io::Errno::PROTO => write!(f, "{path} was made by another version of softrdma"),
            rustix::io::Errno::STALE => write!(f, "{path} belongs to another fabric"),
            rustix::io::Errno::BADMSG => write!(f, "{path} is not the folder of a fabric"),
            error => write!(f, "{path} can't be opened: {}", io::Error::from(error)),
        }
    }
}

impl std::error::Error for ObserveError {}
