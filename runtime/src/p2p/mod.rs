//! Tagged point-to-point messages, the base of `MPI_Isend` and `MPI_Irecv` and of PyTorch's `isend` and
//! `irecv`.
//!
//! A [`P2p`] owns a communicator of its own, so its links carry no collective. Messages have a context, which
//! keeps users of one `P2p` apart, and a tag; a receive names both, or takes any tag, and names the source,
//! or takes any. Only [`P2pRequest::wait`] blocks.
//!
//! - **Short messages** travel inside a frame of the control lane.
//! - **Eager messages** follow their frame on the control lane, or are one message with it. The link decides
//!   up to which length. Unexpected ones lie on the receiver's heap, at most a mebibyte per sender: senders
//!   have credit, which returns when receives take the messages.
//! - **Rendezvous**: longer messages, and eager ones without credit, are announced and wait at their sender
//!   until a receive asks for them. They then go from memory to memory on the data lane, in the order in
//!   which they were asked for. So none blocks the messages behind it, and none is stored twice.
//!
//! | module | content |
//! |---|---|
//! | `frame` | frames of the control lane |
//! | `matching` | MPI's matching rule |
//! | `queues` | posted receives and unexpected messages |
//! | `peer` | messages in flight from and to one peer |
//! | `eager` | an eager message while it arrives |
//! | `engine` | all of one rank, and the posting of requests |
//! | `records` | complete messages in the trace |
//! | `buffered`, `message_copy` | sends whose memory is free when they return, and copies for them |
//! | `state`, `request` | one request: its state, and the program's handle |
//! | `progress` | the thread that progresses messages while no thread waits |
//! | `parker` | short sleeps of waiting threads |
//! | `harness` | in tests and fuzzing: frames of a hostile peer |
//!
//! As on a communicator, the first error stays, and ends the messages of all ranks. A message longer than its
//! receive is the exception: that error belongs to the receive alone.
//!
//! # Safety
//! The caller of a send or receive vouches for the memory until the request is complete or the `P2p` is
//! closed. Spans are made of it for that time, and dropped before the request's state is complete or the
//! `P2p` closed; the request itself holds none.

mod buffered;
mod eager;
mod engine;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod harness;
mod matching;
mod message_copy;
mod parker;
mod peer;
mod progress;
mod queues;
mod records;
mod request;
mod state;
#[cfg(test)]
mod tests;

pub use request::P2pRequest;

use crate::{
    Element,
    communicator::{Buffer, Communicator, Control, LinkAccess, Registration, Stats},
    error::{Error, Result},
};
use engine::{Engine, Posted, ProgressThread};
use parker::Parker;
use state::RequestState;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use topology::Rank;
use transport::{
    Sleeper, WaitPolicy, Waiter,
    memory::{Span, SpanMut},
};

/// A completed send or receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The source.
    pub from: Rank,
    /// The tag.
    pub tag: i32,
    /// The length in bytes.
    pub bytes: usize,
}

/// Tagged messages of one rank. Clones share one state; dropping the last one closes it.
#[derive(Clone, Debug)]
pub struct P2p(Arc<Handle>);

/// The program's side. Requests and the progress thread hold the core only.
#[derive(Debug)]
struct Handle {
    core: Arc<Core>,
    progress_thread: Mutex<Option<JoinHandle<()>>>,
}

/// State shared by the program, its requests and the progress thread.
#[derive(Debug)]
struct Core {
    rank: Rank,
    size: u32,
    /// The engine; `None` once closed.
    engine: Mutex<Option<Engine>>,
    /// The error with which messages had failed before they were closed.
    failed_before_close: OnceLock<Error>,
    /// Wakes the progress thread.
    work: Condvar,
    /// Threads that contend for the engine's lock.
    contenders: AtomicU32,
    /// Threads that wait for requests and progress messages meanwhile.
    waiters: AtomicU32,
    control: Arc<Control>,
    policy: WaitPolicy,
    sleeper: Arc<dyn Sleeper>,
    parker: Arc<Parker>,
}

impl P2p {
    /// Takes over a communicator that has no other user, usually a [`Communicator::split`] of another one.
    /// All of its ranks do so.
    ///
    /// # Errors
    /// The communicator's error, if it has failed.
    pub fn new(comm: Communicator) -> Result<P2p> {
        if let Some(error) = comm.failure() {
            return Err(error);
        }
        let (rank, size, control) = (comm.rank(), comm.size(), comm.control());
        let links = LinkAccess::new(comm);
        let (mut policy, by_device) = links.wait_policy();
        // A device's event wakes one of several waiting threads, and does not tell the others that their
        // request is complete.
        policy.max_sleep = policy.max_sleep.min(MAX_SLEEP);
        let parker = Arc::new(Parker::default());
        let core = Core {
            rank,
            size,
            engine: Mutex::new(Some(Engine::new(links, Arc::clone(&parker)))),
            failed_before_close: OnceLock::new(),
            work: Condvar::new(),
            contenders: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            control,
            policy,
            sleeper: by_device.unwrap_or_else(|| Arc::clone(&parker) as Arc<dyn Sleeper>),
            parker,
        };
        Ok(P2p(Arc::new(Handle { core: Arc::new(core), progress_thread: Mutex::new(None) })))
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

    /// Sends `bytes` bytes at `src` to a rank, which may be this one. Returns at once; when the request is
    /// complete the memory may be reused, which does not mean that the message has been received.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rank outside the communicator, or one that has not received 65,536
    /// messages that are too long to be sent ahead of their receives; [`Error::Transport`] for a rank that no
    /// cable connects; and the error with which messages have failed.
    ///
    /// # Safety
    /// The memory stays readable and unchanged until the request is complete or the last clone of this has
    /// been dropped.
    pub unsafe fn send(
        &self,
        to: Rank,
        context: u32,
        tag: i32,
        src: *const u8,
        bytes: usize,
    ) -> Result<P2pRequest> {
        // SAFETY: the caller's promise; the engine drops the span before the request is complete or the
        // engine closed.
        let src: Span<'static> = unsafe { Span::new(src, bytes) };
        self.post(|engine| engine.send(to, context, tag, src))
    }

    /// Receives a message of at most `capacity_bytes` bytes into `dst`: the first that arrives, or has
    /// arrived, from this source or any, in this context, with this tag or any. Returns at once.
    ///
    /// Messages of one source in one context match receives in the order of sending.
    ///
    /// # Errors
    /// As for [`P2p::send`]. A message that is longer completes the request with [`Error::Truncated`].
    ///
    /// # Safety
    /// The memory stays writable and unused by others until the request is complete or the last clone of this
    /// has been dropped.
    pub unsafe fn recv(
        &self,
        from: Option<Rank>,
        context: u32,
        tag: Option<i32>,
        dst: *mut u8,
        capacity_bytes: usize,
    ) -> Result<P2pRequest> {
        // SAFETY: as for `send`.
        let dst: SpanMut<'static> = unsafe { SpanMut::new(dst, capacity_bytes) };
        self.post(|engine| engine.recv(from, context, tag, dst))
    }

    fn post(&self, request: impl FnOnce(&mut Engine) -> Result<Posted>) -> Result<P2pRequest> {
        let core = &self.0.core;
        let mut engine = core.lock()?;
        let open = engine.as_mut().ok_or_else(closed)?;
        if open.progress_thread == ProgressThread::NotStarted {
            self.0.start_progress_thread(open)?;
        }
        let posted = request(open)?;
        if open.progress_thread == ProgressThread::Parked && open.is_busy() {
            open.progress_thread = ProgressThread::Running;
            core.work.notify_all();
        }
        Ok(match posted {
            Posted::Done(result) => {
                open.record(&result);
                P2pRequest::done(result)
            }
            Posted::Pending(state) => P2pRequest::pending(state, Arc::clone(core)),
        })
    }

    /// Allocates a zeroed buffer of `count` elements in registered memory, which large messages use without a
    /// copy.
    ///
    /// # Errors
    /// As for [`Communicator::alloc`].
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Buffer<T>> {
        self.0.core.with(|engine| engine.links().communicator().alloc(count))
    }

    /// Registers memory for these messages, as [`Communicator::register_raw`] does for calls.
    ///
    /// # Errors
    /// As for [`Communicator::register_raw`].
    ///
    /// # Safety
    /// As for [`Communicator::register_raw`].
    pub unsafe fn register_raw(&self, start: *mut u8, bytes: usize) -> Result<Registration> {
        // SAFETY: the caller's promise.
        self.0.core.with(|engine| unsafe { engine.links().communicator_mut().register_raw(start, bytes) })
    }

    /// Returns the counters of this rank's links for messages.
    ///
    /// # Errors
    /// [`Error::Defect`] after a panic of an operation.
    pub fn stats(&self) -> Result<Stats> {
        self.0.core.with(|engine| Ok(engine.links().communicator().stats()))
    }

    /// Limits each wait of the close, as [`crate::SharedCommunicator::finalize_within`]: for queued messages
    /// to be sent, and for sent ones to arrive. The communicator's timeout limits them in any case.
    ///
    /// # Errors
    /// [`Error::Defect`] after a panic of an operation.
    pub fn limit_close(&self, limit: Duration) -> Result<()> {
        self.0.core.with(|engine| {
            engine.limit_close(limit);
            Ok(())
        })
    }

    /// Aborts the messages of all ranks: every incomplete request here gives [`Error::Aborted`], and those of
    /// other ranks an error that names this rank. Does not wait.
    pub fn abort(&self) {
        let core = &self.0.core;
        core.control.abort();
        core.parker.wake();
        if core.control.is_mapped() {
            return;
        }
        // Where boards are mirrors, a call must tell the other ranks, and may wait for an answer.
        let shared = Arc::clone(core);
        let tell = move || drop(shared.with(|engine| Ok(engine.drive())));
        if thread::Builder::new().name("tbccl-abort".into()).spawn(tell).is_err() {
            drop(core.with(|engine| Ok(engine.drive())));
        }
    }

    /// Returns the error with which messages have failed, as far as this rank knows.
    #[must_use]
    pub fn failed(&self) -> Option<Error> {
        let core = &self.0.core;
        match core.with(|engine| Ok(engine.failed().cloned())) {
            Ok(failed) => failed.or_else(|| core.control.error()),
            Err(error) => Some(error),
        }
    }
}

/// Longest sleep between two polls for a request.
const MAX_SLEEP: Duration = Duration::from_millis(5);

/// Returns the error of operations after the close.
fn closed() -> Error {
    Error::InvalidArgument("the point-to-point messages have been closed".into())
}

impl Handle {
    /// Starts the progress thread.
    #[cold]
    fn start_progress_thread(&self, engine: &mut Engine) -> Result<()> {
        let core = Arc::clone(&self.core);
        let builder = thread::Builder::new().name(format!("tbccl-p2p-{}", self.core.rank));
        let started = builder.spawn(move || progress::run(&core));
        let started = started
            .map_err(|e| Error::system("starting the progress thread of point-to-point messages", e))?;
        *self.progress_thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
        engine.progress_thread = ProgressThread::Running;
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.core.control.check_process().is_err() {
            // A forked child: the progress thread does not exist here, and locks may be held for ever.
            let progress_thread =
                self.progress_thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            std::mem::forget((Arc::clone(&self.core), progress_thread));
            return;
        }
        if let Some(engine) = &mut *self.core.engine.lock().unwrap_or_else(PoisonError::into_inner) {
            engine.progress_thread = ProgressThread::Stopping;
        }
        self.core.work.notify_all();
        let progress_thread = self.progress_thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(progress_thread) = progress_thread {
            // A panic of the thread has been reported by the thread.
            let _ = progress_thread.join();
        }
        // The engine is dropped here, not with the last request: the program gets its memory back when the
        // `P2p` is dropped. Requests report the close once no memory is used.
        let mut engine = self.core.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = &mut *engine {
            if let Some(error) = engine.failed().cloned().or_else(|| self.core.control.failed()) {
                let _ = self.core.failed_before_close.set(error);
            }
            engine.close();
        }
        let engine = engine.take();
        self.core.parker.wake();
        if let Some(engine) = engine {
            engine.end();
        }
    }
}

/// A thread counted for as long as the guard lives.
struct CountGuard<'c>(&'c AtomicU32);

impl<'c> CountGuard<'c> {
    fn new(count: &'c AtomicU32) -> CountGuard<'c> {
        count.fetch_add(1, Relaxed);
        CountGuard(count)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Core {
    /// Locks the engine. Polling threads yield to contenders.
    #[inline]
    fn lock(&self) -> Result<MutexGuard<'_, Option<Engine>>> {
        self.control.check_process()?;
        match self.engine.try_lock() {
            Ok(engine) => Ok(engine),
            Err(TryLockError::Poisoned(engine)) => Err(self.broken(engine)),
            Err(TryLockError::WouldBlock) => {
                let _wanting = CountGuard::new(&self.contenders);
                self.engine.lock().map_err(|engine| self.broken(engine))
            }
        }
    }

    fn with<R>(&self, work: impl FnOnce(&mut Engine) -> Result<R>) -> Result<R> {
        work(self.lock()?.as_mut().ok_or_else(closed)?)
    }

    /// Returns the result of a request, after one progress step unless another thread is progressing.
    fn test(&self, state: &RequestState) -> Option<Result<Delivery>> {
        if let Err(error) = self.control.check_process() {
            return Some(Err(error));
        }
        let engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::WouldBlock) => return state.result(),
            Err(TryLockError::Poisoned(engine)) => return Some(Err(self.broken(engine))),
        };
        self.progress_once(engine, state, None).1
    }

    /// Makes one progress step, and checks the job's health if the caller has waited long. Returns whether
    /// anything moved, and the request's result.
    #[inline]
    fn progress_once(
        &self,
        mut engine: MutexGuard<'_, Option<Engine>>,
        state: &RequestState,
        look: Option<Duration>,
    ) -> (bool, Option<Result<Delivery>>) {
        let Some(open) = &mut *engine else {
            let error = || self.failed_before_close.get().cloned().unwrap_or_else(closed);
            return (false, state.result().or_else(|| Some(Err(error()))));
        };
        let moved = open.drive();
        if let Some(waited) = look.filter(|_| !moved) {
            open.publish_waiting(&state.info);
            open.look(&state.info, waited);
        }
        let failed = |open: &Engine| open.failed().map(|error| Err(error.clone()));
        (moved, state.result().or_else(|| failed(open)))
    }

    /// Waits for a request, and progresses messages meanwhile.
    fn wait(&self, state: &RequestState, timeout: Option<Duration>) -> Option<Result<Delivery>> {
        if let Err(error) = self.control.check_process() {
            return Some(Err(error));
        }
        // A time limit beyond the clock's range is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let _waiting = CountGuard::new(&self.waiters);
        let mut waiter = Waiter::new(self.policy, Some(&*self.sleeper));
        let mut look = None;
        let mut shown = false;
        let result = loop {
            let (moved, result) = match self.engine.try_lock() {
                Ok(engine) => {
                    shown |= look.is_some();
                    self.progress_once(engine, state, look.take())
                }
                Err(TryLockError::WouldBlock) => (false, state.result()),
                Err(TryLockError::Poisoned(engine)) => break Some(Err(self.broken(engine))),
            };
            if result.is_some() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break result;
            }
            if moved {
                waiter.reset();
            } else if waiter.idle() {
                look = Some(state.stalled_for());
            }
            if self.contenders.load(Relaxed) > 0 {
                thread::yield_now();
            }
        };
        if shown {
            self.control.finish_tagged_message();
        }
        result
    }

    /// Ends all use of memory by links after a panic, which may have left the engine in any state. Returns
    /// the error of all requests.
    #[cold]
    fn broken(&self, engine: PoisonError<MutexGuard<'_, Option<Engine>>>) -> Error {
        self.control.abort();
        let text =
            "a point-to-point operation of this rank has panicked; see stderr for where, and report it";
        let error = Error::Defect(text.into());
        let mut engine = engine.into_inner();
        let fail = AssertUnwindSafe(|| engine.as_mut().map(|engine| engine.fail(error.clone())));
        // A second panic would be of the same cause, and has been reported.
        let _ = catch_unwind(fail);
        error
    }
}
