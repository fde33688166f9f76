//! Queued calls, and the threads that make them.
//!
//! Jobs run one at a time, in their order. The queue's thread runs them: it starts with the first job, sleeps
//! while nothing waits, and ends when the queue is closed and empty. A thread that waits for a job without a
//! time limit runs the jobs up to it itself if no other thread is running one (`wake` says why). A running
//! thread holds the communicator only during a call.

use super::{
    Core,
    pending::{Pending, Promise},
    wake::Wake,
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
    Calls(QueuedCalls),
    /// Another thread's use of the communicator.
    Turn(Arc<Turn>),
}

/// One call, or several as a group.
#[derive(Debug)]
struct QueuedCalls {
    calls: Vec<RawCall>,
    options: CallOptions,
    promise: Promise,
}

/// The queue of jobs.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// Number of jobs that wait or run. Written under the lock of the state.
    length: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Whether a thread runs a job, which is no longer among `jobs`.
    is_running: bool,
    wake: Wake,
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
        let (promise, pending) = Promise::new(Arc::downgrade(core));
        Queue::push(core, Job::Calls(QueuedCalls { calls, options: options.clone(), promise }))?;
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
        // A turn is waited for, and only the thread grants it.
        let wakes = state.wake.pushed() || matches!(job, Job::Turn(_));
        state.jobs.push_back(job);
        if wakes {
            queue.changed.notify_one();
        }
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

    /// Waits until no job runs, and takes the first one; `None` once the queue is closed and empty.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        let mut has_napped = false;
        loop {
            if let Some(job) = state.take(has_napped) {
                return Some(job);
            }
            if state.closed && !state.is_running {
                return None;
            }
            (state, has_napped) = self.sleep(state);
        }
    }

    /// Sleeps until the thread is woken, or for a nap. Returns whether a nap has passed.
    fn sleep<'q>(&'q self, state: MutexGuard<'q, State>) -> (MutexGuard<'q, State>, bool) {
        let Some(nap) = state.wake.sleep() else {
            return (self.changed.wait(state).unwrap_or_else(PoisonError::into_inner), false);
        };
        let (mut state, timeout) =
            self.changed.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner);
        let has_napped = timeout.timed_out();
        if has_napped && (state.is_running || state.jobs.is_empty()) {
            state.wake.napped_in_vain();
        }
        (state, has_napped)
    }

    /// Takes the first job if it consists of calls and no job runs.
    fn next_calls(&self) -> Option<QueuedCalls> {
        let mut state = self.state();
        if state.is_running || !matches!(state.jobs.front(), Some(Job::Calls(_))) {
            return None;
        }
        let Some(Job::Calls(calls)) = state.jobs.pop_front() else { return None };
        state.is_running = true;
        state.wake.taken_by_waiter();
        Some(calls)
    }

    /// Marks the running job as done.
    fn advance(&self) {
        let mut state = self.state();
        self.length.store(self.length.load(Acquire) - 1, Release);
        state.is_running = false;
        if state.closed || !state.jobs.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Runs calls on the calling thread until those of `pending` are done, unless another thread runs a job.
    pub(super) fn run_here(&self, core: &Core, pending: &Pending) {
        let mut is_first = true;
        while !pending.is_done() {
            match self.next_calls() {
                Some(calls) => calls.run(core),
                None if is_first => return self.state().wake.waited_for_taken(pending.age()),
                None => return,
            }
            is_first = false;
        }
    }
}

impl State {
    /// Takes the first job for the queue's thread if no job runs. After a nap, leaves a young one to the
    /// program that may wait for it.
    fn take(&mut self, has_napped: bool) -> Option<Job> {
        if self.is_running || (has_napped && self.has_young_job()) {
            return None;
        }
        let job = self.jobs.pop_front()?;
        self.is_running = true;
        self.wake.taken_by_thread(has_napped);
        Some(job)
    }

    fn has_young_job(&self) -> bool {
        match self.jobs.front() {
            Some(Job::Calls(calls)) if !self.closed => Wake::leaves(calls.promise.age()),
            _ => false,
        }
    }
}

impl QueuedCalls {
    /// Makes the calls and completes their promise.
    fn run(self, core: &Core) {
        // SAFETY-relevant order: the memory belongs to the issuer again only when the promise is completed.
        let made = catch_unwind(AssertUnwindSafe(|| core.run_calls(&self.calls, &self.options)));
        core.queue.advance();
        self.promise.complete(made.unwrap_or_else(|_| Err(core.panicked())));
    }
}

/// Runs jobs until the queue is closed and empty.
fn run_queue(core: &Core) {
    while let Some(job) = core.queue.next() {
        match job {
            Job::Calls(calls) => calls.run(core),
            Job::Turn(turn) => {
                turn.set(TurnState::Granted);
                turn.wait(TurnState::Over);
                core.queue.advance();
            }
        }
    }
}

#[cfg(test)]
mod tests;
