//! A fabric, opened by somebody who takes no part in it.

use crate::{control::Control, shm::Directory};
use std::{fmt, io, path::Path};

/// Sees what the processes of a fabric share, and may inject faults. Nobody waits for it.
#[derive(Debug)]
pub struct Observer(Directory);

/// A folder that can't be observed.
#[derive(Debug)]
pub struct ObserveError {
    path: std::path::PathBuf,
    error: rustix::io::Errno,
}

impl Observer {
    /// Opens the folder of a fabric with that digest. It need not have been used yet.
    ///
    /// # Errors
    /// The folder can't be written, or belongs to another fabric or version.
    pub fn open(folder: &Path, digest: u64) -> Result<Observer, ObserveError> {
        Directory::open(folder, digest)
            .map(Observer)
            .map_err(|error| ObserveError { path: folder.to_owned(), error })
    }

    /// Wakes all who sleep until something happens, after a fault: those who wait for asynchronous events.
    pub fn wake_all(&self) {
        self.0.wake_all();
    }

    /// The shared words.
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
