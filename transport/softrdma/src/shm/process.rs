//! This process as a member of a fabric, and its views of the other members.
//!
//! A [`View`] is a process's file mapped into this process, with typed access to its records. Views of peers
//! are made at first use and kept until this process leaves, even those of dead peers: a thread may be
//! reading one.
//!
//! # Safety
//! Views are reached without a lock through an address that an `Arc` in the same [`Process`] keeps valid.
//! Such an `Arc` is never dropped before the process is.

use super::{
    complete::{Cqe, CqeRing},
    directory::{Directory, JoinedSlot},
    heap::Heap,
    layout::{self, FILE_BYTES, HEAP_START, MAGIC, PAGES_BYTES, VERSION},
    limits::{self, SLOTS},
    liveness::{self, LivenessLock},
    lock::{Owner, RobustLock},
    map::{MappedRange, Mapping},
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

/// Bytes that are left free for queues when pages are shared.
const RESERVED_BYTES: u64 = 8 << 20;

/// Reason why the memory of another process is not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreached {
    /// The process has left or is dead.
    Gone,
    /// The system gives this process no descriptor or no memory at present. The other process may be alive.
    NoResources,
}

impl From<io::Errno> for Unreached {
    fn from(error: io::Errno) -> Unreached {
        match error {
            io::Errno::MFILE | io::Errno::NFILE | io::Errno::NOMEM | io::Errno::INTR => {
                Unreached::NoResources
            }
            _ => Unreached::Gone,
        }
    }
}

/// A process's file, mapped into this process.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) owner: Owner,
    pub(crate) pid: u32,
    file: Mapping,
    /// The file, for asking whether its process lives; none for our own file, and once the process is dead.
    life: Mutex<Option<OwnedFd>>,
    was_found_dead: AtomicBool,
    /// Requests since the kernel was last asked whether the process lives.
    unchecked: AtomicU32,
    /// The memory that the process shares, mapped when first needed.
    pages: OnceLock<Mapping>,
}

impl View {
    /// Maps the file of the living process in a slot.
    pub(super) fn open(directory: &Directory, slot: u32) -> io::Result<View> {
        let file = directory.file('p', slot)?;
        if !liveness::is_locked(file.as_fd()) {
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

    /// Returns the locks in the file that other processes take.
    pub(super) fn locks(&self) -> impl Iterator<Item = &RobustLock> {
        let sends = (0..limits::QPS).filter_map(|index| self.qp(index)).map(|qp| &qp.send.lock);
        let receives = (0..limits::RQS).filter_map(|index| self.rq(index)).map(|rq| &rq.consumer.lock);
        let completions = (0..limits::CQS).filter_map(|index| self.cq(index)).map(|cq| &cq.producers.lock);
        sends.chain(receives).chain(completions).chain([&self.header().atomics])
    }

    pub(crate) fn range(&self) -> MappedRange {
        self.file.range()
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

    /// Whether the process has left the fabric or is dead. Asks the kernel.
    ///
    /// The first caller that finds it gone releases the memory of its files, except shared pages of a process
    /// that has left: its program may still run, and use them.
    #[cold]
    pub(crate) fn is_dead(&self) -> bool {
        if self.was_found_dead.load(Relaxed) {
            return true;
        }
        let mut life = lock(&self.life);
        let unlocked = life.as_ref().filter(|file| !liveness::is_locked(file.as_fd()));
        // A process that leaves removes the names of its files before it unlocks this one.
        let was_killed = unlocked.map(|file| fs::fstat(file).is_ok_and(|about| about.st_nlink != 0));
        if let Some(was_killed) = was_killed {
            self.was_found_dead.store(true, Relaxed);
            *life = None;
            // The mappings stay, because other threads may be reading them, but they should not hold memory.
            // The first page stays, too, so that reading it needs no memory. It says that the file is
            // released, and is written before anything is released.
            self.header().magic.store(0, SeqCst);
            self.file.discard(rustix::param::page_size());
            if let Some(pages) = self.pages.get() {
                if was_killed { pages.discard(0) } else { pages.detach() }
            }
        }
        was_killed.is_some() || self.was_found_dead.load(Relaxed)
    }

    /// Whether this is the view of a process file, by the descriptor that asks whether its process lives.
    fn is_of(&self, file: &OwnedFd) -> bool {
        let life = lock(&self.life);
        let Some(life) = life.as_ref() else { return false };
        let [ours, theirs] =
            [life, file].map(|file| fs::fstat(file).map(|about| (about.st_dev, about.st_ino)));
        ours.is_ok() && ours == theirs
    }

    /// Whether a process has found the owner dead and has released its memory.
    #[inline]
    pub(crate) fn is_released(&self) -> bool {
        self.header().magic.load(Acquire) != MAGIC
    }

    /// Whether the process is dead, asking the kernel only once in 256 calls, because asking costs as much as
    /// a message.
    #[inline]
    pub(crate) fn seems_dead(&self) -> bool {
        // Two steps instead of an atomic addition, which would cost more than the rest of this function.
        // Threads may overwrite each other's counts, but every multiple of 256 is seen by one of them.
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

/// Whether a process of a fabric holds a lock that other processes take.
pub(crate) fn holds_lock(directory: &Directory, pid: u32) -> bool {
    let views: Vec<View> = (0..SLOTS).filter_map(|slot| View::open(directory, slot).ok()).collect();
    let is_its = |owner: Owner| views.iter().any(|view| view.owner == owner && view.pid == pid);
    views.iter().flat_map(View::locks).filter_map(RobustLock::holder).any(is_its)
}

/// This process as a member of a fabric. Leaves the fabric when dropped.
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
    /// Views of dead earlier users of slots.
    retired: Mutex<Vec<Arc<View>>>,
    channels: AtomicU32,
    /// The fork epoch in which the process joined. Forked children must not use it.
    epoch: u32,
    has_left: AtomicBool,
    life: LivenessLock,
}

/// The view of a slot's user, once it was asked for.
#[derive(Debug, Default)]
struct Peer {
    /// The incarnation that `view` belongs to, written after it; zero for none.
    incarnation: AtomicU32,
    view: Mutex<Option<Arc<View>>>,
    /// The same view for readers without the lock. An `Arc` in `view` or `retired` keeps it alive.
    unlocked: std::sync::atomic::AtomicPtr<View>,
}

impl Process {
    /// Joins the fabric in a folder, on a node of the fabric.
    pub(crate) fn join(directory: Arc<Directory>, node: u32) -> io::Result<Process> {
        liveness::watch_forks();
        let waker = Waker::new(io::fcntl_dupfd_cloexec(directory.folder(), 0)?)?;
        let JoinedSlot { me, life, file, pages } = directory.join()?;
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
            retired: Mutex::new(Vec::new()),
            channels: AtomicU32::new(0),
            epoch: liveness::fork_epoch(),
            has_left: AtomicBool::new(false),
            life,
        })
    }

    /// Frees the slot at the exit of a process that does not drop its membership.
    pub(crate) fn leave(&self) {
        if !self.is_inherited() && !self.has_left.swap(true, AcqRel) {
            self.directory.leave(self.me.slot);
        }
    }

    /// Whether the parent of this process has joined, before a fork.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.epoch != liveness::fork_epoch()
    }

    #[inline]
    pub(crate) fn own(&self) -> &View {
        &self.own
    }

    /// Returns the view of this process's own file, for parts that keep it.
    pub(crate) fn own_shared(&self) -> Arc<View> {
        Arc::clone(&self.own)
    }

    /// Returns the number of a new channel.
    pub(crate) fn new_channel(&self) -> u32 {
        self.channels.fetch_add(1, Relaxed) + 1
    }

    /// Returns the process in a slot, if it can be reached. With an incarnation other than zero, only that
    /// one.
    #[inline]
    pub(crate) fn view(&self, slot: u32, incarnation: u32) -> Option<&View> {
        self.find(slot, incarnation).ok()
    }

    /// Returns the process in a slot, or why it is not reached. With an incarnation other than zero, only
    /// that one.
    #[inline]
    pub(crate) fn find(&self, slot: u32, incarnation: u32) -> Result<&View, Unreached> {
        if slot == self.me.slot {
            let is_it = incarnation == 0 || incarnation == self.me.incarnation;
            return if is_it { Ok(&*self.own) } else { Err(Unreached::Gone) };
        }
        let peer = self.peers.get(slot as usize).ok_or(Unreached::Gone)?;
        let known = peer.incarnation.load(Acquire);
        if known != 0 && known == incarnation {
            return self.known(peer).ok_or(Unreached::Gone);
        }
        self.open_peer(peer, slot, incarnation)
    }

    fn known<'a>(&'a self, peer: &'a Peer) -> Option<&'a View> {
        let view = peer.unlocked.load(Acquire);
        // SAFETY: null, or an address inside of an `Arc` that `view` or `retired` of this process keeps until
        // the process is dropped, which cannot happen while `self` is borrowed.
        unsafe { view.as_ref() }
    }

    #[cold]
    fn open_peer<'a>(&'a self, peer: &'a Peer, slot: u32, incarnation: u32) -> Result<&'a View, Unreached> {
        let mut view = peer.view.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = view.as_ref().is_some_and(|view| {
            if incarnation == 0 { !view.is_dead() } else { view.owner.incarnation == incarnation }
        });
        if !is_current {
            let new = Arc::new(View::open(&self.directory, slot)?);
            if incarnation != 0 && new.owner.incarnation != incarnation {
                return Err(Unreached::Gone);
            }
            for mark in &new.header().marks[self.me.slot as usize].0 {
                // Marks of earlier users of our slot.
                mark.store(0, Release);
            }
            peer.unlocked.store(Arc::as_ptr(&new).cast_mut(), Release);
            peer.incarnation.store(new.owner.incarnation, Release);
            if let Some(old) = view.replace(new) {
                old.is_dead();
                self.retired.lock().unwrap_or_else(PoisonError::into_inner).push(old);
            }
        }
        drop(view);
        self.known(peer).ok_or(Unreached::Gone)
    }

    /// Whether the process that a lock names is dead.
    #[cold]
    pub(crate) fn is_dead(&self, owner: Owner) -> bool {
        owner != self.me
            && match self.find(owner.slot, owner.incarnation) {
                Ok(view) => view.is_dead(),
                Err(unreached) => unreached == Unreached::Gone,
            }
    }

    /// Returns the memory that a process shares, or why it is not reached.
    #[inline]
    pub(crate) fn pages<'a>(&self, view: &'a View) -> Result<&'a Mapping, Unreached> {
        match view.pages.get() {
            Some(pages) => Ok(pages),
            None => self.map_pages(view),
        }
    }

    /// Maps the memory that a process shares. The next call tries again after an error.
    #[cold]
    fn map_pages<'a>(&self, view: &'a View) -> Result<&'a Mapping, Unreached> {
        let pages = self.directory.file('m', view.owner.slot)?;
        // Both files of a slot lose their names before the slot's next user makes its own. So while the name
        // of the other file is the owner's, these pages are the owner's.
        let named = self.directory.file('p', view.owner.slot)?;
        if !view.is_of(&named) {
            return Err(Unreached::Gone);
        }
        let mapped = Mapping::of_file(&pages, PAGES_BYTES as usize)?;
        Ok(view.pages.get_or_init(|| mapped))
    }

    /// Allocates zeroed room for a ring in our file. Returns its offset and length.
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

    /// Frees the room of a ring. It reads as zeros from then on.
    pub(crate) fn free(&self, range: (u64, u64)) {
        let fd = self.life.fd();
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fs::fallocate(fd, how, range.0, range.1).is_ok() {
            lock(&self.heap).free(range);
        }
    }

    /// Returns the address windows of the file of shared pages.
    pub(crate) fn windows(&self) -> std::sync::MutexGuard<'_, Windows> {
        lock(&self.windows)
    }

    /// Releases shared pages. They read as zeros from then on.
    pub(crate) fn release_pages(&self, range: (u64, u64)) {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = fs::fallocate(&self.pages_fd, how, range.0, range.1);
    }

    /// Reserves room to share `more` bytes beside `shared`.
    ///
    /// Succeeds if there is room for all pages that this process and the others may still write. Pages that
    /// were shared but never written take up no room yet.
    pub(crate) fn reserve_pages(&self, shared: u64, more: u64) -> Option<()> {
        // Under a lock, because two processes could count on the same room otherwise.
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
        // A file system without a limit reports zero blocks.
        if more > 0
            && room.f_blocks != 0
            && open + RESERVED_BYTES > room.f_bavail.saturating_mul(room.f_frsize)
        {
            return None;
        }
        self.own.header().shared_bytes.store(shared + more, Relaxed);
        Some(())
    }

    /// Returns the file of shared pages.
    pub(crate) fn pages_fd(&self) -> &OwnedFd {
        &self.pages_fd
    }

    /// Returns all living members of the fabric, this process first.
    pub(crate) fn live_views(&self) -> impl Iterator<Item = &View> {
        let others = (0..SLOTS).filter(|&slot| slot != self.me.slot).filter_map(|slot| self.view(slot, 0));
        std::iter::once(self.own()).chain(others)
    }
}

#[cfg(test)]
impl Process {
    /// Ends the membership as the kernel does for a killed process: the files keep their names.
    pub(super) fn die(self) {
        self.has_left.store(true, Relaxed);
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
