//! The shared folder of a fabric's processes, created for a run and removed after it.
//!
//! A run over all nodes has a folder of its own, whose name ends in the process id of the command. The next
//! run removes the folders of killed runs. Runs of single nodes share the folder that equal fabric files
//! determine; each holds a lock on the file in it, and the last one removes it.

use super::CommandError;
use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, getuid, test_kill_process},
};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

/// A fabric folder. Dropping it removes the folder unless other processes use it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Shared lock, held while a shared folder is in use.
    lock: Option<File>,
}

impl Folder {
    /// Chooses the folder of this run and removes those of killed runs. The tool creates the folder.
    pub(super) fn own() -> Folder {
        for (path, owner) in Folder::all() {
            if !is_alive(owner) {
                let _ = fs::remove_dir_all(path);
            }
        }
        Folder { path: base().join(format!("{}{}", prefix(), std::process::id())), lock: None }
    }

    /// Locks a folder that other runs use too.
    pub(super) fn shared(path: PathBuf) -> Result<Folder, CommandError> {
        let file = path.join("fabric.toml");
        let error_for =
            |error: std::io::Error| CommandError::new(format_args!("can't use {}: {error}", file.display()));
        let lock = File::open(&file).map_err(error_for)?;
        flock(&lock, FlockOperation::LockShared).map_err(|error| error_for(error.into()))?;
        if !file.exists() {
            let message =
                format!("{} was just removed by the last run that used it; try again", path.display());
            return Err(CommandError::new(message));
        }
        Ok(Folder { path, lock: Some(lock) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the folders of running fabrics.
    pub(super) fn running() -> Vec<PathBuf> {
        Folder::all().into_iter().filter(|(_, owner)| is_alive(*owner)).map(|(path, _)| path).collect()
    }

    /// Returns the folders of this user's runs, with the process ids of their owners.
    fn all() -> Vec<(PathBuf, i32)> {
        let entries = fs::read_dir(base()).into_iter().flatten().flatten();
        let owned = entries.filter_map(|entry| {
            let owner = entry.file_name().to_str()?.strip_prefix(&prefix())?.parse().ok()?;
            Some((entry.path(), owner))
        });
        owned.collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let removes = match &self.lock {
            None => true,
            Some(lock) => {
                flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok() && !is_used(&self.path)
            }
        };
        if removes {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Whether other processes use the folder. Each has a file there named `p` and a number.
fn is_used(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let numbers = |name: &str| name.strip_prefix('p').is_some_and(|rest| rest.parse::<u32>().is_ok());
    entries.into_iter().any(|entry| entry.file_name().to_str().is_some_and(numbers))
}

fn is_alive(process: i32) -> bool {
    // EPERM means that another user's process has the id now. The folder then counts as used, and a later run
    // removes it.
    Pid::from_raw(process).is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

fn prefix() -> String {
    format!("tbccl-fabric-{}-", getuid().as_raw())
}

/// Returns the parent folder: the one that the user names, or a memory file system where one exists.
fn base() -> PathBuf {
    let memory = Path::new("/dev/shm");
    match std::env::var_os("SOFTRDMA_BASE").filter(|value| !value.is_empty()) {
        Some(base) => base.into(),
        None if memory.is_dir() => memory.to_owned(),
        None => std::env::temp_dir(),
    }
}
