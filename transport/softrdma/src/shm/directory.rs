//! The folder of a fabric: its members, the files of dead processes, and the words that all members share.
//!
//! | file | content |
//! |---|---|
//! | `fabric` | a [`FabricHeader`]; locked while a process joins or removes files |
//! | `p7` | the process in slot 7; locked while the process lives |
//! | `m7` | memory that process 7 shares |
//! | `w7.2` | a socket on which process 7 is woken |
//!
//! A process that joins first removes the files of dead processes, so a folder never grows by crashes. The
//! last process to leave removes the folder, if softrdma has made it and it holds nothing else.
//!
//! Invariant: slots are taken and freed, and the folder is removed, under the lock of the file `fabric`. A
//! process that gets the lock checks that the file is still there, and begins anew if not. So no process
//! joins a folder that is being removed.
//!
//! # Safety
//! The header of the file `fabric` consists of atomics, which all members read and write at any time.

use super::{
    layout::{FILE_BYTES, MAGIC, PAGES_BYTES, VERSION},
    limits::SLOTS,
    liveness::{self, LivenessLock},
    lock::Owner,
    map::{Atomics, Mapping},
    wake::Waker,
};
use crate::control::Control;
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{self, AtFlags, FallocateFlags, Mode, OFlags},
    io,
};
use std::{
    path::{Path, PathBuf},
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// Maximum attempts to create a folder that other processes remove at the same time.
const ATTEMPTS: u32 = 1000;

/// The content of the file `fabric`.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(crate) struct FabricHeader {
    /// [`MAGIC`], written last.
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU64,
    /// Hash of the fabric file. It is the same for all members.
    pub(crate) digest: AtomicU64,
    /// Processes that have joined so far.
    pub(crate) incarnations: AtomicU32,
    /// Whether the file has been removed. A process that still has it open must open it anew.
    pub(crate) is_removed: AtomicU32,
    /// Injected faults and counters.
    pub(crate) control: Control,
}

// SAFETY: consists of `AtomicU32`, `AtomicU64` and a `Control`, which consists of such.
unsafe impl Atomics for FabricHeader {}

/// An open folder.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    folder: OwnedFd,
    fabric: Mapping,
}

/// A slot of a fabric, with its files.
#[derive(Debug)]
pub(crate) struct JoinedSlot {
    pub(crate) me: Owner,
    pub(super) life: LivenessLock,
    pub(super) file: Mapping,
    pub(super) pages: OwnedFd,
}

/// The mode of folders that softrdma creates, by which it recognizes them: programs and people rarely set the
/// sticky bit on a folder that only its owner can write.
const FOLDER_MODE: Mode = Mode::RWXU.union(Mode::SVTX);

impl Directory {
    /// Opens the folder. Creates it and its file if they do not exist.
    pub(crate) fn open(path: &Path, digest: u64) -> io::Result<Directory> {
        for _ in 0..ATTEMPTS {
            match fs::mkdir(path, FOLDER_MODE) {
                Err(error) if error != io::Errno::EXIST => return Err(error),
                _ => {}
            }
            if let Some(directory) = Directory::enter(path, digest)? {
                return Ok(directory);
            }
        }
        Err(io::Errno::NOENT)
    }

    /// Opens an existing folder. `None` if its members have removed it meanwhile.
    fn enter(path: &Path, digest: u64) -> io::Result<Option<Directory>> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let Some(folder) = unless_missing(fs::open(path, flags, Mode::empty()), path)? else {
            return Ok(None);
        };
        let Some(lock) = unless_missing(open_at(&folder, "fabric", OFlags::CREATE), path)? else {
            return Ok(None);
        };
        liveness::lock_and_wait(lock.as_fd())?;
        if fs::fstat(&lock)?.st_nlink == 0 {
            return Ok(None);
        }
        // A mapping keeps the open file description that it was made from, and with it the description's
        // locks.
        let file = open_at(&folder, "fabric", OFlags::empty())?;
        let len = size_of::<FabricHeader>();
        if fs::fstat(&file)?.st_size == 0 {
            fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64)?;
        }
        let fabric = Mapping::of_file(&file, len)?;
        let directory = Directory { path: path.to_owned(), folder, fabric };
        directory.check_header(digest)?;
        Ok(Some(directory))
    }

    /// Takes the lock under which processes join and leave. `NOENT` if the folder was removed since it was
    /// opened.
    pub(super) fn lock(&self) -> io::Result<OwnedFd> {
        let fabric = open_at(&self.folder, "fabric", OFlags::empty())?;
        liveness::lock_and_wait(fabric.as_fd())?;
        // The file was removed while this process waited, or it was removed and created anew because
        // strangers' files kept the folder.
        let is_gone = fs::fstat(&fabric)?.st_nlink == 0 || self.header().is_removed.load(Relaxed) != 0;
        if is_gone { Err(io::Errno::NOENT) } else { Ok(fabric) }
    }

    /// Frees a slot. Removes the folder if softrdma has created it, no member is left, and it holds nothing
    /// else.
    pub(super) fn leave(&self, slot: u32) {
        let lock = self.lock();
        self.remove(slot);
        let is_empty = lock.is_ok()
            && self.is_created_here()
            && (0..SLOTS).all(|slot| self.is_free(slot).unwrap_or(false))
            && self.remove_leftovers();
        if is_empty {
            self.header().is_removed.store(1, Relaxed);
            let _ = fs::unlinkat(&self.folder, "fabric", AtFlags::empty());
            let _ = fs::rmdir(&self.path);
        }
    }

    /// Whether softrdma has created the folder.
    fn is_created_here(&self) -> bool {
        let user = rustix::process::getuid().as_raw();
        fs::fstat(&self.folder)
            .is_ok_and(|about| about.st_uid == user && about.st_mode & 0o7777 == FOLDER_MODE.as_raw_mode())
    }

    /// Removes the files of free slots. Returns whether the folder holds nothing else.
    fn remove_leftovers(&self) -> bool {
        let mut is_clean = true;
        for entry in std::fs::read_dir(&self.path).into_iter().flatten() {
            let Ok(name) = entry.map(|entry| entry.file_name()) else { return false };
            if is_member_file(&name.to_string_lossy()) {
                is_clean &= fs::unlinkat(&self.folder, name, AtFlags::empty()).is_ok();
            } else {
                is_clean &= name == "fabric";
            }
        }
        is_clean
    }

    /// Checks that the folder holds this fabric in this version. The caller holds the lock of the file
    /// `fabric`.
    fn check_header(&self, digest: u64) -> io::Result<()> {
        let header = self.header();
        match header.magic.load(Acquire) {
            0 => {
                header.version.store(VERSION, Relaxed);
                header.digest.store(digest, Relaxed);
                header.magic.store(MAGIC, Release);
                Ok(())
            }
            MAGIC if header.version.load(Relaxed) != VERSION => Err(io::Errno::PROTO),
            MAGIC if header.digest.load(Relaxed) != digest => Err(io::Errno::STALE),
            MAGIC => Ok(()),
            _ => Err(io::Errno::BADMSG),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn folder(&self) -> &OwnedFd {
        &self.folder
    }

    pub(crate) fn header(&self) -> &FabricHeader {
        self.fabric.record(0).expect("the file holds the header")
    }

    /// Takes a free slot, after removing the files of dead processes. `NOENT` if the folder is gone.
    pub(crate) fn join(&self) -> io::Result<JoinedSlot> {
        let _lock = self.lock()?;
        let mut free = None;
        for slot in (0..SLOTS).rev() {
            if self.is_free(slot)? {
                free = Some(slot);
            }
        }
        let slot = free.ok_or(io::Errno::USERS)?;
        let joined = self.create_slot(slot);
        if joined.is_err() {
            self.remove(slot);
        }
        joined
    }

    /// Whether a slot is free. Removes the files of a dead process.
    fn is_free(&self, slot: u32) -> io::Result<bool> {
        match open_at(&self.folder, &format!("p{slot}"), OFlags::empty()) {
            Err(io::Errno::NOENT) => Ok(true),
            Err(error) => Err(error),
            Ok(file) if liveness::is_locked(file.as_fd()) => Ok(false),
            Ok(_) => {
                self.remove(slot);
                Ok(true)
            }
        }
    }

    fn create_slot(&self, slot: u32) -> io::Result<JoinedSlot> {
        // Files of a process that was killed in this function, before it had a lock.
        self.remove(slot);
        let pages = open_at(&self.folder, &format!("m{slot}"), OFlags::CREATE | OFlags::EXCL)?;
        set_length(&pages, PAGES_BYTES)?;
        let file = open_at(&self.folder, &format!("p{slot}"), OFlags::CREATE | OFlags::EXCL)?;
        set_length(&file, FILE_BYTES)?;
        // Reserved now, because a lack of memory later would be a signal and not an error.
        fs::fallocate(&file, FallocateFlags::empty(), 0, super::layout::HEAP_START)?;
        let mapping = Mapping::of_file(&file, FILE_BYTES as usize)?;
        // A new description, not the mapped one: a forked child inherits the mapping, and would keep the lock
        // with it.
        let life = LivenessLock::begin(self.file('p', slot)?)?;
        let incarnation = self.header().incarnations.fetch_add(1, Relaxed).wrapping_add(1).max(1);
        Ok(JoinedSlot { me: Owner { slot, incarnation }, life, file: mapping, pages })
    }

    /// Removes all files of a slot, the locked one last.
    pub(super) fn remove(&self, slot: u32) {
        let sockets = format!("w{slot}.");
        for entry in std::fs::read_dir(&self.path).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&sockets) {
                let _ = fs::unlinkat(&self.folder, entry.file_name(), AtFlags::empty());
            }
        }
        let _ = fs::unlinkat(&self.folder, format!("m{slot}"), AtFlags::empty());
        let _ = fs::unlinkat(&self.folder, format!("p{slot}"), AtFlags::empty());
    }

    /// Makes every channel of every process readable.
    pub(crate) fn wake_all(&self) {
        let Ok(waker) = io::fcntl_dupfd_cloexec(&self.folder, 0).and_then(Waker::new) else { return };
        for entry in fs::Dir::read_from(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy();
            let channel = name.strip_prefix('w').and_then(|numbers| numbers.split_once('.'));
            if let Some((Ok(slot), Ok(channel))) =
                channel.map(|(slot, channel)| (slot.parse(), channel.parse()))
            {
                waker.wake(slot, channel);
            }
        }
    }

    /// Opens a file of a slot.
    pub(super) fn file(&self, kind: char, slot: u32) -> io::Result<OwnedFd> {
        open_at(&self.folder, &format!("{kind}{slot}"), OFlags::empty())
    }
}

/// Sets the length of a file. Checks the limit of file sizes first, because `ftruncate` beyond it ends the
/// process by a signal.
fn set_length(file: &OwnedFd, len: u64) -> io::Result<()> {
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        Some(limit) if limit < len => Err(io::Errno::FBIG),
        _ => fs::ftruncate(file, len),
    }
}

/// Whether a file name is that of a slot's file.
fn is_member_file(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match name.split_at_checked(1) {
        Some(("p" | "m", slot)) => is_number(slot),
        Some(("w", rest)) => {
            rest.split_once('.').is_some_and(|(slot, channel)| is_number(slot) && is_number(channel))
        }
        _ => false,
    }
}

/// `None` if the file is missing in a folder that can be created anew.
fn unless_missing(opened: io::Result<OwnedFd>, path: &Path) -> io::Result<Option<OwnedFd>> {
    match opened {
        Ok(fd) => Ok(Some(fd)),
        Err(io::Errno::NOENT) if !path.is_symlink() => Ok(None),
        Err(error) => Err(error),
    }
}

fn open_at(folder: &OwnedFd, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    fs::openat(folder, name, OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::RUSR | Mode::WUSR)
}
