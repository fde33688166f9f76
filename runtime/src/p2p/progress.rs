//! The thread that moves mail while nobody waits for it.
//!
//! A rank may have sent a message and be busy with something else, while its receiver asks for the bytes. So there is a
//! thread from the first letter on. It stands back while somebody waits, since who waits moves everything; it polls the less
//! often the longer nothing has moved, a thousand times a second at least; and it sleeps for good once no letter has been
//! under way for a while.

use super::{Core, engine::ProgressThread};
use std::{
    sync::{Arc, PoisonError, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// For so long it yields rather than sleeps.
const YIELD_FOR: Duration = Duration::from_micros(100);
/// Between looks at how others do.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Without a letter for so long, it sleeps until there is one.
const PARK_AFTER: Duration = Duration::from_millis(50);

/// Moves mail until it is dismissed.
pub(super) fn run(core: &Arc<Core>) {
    let mut still_since = Instant::now();
    let (mut pause, mut looked) = (FIRST_PAUSE, Instant::now());
    loop {
        let Ok(mut engine) = core.engine.lock() else { return };
        let Some(mail) = &mut *engine else { return };
        if mail.progress_thread == ProgressThread::Stopping {
            return;
        }
        let now = Instant::now();
        if !mail.is_busy() && now - still_since > PARK_AFTER {
            mail.progress_thread = ProgressThread::Parked;
            let is_asleep = |engine: &mut Option<_>| {
                engine
                    .as_ref()
                    .is_some_and(|mail: &super::Engine| mail.progress_thread == ProgressThread::Parked)
            };
            drop(core.work.wait_while(engine, is_asleep).unwrap_or_else(PoisonError::into_inner));
            // Whoever has woken us is about to wait, most likely.
            (still_since, pause) = (Instant::now(), LONGEST_PAUSE / 4);
            thread::sleep(FIRST_PAUSE);
            continue;
        }
        let others_wait = core.waiters.load(Relaxed) > 0;
        if others_wait || !mail.is_busy() {
            pause = LONGEST_PAUSE;
            if others_wait {
                still_since = now;
            }
        } else {
            if mail.drive() {
                (still_since, pause) = (now, FIRST_PAUSE);
            }
            if now - looked > LOOK_EVERY {
                looked = now;
                mail.check_all_peers();
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
