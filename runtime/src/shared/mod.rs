//! A communicator that threads share: calls from any of them, one after the other, at once or later.
//!
//! A blocking call on an idle communicator is made by its caller, under a lock that nobody else wants
//! (`biased_lock`). All others wait in a queue, and a thread makes them in the order in which they came; a blocking
//! call behind them waits there too. So every call is whole, and calls are made in the order in which they
//! were issued.
//!
//! Aborting, and asking how things stand, take no lock that a call in progress holds.
//!
//! This module does not check arguments and moves nothing: what it does with calls is what `communicator`
//! does.
//!
//! # Safety
//! Whoever issues a call vouches for its memory until it is done. A queue holds addresses and never looks at
//! what is there; the call does, before its [`Pending`] says that it is done.

mod biased_lock;
mod pending;
mod queue;

pub use biased_lock::{BiasedGuard, BiasedLock};
pub use pending::Pending;

use crate::{
    communicator::{CallByAddress, CallOptions, Communicator, Control, RawCall, Stats, closed},
    error::{Error, Result},
};
use biased_lock::{Guard, Guarded};
use queue::Queue;
use std::{io, sync::Arc, thread, time::Duration};
use topology::Rank;

/// One rank of a communicator, for several threads. Clones are the same rank; the last one closes it.
///
/// All ranks make the same calls in the same order. Where several threads of a rank issue calls, it is up to
/// the program that they agree with other ranks' threads about the order.
#[derive(Clone, Debug)]
pub struct SharedCommunicator(Arc<Handle>);

/// What the program holds; the thread that makes calls holds the core only.
#[derive(Debug)]
struct Handle {
    core: Arc<Core>,
}

#[derive(Debug)]
struct Core {
    rank: Rank,
    size: u32,
    /// Held during a call. `None` once it is closed.
    comm: Guarded<Option<Communicator>>,
    queue: Queue,
    control: Arc<Control>,
}

/// A communicator that is locked, unless it has been closed.
type CommunicatorGuard<'c> = Guard<'c, Option<Communicator>>;

impl SharedCommunicator {
    /// Lets threads share a communicator.
    #[must_use]
    pub fn new(comm: Communicator) -> SharedCommunicator {
        let (rank, size, control) = (comm.rank(), comm.size(), comm.control());
        let core = Core { rank, size, comm: Guarded::new(Some(comm)), queue: Queue::default(), control };
        SharedCommunicator(Arc::new(Handle { core: Arc::new(core) }))
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.0.core.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.0.core.size
    }

    /// Makes a call, after all that was issued before.
    ///
    /// # Errors
    /// As for [`Communicator::call_raw`]; [`Error::Aborted`] after an abort, [`Error::InvalidArgument`] after
    /// the end.
    ///
    /// # Safety
    /// As for [`Communicator::call_raw`].
    #[inline]
    pub unsafe fn call(&self, call: &RawCall, options: &CallOptions) -> Result<()> {
        let core = &self.0.core;
        if let Some(mut comm) = core.idle()? {
            let comm = comm.as_mut().ok_or_else(closed)?;
            if options.is_default() {
                // SAFETY: the caller's promise.
                return unsafe { comm.call_raw(call) };
            }
            // SAFETY: the caller's promise.
            return comm.with_options(options, |comm| unsafe { comm.call_raw(call) })?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.call_later(call, options) }
    }

    /// What is taken during a call. It outlives the communicator, whose clones have the same one: a table may
    /// take it before it knows that the communicator is still there.
    #[must_use]
    pub fn biased_lock(&self) -> &'static BiasedLock {
        self.0.core.comm.biased_lock()
    }

    /// Makes a call without options, as [`SharedCommunicator::call`], while the caller holds this
    /// communicator's lock.
    ///
    /// `None` if the call cannot be made now, and was not: calls are queued, the communicator is closed or
    /// broken, or the lock is another one's.
    ///
    /// # Errors
    /// Those of [`SharedCommunicator::call`], boxed: results that are moved from hand to hand take longer
    /// than the lock.
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
        // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise; this returns when the call is done.
        let pending = unsafe { self.issue(vec![call.clone()], options)? };
        self.0.core.wait_for(&pending)
    }

    /// Makes calls as a group, after all that was issued before.
    ///
    /// # Errors
    /// As for [`SharedCommunicator::call`].
    ///
    /// # Safety
    /// As for [`Communicator::group_raw`].
    pub unsafe fn call_group(&self, calls: &[RawCall], options: &CallOptions) -> Result<()> {
        let core = &self.0.core;
        if let Some(mut comm) = core.idle()? {
            let comm = comm.as_mut().ok_or_else(closed)?;
            // SAFETY: the caller's promise.
            return comm.with_options(options, |comm| unsafe { comm.group_raw(calls) })?;
        }
        // SAFETY: the caller's promise; this returns when the calls are done.
        let pending = unsafe { self.issue(calls.to_vec(), options)? };
        core.wait_for(&pending)
    }

    /// From now on blocking calls that wait long ask this now and then, on the thread that waits, be it for
    /// its turn or for other ranks. When it says that the program wants out, the communicator is aborted:
    /// this is how a language's own interruptions end a call. Said once; who comes later is not heard.
    pub fn set_interrupt_check(&self, check: fn() -> bool) {
        self.0.core.control.set_interrupt_check(check);
    }

    /// Has a call made, or several as a group, after all that was issued before. Returns at once.
    ///
    /// # Errors
    /// What is wrong with the arguments, as far as this rank can tell, or why no call can be made any more.
    /// Nothing is issued then. All other errors the [`Pending`] tells.
    ///
    /// # Safety
    /// As for [`Communicator::group_raw`], until the [`Pending`] says that the calls are done or the last
    /// clone of the communicator has been dropped. Dropping the [`Pending`] changes nothing.
    pub unsafe fn issue(&self, calls: Vec<RawCall>, options: &CallOptions) -> Result<Pending> {
        let core = &self.0.core;
        options.check()?;
        calls.iter().try_for_each(|call| call.check(core.rank, core.size))?;
        if let Some(error) = core.control.failed() {
            return Err(error);
        }
        Queue::push_calls(core, calls, options)
    }

    /// Ends the communicator for good: the call in progress, what is queued and every further call give
    /// [`Error::Aborted`], and every other rank's calls an error that names this rank. Does not wait for any
    /// of them. What runs in [`SharedCommunicator::with`] ends by itself, if it is no call.
    pub fn abort(&self) {
        self.0.core.abort();
    }

    /// What has made the communicator fail, as far as it is known here; does not wait for a call in progress.
    #[must_use]
    pub fn async_error(&self) -> Option<Error> {
        let core = &self.0.core;
        if let Some(error) = core.control.failed() {
            return Some(error);
        }
        // Where boards are mirrors, news come in only when somebody reads them.
        if let Some(mut comm) = core.comm.try_lock()
            && let Some(error) = comm.as_mut().and_then(Communicator::news_of_failure)
        {
            return Some(error);
        }
        core.control.error()
    }

    /// What has been done so far. Does not wait for a call in progress longer than it takes to look up, 20 ms
    /// at most; what links have done is then as it was last known.
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
    /// oldest first. Does not wait for a call in progress, and says where it stands.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn dump(&self, out: &mut dyn io::Write) -> io::Result<()> {
        self.0.core.control.dump(out)
    }

    /// Waits for what is queued, then closes this rank's part of the communicator. Every further call gives
    /// an error.
    ///
    /// # Errors
    /// What has made the communicator fail, if it has; it is closed in any case. [`Error::InvalidArgument`]
    /// if it was.
    pub fn finalize(&self) -> Result<()> {
        let core = &self.0.core;
        let comm = core.in_turn(Option::take)?.ok_or_else(closed)?;
        let failed = comm.failure();
        core.control.publish_final(&comm);
        drop(comm);
        core.queue.close();
        failed.map_or(Ok(()), Err)
    }

    /// Uses the communicator itself, after all that is queued; what is issued meanwhile waits. `work` must
    /// not use this shared communicator, for which it would wait for ever.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] after the end.
    pub fn with<R>(&self, work: impl FnOnce(&mut Communicator) -> R) -> Result<R> {
        self.0.core.in_turn(|comm| comm.as_mut().map(work))?.ok_or_else(closed)
    }
}

impl Core {
    fn abort(self: &Arc<Self>) {
        self.control.abort();
        if self.control.is_mapped() {
            return;
        }
        // Where boards are mirrors somebody has to tell the others, and may wait for an answer: the call in
        // progress does, unless it was about to end.
        let shared = Arc::clone(self);
        let tell = move || {
            // Also when a call has panicked: the others are still to be told.
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

    /// The communicator, if nobody uses it and nothing is queued.
    #[inline]
    fn idle(&self) -> Result<Option<CommunicatorGuard<'_>>> {
        if !self.queue.is_empty() {
            return Ok(None);
        }
        self.comm.try_lock().map(|comm| self.unless_poisoned(comm)).transpose()
    }

    /// The communicator, unless a call on it has panicked.
    #[inline]
    fn unless_poisoned<'c>(&'c self, comm: CommunicatorGuard<'c>) -> Result<CommunicatorGuard<'c>> {
        if self.comm.is_poisoned() { Err(self.panicked()) } else { Ok(comm) }
    }

    fn lock(&self) -> Result<CommunicatorGuard<'_>> {
        self.unless_poisoned(self.comm.lock())
    }

    /// Uses what there is of the communicator after all that is queued.
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
            // SAFETY: whoever issued the call vouches for its memory until it is done.
            [call] => unsafe { comm.call_raw(call) },
            // SAFETY: as above.
            _ => unsafe { comm.group_raw(calls) },
        })?
    }

    /// What becomes of a call that waits for its turn.
    fn wait_for(self: &Arc<Self>, pending: &Pending) -> Result<()> {
        const INTERVAL: Duration = Duration::from_millis(50);
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

    /// A call has panicked: nobody knows in what state it has left the communicator.
    #[cold]
    fn panicked(&self) -> Error {
        self.control.abort();
        Error::Defect("a call on this communicator has panicked; see stderr for where, and report it".into())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.queue.close();
        self.core.queue.finish();
        // Here and not wherever the last reference to the core is: whoever drops this may rely on its being
        // closed.
        let comm = self.core.comm.lock().take();
        drop(comm);
    }
}
