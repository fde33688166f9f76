//! The program's handle of issued calls.

use crate::{error::Result, forks};
use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
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
    result: Mutex<Option<Result<()>>>,
    done: Condvar,
    /// The process that issued the calls.
    origin: Origin,
}

impl Slot {
    fn result(&self) -> MutexGuard<'_, Option<Result<()>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.0.result().clone()
    }

    /// Waits until the calls are done, for up to `timeout` or without limit; the calls' own time limits end
    /// them in either case. Returns `None` if they are not done in time. In a forked child the result is an
    /// error.
    #[must_use]
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Result<()>> {
        if let Err(error) = forks::check(self.0.origin) {
            return Some(Err(error));
        }
        // A deadline beyond the clock's range is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut result = self.0.result();
        loop {
            if result.is_some() {
                return result.clone();
            }
            result = match deadline {
                None => self.0.done.wait(result).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    self.0.done.wait_timeout(result, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// The other end of a [`Pending`]: its owner must deliver a result.
#[derive(Debug)]
pub(super) struct Promise(Arc<Slot>);

impl Promise {
    pub(super) fn new() -> (Promise, Pending) {
        let slot = Slot { result: Mutex::default(), done: Condvar::new(), origin: Origin::here() };
        let slot = Arc::new(slot);
        (Promise(Arc::clone(&slot)), Pending(slot))
    }

    /// Delivers the result of the calls.
    pub(super) fn complete(self, result: Result<()>) {
        *self.0.result() = Some(result);
        self.0.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn a_result_is_told_to_all_who_wait_and_again_and_again() {
        let (promise, pending) = Promise::new();
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
