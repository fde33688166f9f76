//! Tagged messages between two ranks, sent and received whenever that suits: what MPI's `MPI_Isend` and `MPI_Irecv` and
//! PyTorch's `isend` and `irecv` stand on.
//!
//! A [`Mail`] has a communicator of its own, hence links that no collective uses. Messages have a context (whoever shares a
//! mail keeps apart by it) and a tag; a receive names both, or takes any tag, and names the sender, or takes any. Nothing
//! here blocks but [`Letter::wait`].
//!
//! - **Short messages** travel in a frame of the control lane. They are sent when the frame is.
//! - **Eager messages** follow their frame. What has arrived for no receive lies on the heap, a mebibyte per sender at most:
//!   senders have credit, and get it back when receives take their messages.
//! - **All others**, and eager ones without credit, wait at their sender until a receive has asked for them. Then they go from
//!   memory to memory on a lane of their own, in the order in which they were asked for. So none holds up what comes behind
//!   it, and none is kept twice.
//!
//! Modules: `frame` has the words of the control lane, `matching` the rule of who gets what, `books` what has not met its
//! match, `peer` what is on its way, `eager` an eager message that arrives, `engine` all of a rank together, `slot` and
//! `letter` what is known of one message, `courier` the thread that moves mail while nobody waits, `nap` short sleeps.
//!
//! As on a communicator, the first error is the one that stays, and it ends the mail of all ranks. A message that is longer
//! than its receive's memory is the exception: it is that receive's error alone.
//!
//! # Safety
//! Whoever sends or receives vouches for the memory until the message is done or the mail has gone. Spans are made of it for
//! as long, and dropped before a slot says that it is done or the mail is closed; the letter that lives on has none.

mod eager;
mod engine;
mod frame;
mod matching;
mod parker;
mod peer;
mod progress;
mod queues;
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
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError,
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

/// A message that has been sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Who sent it.
    pub from: Rank,
    /// Its tag.
    pub tag: i32,
    /// Its length.
    pub bytes: usize,
}

/// One rank's tagged messages. Clones are the same; the last one closes it.
#[derive(Clone, Debug)]
pub struct P2p(Arc<Handle>);

/// What the program holds; letters and the courier hold the core only.
#[derive(Debug)]
struct Handle {
    core: Arc<Core>,
    progress_thread: Mutex<Option<JoinHandle<()>>>,
}

/// What all who use one rank's mail have in common.
#[derive(Debug)]
struct Core {
    rank: Rank,
    size: u32,
    /// `None` once it is closed.
    engine: Mutex<Option<Engine>>,
    /// Wakes the courier.
    work: Condvar,
    /// Threads that want the engine and can't have it.
    contenders: AtomicU32,
    /// Threads that wait for letters, and move mail.
    waiters: AtomicU32,
    control: Arc<Control>,
    policy: WaitPolicy,
    sleeper: Arc<dyn Sleeper>,
    parker: Arc<Parker>,
}

impl P2p {
    /// Takes a communicator that nobody else uses, a [`Communicator::split`] of another one as a rule. All of its ranks do so.
    ///
    /// # Errors
    /// What the communicator has failed with.
    pub fn new(comm: Communicator) -> Result<P2p> {
        if let Some(error) = comm.failure() {
            return Err(error);
        }
        let (rank, size, control) = (comm.rank(), comm.size(), comm.control());
        let links = LinkAccess::new(comm);
        let (mut policy, by_device) = links.wait_policy();
        // A device wakes one of several threads that wait, and tells no other that its letter is done.
        policy.sleep_most = policy.sleep_most.min(SLEEP_MOST);
        let parker = Arc::new(Parker::default());
        let core = Core {
            rank,
            size,
            engine: Mutex::new(Some(Engine::new(links, Arc::clone(&parker)))),
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

    /// Sends `bytes` bytes from `src` on to a rank, or to this one. Returns at once; the memory may be written to again when the
    /// letter is done, which says nothing of whether anybody has received the message.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rank that there is not, [`Error::Transport`] for one that no cable leads to, and what
    /// the mail has failed with.
    ///
    /// # Safety
    /// The memory is readable, and nobody writes to it, until the letter is done or the last clone of the mail has been
    /// dropped.
    pub unsafe fn send(
        &self,
        to: Rank,
        context: u32,
        tag: i32,
        src: *const u8,
        bytes: usize,
    ) -> Result<P2pRequest> {
        // SAFETY: the caller's promise; the engine forgets the span before the letter is done or the mail closed.
        let src: Span<'static> = unsafe { Span::new(src, bytes) };
        self.post(|engine| engine.send(to, context, tag, src))
    }

    /// Receives a message of at most `capacity_bytes` bytes to `dst`: the first that comes, or has come, from this rank or any,
    /// in this context, with this tag or any. Returns at once.
    ///
    /// Of messages of one sender in one context that could go to the same receives, the earlier one goes to the earlier receive.
    ///
    /// # Errors
    /// As for [`Mail::send`]. That the message is longer, [`Error::Truncated`], the letter tells.
    ///
    /// # Safety
    /// The memory is writable, and nobody else uses it, until the letter is done or the last clone of the mail has been
    /// dropped.
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
        let mail = engine.as_mut().ok_or_else(closed)?;
        if mail.progress_thread == ProgressThread::NotStarted {
            self.0.start_progress_thread(mail)?;
        }
        let posted = request(mail)?;
        if mail.progress_thread == ProgressThread::Parked && mail.is_busy() {
            mail.progress_thread = ProgressThread::Running;
            core.work.notify_all();
        }
        Ok(match posted {
            Posted::Done(result) => P2pRequest::done(result),
            Posted::Pending(state) => P2pRequest::pending(state, Arc::clone(core)),
        })
    }

    /// A buffer of zeros in registered memory: large messages go from it and to it without being copied on the way.
    ///
    /// # Errors
    /// As for [`Communicator::alloc`].
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Buffer<T>> {
        self.0.core.with(|engine| engine.links().communicator().alloc(count))
    }

    /// As [`Communicator::register_raw`], for messages of this mail.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn register_raw(&self, start: *mut u8, bytes: usize) -> Result<Registration> {
        // SAFETY: the caller's promise.
        self.0.core.with(|engine| unsafe { engine.links().communicator_mut().register_raw(start, bytes) })
    }

    /// What this rank's links for mail have done.
    ///
    /// # Errors
    /// When the mail has been broken by a panic.
    pub fn stats(&self) -> Result<Stats> {
        self.0.core.with(|engine| Ok(engine.links().communicator().stats()))
    }

    /// Ends the mail of all ranks: every letter that is not done here gives [`Error::Aborted`], and others' an error that names
    /// this rank. Does not wait for anybody.
    pub fn abort(&self) {
        let core = &self.0.core;
        core.control.abort();
        core.parker.wake();
        if core.control.is_mapped() {
            return;
        }
        // Where boards are mirrors somebody has to tell the others, and may wait for an answer.
        let shared = Arc::clone(core);
        let tell = move || drop(shared.with(|engine| Ok(engine.drive())));
        if thread::Builder::new().name("tbccl-abort".into()).spawn(tell).is_err() {
            drop(core.with(|engine| Ok(engine.drive())));
        }
    }

    /// What has made the mail fail, as far as it is known here.
    #[must_use]
    pub fn failed(&self) -> Option<Error> {
        let core = &self.0.core;
        match core.with(|engine| Ok(engine.failed().cloned())) {
            Ok(failed) => failed.or_else(|| core.control.error()),
            Err(error) => Some(error),
        }
    }
}

/// The longest sleep between looks at a letter.
const SLEEP_MOST: Duration = Duration::from_millis(5);

/// The error for what comes after the end.
fn closed() -> Error {
    Error::InvalidArgument("the point-to-point messages have been closed".into())
}

impl Handle {
    /// Starts the courier.
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
        if let Some(engine) = &mut *self.core.engine.lock().unwrap_or_else(PoisonError::into_inner) {
            engine.progress_thread = ProgressThread::Stopping;
        }
        self.core.work.notify_all();
        let progress_thread = self.progress_thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(progress_thread) = progress_thread {
            // It has told of a panic itself.
            let _ = progress_thread.join();
        }
        // Here and not wherever the last letter is: whoever drops the mail has its memory back. Letters say that it is closed
        // once no memory is used any more.
        let mut engine = self.core.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = &mut *engine {
            engine.close();
        }
        let engine = engine.take();
        self.core.parker.wake();
        if let Some(engine) = engine {
            engine.end();
        }
    }
}

/// A thread that is counted while this lives.
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
    /// The engine. Those who poll it make way for whoever wants it for something else.
    #[inline]
    fn lock(&self) -> Result<MutexGuard<'_, Option<Engine>>> {
        match self.engine.try_lock() {
            Ok(engine) => Ok(engine),
            Err(TryLockError::Poisoned(_)) => Err(self.broken()),
            Err(TryLockError::WouldBlock) => {
                let _wanting = CountGuard::new(&self.contenders);
                self.engine.lock().map_err(|_| self.broken())
            }
        }
    }

    fn with<R>(&self, work: impl FnOnce(&mut Engine) -> Result<R>) -> Result<R> {
        work(self.lock()?.as_mut().ok_or_else(closed)?)
    }

    /// What has become of a letter, after moving mail once unless somebody else does.
    fn test(&self, state: &RequestState) -> Option<Result<Delivery>> {
        let engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::WouldBlock) => return state.result(),
            Err(TryLockError::Poisoned(_)) => return Some(Err(self.broken())),
        };
        self.progress_once(engine, state, None).1
    }

    /// Moves mail once, and looks around if somebody has waited for so long. Has anything moved, and what has become of the
    /// letter?
    #[inline]
    fn progress_once(
        &self,
        mut engine: MutexGuard<'_, Option<Engine>>,
        state: &RequestState,
        look: Option<Duration>,
    ) -> (bool, Option<Result<Delivery>>) {
        let Some(mail) = &mut *engine else { return (false, state.result().or_else(|| Some(Err(closed())))) };
        let moved = mail.drive();
        if let Some(waited) = look.filter(|_| !moved) {
            mail.publish_waiting(Some(&state.info));
            mail.look(&state.info, waited);
        }
        let failed = |mail: &Engine| mail.failed().map(|error| Err(error.clone()));
        (moved, state.result().or_else(|| failed(mail)))
    }

    /// Waits for a letter, and moves mail meanwhile.
    fn wait(&self, state: &RequestState, most: Option<Duration>) -> Option<Result<Delivery>> {
        // A time limit beyond all clocks is none.
        let until = most.and_then(|most| Instant::now().checked_add(most));
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
                Err(TryLockError::Poisoned(_)) => break Some(Err(self.broken())),
            };
            if result.is_some() || until.is_some_and(|until| Instant::now() >= until) {
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
        if shown && let Ok(Some(mail)) = self.engine.try_lock().as_deref() {
            mail.publish_waiting(None);
        }
        result
    }

    /// Something has panicked: nobody knows in what state it has left the mail.
    #[cold]
    fn broken(&self) -> Error {
        self.control.abort();
        Error::Defect(
            "a point-to-point operation of this rank has panicked; see stderr for where, and report it"
                .into(),
        )
    }
}
