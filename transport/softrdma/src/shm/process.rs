//! This process's place in a fabric, and its view of the others'.
//!
//! A [`View`] is a process's file mapped here, with typed access to its records. Views of peers are made at
//! first use and kept until this process leaves, also those of dead peers: somebody may be reading one.
//!
//! # Safety
//! Views are reached without a lock through an address that an `Arc` in the same [`Process`] keeps valid;
//! such an
//! `Arc` is never dropped before the process is.

use super::{
    complete::{Cqe, CqeRing},
    directory::{Directory, Joined},
    heap::Heap,
    layout::{self, FILE_BYTES, HEAP_START, MAGIC, PAGES_BYTES, VERSION},
    life::{self, Life},
    limits::{self, SLOTS},
    lock::Owner,
    map::{Area, Mapping},
    records::{CqRecord, Header, MrRecord, QpRecord, RqRecord},
    wake::Waker,
    windows::Windows,
};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{self, FallocateFlags},
    io,
};
use std::sync::{
    Arc, Mutex, OnceLock, PoisonError,
    atomic::{
        AtomicBool, AtomicU32,
        Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    },
};

/// So much room is left for queues when pages are shared.
const ROOM_LEFT: u64 = 8 << 20;

/// A process's file, mapped here.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) owner: Owner,
    pub(crate) pid: u32,
    file: Mapping,
    /// For asking whether it lives; none for our own, and once it is dead.
    life: Mutex<Option<OwnedFd>>,
    was_found_dead: AtomicBool,
    /// Requests since it was last asked whether it lives.
    unchecked: AtomicU32,
    /// The memory that it shares, mapped when first needed.
    pages: OnceLock<Option<Mapping>>,
}

impl View {
    pub(crate) fn area(&self) -> Area {
        self.file.area()
    }

    fn record<T: super::map::Atomics>(&self, start: u64, index: u32, count: u32) -> Option<&T> {
        let offset = start + u64::from(index) * size_of::<T>() as u64;
        if index < count { self.file.record(offset) } else { None }
    }

    pub(crate) fn header(&self) -> &Header {
        self.file.record(0).expect("the file holds the header")
    }

    #[inline]
    pub(crate) fn qp(&self, index: u32) -> Option<&QpRecord> {
        self.record(layout::QPS_START, index, limits::QPS)
    }

    #[inline]
    pub(crate) fn rq(&self, index: u32) -> Option<&RqRecord> {
        self.record(layout::RQS_START, index, limits::RQS)
    }

    #[inline]
    pub(crate) fn cq(&self, index: u32) -> Option<&CqRecord> {
        self.record(layout::CQS_START, index, limits::CQS)
    }

    #[inline]
    pub(crate) fn mr(&self, index: u32) -> Option<&MrRecord> {
        self.record(layout::MRS_START, index, limits::MRS)
    }

    /// Does its process live? Asks the kernel.
    #[cold]
    pub(crate) fn is_dead(&self) -> bool {
        if self.was_found_dead.load(Relaxed) {
            return true;
        }
        let mut life = lock(&self.life);
        let is_dead = life.as_ref().is_some_and(|life| !life::is_locked(life.as_fd()));
        if is_dead {
            self.was_found_dead.store(true, Relaxed);
            *life = None;
            // Our mappings stay, as others of our threads may be reading; they should not hold its memory.
            // The page that says so stays, lest reading it should need memory; and is written before anything is gone.
            self.header().magic.store(0, SeqCst);
            self.file.discard(rustix::param::page_size());
            self.pages.get().into_iter().flatten().for_each(|pages| pages.discard(0));
        }
        is_dead || self.was_found_dead.load(Relaxed)
    }

    /// Has somebody found it dead, and given back what it held in memory?
    #[inline]
    pub(crate) fn is_released(&self) -> bool {
        self.header().magic.load(Acquire) != MAGIC
    }

    /// As [`View::is_dead`], but asks only now and then, because asking costs as much as a message.
    #[inline]
    pub(crate) fn seems_dead(&self) -> bool {
        // Not counted in one step, which would cost more than all else here. Threads may lose counts to each other, but
        // none passes a multiple of 256 without one of them seeing it.
        let unchecked = self.unchecked.load(Relaxed);
        self.unchecked.store(unchecked.wrapping_add(1), Relaxed);
        if unchecked & 0xff == 0xff {
            return self.is_dead();
        }
        self.was_found_dead.load(Relaxed)
    }
}

impl CqeRing for View {
    #[inline]
    fn cqe(&self, offset: u64) -> Option<&Cqe> {
        self.file.record(offset)
    }
}

/// This process in a fabric. Leaves it when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) me: Owner,
    pub(crate) directory: Arc<Directory>,
    pub(crate) waker: Waker,
    own: Arc<View>,
    heap: Mutex<Heap>,
    pages_fd: OwnedFd,
    windows: Mutex<Windows>,
    peers: Box<[Peer]>,
    /// Views of dead users of slots.
    past: Mutex<Vec<Arc<View>>>,
    channels: AtomicU32,
    /// The epoch of the process that joined; a forked child is none of its business.
    epoch: u32,
    has_left: AtomicBool,
    life: Life,
}

/// The view of a slot's user, once somebody asked for it.
#[derive(Debug, Default)]
struct Peer {
    /// The incarnation that `view` is of; zero for none. Written after it.
    incarnation: AtomicU32,
    view: Mutex<Option<Arc<View>>>,
    /// A second reference for readers without the lock: an `Arc` that `view` or `past` keeps alive.
    fast: std::sync::atomic::AtomicPtr<View>,
}

impl Process {
    /// Joins the fabric in this folder, on the given node of it.
    pub(crate) fn join(directory: Arc<Directory>, node: u32) -> io::Result<Process> {
        life::watch_forks();
        let waker = Waker::new(io::fcntl_dupfd_cloexec(directory.folder(), 0)?)?;
        let Joined { me, life, file, pages } = directory.join()?;
        let pid = std::process::id();
        let own = View {
            owner: me,
            pid,
            file,
            life: Mutex::new(None),
            was_found_dead: AtomicBool::new(false),
            unchecked: AtomicU32::new(0),
            pages: OnceLock::new(),
        };
        let header = own.header();
        header.version.store(VERSION, Relaxed);
        header.incarnation.store(me.incarnation, Relaxed);
        header.pid.store(pid, Relaxed);
        header.node.store(node, Relaxed);
        header.timers.due.store(u64::MAX, Relaxed);
        header.magic.store(MAGIC, Release);
        Ok(Process {
            me,
            directory,
            waker,
            own: Arc::new(own),
            heap: Mutex::new(Heap::new(HEAP_START, FILE_BYTES - HEAP_START)),
            pages_fd: pages,
            windows: Mutex::new(Windows::new(PAGES_BYTES)),
            peers: std::iter::repeat_with(Peer::default).take(SLOTS as usize).collect(),
            past: Mutex::new(Vec::new()),
            channels: AtomicU32::new(0),
            epoch: life::epoch(),
            has_left: AtomicBool::new(false),
            life,
        })
    }

    /// Gives our place back, for whoever does not leave otherwise: at the end of the process.
    pub(crate) fn leave(&self) {
        if !self.is_inherited() && !self.has_left.swap(true, AcqRel) {
            self.directory.leave(self.me.slot);
        }
    }

    /// Was it the parent of this process that joined, before a fork?
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.epoch != life::epoch()
    }

    #[inline]
    pub(crate) fn own(&self) -> &View {
        &self.own
    }

    /// Returns the view of this process's own file, for parts that keep it.
    pub(crate) fn own_shared(&self) -> Arc<View> {
        Arc::clone(&self.own)
    }

    /// The number of a new channel.
    pub(crate) fn new_channel(&self) -> u32 {
        self.channels.fetch_add(1, Relaxed) + 1
    }

    /// The process in a slot, or `None` when there is none. With an incarnation other than zero, only that
    /// one.
    #[inline]
    pub(crate) fn view(&self, slot: u32, incarnation: u32) -> Option<&View> {
        if slot == self.me.slot {
            return (incarnation == 0 || incarnation == self.me.incarnation).then_some(&*self.own);
        }
        let peer = self.peers.get(slot as usize)?;
        let known = peer.incarnation.load(Acquire);
        if known != 0 && known == incarnation {
            return self.known(peer);
        }
        self.look(peer, slot, incarnation)
    }

    fn known<'a>(&'a self, peer: &'a Peer) -> Option<&'a View> {
        let view = peer.fast.load(Acquire);
        // SAFETY: null or the address inside of an `Arc` that `view` or `past` of this process keeps until it
        // is dropped, which cannot happen while `self` is borrowed.
        unsafe { view.as_ref() }
    }

    #[cold]
    fn look<'a>(&'a self, peer: &'a Peer, slot: u32, incarnation: u32) -> Option<&'a View> {
        let mut view = peer.view.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = view.as_ref().is_some_and(|view| {
            if incarnation == 0 { !view.is_dead() } else { view.owner.incarnation == incarnation }
        });
        if !is_current {
            let new = Arc::new(self.open(slot).ok()?);
            if incarnation != 0 && new.owner.incarnation != incarnation {
                return None;
            }
            for mark in &new.header().marks[self.me.slot as usize].0 {
                // Marks of earlier users of our slot.
                mark.store(0, Release);
            }
            peer.fast.store(Arc::as_ptr(&new).cast_mut(), Release);
            peer.incarnation.store(new.owner.incarnation, Release);
            if let Some(old) = view.replace(new) {
                old.is_dead();
                self.past.lock().unwrap_or_else(PoisonError::into_inner).push(old);
            }
        }
        drop(view);
        self.known(peer)
    }

    fn open(&self, slot: u32) -> io::Result<View> {
        let file = self.directory.file('p', slot)?;
        if !life::is_locked(file.as_fd()) {
            return Err(io::Errno::SRCH);
        }
        let mapping = Mapping::of_file(&file, FILE_BYTES as usize)?;
        let header: &Header = mapping.record(0).ok_or(io::Errno::INVAL)?;
        if header.magic.load(Acquire) != MAGIC || header.version.load(Relaxed) != VERSION {
            return Err(io::Errno::AGAIN);
        }
        let owner = Owner { slot, incarnation: header.incarnation.load(Relaxed) };
        let pid = header.pid.load(Relaxed);
        Ok(View {
            owner,
            pid,
            file: mapping,
            life: Mutex::new(Some(file)),
            was_found_dead: AtomicBool::new(false),
            unchecked: AtomicU32::new(0),
            pages: OnceLock::new(),
        })
    }

    /// Is the process gone that this lock names?
    #[cold]
    pub(crate) fn is_dead(&self, owner: Owner) -> bool {
        owner != self.me && self.view(owner.slot, owner.incarnation).is_none_or(View::is_dead)
    }

    /// The memory that the view's process shares.
    #[inline]
    pub(crate) fn pages<'a>(&self, view: &'a View) -> Option<&'a Mapping> {
        view.pages
            .get_or_init(|| {
                let file = self.directory.file('m', view.owner.slot).ok()?;
                Mapping::of_file(&file, PAGES_BYTES as usize).ok()
            })
            .as_ref()
    }

    /// Zeroed room for a ring in our file.
    pub(crate) fn allocate(&self, bytes: u64) -> io::Result<(u64, u64)> {
        let range = lock(&self.heap).allocate(bytes).ok_or(io::Errno::NOMEM)?;
        let fd = self.life.fd();
        match fs::fallocate(fd, FallocateFlags::empty(), range.0, range.1) {
            Ok(()) => Ok(range),
            Err(error) => {
                lock(&self.heap).free(range);
                if error == io::Errno::NOSPC {
                    crate::log::warn(format_args!(
                        "{} is full: no room for a queue",
                        self.directory.path().display()
                    ));
                }
                Err(io::Errno::NOMEM)
            }
        }
    }

    /// Gives room for a ring back. It reads as zeroes from now on.
    pub(crate) fn free(&self, range: (u64, u64)) {
        let fd = self.life.fd();
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fs::fallocate(fd, how, range.0, range.1).is_ok() {
            lock(&self.heap).free(range);
        }
    }

    /// Which addresses have a place in the file of shared pages.
    pub(crate) fn windows(&self) -> std::sync::MutexGuard<'_, Windows> {
        lock(&self.windows)
    }

    /// Gives shared pages back. They read as zeroes from now on.
    pub(crate) fn release_pages(&self, range: (u64, u64)) {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = fs::fallocate(&self.pages_fd, how, range.0, range.1);
    }

    /// Shares `more` bytes beside `shared`, if there is room for all of it and for what others have promised, should
    /// every page be written that none has written yet.
    pub(crate) fn reserve_pages(&self, shared: u64, more: u64) -> Option<()> {
        // One after the other, or two could count on the same room.
        let _held = self.directory.lock().ok()?;
        let taken = |file: &OwnedFd| fs::fstat(file).map_or(0, |about| about.st_blocks as u64 * 512);
        let mut open = (shared + more).saturating_sub(taken(&self.pages_fd));
        for view in self.live_views().skip(1).filter(|view| !view.is_dead()) {
            let promised = view.header().shared_bytes.load(Relaxed);
            if promised != 0 {
                let file = self.directory.file('m', view.owner.slot);
                open += promised.saturating_sub(file.as_ref().map_or(0, taken));
            }
        }
        let room = fs::fstatvfs(&self.pages_fd).ok()?;
        // A file system without a limit says that it has no blocks.
        if more > 0 && room.f_blocks != 0 && open + ROOM_LEFT > room.f_bavail.saturating_mul(room.f_frsize) {
            return None;
        }
        self.own.header().shared_bytes.store(shared + more, Relaxed);
        Some(())
    }

    /// The file through which memory is shared.
    pub(crate) fn pages_fd(&self) -> &OwnedFd {
        &self.pages_fd
    }

    /// All processes of the fabric that live, our own first.
    pub(crate) fn live_views(&self) -> impl Iterator<Item = &View> {
        let others = (0..SLOTS).filter(|&slot| slot != self.me.slot).filter_map(|slot| self.view(slot, 0));
        std::iter::once(self.own()).chain(others)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.leave();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
