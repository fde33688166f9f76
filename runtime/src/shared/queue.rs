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

/// The queue of jobs.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// Number of jobs that wait or run. Written under the lock of the state, or by the queue's thread.
    length: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    closed: bool,
    thread: Option<JoinHandle<()>>,
}

/// A use of the communicator by the thread that asked for it, while the queue is paused.
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

    /// Waits until the turn has reached a state.
    fn wait(&self, wanted: TurnState) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_early = |state: &mut TurnState| *state != wanted;
        drop(self.changed.wait_while(state, is_early).unwrap_or_else(PoisonError::into_inner));
    }
}

/// A granted turn; dropping it resumes the queue.
#[derive(Debug)]
pub(super) struct TurnGuard(Arc<Turn>);

impl Drop for TurnGuard {
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub(super) fn turn(core: &Arc<Core>) -> Result<TurnGuard> {
        let turn = Arc::new(Turn::default());
        Queue::push(core, Job::Turn(Arc::clone(&turn)))?;
        turn.wait(TurnState::Granted);
        Ok(TurnGuard(turn))
    }

    fn push(core: &Arc<Core>, job: Job) -> Result<()> {
        core.control.check_process()?;
        let queue = &core.queue;
        let mut state = queue.state();
        if state.closed {
            return Err(closed());
        }
        if state.thread.is_none() {
            let shared = Arc::clone(core);
            let builder = thread::Builder::new().name(format!("tbccl-calls-{}", core.rank));
            let started = builder.spawn(move || run_queue(&shared));
            state.thread = Some(started.map_err(|e| Error::system("starting the thread for calls", e))?);
        }
        queue.length.store(queue.length.load(Acquire) + 1, Release);
        state.jobs.push_back(job);
        queue.changed.notify_one();
        Ok(())
    }

    /// Closes the queue to further jobs.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_one();
    }

    /// Waits until the thread has run all queued jobs. The queue must be closed.
    pub(super) fn finish(&self) {
        let thread = self.state().thread.take();
        if let Some(thread) = thread {
            // A panic of a call was caught and reported to its issuer.
            let _ = thread.join();
        }
    }

    /// Waits for the first job; `None` once the queue is closed and empty.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Marks the first job as done.
    fn advance(&self) {
        let _state = self.state();
        self.length.store(self.length.load(Acquire) - 1, Release);
    }
}

/// Runs jobs until the queue is closed and empty.
fn run_queue(core: &Core) {
    while let Some(job) = core.queue.next() {
        match job {
            Job::Calls { calls, options, promise } => {
                // SAFETY-relevant order: the memory belongs to the issuer again only when the promise is
                // completed.
                let made = catch_unwind(AssertUnwindSafe(|| core.run_calls(&calls, &options)));
                core.queue.advance();
                promise.complete(made.unwrap_or_else(|_| Err(core.panicked())));
            }
            Job::Turn(turn) => {
                turn.set(TurnState::Granted);
                turn.wait(TurnState::Over);
                core.queue.advance();
            }
        }
    }
}
