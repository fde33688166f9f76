//! Policy of waking the queue's thread.
//!
//! To wake a thread takes longer than a small call, and a program that waits for a call at once makes it
//! itself. So the thread naps after a job: it looks for jobs at intervals, and a new one does not wake it. It
//! leaves a job that is younger than [`SOON`] to the program until the next nap. An older one is late, since
//! the program has not waited for it. The next jobs then wake the thread at once: twice as many as after the
//! job that was late before, or until the program waits soon again. Without jobs the thread sleeps until it
//! is woken. Naps become longer while the program waits for all its jobs.
//!
//! Invariant: the thread sleeps without a limit only while no naps are left, and then every new job wakes it.
//! So no job waits for longer than two naps, unless another one runs; the end of that one wakes the thread.
//!
//! This module holds no lock and does not sleep: the queue does.

use std::time::Duration;

/// Length of the shortest nap. Systems make it longer, Linux by about 50 us.
const NAP: Duration = Duration::from_micros(50);

/// Jobs that the program must have waited for before a nap is longer by another [`NAP`], and the longest nap.
/// A nap costs the program's thread up to 30 us where both share a core of a virtual machine.
const JOBS_PER_NAP: u32 = 32;
const LONGEST_NAP: Duration = Duration::from_micros(400);

/// Age of a job up to which a program that waits for it has waited at once. A functional collective of torch
/// is waited for after 25 us.
const SOON: Duration = Duration::from_micros(60);

/// Naps without a job before the thread sleeps until it is woken.
const IDLE_NAPS: u32 = 20;

/// Jobs that wake the thread after a late one: at least, and at most.
const EAGER_JOBS: (u32, u32) = (16, 4096);

/// State of the policy. The thread sleeps until it is woken at first.
#[derive(Debug)]
pub(super) struct Wake {
    /// Naps without a job that are left; 0: the thread sleeps until it is woken.
    naps_left: u32,
    /// Jobs from now on that wake the thread.
    eager_left: u32,
    /// Jobs that wake the thread after the next late one.
    next_eager: u32,
    /// Jobs that the program has waited for since the last late one.
    waited_for: u32,
}

impl Default for Wake {
    fn default() -> Wake {
        Wake { naps_left: 0, eager_left: 0, next_eager: EAGER_JOBS.0, waited_for: 0 }
    }
}

impl Wake {
    /// Records a new job, and returns whether it must wake the thread.
    pub(super) fn pushed(&mut self) -> bool {
        let is_eager = self.eager_left > 0;
        self.eager_left = self.eager_left.saturating_sub(1);
        is_eager || self.naps_left == 0
    }

    /// Records that a waiting thread has taken a job before the queue's thread.
    pub(super) fn taken_by_waiter(&mut self) {
        self.next_eager = EAGER_JOBS.0;
        self.waited_for = self.waited_for.saturating_add(1);
        self.stay_awake();
    }

    /// Whether a nap leaves a job of this age to the program.
    pub(super) fn leaves(age: Duration) -> bool {
        age < SOON
    }

    /// Records that the program waits for a job of this age, which the queue's thread has taken.
    pub(super) fn waited_for_taken(&mut self, age: Duration) {
        if age < SOON {
            self.eager_left = 0;
            self.next_eager = EAGER_JOBS.0;
        }
    }

    /// Records that the queue's thread has taken a job, after a nap if `late`.
    pub(super) fn taken_by_thread(&mut self, late: bool) {
        if late {
            self.waited_for = 0;
            self.eager_left = self.next_eager;
            self.next_eager = (self.next_eager * 2).min(EAGER_JOBS.1);
        }
        self.stay_awake();
    }

    fn stay_awake(&mut self) {
        self.naps_left = if self.eager_left > 0 { 0 } else { IDLE_NAPS };
    }

    /// Returns how long the thread sleeps if nothing wakes it; `None` without a limit.
    pub(super) fn sleep(&self) -> Option<Duration> {
        let length = NAP * (1 + self.waited_for / JOBS_PER_NAP);
        (self.naps_left > 0).then_some(length.min(LONGEST_NAP))
    }

    /// Records a nap at whose end there was no job to run.
    pub(super) fn napped_in_vain(&mut self) {
        self.naps_left = self.naps_left.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a policy whose thread naps.
    fn napping() -> Wake {
        let mut wake = Wake::default();
        assert!(wake.pushed(), "asleep until woken");
        wake.taken_by_thread(false);
        assert_eq!(wake.sleep(), Some(NAP));
        wake
    }

    #[test]
    fn who_waits_at_once_wakes_no_thread() {
        let mut wake = napping();
        for _ in 0..100 {
            assert!(!wake.pushed());
            wake.taken_by_waiter();
            assert!(wake.sleep().is_some());
        }
    }

    #[test]
    fn naps_become_longer_until_a_job_is_late() {
        let mut wake = napping();
        for _ in 0..JOBS_PER_NAP {
            wake.taken_by_waiter();
        }
        assert_eq!(wake.sleep(), Some(2 * NAP));
        for _ in 0..100 * JOBS_PER_NAP {
            wake.taken_by_waiter();
        }
        assert_eq!(wake.sleep(), Some(LONGEST_NAP));
        wake.taken_by_thread(true);
        for _ in 0..EAGER_JOBS.0 {
            wake.pushed();
        }
        wake.taken_by_waiter();
        assert_eq!(wake.sleep(), Some(NAP));
    }

    #[test]
    fn who_waits_soon_for_what_the_thread_has_taken_is_not_woken_for() {
        let mut wake = napping();
        wake.taken_by_thread(true);
        assert!(wake.pushed(), "eager after a late job");
        wake.taken_by_thread(false);
        wake.waited_for_taken(Duration::from_millis(1));
        assert!(wake.pushed(), "the program has waited late");
        wake.taken_by_thread(false);
        wake.waited_for_taken(Duration::from_micros(5));
        assert!(wake.pushed(), "the thread sleeps without a limit");
        wake.taken_by_thread(false);
        assert!(!wake.pushed());
    }

    #[test]
    fn late_jobs_become_rare_where_programs_do_not_wait() {
        let mut wake = napping();
        let mut late = 0;
        for _ in 0..100_000 {
            let wakes = wake.pushed();
            late += u32::from(!wakes);
            wake.taken_by_thread(!wakes);
            assert_eq!(
                wake.sleep().is_some(),
                wake.eager_left == 0,
                "a nap only where a job may not wake it"
            );
        }
        assert!((8..40).contains(&late), "{late} late jobs");
    }

    #[test]
    fn a_thread_without_jobs_sleeps_until_it_is_woken() {
        let mut wake = napping();
        for _ in 0..IDLE_NAPS {
            assert_eq!(wake.sleep(), Some(NAP));
            wake.napped_in_vain();
        }
        assert_eq!(wake.sleep(), None);
        assert!(wake.pushed());
    }
}
