//! Short sleeps that end when a letter is done, whoever moved it.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};
use transport::Sleeper;

/// Where threads sleep that wait for letters. A wake that comes just before a sleep begins may be missed; sleeps are short.
#[derive(Debug, Default)]
pub(super) struct Nap {
    sleepers: AtomicU32,
    bed: Mutex<()>,
    woken: Condvar,
}

impl Nap {
    /// Ends all sleeps. Costs next to nothing when nobody sleeps.
    #[inline]
    pub(super) fn wake(&self) {
        if self.sleepers.load(SeqCst) != 0 {
            drop(self.bed.lock().unwrap_or_else(PoisonError::into_inner));
            self.woken.notify_all();
        }
    }
}

impl Sleeper for Nap {
    fn sleep(&self, most: Duration) {
        let bed = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, SeqCst);
        drop(self.woken.wait_timeout(bed, most));
        self.sleepers.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_sleep_ends_by_itself_or_when_it_is_woken() {
        let nap = Nap::default();
        nap.wake();
        nap.sleep(Duration::from_millis(1));
        let began = Instant::now();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| nap.sleep(Duration::from_secs(20)));
            while !sleeper.is_finished() {
                nap.wake();
                std::thread::yield_now();
            }
        });
        assert!(began.elapsed() < Duration::from_secs(20));
        assert_eq!(nap.sleepers.load(SeqCst), 0);
    }
}
