//! Who looks after connections while no call is under way.
//!
//! A call drives its messages itself. Between calls somebody must still repeat what a peer has missed, acknowledge what
//! it repeats, answer rails that come back, and keep idle connections alive (Apple's die after half an hour). That is
//! one thread of an endpoint, which sleeps nearly always and stands back while calls are made.

use super::{endpoint::lock, engine::Engine};
use std::{
    sync::{Arc, Condvar, Mutex, PoisonError, Weak},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Between looks while something is unacknowledged, or calls have just been made.
const BUSY: Duration = Duration::from_millis(2);
/// Between looks at idle connections.
const IDLE: Duration = Duration::from_millis(100);

/// The thread, and how it is told to end.
#[derive(Debug)]
pub(super) struct Tender {
    ending: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Tender {
    /// Starts it. Without a thread, which the system may refuse, calls still do all that they need.
    pub(super) fn start(engine: &Arc<Mutex<Engine>>, keep_alive: Duration) -> Tender {
        let ending = Arc::new((Mutex::new(false), Condvar::new()));
        let (told, engine) = (Arc::clone(&ending), Arc::downgrade(engine));
        let thread = thread::Builder::new()
            .name("tbccl-rdma".into())
            .spawn(move || tend(&told, &engine, keep_alive))
            .ok();
        Tender { ending, thread }
    }
}

impl Drop for Tender {
    fn drop(&mut self) {
        *self.ending.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ending.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn tend(ending: &(Mutex<bool>, Condvar), engine: &Weak<Mutex<Engine>>, keep_alive: Duration) {
    let mut pause = IDLE;
    let mut seen = 0;
    loop {
        let ended = ending.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = ending.1.wait_timeout_while(ended, pause, |ended| !*ended);
        if *waited.unwrap_or_else(PoisonError::into_inner).0 {
            return;
        }
        let Some(engine) = engine.upgrade() else { return };
        let mut engine = lock(&engine);
        // Calls are being made: they do it all.
        if engine.polls.polls != seen {
            seen = engine.polls.polls;
            pause = if engine.rules.completions_confirm() { IDLE } else { BUSY };
            continue;
        }
        let busy = engine.tend(keep_alive.min(Duration::from_secs(3600)));
        seen = engine.polls.polls;
        pause = if busy { BUSY } else { IDLE.min(keep_alive / 2) };
    }
}
