//! The thread that progresses messages while no thread waits.
//!
//! A rank may have posted a send and be busy elsewhere while its receiver asks for the bytes; so a thread
//! runs from the first request on. It stands back while a thread waits, since waiting progresses everything.
//! Its polling interval grows to a millisecond while nothing moves, and it parks when no request has been
//! outstanding for a while.

use super::{Core, engine::ProgressThread};
use std::{
    sync::{Arc, PoisonError, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// Time without progress during which the thread yields instead of sleeping.
const YIELD_FOR: Duration = Duration::from_micros(100);
/// Interval between checks of the job's health.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Time without outstanding requests after which the thread parks.
const PARK_AFTER: Duration = Duration::from_millis(50);

/// Progresses messages until the `P2p` is closed.
pub(super) fn run(core: &Arc<Core>) {
    let mut still_since = Instant::now();
    let (mut pause, mut looked) = (FIRST_PAUSE, Instant::now());
    loop {
        let Ok(mut engine) = core.engine.lock() else { return };
        let Some(open) = &mut *engine else { return };
        if open.progress_thread == ProgressThread::Stopping {
            return;
        }
        let now = Instant::now();
        if !open.is_busy() && now - still_since > PARK_AFTER {
            open.progress_thread = ProgressThread::Parked;
            let is_asleep = |engine: &mut Option<_>| {
                engine
                    .as_ref()
                    .is_some_and(|open: &super::Engine| open.progress_thread == ProgressThread::Parked)
            };
            drop(core.work.wait_while(engine, is_asleep).unwrap_or_else(PoisonError::into_inner));
            // The thread that posted the request is probably about to wait.
            (still_since, pause) = (Instant::now(), LONGEST_PAUSE / 4);
            thread::sleep(FIRST_PAUSE);
            continue;
        }
        let others_wait = core.waiters.load(Relaxed) > 0;
        if others_wait || !open.is_busy() {
            pause = LONGEST_PAUSE;
            if others_wait {
                still_since = now;
            }
        } else {
            if open.drive() {
                (still_since, pause) = (now, FIRST_PAUSE);
            }
            if now - looked > LOOK_EVERY {
                looked = now;
                open.check_all_peers();
            }
            if now - still_since < YIELD_FOR {
                drop(engine);
                thread::yield_now();
                continue;
            }
        }
        drop(core.work.wait_timeout(engine, pause).unwrap_or_else(PoisonError::into_inner));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
