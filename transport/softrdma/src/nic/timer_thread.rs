//! The thread that runs the timer queue while the program does not poll.
//!
//! The thread starts when something is first scheduled: on a fabric whose cables take no time, and on which
//! nothing waits, there is no such thread. It sleeps until the earliest time in the [timer
//! queue](super::timer_queue); a process that schedules an earlier time wakes it. It spins for the last
//! microseconds, because no sleep is that exact.
//!
//! A program that polls runs the queue itself, and better without a thread that competes for its core. So
//! while the program is seen to poll, the thread has slack: it may be late, and is not even woken for each
//! message.
//!
//! Invariants: a NIC has at most one timer thread. The thread runs no signal handler of the program. It is
//! joined before the rest of its NIC is dropped. A forked child has no thread until it starts its own.
//!
//! # Safety
//! The thread has the address of its handler, which stays valid until the [`TimerThread`] is dropped, and the
//! drop joins the thread. Futexes are words in mapped files.

use crate::{
    clock::now,
    shm::{TimerRecord, View},
    sync::AtomicU32,
};
use std::{
    fmt, hint, ptr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
        },
    },
    thread::{self, JoinHandle},
};

/// Slack of the thread while the program polls, in nanoseconds.
const SLACK: u64 = 1_000_000;

/// Nanoseconds before an entry is due at which the thread stops sleeping and spins.
const SPIN_LEAD: u64 = 30_000;

/// Times that the thread looks again at an empty queue before it sleeps until it is woken.
const EMPTY_CHECKS: u32 = 16;

/// Nanoseconds after which the thread gets slack again, to see whether the program polls after all.
///
/// While the thread runs the whole queue, at worst on the program's core, the program may not get to its
/// polls.
const POLL_PROBE_PERIOD: u64 = 20_000_000;

/// Nanoseconds after the program has prepared to sleep in which a poll does not mean that it polls on.
///
/// It polls once more before it sleeps: for a completion that came before the queue was armed.
const LAST_POLL: u64 = 50_000;

/// Nanoseconds between two repairs of notifications whose sender died.
pub(super) const REPAIR_PERIOD: u64 = 50_000_000;

/// The work of a timer thread.
pub(super) trait TimerHandler: Send + Sync {
    /// Runs the entries that are due at `now`.
    fn expire(&self, now: u64);

    /// Runs the maintenance that a polling program runs while its polls find nothing.
    fn maintain(&self);

    /// Whether the program may sleep on an event channel.
    fn has_event_channels(&self) -> bool;

    /// Delivers notifications whose sender died midway.
    fn repair_notifications(&self);
}

/// The timer thread of a NIC.
#[derive(Debug)]
pub(super) struct TimerThread {
    shared: Arc<Shared>,
    handler: OnceLock<Handler>,
    is_started: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State that the thread shares with the program's threads.
#[derive(Debug)]
struct Shared {
    own: Arc<View>,
    must_end: AtomicBool,
    /// Time of the program's last poll that found nothing although something was due later.
    polled_at: AtomicU64,
    /// Time after which a poll means that the program polls: that at which the thread last ran the queue, or
    /// the end of [`LAST_POLL`].
    expired_at: AtomicU64,
    /// Time of the last repair of notifications.
    repaired_at: AtomicU64,
    /// Time at which the thread gets slack again.
    next_probe: AtomicU64,
}

/// The address of the thread's handler.
#[derive(Clone, Copy)]
struct Handler(*const dyn TimerHandler);

// SAFETY: the handler itself is `Send` and `Sync`.
unsafe impl Send for Handler {}
// SAFETY: as above.
unsafe impl Sync for Handler {}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TimerThread {
    /// Returns a thread that is not started yet, for the process that owns the file `own`.
    pub(super) fn new(own: Arc<View>) -> TimerThread {
        own.header().timers.slack.store(SLACK, Relaxed);
        let shared = Shared {
            own,
            must_end: AtomicBool::new(false),
            polled_at: AtomicU64::default(),
            expired_at: AtomicU64::default(),
            repaired_at: AtomicU64::default(),
            next_probe: AtomicU64::default(),
        };
        TimerThread {
            shared: Arc::new(shared),
            handler: OnceLock::new(),
            is_started: AtomicBool::new(false),
            thread: Mutex::default(),
        }
    }

    /// Sets the handler. Later calls have no effect.
    ///
    /// # Safety
    /// `handler` must stay valid until this value is dropped.
    pub(super) unsafe fn set_handler(&self, handler: *const dyn TimerHandler) {
        let _ = self.handler.set(Handler(handler));
    }

    /// Starts the thread if it does not run. Where it can't be started, the program must poll.
    #[inline]
    pub(super) fn ensure_started(&self) {
        if !self.is_started.load(Acquire) {
            self.start();
        }
    }

    #[cold]
    fn start(&self) {
        let Some(&handler) = self.handler.get() else { return };
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() || self.shared.must_end.load(Acquire) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let body = move || {
            let handler = handler;
            // SAFETY: valid until the `TimerThread` is dropped, by the promise of `set_handler`; its drop
            // joins this thread.
            shared.run(unsafe { &*handler.0 });
        };
        let started = with_signals_blocked(|| thread::Builder::new().name("softrdma".into()).spawn(body));
        *thread = started.ok();
        self.is_started.store(true, Release);
    }

    /// Notes that the program polls, and has found nothing yet although something is due later.
    pub(super) fn note_poll(&self, now: u64) {
        self.shared.polled_at.store(now, Relaxed);
    }

    /// Notes that the program is about to sleep: ends the slack, and wakes the thread if it would be late.
    pub(super) fn expect_sleep(&self) {
        self.ensure_started();
        self.shared.expired_at.store(now() + LAST_POLL, Relaxed);
        self.shared.next_probe.store(u64::MAX, Relaxed);
        let record = self.shared.record();
        let had_slack = record.slack.swap(0, SeqCst) != 0;
        if had_slack && record.sleeps_until.load(SeqCst) > record.due.load(SeqCst) {
            wake(&record.wake_word);
        }
    }
}

impl Drop for TimerThread {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        self.shared.must_end.store(true, SeqCst);
        if let Some(thread) = thread {
            wake(&self.shared.record().wake_word);
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn record(&self) -> &TimerRecord {
        &self.own.header().timers
    }

    /// The body of the thread.
    fn run(&self, handler: &dyn TimerHandler) {
        // SAFETY: sets a number of this thread: nanoseconds that the kernel may wake it later than asked.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
        let record = self.record();
        let mut empty_checks = 0;
        loop {
            record.sleeps_until.store(0, SeqCst);
            self.repair_periodically(handler);
            let woken = record.wake_word.load(SeqCst);
            if self.must_end.load(SeqCst) {
                return;
            }
            let due = record.due.load(SeqCst);
            if due == u64::MAX {
                empty_checks += 1;
                let rests = if handler.has_event_channels() { now() + REPAIR_PERIOD } else { u64::MAX };
                let until = if empty_checks > EMPTY_CHECKS { rests } else { now() + SLACK };
                sleep(record, woken, due, until);
            } else {
                empty_checks = 0;
                self.wait_and_expire(handler, woken, due);
            }
        }
    }

    /// While the program may sleep on an event channel: repairs notifications once in a while.
    fn repair_periodically(&self, handler: &dyn TimerHandler) {
        let time = now();
        if handler.has_event_channels() && time > self.repaired_at.load(Relaxed) + REPAIR_PERIOD {
            self.repaired_at.store(time, Relaxed);
            handler.repair_notifications();
        }
    }

    /// Sleeps and spins until something is due, and runs the queue unless the program does.
    fn wait_and_expire(&self, handler: &dyn TimerHandler, woken: u32, due: u64) {
        let record = self.record();
        let slack = record.slack.load(Relaxed);
        let limit = if slack == 0 { due.saturating_sub(SPIN_LEAD) } else { due.saturating_add(slack) };
        let mut time = now();
        if time < limit {
            return sleep(record, woken, due, limit);
        }
        while slack == 0 && time < due {
            if self.polled_at.load(Relaxed) > self.expired_at.load(Relaxed) {
                record.slack.store(SLACK, Relaxed);
                return;
            }
            if record.due.load(Relaxed) != due {
                return;
            }
            hint::spin_loop();
            time = now();
        }
        if slack != 0 {
            record.slack.store(0, Relaxed);
            self.next_probe.store(time + POLL_PROBE_PERIOD, Relaxed);
        } else if time > self.next_probe.load(Relaxed) {
            record.slack.store(SLACK, Relaxed);
        }
        handler.expire(time);
        self.expired_at.store(now(), Relaxed);
        handler.maintain();
    }
}

/// Runs `body` with all signals blocked. Threads that it starts inherit the mask.
fn with_signals_blocked<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: signal sets are plain memory, which the calls fill and read.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = body();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        result
    }
}

/// Sleeps until `until`, or until the thread is woken after the wake word was `woken`.
fn sleep(record: &TimerRecord, woken: u32, seen_due: u64, until: u64) {
    record.sleeps_until.store(until, SeqCst);
    // From here on, a process that schedules an earlier time wakes the thread.
    if record.due.load(SeqCst) < seen_due {
        return;
    }
    let time = libc::timespec {
        tv_sec: (until / 1_000_000_000) as libc::time_t,
        tv_nsec: (until % 1_000_000_000) as libc::c_long,
    };
    let deadline = if until == u64::MAX { ptr::null() } else { &raw const time };
    // SAFETY: a word that stays mapped, and null or a time that outlives the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            record.wake_word.as_ptr(),
            libc::FUTEX_WAIT_BITSET,
            woken,
            deadline,
            ptr::null::<u32>(),
            libc::FUTEX_BITSET_MATCH_ANY,
        );
    }
}

/// Wakes the timer thread that sleeps on a wake word, of this or of another process.
#[cold]
pub(super) fn wake(wake_word: &AtomicU32) {
    wake_word.fetch_add(1, SeqCst);
    // SAFETY: a word that is mapped for as long as it is borrowed.
    unsafe { libc::syscall(libc::SYS_futex, wake_word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{super::member::tests::open, *};
    use crate::shm::Process;

    /// Counts the calls of the thread, and empties the queue.
    #[derive(Default)]
    struct Counter {
        record: OnceLock<Arc<View>>,
        expired: AtomicU64,
        maintained: AtomicU64,
    }

    impl TimerHandler for Counter {
        fn expire(&self, _now: u64) {
            let view = self.record.get().expect("set before the thread starts");
            view.header().timers.due.store(u64::MAX, SeqCst);
            self.expired.fetch_add(1, SeqCst);
        }

        fn maintain(&self) {
            self.maintained.fetch_add(1, SeqCst);
        }

        fn has_event_channels(&self) -> bool {
            false
        }

        fn repair_notifications(&self) {
            unreachable!("there is no channel");
        }
    }

    /// Returns a thread that calls a counter, after what must be dropped after it.
    fn with_counter() -> (tempfile::TempDir, Process, Box<Counter>, TimerThread) {
        let folder = tempfile::tempdir().expect("a folder");
        let process = Process::join(open(&folder).0, 0).expect("a slot");
        let counter = Box::new(Counter::default());
        counter.record.get_or_init(|| process.own_shared());
        let thread = TimerThread::new(process.own_shared());
        // SAFETY: the tests drop the thread before the box: the last of several variables goes first.
        unsafe { thread.set_handler(&raw const *counter) };
        (folder, process, counter, thread)
    }

    #[test]
    fn the_thread_runs_what_a_sleeping_program_does_not() {
        let (_folder, process, counter, thread) = with_counter();
        let record = &process.own().header().timers;
        record.due.store(now() + 1_000_000, SeqCst);
        thread.expect_sleep();
        while counter.maintained.load(SeqCst) == 0 {
            thread::yield_now();
        }
        assert_eq!(counter.expired.load(SeqCst), 1);
        drop(thread);
        record.due.store(0, SeqCst);
        assert_eq!(counter.expired.load(SeqCst), 1, "the thread has ended");
    }

    /// Messages that arrived while a program slept were once delivered up to 1 ms late, since its last poll
    /// before the sleep gave the thread slack.
    #[test]
    fn the_last_poll_before_a_sleep_gives_no_slack() {
        let (_folder, process, counter, thread) = with_counter();
        let record = &process.own().header().timers;
        record.due.store(now() + 20_000_000, SeqCst);
        thread.expect_sleep();
        let armed = thread.shared.expired_at.load(Relaxed) - LAST_POLL;
        thread.note_poll(armed + 1);
        while counter.maintained.load(SeqCst) == 0 {
            thread::yield_now();
        }
        // Slack that has ended leaves the time at which it is tried again.
        assert_eq!(thread.shared.next_probe.load(Relaxed), u64::MAX);
        drop(thread);
    }
}
