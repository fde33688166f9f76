//! Leaving the job while peers, or threads of this process, still have calls in flight.
//!
//! MLX computes ahead: a program ends while its stream threads still run the calls of a step that nobody
//! reads, and while peers wait in theirs. MLX does not tell when its streams are empty. So a rank that leaves
//! goes on with the calls of its other threads, and tells its peers that it leaves once it makes none. It
//! leaves when all others have told the same, or have died. No rank waits in a call then: one that does has
//! not told the others. A stream that still computes may make a call later, which fails. All programs have
//! ended by then, so nobody reads its result.
//!
//! Some peers go on without this rank, or wait for a call that it will never make. So a rank that has made
//! no call and computed nothing for [`QUIET`], and whose messages have arrived, leaves in any case. Peers
//! that wait for it get an error that names it. After [`LIMIT`], calls in progress are aborted.

use crate::{
    activity::Activity,
    messages::{Departure, Messages},
};
use rustix::time::{ClockId, clock_gettime};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Time without a call or computation after which a rank leaves before its peers.
const QUIET: Duration = Duration::from_secs(3);

/// Maximum time that leaving takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Time between checks of this process.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time over which the use of processors is measured.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// Share of a processor beyond which other threads of this process are taken to compute. Threads that only
/// keep connections alive use less.
const BUSY_SHARE: f64 = 0.1;

/// Waits until this rank may leave. Returns whether no call of this process is in progress.
pub(crate) fn wait_for_peers(messages: &Messages, activity: &Activity) -> bool {
    let began = Instant::now();
    let mut rest = Rest::new(activity);
    let mut departure: Option<Departure> = None;
    while began.elapsed() < LIMIT {
        let quiet_for = rest.observe(activity);
        if activity.ended_calls().is_none() {
            thread::sleep(POLL_INTERVAL);
            continue;
        }
        let announced = departure.get_or_insert_with(|| messages.announce_departure());
        if announced.all_others_leave() || quiet_for >= QUIET && !messages.has_undelivered(announced) {
            break;
        }
        announced.wait_for_next(POLL_INTERVAL);
    }
    activity.ended_calls().is_some()
}

/// How long this process has made no call and computed nothing.
#[derive(Debug)]
struct Rest {
    since: Instant,
    /// Number of calls made; `None` while one is in progress.
    calls: Option<u64>,
    /// Time, and processor time of the other threads, of the latest measurement.
    sample: (Instant, Duration),
}

impl Rest {
    fn new(activity: &Activity) -> Rest {
        let now = Instant::now();
        Rest { since: now, calls: activity.ended_calls(), sample: (now, time_of_other_threads()) }
    }

    /// Looks at the process, and returns how long it has rested.
    fn observe(&mut self, activity: &Activity) -> Duration {
        let calls = activity.ended_calls();
        if calls.is_none() || calls != self.calls || self.has_computed() {
            (self.since, self.calls) = (Instant::now(), calls);
        }
        self.since.elapsed()
    }

    /// Whether other threads have computed since the latest measurement.
    fn has_computed(&mut self) -> bool {
        let (at, used) = self.sample;
        let elapsed = at.elapsed();
        if elapsed < SAMPLE_INTERVAL {
            return false;
        }
        let now_used = time_of_other_threads();
        self.sample = (Instant::now(), now_used);
        now_used.saturating_sub(used).as_secs_f64() > BUSY_SHARE * elapsed.as_secs_f64()
    }
}

/// Returns the processor time that all threads of this process but the calling one have used.
fn time_of_other_threads() -> Duration {
    let used = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    used(ClockId::ProcessCPUTime).saturating_sub(used(ClockId::ThreadCPUTime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_rests_while_its_threads_sleep_and_not_while_they_compute() {
        let activity = Activity::new(false);
        let mut rest = Rest::new(&activity);
        thread::scope(|scope| {
            let computing = scope.spawn(|| while time_of_this_thread() < Duration::from_millis(400) {});
            while !computing.is_finished() {
                rest.observe(&activity);
                thread::sleep(POLL_INTERVAL);
            }
        });
        assert!(rest.observe(&activity) < SAMPLE_INTERVAL * 4, "a thread has computed until now");
        drop(activity.begin());
        assert!(rest.observe(&activity) < SAMPLE_INTERVAL, "a call has just ended");
    }

    fn time_of_this_thread() -> Duration {
        Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a positive time")
    }
}
