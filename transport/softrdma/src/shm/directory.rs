//! The folder of a fabric: who is in it, what the dead left, and the words that all share.
//!
//! | file | what it is |
//! |---|---|
//! | `fabric` | a [`FabricHeader`]; its lock is held while somebody joins or tidies up |
//! | `p7` | the process in slot 7; its lock is held while the process lives |
//! | `m7` | memory that process 7 shares |
//! | `w7.2` | a socket on which process 7 is woken |
//!
//! Whoever joins removes the files of the dead first, so a folder never grows by crashes. Whoever leaves last removes
//! the folder if one of us has made it, and nothing is in it that we have not made.
//!
//! Invariant: places are taken and given back, and the folder is removed, under the lock of the file `fabric`. Whoever
//! gets that lock looks whether the file is still there, and begins anew when it is not, so nobody joins a folder
//! that is on its way out.

use super::{
    layout::{FILE_BYTES, MAGIC, PAGES_BYTES, VERSION},
    life::{self, Life},
    limits::SLOTS,
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

/// How often a folder is made anew that others remove at the same time.
const ATTEMPTS: u32 = 1000;

/// The content of the file `fabric`.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(crate) struct FabricHeader {
    /// [`MAGIC`], written last.
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU64,
    /// Of the fabric's description: all who join must have been given the same.
    pub(crate) digest: AtomicU64,
    /// Processes that have joined so far.
    pub(crate) incarnations: AtomicU32,
    /// It has been removed: whoever still has it open must open it anew.
    pub(crate) is_removed: AtomicU32,
    /// What is wrong at the moment, and what has been counted.
    pub(crate) control: Control,
}

// SAFETY: consists of `AtomicU32`, `AtomicU64` and a `Control`, which consists of such.
unsafe impl Atomics for FabricHeader {}

/// A folder, open.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    folder: OwnedFd,
    fabric: Mapping,
}

/// A place in a fabric, with the files that belong to it.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) me: Owner,
    pub(super) life: Life,
    pub(super) file: Mapping,
    pub(super) pages: OwnedFd,
}

/// The mode of folders that we make, by which they are known: programs and people rarely make folders that only
/// their owner can write with the bit that tells whose files may be removed from folders of all.
const OUR_MODE: Mode = Mode::RWXU.union(Mode::SVTX);

impl Directory {
    /// Opens the folder, and makes it and its file if they are not there.
    pub(crate) fn open(path: &Path, digest: u64) -> io::Result<Directory> {
        for _ in 0..ATTEMPTS {
            match fs::mkdir(path, OUR_MODE) {
                Err(error) if error != io::Errno::EXIST => return Err(error),
                _ => {}
            }
            if let Some(directory) = Directory::enter(path, digest)? {
                return Ok(directory);
            }
        }
        Err(io::Errno::NOENT)
    }

    /// `None` when the folder was removed meanwhile by those who were in it.
    fn enter(path: &Path, digest: u64) -> io::Result<Option<Directory>> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let Some(folder) = unless_gone(fs::open(path, flags, Mode::empty()), path)? else { return Ok(None) };
        let Some(lock) = unless_gone(open_at(&folder, "fabric", OFlags::CREATE), path)? else {
            return Ok(None);
        };
        life::lock_and_wait(lock.as_fd())?;
        if fs::fstat(&lock)?.st_nlink == 0 {
            return Ok(None);
        }
        // A mapping keeps the description that it was made from, and with it that one's locks.
        let file = open_at(&folder, "fabric", OFlags::empty())?;
        let len = size_of::<FabricHeader>();
        if fs::fstat(&file)?.st_size == 0 {
            fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64)?;
        }
        let fabric = Mapping::of_file(&file, len)?;
        let directory = Directory { path: path.to_owned(), folder, fabric };
        directory.agree(digest)?;
        Ok(Some(directory))
    }

    /// The lock under which members come and go. `NOENT` when the folder was removed since it was opened.
    pub(super) fn lock(&self) -> io::Result<OwnedFd> {
        let fabric = open_at(&self.folder, "fabric", OFlags::empty())?;
        life::lock_and_wait(fabric.as_fd())?;
        // Removed while we waited; or removed and, beside files of strangers, made anew.
        let is_gone = fs::fstat(&fabric)?.st_nlink == 0 || self.header().is_removed.load(Relaxed) != 0;
        if is_gone { Err(io::Errno::NOENT) } else { Ok(fabric) }
    }

    /// Gives a place back, and removes the folder if it is ours, nobody is left in it, and nobody else has put
    /// anything there.
    pub(super) fn leave(&self, slot: u32) {
        let lock = self.lock();
        self.remove(slot);
        let is_empty = lock.is_ok()
            && self.is_ours()
            && (0..SLOTS).all(|slot| self.is_free(slot).unwrap_or(false))
            && self.sweep();
        if is_empty {
            self.header().is_removed.store(1, Relaxed);
            let _ = fs::unlinkat(&self.folder, "fabric", AtFlags::empty());
            let _ = fs::rmdir(&self.path);
        }
    }

    /// Has one of us made the folder?
    fn is_ours(&self) -> bool {
        let user = rustix::process::getuid().as_raw();
        fs::fstat(&self.folder)
            .is_ok_and(|about| about.st_uid == user && about.st_mode & 0o7777 == OUR_MODE.as_raw_mode())
    }

    /// Removes what places have left that nobody is in, and says whether there is anything else.
    fn sweep(&self) -> bool {
        let mut is_clean = true;
        for entry in std::fs::read_dir(&self.path).into_iter().flatten() {
            let Ok(name) = entry.map(|entry| entry.file_name()) else { return false };
            if is_of_a_place(&name.to_string_lossy()) {
                is_clean &= fs::unlinkat(&self.folder, name, AtFlags::empty()).is_ok();
            } else {
                is_clean &= name == "fabric";
            }
        }
        is_clean
    }

    /// Checks that the folder holds this fabric in this version. Under the lock of its file.
    fn agree(&self, digest: u64) -> io::Result<()> {
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

    /// Takes a free place, after having removed what the dead left. `NOENT` when the folder is gone.
    pub(crate) fn join(&self) -> io::Result<Joined> {
        let _lock = self.lock()?;
        let mut free = None;
        for slot in (0..SLOTS).rev() {
            if self.is_free(slot)? {
                free = Some(slot);
            }
        }
        let slot = free.ok_or(io::Errno::USERS)?;
        let joined = self.make(slot);
        if joined.is_err() {
            self.remove(slot);
        }
        joined
    }

    /// Is nobody in this place? What a dead process left there is gone afterwards.
    fn is_free(&self, slot: u32) -> io::Result<bool> {
        match open_at(&self.folder, &format!("p{slot}"), OFlags::empty()) {
            Err(io::Errno::NOENT) => Ok(true),
            Err(error) => Err(error),
            Ok(file) if life::is_locked(file.as_fd()) => Ok(false),
            Ok(_) => {
                self.remove(slot);
                Ok(true)
            }
        }
    }

    fn make(&self, slot: u32) -> io::Result<Joined> {
        // Of somebody who was killed in here, before there was a lock to tell.
        self.remove(slot);
        let pages = open_at(&self.folder, &format!("m{slot}"), OFlags::CREATE | OFlags::EXCL)?;
        set_length(&pages, PAGES_BYTES)?;
        let file = open_at(&self.folder, &format!("p{slot}"), OFlags::CREATE | OFlags::EXCL)?;
        set_length(&file, FILE_BYTES)?;
        // Reserved now, because running out of memory later would be a signal and not an error.
        fs::fallocate(&file, FallocateFlags::empty(), 0, super::layout::HEAP_START)?;
        let mapping = Mapping::of_file(&file, FILE_BYTES as usize)?;
        // Not the description that is mapped: a forked child has the mapping too, and would keep the lock by
        // it.
        let life = Life::begin(self.file('p', slot)?)?;
        let incarnation = self.header().incarnations.fetch_add(1, Relaxed).wrapping_add(1).max(1);
        Ok(Joined { me: Owner { slot, incarnation }, life, file: mapping, pages })
    }

    /// Removes all files of a place, its lock last of all.
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

    /// A file of a place, if it is there.
    pub(super) fn file(&self, kind: char, slot: u32) -> io::Result<OwnedFd> {
        open_at(&self.folder, &format!("{kind}{slot}"), OFlags::empty())
    }
}

/// `ftruncate` beyond the limit of file sizes would end the process by a signal.
fn set_length(file: &OwnedFd, len: u64) -> io::Result<()> {
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        Some(limit) if limit < len => Err(io::Errno::FBIG),
        _ => fs::ftruncate(file, len),
    }
}

/// Is this the name of a file that belongs to a place?
fn is_of_a_place(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match name.split_at_checked(1) {
        Some(("p" | "m", slot)) => is_number(slot),
        Some(("w", rest)) => {
            rest.split_once('.').is_some_and(|(slot, channel)| is_number(slot) && is_number(channel))
        }
        _ => false,
    }
}

/// Nothing when a file is missing in a folder that can be made anew.
fn unless_gone(opened: io::Result<OwnedFd>, path: &Path) -> io::Result<Option<OwnedFd>> {
    match opened {
        Ok(fd) => Ok(Some(fd)),
        Err(io::Errno::NOENT) if !path.is_symlink() => Ok(None),
        Err(error) => Err(error),
    }
}

fn open_at(folder: &OwnedFd, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    fs::openat(folder, name, OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::RUSR | Mode::WUSR)
}
