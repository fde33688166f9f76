//! Queued calls, and the thread that makes them.
//!
//! The thread starts with the first queued job, sleeps while nothing waits, and ends when the queue is closed
//! and empty. It holds the communicator only while it makes a call.

use super::{
    Core,
    pending::{Pending, Promise},
};
use crate::{
    communicator::{CallOptions, RawCall, closed},
    error::{Error, Result},
};
use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicUsize,
            Ordering::{Acquire, Release},
        },
    },
    thread::{self, JoinHandle},
};

/// A queued job.
#[derive(Debug)]
enum Job {
    /// One call, or several as a group.
    Calls { calls: Vec<RawCall>, options: CallOptions, promise: Promise },
    /// Another thread's use of the communicator.
    Turn(Arc<Turn>),
}

/// Jobs in order.
#[derive(Debug, Default)]
pub(super) struct Queue {
    line: Mutex<Line>,
    changed: Condvar,
    /// How many wait, or are being seen to. Written under the lock of the line, or by the thread.
    length: AtomicUsize,
}

#[derive(Debug, Default)]
struct Line {
    jobs: VecDeque<Job>,
    closed: bool,
    thread: Option<JoinHandle<()>>,
}

/// A use of the communicator by the thread that asked for it, while the queue stands still.
#[derive(Debug, Default)]
struct Turn {
    state: Mutex<TurnState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TurnState {
    #[default]
    Waiting,
    Granted,
    Over,
}

impl Turn {
    fn set(&self, state: TurnState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.notify_all();
    }

    /// Waits until it has come so far.
    fn wait(&self, wanted: TurnState) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_early = |state: &mut TurnState| *state != wanted;
        drop(self.changed.wait_while(state, is_early).unwrap_or_else(PoisonError::into_inner));
    }
}

/// A turn that has come; the queue goes on when it is dropped.
#[derive(Debug)]
pub(super) struct Granted(Arc<Turn>);

impl Drop for Granted {
    fn drop(&mut self) {
        self.0.set(TurnState::Over);
    }
}

impl Queue {
    /// Whether all queued jobs are done.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.length.load(Acquire) == 0
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues calls with checked arguments.
    pub(super) fn push_calls(
        core: &Arc<Core>,
        calls: Vec<RawCall>,
        options: &CallOptions,
    ) -> Result<Pending> {
        let (promise, pending) = Promise::new();
        Queue::push(core, Job::Calls { calls, options: options.clone(), promise })?;
        Ok(pending)
    }

    /// Waits until all queued jobs are done; jobs queued from now on wait until the returned value is
    /// dropped.
    pub(super) fn turn(core: &Arc<Core>) -> Result<Granted> {
        let turn = Arc::new(Turn::default());
        Queue::push(core, Job::Turn(Arc::clone(&turn)))?;
        turn.wait(TurnState::Granted);
        Ok(Granted(turn))
    }

    fn push(core: &Arc<Core>, job: Job) -> Result<()> {
        let queue = &core.queue;
        let mut line = queue.line();
        if line.closed {
            return Err(closed());
        }
        if line.thread.is_none() {
            let shared = Arc::clone(core);
            let builder = thread::Builder::new().name(format!("tbccl-calls-{}", core.rank));
            let started = builder.spawn(move || make_calls(&shared));
            line.thread = Some(started.map_err(|e| Error::system("starting the thread for calls", e))?);
        }
        queue.length.store(queue.length.load(Acquire) + 1, Release);
        line.jobs.push_back(job);
        queue.changed.notify_one();
        Ok(())
    }

    /// Takes nothing any more.
    pub(super) fn close(&self) {
        self.line().closed = true;
        self.changed.notify_one();
    }

    /// Waits until the thread has seen to all that is queued. The queue is closed.
    pub(super) fn finish(&self) {
        let thread = self.line().thread.take();
        if let Some(thread) = thread {
            // A panic of a call was caught and reported to its issuer.
            let _ = thread.join();
        }
    }

    /// The first in the line, when there is one; `None` when there will be none.
    fn next(&self) -> Option<Job> {
        let mut line = self.line();
        loop {
            if let Some(job) = line.jobs.pop_front() {
                return Some(job);
            }
            if line.closed {
                return None;
            }
            line = self.changed.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Marks the first job as done.
    fn advance(&self) {
        let _line = self.line();
        self.length.store(self.length.load(Acquire) - 1, Release);
    }
}

/// The thread's loop.
fn make_calls(core: &Core) {
    while let Some(job) = core.queue.next() {
        match job {
            Job::Calls { calls, options, promise } => {
                // SAFETY-relevant order: the memory is the issuer's again only when the promise is kept.
                let made = catch_unwind(AssertUnwindSafe(|| core.make(&calls, &options)));
                core.queue.advance();
                promise.keep(made.unwrap_or_else(|_| Err(core.broken())));
            }
            Job::Turn(turn) => {
                turn.set(TurnState::Granted);
                turn.wait(TurnState::Over);
                core.queue.advance();
            }
        }
    }
}
