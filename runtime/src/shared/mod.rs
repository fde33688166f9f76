//! A communicator shared by threads: calls from any of them run one after the other, blocking or in the
//! background.
//!
//! The caller makes a blocking call itself if the communicator is idle, under a lock that no other thread
//! holds (`biased_lock`). All other calls wait in a queue, also a blocking call behind them. They run in the
//! order in which they were issued: on a thread of the queue, or on the thread that waits for them if no
//! other one has begun. So calls do not interleave.
//!
//! Aborting, and querying the state, take no lock that a call in progress holds.
//!
//! This module neither checks arguments nor moves bytes: `communicator` does both.
//!
//! # Safety
//! The issuer of a call guarantees the validity of its memory until the call is done. A queue holds addresses
//! and does not access the memory; the call does, before its [`Pending`] reports that it is done.

mod biased_lock;
mod pending;
mod queue;
mod wake;

pub use biased_lock::{BiasedGuard, BiasedLock};
pub use pending::Pending;
#[doc(hidden)]
pub use transport::sync;

use crate::{
    communicator::{CallByAddress, CallOptions, Communicator, Control, RawCall, Stats, closed},
    error::{Error, Result},
};
use biased_lock::{Guard, Guarded};
use queue::Queue;
use std::{io, sync::Arc, thread, time::Duration};
use topology::Rank;

/// One rank of a communicator, for several threads. Clones are the same rank; dropping the last one closes
/// it.
///
/// All ranks make the same calls in the same order. Where several threads of a rank issue calls, the program
/// must make the order of the calls agree with that of other ranks.
#[derive(Clone, Debug)]
pub struct SharedCommunicator(Arc<Handle>);

/// The program's side. The thread that makes calls holds the core only.
#[derive(Debug)]
struct Handle {
    core: Arc<Core>,
}

#[derive(Debug)]
struct Core {
    rank: Rank,
    size: u32,
    /// The communicator; `None` once it is closed. Locked during a call.
    comm: Guarded<Option<Communicator>>,
    queue: Queue,
    control: Arc<Control>,
}

/// A locked communicator, unless it has been closed.
type CommunicatorGuard<'c> = Guard<'c, Option<Communicator>>;

impl SharedCommunicator {
    /// Shares a communicator between threads.
    #[must_use]
    pub fn new(comm: Communicator) -> SharedCommunicator {
        let (rank, size, control) = (comm.rank(), comm.size(), comm.control());
        let core = Core { rank, size, comm: Guarded::new(Some(comm)), queue: Queue::default(), control };
        SharedCommunicator(Arc::new(Handle { core: Arc::new(core) }))
    }

    /// Returns this rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.0.core.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.0.core.size
    }

    /// Makes a call, after all calls issued before.
    ///
    /// # Errors
    /// Those of [`Communicator::call_raw`]; [`Error::Aborted`] after an abort, [`Error::InvalidArgument`]
    /// after the communicator is finalized.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    #[inline]
    pub unsafe fn call(&self, call: &RawCall, options: &CallOptions) -> Result<()> {
        let core = &self.0.core;
        if let Some(mut comm) = core.idle()? {
            let comm = comm.as_mut().ok_or_else(closed)?;
            if options.is_default() {
                // SAFETY: the caller guarantees the validity of the memory.
                return unsafe { comm.call_raw(call) };
            }
            // SAFETY: the caller guarantees the validity of the memory.
            return comm.with_options(options, |comm| unsafe { comm.call_raw(call) })?;
        }
        // SAFETY: the caller guarantees the validity of the memory.
        unsafe { self.call_later(call, options) }
    }

    /// Returns the lock that is held during a call.
    ///
    /// It outlives the communicator, and clones share it: a handle table may take it before it knows whether
    /// the communicator still exists.
    #[must_use]
    pub fn biased_lock(&self) -> &'static BiasedLock {
        self.0.core.comm.biased_lock()
    }

    /// Makes a call without options, as [`SharedCommunicator::call`], while the caller holds this
    /// communicator's lock.
    ///
    /// Returns `None`, without making the call, if calls are queued, the communicator is closed or poisoned,
    /// or the lock is another one's.
    ///
    /// # Errors
    /// Those of [`SharedCommunicator::call`], boxed: returning an unboxed result takes longer than the lock.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    #[inline(always)] // As `RawAllReduce`.
    pub unsafe fn call_locked(
        &self,
        biased_lock: &mut BiasedGuard,
        call: &impl CallByAddress,
    ) -> Option<Result<(), Box<Error>>> {
        let core = &self.0.core;
        if !core.queue.is_empty() || core.comm.is_poisoned() {
            return None;
        }
        let comm = core.comm.borrow(biased_lock)?;
        // SAFETY: the caller guarantees the validity of the memory.
        let done = comm.value.as_mut().map(|comm| unsafe { call.execute(comm) }.map_err(Box::new));
        comm.end();
        done
    }

    /// Makes a call after those that are queued, and waits for it.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    #[cold]
    unsafe fn call_later(&self, call: &RawCall, options: &CallOptions) -> Result<()> {
        // SAFETY: the caller guarantees the validity of the memory; this returns when the call is done.
        let pending = unsafe { self.issue(vec![call.clone()], options)? };
        self.0.core.wait_for(&pending)
    }

    /// Makes calls as a group, after all calls issued before.
    ///
    /// # Errors
    /// Those of [`SharedCommunicator::call`].
    ///
    /// # Safety
    /// As for [`Communicator::group_raw`].
    pub unsafe fn call_group(&self, calls: &[RawCall], options: &CallOptions) -> Result<()> {
        let core = &self.0.core;
        if let Some(mut comm) = core.idle()? {
            let comm = comm.as_mut().ok_or_else(closed)?;
            // SAFETY: the caller guarantees the validity of the memory.
            return comm.with_options(options, |comm| unsafe { comm.group_raw(calls) })?;
        }
        // SAFETY: the caller guarantees the validity of the memory; this returns when the calls are done.
        let pending = unsafe { self.issue(calls.to_vec(), options)? };
        core.wait_for(&pending)
    }

    /// Sets a function that blocking calls poll during long waits, on the waiting thread.
    ///
    /// When it returns `true`, the communicator is aborted: this is how a language's interrupts (Ctrl-C) end
    /// a call. Only the first function set counts.
    pub fn set_interrupt_check(&self, check: fn() -> bool) {
        self.0.core.control.set_interrupt_check(check);
    }

    /// Issues one call, or several as a group, to run after all calls issued before. Returns at once.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] and the other errors of arguments, as far as this rank can check them, and
    /// the communicator's error if it has failed. Nothing is issued then. All later errors are reported by
    /// the [`Pending`].
    ///
    /// # Safety
    /// As for [`Communicator::group_raw`], until the [`Pending`] reports that the calls are done or the last
    /// clone of the communicator has been dropped. Dropping the [`Pending`] does not cancel the calls.
    pub unsafe fn issue(&self, calls: Vec<RawCall>, options: &CallOptions) -> Result<Pending> {
        let core = &self.0.core;
        options.check()?;
        calls.iter().try_for_each(|call| call.check(core.rank, core.size))?;
        if let Some(error) = core.control.failed() {
            return Err(error);
        }
        Queue::push_calls(core, calls, options)
    }

    /// Aborts the communicator: the call in progress, queued calls and every further call return
    /// [`Error::Aborted`], and every other rank's calls return an error that names this rank.
    ///
    /// Does not wait for any of them. A closure in [`SharedCommunicator::with`] that makes no call runs to
    /// its end.
    pub fn abort(&self) {
        self.0.core.abort();
    }

    /// Returns the error with which the communicator has failed, as far as this rank knows. Does not wait for
    /// a call in progress.
    #[must_use]
    pub fn async_error(&self) -> Option<Error> {
        let core = &self.0.core;
        if let Some(error) = core.control.failed() {
            return Some(error);
        }
        // Mirrored boards receive news only when a thread reads them.
        if let Some(mut comm) = core.comm.try_lock()
            && let Some(error) = comm.as_mut().and_then(Communicator::news_of_failure)
        {
            return Some(error);
        }
        core.control.error()
    }

    /// Returns all counters. Waits at most 20 ms for a call in progress to publish the counters of links;
    /// otherwise they are the last published ones.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let core = &self.0.core;
        if let Some(comm) = core.comm.try_lock() {
            return match &*comm {
                Some(comm) => comm.stats(),
                None => core.control.published_stats(),
            };
        }
        core.control.fresh_stats()
    }

    /// Writes the flight recorder: a line of JSON about this rank, and one for each of its latest calls, the
    /// oldest first. Does not wait for a call in progress, and includes its progress.
    ///
    /// # Errors
    /// The errors of writing to `out`.
    pub fn dump(&self, out: &mut dyn io::Write) -> io::Result<()> {
        self.0.core.control.dump(out)
    }

    /// Waits for queued calls, then closes this rank's part of the communicator. Every further call returns
    /// an error.
    ///
    /// # Errors
    /// The communicator's error, if it has failed; it is closed in any case. [`Error::InvalidArgument`] if it
    /// was closed before.
    pub fn finalize(&self) -> Result<()> {
        self.finalize_within(Duration::MAX)
    }

    /// As [`SharedCommunicator::finalize`], for a process that goes on and may be needed elsewhere: limits
    /// each wait for other ranks that follows the queued calls.
    ///
    /// A close waits for sent messages to arrive, and in the process of the rendezvous for the other ranks to
    /// leave. Both waits end at the communicator's timeout in any case. Messages that have not arrived within
    /// `limit` may be lost. The rendezvous of other ranks goes on, and the close of a later communicator
    /// waits for them. Ending connections takes up to two seconds more.
    ///
    /// # Errors
    /// As [`SharedCommunicator::finalize`].
    pub fn finalize_within(&self, limit: Duration) -> Result<()> {
        let core = &self.0.core;
        let mut comm = core.in_turn(Option::take)?.ok_or_else(closed)?;
        comm.limit_departure(limit);
        let failed = comm.failure();
        core.control.publish_final(&comm);
        drop(comm);
        core.queue.close();
        failed.map_or(Ok(()), Err)
    }

    /// Runs `work` on the communicator, after all queued calls; calls issued meanwhile wait. `work` must not
    /// use this shared communicator, which would deadlock.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] after the communicator is finalized.
    pub fn with<R>(&self, work: impl FnOnce(&mut Communicator) -> R) -> Result<R> {
        self.0.core.in_turn(|comm| comm.as_mut().map(work))?.ok_or_else(closed)
    }

    /// Runs `work` on the communicator as [`SharedCommunicator::with`]; returns `None`, without running it,
    /// if a call is in progress or queued.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] after the communicator is finalized.
    pub fn try_with<R>(&self, work: impl FnOnce(&mut Communicator) -> R) -> Result<Option<R>> {
        let Some(mut comm) = self.0.core.idle()? else { return Ok(None) };
        comm.as_mut().map(work).map(Some).ok_or_else(closed)
    }
}

impl Core {
    fn abort(self: &Arc<Self>) {
        self.control.abort();
        if self.control.is_mapped() {
            return;
        }
        // With mirrored boards a thread must tell the other ranks, and may wait for an answer: the call in
        // progress does so, unless it was about to end.
        let shared = Arc::clone(self);
        let tell = move || {
            // Also after a panic of a call: the other ranks still have to be told.
            let mut comm = shared.comm.lock();
            if let Some(comm) = &mut *comm {
                comm.notice_failure();
            }
        };
        if thread::Builder::new().name("tbccl-abort".into()).spawn(tell).is_err()
            && let Some(mut comm) = self.comm.try_lock()
            && let Some(comm) = &mut *comm
        {
            comm.notice_failure();
        }
    }

    /// Returns the communicator, if no thread uses it and nothing is queued.
    #[inline]
    fn idle(&self) -> Result<Option<CommunicatorGuard<'_>>> {
        self.control.check_process()?;
        if !self.queue.is_empty() {
            return Ok(None);
        }
        self.comm.try_lock().map(|comm| self.unless_poisoned(comm)).transpose()
    }

    /// Returns the communicator, unless a call on it has panicked.
    #[inline]
    fn unless_poisoned<'c>(&'c self, comm: CommunicatorGuard<'c>) -> Result<CommunicatorGuard<'c>> {
        if self.comm.is_poisoned() { Err(self.panicked()) } else { Ok(comm) }
    }

    fn lock(&self) -> Result<CommunicatorGuard<'_>> {
        self.unless_poisoned(self.comm.lock())
    }

    /// Runs `work` on the communicator after all queued calls; `None` if it is closed.
    fn in_turn<R>(self: &Arc<Self>, work: impl FnOnce(&mut Option<Communicator>) -> R) -> Result<R> {
        if let Some(mut comm) = self.idle()? {
            return Ok(work(&mut comm));
        }
        let turn = Queue::turn(self)?;
        let done = self.lock().map(|mut comm| work(&mut comm));
        drop(turn);
        done
    }

    /// Makes calls that were queued.
    fn run_calls(&self, calls: &[RawCall], options: &CallOptions) -> Result<()> {
        let mut comm = self.lock()?;
        let comm = comm.as_mut().ok_or_else(closed)?;
        comm.with_options(options, |comm| match calls {
            // SAFETY: the issuer guarantees the validity of the memory until the call is done.
            [call] => unsafe { comm.call_raw(call) },
            // SAFETY: as above.
            _ => unsafe { comm.group_raw(calls) },
        })?
    }

    /// Makes queued calls on this thread until those of `pending` are done, unless another thread makes one.
    fn run_here(&self, pending: &Pending) {
        self.queue.run_here(self, pending);
    }

    /// Waits for the result of queued calls, and polls the interrupt check meanwhile.
    fn wait_for(self: &Arc<Self>, pending: &Pending) -> Result<()> {
        const INTERVAL: Duration = Duration::from_millis(50);
        self.run_here(pending);
        loop {
            if let Some(result) = pending.wait(Some(INTERVAL)) {
                return result;
            }
            if self.control.is_interrupted() {
                self.abort();
                return pending.wait(None).unwrap_or_else(|| Err(self.panicked()));
            }
        }
    }

    /// Aborts the communicator after a panic, which may have left it in any state, and returns the error.
    #[cold]
    fn panicked(&self) -> Error {
        self.control.abort();
        Error::Defect("a call on this communicator has panicked; see stderr for where, and report it".into())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.core.control.check_process().is_err() {
            // A forked child: the thread of queued calls does not exist here, and locks may be held for ever.
            std::mem::forget(Arc::clone(&self.core));
            return;
        }
        self.core.queue.close();
        self.core.queue.finish();
        // Closed here, not when the last reference to the core is dropped: the communicator must be closed
        // once its last handle is dropped.
        let comm = self.core.comm.lock().take();
        drop(comm);
    }
}
