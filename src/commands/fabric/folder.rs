//! The folder in which the processes of a fabric meet, created for a run and removed after it.
//!
//! A run over all nodes has a folder of its own, whose name ends in the process id of the command. The next
//! run removes the folders of killed runs. Runs of single nodes meet in the folder that equal fabric files
//! share; each holds a lock on the file in it, and the last one removes it.

use super::Failed;
use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, getuid, test_kill_process},
};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

/// Removed when dropped, unless others are in it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Locked for as long as we use a shared folder.
    lock: Option<File>,
}

impl Folder {
    /// A name of our own. The folder is made by who puts something into it.
    pub(super) fn of_our_own() -> Folder {
        for (path, owner) in Folder::all() {
            if !is_alive(owner) {
                let _ = fs::remove_dir_all(path);
            }
        }
        Folder { path: base().join(format!("{}{}", prefix(), std::process::id())), lock: None }
    }

    /// Holds on to a folder that others use as well.
    pub(super) fn shared(path: PathBuf) -> Result<Folder, Failed> {
        let file = path.join("fabric.toml");
        let cannot =
            |error: std::io::Error| Failed::new(format_args!("can't use {}: {error}", file.display()));
        let lock = File::open(&file).map_err(cannot)?;
        flock(&lock, FlockOperation::LockShared).map_err(|error| cannot(error.into()))?;
        if !file.exists() {
            let message =
                format!("{} was just removed by the last run that used it; try again", path.display());
            return Err(Failed::new(message));
        }
        Ok(Folder { path, lock: Some(lock) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The folders of runs that are under way.
    pub(super) fn of_running() -> Vec<PathBuf> {
        Folder::all().into_iter().filter(|(_, owner)| is_alive(*owner)).map(|(path, _)| path).collect()
    }

    /// The folders of runs by this user, and the numbers of the processes that made them.
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
        let is_ours = match &self.lock {
            None => true,
            Some(lock) => {
                flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok() && !is_used(&self.path)
            }
        };
        if is_ours {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Whether processes from elsewhere use the folder. Each has a file there, `p` and a number.
fn is_used(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let numbers = |name: &str| name.strip_prefix('p').is_some_and(|rest| rest.parse::<u32>().is_ok());
    entries.into_iter().any(|entry| entry.file_name().to_str().is_some_and(numbers))
}

fn is_alive(process: i32) -> bool {
    // A process that exists but may not be signalled has inherited the number, and may be taken for the run:
    // its folder is then removed later.
    Pid::from_raw(process).is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

fn prefix() -> String {
    format!("tbccl-fabric-{}-", getuid().as_raw())
}

/// In memory, where there is such a file system.
fn base() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}
