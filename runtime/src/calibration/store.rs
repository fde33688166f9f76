//! The file of a calibration: where it is, how it is read and written, and whose machine it describes.
//!
//! The file is replaced as a whole, by a rename, so that a reader sees either the old or the new content. A
//! process that measures holds a lock on a file beside it, and other first jobs of the machine wait for it,
//! for a bounded time. A file that is damaged, or describes another machine, counts as absent and is
//! replaced. Nothing depends on a clock that can be set.

use super::{fingerprint::Fingerprint, record::Record};
use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Longest wait for a process that measures, which takes less than 200 ms.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two attempts to take the lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(5);
/// Most bytes of a file.
const MOST_BYTES: u64 = 64 << 10;

/// The reason why a calibration cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file or a folder could not be read or written.
    #[error("{what} `{path}`: {source}", path = path.display())]
    File {
        /// The step that failed.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process has held the lock for too long.
    #[error("another process has held `{path}` for two seconds", path = .0.display())]
    Locked(PathBuf),
    /// The measurement failed.
    #[error("the measurement failed: {0}")]
    Measurement(String),
}

/// The content of a calibration file.
#[derive(Clone, Debug, PartialEq)]
pub enum Calibration {
    /// A record of this machine.
    Measured(Record),
    /// No record of this machine, and why.
    Missing(String),
}

/// Returns the file of this machine in the user's cache folder, by the variables of the environment; `None`
/// where they name no folder.
pub(crate) fn default_path(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = if cfg!(target_vendor = "apple") {
        absolute("HOME").map(|home| home.join("Library/Caches"))
    } else {
        absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))
    };
    Some(folder?.join("tbccl").join(file_name(&Fingerprint::here())))
}

/// Returns the name of a machine's file: one for each kind of machine that shares the folder, whatever its
/// kernel and the version of tbccl.
fn file_name(fingerprint: &Fingerprint) -> String {
    let text = format!("{} {:?}", fingerprint.machine, fingerprint.caches);
    format!("calibration-{:016x}.json", xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
}

/// Reads a file.
///
/// # Errors
/// [`StoreError::File`] if there is a file that can't be read.
pub(crate) fn kept(path: &Path, here: &Fingerprint) -> Result<Calibration, StoreError> {
    let failed = |source| StoreError::File { what: "can't read", path: path.to_owned(), source };
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            return Err(failed(io::Error::other("it is not a file")));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Calibration::Missing("this machine has not been calibrated".to_owned()));
        }
        Err(error) => return Err(failed(error)),
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes)).map_err(failed)?;
    let record: Record = match serde_json::from_slice(&bytes) {
        Ok(record) => record,
        Err(error) => return Ok(Calibration::Missing(format!("the file is damaged: {error}"))),
    };
    if record.fingerprint != *here {
        return Ok(Calibration::Missing(
            "it was measured on another machine, system or version of tbccl".to_owned(),
        ));
    }
    Ok(match record.fault() {
        Some(fault) => Calibration::Missing(format!("the file is damaged: {fault}")),
        None => Calibration::Measured(record),
    })
}

/// Updates a file under its lock: `update` gets the present content, and returns the new one.
///
/// # Errors
/// [`StoreError`]: the content is as it was then.
pub(crate) fn keep(
    path: &Path,
    here: &Fingerprint,
    update: impl FnOnce(Calibration) -> Result<Calibration, StoreError>,
) -> Result<Calibration, StoreError> {
    if let Some(folder) = path.parent() {
        let failed = |source| StoreError::File { what: "can't create", path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let _lock = lock(&path.with_extension("lock"))?;
    let earlier = kept(path, here)?;
    let new = update(earlier.clone())?;
    if let Calibration::Measured(record) = &new
        && new != earlier
    {
        replace(path, record)?;
    }
    Ok(new)
}

/// Takes the lock, which ends with the file.
fn lock(path: &Path) -> Result<File, StoreError> {
    let failed = |source| StoreError::File { what: "can't lock", path: path.to_owned(), source };
    let file = File::options().create(true).write(true).truncate(false).open(path).map_err(failed)?;
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        if began.elapsed() > LOCK_TIMEOUT {
            return Err(StoreError::Locked(path.to_owned()));
        }
        thread::sleep(LOCK_INTERVAL);
    }
}

/// Replaces a file as a whole.
fn replace(path: &Path, record: &Record) -> Result<(), StoreError> {
    let failed = |source| StoreError::File { what: "can't write", path: path.to_owned(), source };
    let text = serde_json::to_vec_pretty(record).map_err(|error| failed(error.into()))?;
    // Only the holder of the lock uses this name; another process may have died with it.
    let new = path.with_extension("new");
    let written = File::create(&new).and_then(|mut file| file.write_all(&text));
    let replaced = written.and_then(|()| fs::rename(&new, path));
    if replaced.is_err() {
        let _ = fs::remove_file(&new);
    }
    replaced.map_err(failed)
}

#[cfg(test)]
mod tests;
