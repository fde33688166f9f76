//! Short sleeps of waiting threads, ended by the completion of any request.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};
use transport::Sleeper;

/// Parked threads. A wake-up just before a thread parks may be lost; sleeps are short.
#[derive(Debug, Default)]
pub(super) struct Parker {
    sleepers: AtomicU32,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Parker {
    /// Wakes all parked threads. Costs one load if there are none.
    #[inline]
    pub(super) fn wake(&self) {
        if self.sleepers.load(SeqCst) != 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.woken.notify_all();
        }
    }
}

impl Sleeper for Parker {
    fn sleep(&self, timeout: Duration) {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, SeqCst);
        drop(self.woken.wait_timeout(lock, timeout));
        self.sleepers.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_sleep_ends_by_itself_or_when_it_is_woken() {
        let parker = Parker::default();
        parker.wake();
        parker.sleep(Duration::from_millis(1));
        let began = Instant::now();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| parker.sleep(Duration::from_secs(20)));
            while !sleeper.is_finished() {
                parker.wake();
                std::thread::yield_now();
            }
        });
        assert!(began.elapsed() < Duration::from_secs(20));
        assert_eq!(parker.sleepers.load(SeqCst), 0);
    }
}
