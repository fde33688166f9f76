//! Keep-alive thread: serves connections while no call is in progress.
//!
//! A call drives its messages itself. Between calls this thread repeats messages that a peer has missed,
//! acknowledges messages that a peer repeats, answers rails that come back, and keeps idle connections alive
//! (Apple's die after half an hour). A network has one such thread. The thread sleeps nearly all the time,
//! and does nothing while calls are made.

use super::shared_engine::SharedEngine;
use std::{
    sync::{Arc, Condvar, Mutex, PoisonError, Weak},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Time between checks while a message is unacknowledged, or calls have just been made.
const BUSY: Duration = Duration::from_millis(2);
/// Time between checks of idle connections.
const IDLE: Duration = Duration::from_millis(100);

/// Handle of the thread. Dropping the handle stops the thread.
#[derive(Debug)]
pub(super) struct KeepAliveThread {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl KeepAliveThread {
    /// Starts the thread. If the system refuses it, calls still do all that they need.
    pub(super) fn start(engine: &Arc<SharedEngine>, keep_alive: Duration) -> KeepAliveThread {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (thread_stop, engine) = (Arc::clone(&stop), Arc::downgrade(engine));
        let thread = thread::Builder::new()
            .name("tbccl-rdma".into())
            .spawn(move || run(&thread_stop, &engine, keep_alive))
            .ok();
        KeepAliveThread { stop, thread }
    }
}

impl Drop for KeepAliveThread {
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(stop: &(Mutex<bool>, Condvar), engine: &Weak<SharedEngine>, keep_alive: Duration) {
    let mut pause = IDLE;
    let mut last_polls = 0;
    loop {
        let stopped = stop.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = stop.1.wait_timeout_while(stopped, pause, |stopped| !*stopped);
        if *waited.unwrap_or_else(PoisonError::into_inner).0 {
            return;
        }
        let Some(engine) = engine.upgrade() else { return };
        // Calls are in progress, and drive all messages themselves. Waiting for the lock would slow them
        // down.
        let Some(mut engine) = engine.try_lock() else {
            pause = BUSY;
            continue;
        };
        if engine.polls.polls != last_polls {
            last_polls = engine.polls.polls;
            engine.note_calls();
            pause = if engine.rules.completions_confirm() { IDLE } else { BUSY };
            continue;
        }
        let busy = engine.serve_idle(keep_alive.min(Duration::from_secs(3600)));
        last_polls = engine.polls.polls;
        pause = if busy { BUSY } else { IDLE.min(keep_alive / 2) };
    }
}
