//! Waiting without work: spin, then yield, then sleep.
//!
//! Spinning is right while the peer works on another core: a cache line arrives in a tenth of a microsecond.
//! With more ranks than cores the peer may need this core, so the waiter yields at once. A wait of more than
//! a few milliseconds continues in short sleeps, so that an idle rank costs next to nothing. Where a device
//! can wake the rank, a [`Sleeper`] sleeps longer and returns on an event.

use crate::ring::end_speculation;
use std::{
    hint,
    time::{Duration, Instant},
};

/// Way to sleep until a message may have arrived.
pub trait Sleeper: std::fmt::Debug + Send + Sync {
    /// Sleeps until a link may make progress, for at most `max`.
    fn sleep(&self, max: Duration);
}

/// Duration of the phases of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPolicy {
    /// Empty polls to spin through before yielding; 0 when ranks share cores.
    pub spin_polls: u32,
    /// Time between polls while spinning, after the first hundred; zero for none.
    pub poll_interval: Duration,
    /// Time of yielding before the first sleep.
    pub yield_for: Duration,
    /// Maximum time of one sleep. With cores of its own, a rank also sleeps no longer than a part of the time
    /// that it has waited, so that what it waits for is not found much later than it came.
    pub max_sleep: Duration,
}

impl WaitPolicy {
    /// Polls that suffice for a message under way between processes of one host, about 10 us. More of them
    /// keep other threads from the core.
    pub const BRIEF_SPIN_POLLS: u32 = 300;

    /// Returns the policy for `ranks` ranks that share `cores` cores.
    #[must_use]
    pub fn for_host(ranks: u32, cores: u32) -> WaitPolicy {
        // Many sleepers on one core would disturb the ranks that work, so each of them wakes less often.
        let oversubscription = ranks / (16 * cores.max(1));
        WaitPolicy {
            spin_polls: if ranks <= cores { 2000 } else { 0 },
            poll_interval: Duration::ZERO,
            yield_for: Duration::from_millis(2),
            max_sleep: Duration::from_millis(1) * oversubscription.clamp(1, 100),
        }
    }
}

/// State of one wait, from its first empty poll on.
#[derive(Debug)]
pub struct Waiter<'s> {
    policy: WaitPolicy,
    sleeper: Option<&'s dyn Sleeper>,
    /// Empty polls since the last poll that made progress.
    polls: u32,
    /// Time at which yielding began.
    yielding_since: Option<Instant>,
    /// Time at which [`Waiter::idle`] last returned true.
    last_check: Option<Instant>,
    /// Length of the next sleep.
    sleep: Duration,
}

impl<'s> Waiter<'s> {
    /// Time between two calls of [`Waiter::idle`] that return true.
    const CHECK_INTERVAL: Duration = Duration::from_millis(5);
    /// Polls before the processor gets the hint that this is a spin loop.
    const EAGER_POLLS: u32 = 100;
    const FIRST_SLEEP: Duration = Duration::from_micros(20);
    /// The part of a wait that one sleep may take, where no other rank wants the core.
    const SLEEP_PART: u32 = 16;

    /// Returns a waiter that has not waited yet.
    #[must_use]
    pub fn new(policy: WaitPolicy, sleeper: Option<&'s dyn Sleeper>) -> Waiter<'s> {
        Waiter { policy, sleeper, polls: 0, yielding_since: None, last_check: None, sleep: Self::FIRST_SLEEP }
    }

    /// Returns how long this wait has lasted, without the time of spinning.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.yielding_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Ends the wait, after a poll that made progress.
    #[inline]
    pub fn reset(&mut self) {
        if self.polls != 0 {
            *self = Waiter::new(self.policy, self.sleeper);
        }
    }

    /// Spends a little time after a poll that found nothing.
    ///
    /// Returns true about every 5 ms of a long wait, when the caller should check its deadline and its peers.
    #[inline]
    #[must_use]
    pub fn idle(&mut self) -> bool {
        self.polls = self.polls.saturating_add(1);
        if self.polls <= self.policy.spin_polls {
            // The hint was measured to cost 25 to 140 ns, more than a cache line takes to arrive.
            if self.polls > Self::EAGER_POLLS {
                self.pause();
            } else {
                end_speculation();
            }
            return false;
        }
        self.idle_long()
    }

    #[inline]
    fn pause(&self) {
        hint::spin_loop();
        if !self.policy.poll_interval.is_zero() {
            let began = Instant::now();
            while began.elapsed() < self.policy.poll_interval {
                hint::spin_loop();
            }
        }
    }

    #[cold]
    fn idle_long(&mut self) -> bool {
        let now = Instant::now();
        let since = *self.yielding_since.get_or_insert(now);
        if now - since < self.policy.yield_for {
            std::thread::yield_now();
        } else {
            match self.sleeper {
                Some(sleeper) => sleeper.sleep(self.sleep),
                None => std::thread::sleep(self.sleep),
            }
            self.sleep = (self.sleep * 2).min(self.longest_sleep(now - since));
        }
        let last_check = *self.last_check.get_or_insert(now);
        if now - last_check >= Self::CHECK_INTERVAL {
            self.last_check = Some(now);
            return true;
        }
        false
    }

    /// Returns the longest sleep after a wait of this time.
    fn longest_sleep(&self, waited: Duration) -> Duration {
        let spins = self.policy.spin_polls > 0;
        let part = if spins { waited / Self::SLEEP_PART } else { Duration::MAX };
        part.max(Self::FIRST_SLEEP).min(self.policy.max_sleep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_cores_are_yielded_at_once() {
        assert_eq!(WaitPolicy::for_host(4, 2).spin_polls, 0);
        assert!(WaitPolicy::for_host(2, 2).spin_polls > 0);
    }

    #[test]
    fn a_long_wait_asks_for_a_look_around_and_starts_afresh_after_a_reset() {
        let mut waiter = Waiter::new(WaitPolicy::for_host(2, 2), None);
        let mut polls = 0u32;
        while !waiter.idle() {
            polls += 1;
            assert!(polls < 100_000_000, "never asked");
        }
        assert!(polls >= 2000);
        assert!(waiter.waited() >= Duration::from_millis(5));
        waiter.reset();
        assert_eq!(waiter.waited(), Duration::ZERO);
        assert!((0..2000).all(|_| !waiter.idle()));
    }

    #[test]
    fn who_can_be_woken_sleeps_by_the_driver_and_longer_each_time() {
        #[derive(Debug, Default)]
        struct Slept(std::sync::Mutex<Vec<Duration>>);
        impl Sleeper for Slept {
            fn sleep(&self, max: Duration) {
                self.0.lock().expect("one thread").push(max);
            }
        }
        let slept = Slept::default();
        let policy = WaitPolicy { max_sleep: Duration::from_millis(20), ..WaitPolicy::for_host(4, 2) };
        let mut waiter = Waiter::new(policy, Some(&slept));
        while slept.0.lock().expect("one thread").len() < 20 {
            let _ = waiter.idle();
        }
        let slept = slept.0.lock().expect("one thread");
        assert_eq!((slept[0], slept[1]), (Duration::from_micros(20), Duration::from_micros(40)));
        assert_eq!(slept[19], Duration::from_millis(20));
    }

    /// On devices without events, a message that came after 2.0 ms was once found after 2.5 ms.
    #[test]
    fn who_has_a_core_sleeps_for_a_sixteenth_of_its_wait_at_most() {
        let waiter = Waiter::new(WaitPolicy::for_host(2, 2), None);
        for (waited_us, longest_us) in [(100, 20), (2_000, 125), (8_000, 500), (1_000_000, 1_000)] {
            let longest = waiter.longest_sleep(Duration::from_micros(waited_us));
            assert_eq!(longest, Duration::from_micros(longest_us));
        }
        let shares = Waiter::new(WaitPolicy::for_host(4, 2), None);
        assert_eq!(shares.longest_sleep(Duration::from_millis(2)), Duration::from_millis(1));
    }
}
