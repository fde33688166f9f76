//! The program's handle of issued calls.

use super::Core;
use crate::{error::Result, forks};
use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};
use transport::forks::Origin;

/// Issued calls that are carried out later. Dropping it does not cancel them: their memory is in use until
/// they are done.
#[derive(Clone, Debug)]
#[must_use = "the calls' memory is in use until this says that they are done"]
pub struct Pending(Arc<Slot>);

#[derive(Debug)]
struct Slot {
    state: Mutex<State>,
    done: Condvar,
    /// The communicator whose queue has the calls.
    core: Weak<Core>,
    /// The process that issued the calls.
    origin: Origin,
    /// Time at which the calls were issued.
    since: Instant,
}

#[derive(Debug, Default)]
struct State {
    result: Option<Result<()>>,
    /// Number of threads that sleep until the result is there. Without any, no system call wakes them.
    sleepers: u32,
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    /// Returns the result if the calls are done. Once done, the result stays the same. In a forked child it
    /// is an error.
    #[must_use]
    pub fn test(&self) -> Option<Result<()>> {
        if let Err(error) = forks::check(self.0.origin) {
            return Some(Err(error));
        }
        self.0.state().result.clone()
    }

    /// Whether the calls are done.
    pub(super) fn is_done(&self) -> bool {
        self.0.state().result.is_some()
    }

    /// Time since the calls were issued.
    pub(super) fn age(&self) -> Duration {
        self.0.since.elapsed()
    }

    /// Makes the calls on this thread, after those that are queued before them, unless another thread is
    /// making one of them: returns at once then. In a forked child, or if the communicator is closed, does
    /// nothing.
    pub fn run_here(&self) {
        if forks::check(self.0.origin).is_ok()
            && let Some(core) = self.0.core.upgrade()
        {
            core.run_here(self);
        }
    }

    /// Waits until the calls are done, for up to `timeout` or without limit; the calls' own time limits end
    /// them in either case. Returns `None` if they are not done in time. In a forked child the result is an
    /// error.
    ///
    /// Without a limit, makes the calls on this thread as [`Pending::run_here`] does.
    #[must_use]
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Result<()>> {
        if let Err(error) = forks::check(self.0.origin) {
            return Some(Err(error));
        }
        if timeout.is_none() {
            self.run_here();
        }
        // A deadline beyond the clock's range is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.0.state();
        while state.result.is_none() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            state.sleepers += 1;
            state = match left {
                None => self.0.done.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => self.0.done.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
            state.sleepers -= 1;
        }
        state.result.clone()
    }
}

/// The other end of a [`Pending`]: its owner must deliver a result.
#[derive(Debug)]
pub(super) struct Promise(Arc<Slot>);

impl Promise {
    /// Makes the two ends for calls of a communicator.
    pub(super) fn new(core: Weak<Core>) -> (Promise, Pending) {
        let (state, done) = (Mutex::default(), Condvar::new());
        let slot = Arc::new(Slot { state, done, core, origin: Origin::here(), since: Instant::now() });
        (Promise(Arc::clone(&slot)), Pending(slot))
    }

    /// Time since the calls were issued.
    pub(super) fn age(&self) -> Duration {
        self.0.since.elapsed()
    }

    /// Delivers the result of the calls.
    pub(super) fn complete(self, result: Result<()>) {
        let mut state = self.0.state();
        state.result = Some(result);
        if state.sleepers > 0 {
            self.0.done.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn a_result_is_told_to_all_who_wait_and_again_and_again() {
        let (promise, pending) = Promise::new(Weak::new());
        assert!(pending.test().is_none());
        assert!(pending.wait(Some(Duration::from_millis(5))).is_none(), "not in time");
        assert!(pending.wait(Some(Duration::ZERO)).is_none());
        std::thread::scope(|scope| {
            let waiters = [None, Some(Duration::MAX)].map(|timeout| {
                let pending = pending.clone();
                scope.spawn(move || pending.wait(timeout))
            });
            promise.complete(Err(Error::LauncherGone));
            for waiter in waiters {
                assert!(matches!(waiter.join(), Ok(Some(Err(Error::LauncherGone)))));
            }
        });
        for _ in 0..2 {
            assert!(matches!(pending.test(), Some(Err(Error::LauncherGone))));
        }
    }
}
