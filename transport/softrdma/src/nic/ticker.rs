//! The thread that does what is due while the program does not poll.
//!
//! It is started when something first has a time: on a fabric whose cables take none, and on which nobody waits,
//! there is no such thread. It sleeps until the earliest time on the [agenda](super::agenda); others wake it when
//! they note an earlier one. The last microseconds it does not sleep, because no sleep is that exact.
//!
//! A program that polls does what is due itself, and better without somebody who competes for its core. So while
//! it is seen to poll, the ticker gives it some grace, and is not even woken for each message.
//!
//! Invariants: there is at most one for an adapter. It runs no handler of the program's signals. It is joined
//! before the adapter ends. A forked child has none until it starts its own.
//!
//! # Safety
//! The thread has the address of the adapter, which stays where it is from the first request on, in an `Arc`,
//! and joins the thread before any other part of it is dropped. Futexes are words in mapped files.

use super::{Nic, now, rounds::ROUND};
use crate::{shm::Agenda, sync::AtomicU32};
use std::{
    hint, ptr,
    sync::{
        Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
        },
    },
    thread::{self, JoinHandle},
};

/// How late the ticker may be while the program polls.
pub(super) const GRACE: u64 = 1_000_000;
/// So long before something is due the ticker is awake.
const LEAD: u64 = 30_000;
/// So many times the ticker looks again when the agenda is empty, before it sleeps until it is woken.
const ENCORES: u32 = 16;
/// So often it is tried whether a program that seemed not to poll does after all. While the ticker does all that is
/// due, on the program's core at worst, the program may not get to its polls.
const TRIAL: u64 = 20_000_000;

/// The thread of an adapter.
#[derive(Debug, Default)]
pub(super) struct Ticker {
    is_begun: AtomicBool,
    must_end: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// When the program last polled and found nothing, though there was something to come.
    pub(super) polled_at: AtomicU64,
    /// When the thread last did what was due.
    acted_at: AtomicU64,
    /// When the thread last looked around.
    looked_round_at: AtomicU64,
    /// When the program is to be given grace again.
    next_trial: AtomicU64,
    /// What wakes the thread, once it runs.
    bell: Mutex<Option<Bell>>,
}

/// The address of an adapter's [`Agenda::bell`].
#[derive(Clone, Copy, Debug)]
struct Bell(*const AtomicU32);
// SAFETY: the address of an atomic.
unsafe impl Send for Bell {}

/// The address of an adapter.
struct Address(*const Nic);
// SAFETY: adapters are used by many threads at once.
unsafe impl Send for Address {}

impl Ticker {
    /// Starts the thread, if there is none. Without one the program must poll.
    #[inline]
    pub(super) fn begin(&self, nic: &Nic) {
        if !self.is_begun.load(Acquire) {
            self.start(nic);
        }
    }

    /// Now and then, while somebody may sleep: sees whether they were told all.
    fn look_round(&self, nic: &Nic) {
        let time = now();
        if nic.is_listening() && time > self.looked_round_at.load(Relaxed) + ROUND {
            self.looked_round_at.store(time, Relaxed);
            nic.make_rounds();
        }
    }

    #[cold]
    fn start(&self, nic: &Nic) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() || self.must_end.load(Acquire) {
            return;
        }
        let bell = &raw const nic.own_agenda().bell;
        *self.bell.lock().unwrap_or_else(PoisonError::into_inner) = Some(Bell(bell));
        let address = Address(nic);
        let body = move || {
            let address = address;
            // SAFETY: see the module: the adapter outlives this thread.
            run(unsafe { &*address.0 });
        };
        let started = without_signals(|| thread::Builder::new().name("softrdma".into()).spawn(body));
        *thread = started.ok();
        self.is_begun.store(true, Release);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let bell = *self.bell.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.must_end.store(true, SeqCst);
        if let (Some(thread), Some(Bell(bell))) = (thread, bell) {
            // SAFETY: in the mapped file of the adapter, which is dropped after this.
            ring(unsafe { &*bell });
            let _ = thread.join();
        }
    }
}

/// Runs a body with all signals blocked, for a thread that inherits that.
fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: sets of signals are plain memory; the calls fill and read them.
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

fn run(nic: &Nic) {
    // SAFETY: a number for this thread: how much later than asked for it may be woken, in nanoseconds.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    let agenda = nic.own_agenda();
    let mut encores = 0;
    loop {
        agenda.sleeps_until.store(0, SeqCst);
        nic.ticker.look_round(nic);
        let rung = agenda.bell.load(SeqCst);
        if nic.ticker.must_end.load(SeqCst) {
            return;
        }
        let due = agenda.due.load(SeqCst);
        if due == u64::MAX {
            encores += 1;
            let rests = if nic.is_listening() { now() + ROUND } else { u64::MAX };
            let until = if encores > ENCORES { rests } else { now() + GRACE };
            sleep(agenda, rung, due, until);
        } else {
            encores = 0;
            wait_and_act(nic, agenda, rung, due);
        }
    }
}

/// Sleeps and spins until something is due, and does it unless the program does.
fn wait_and_act(nic: &Nic, agenda: &Agenda, rung: u32, due: u64) {
    let Ticker { polled_at, acted_at, next_trial, .. } = &nic.ticker;
    let grace = agenda.grace.load(Relaxed);
    let limit = if grace == 0 { due.saturating_sub(LEAD) } else { due.saturating_add(grace) };
    let mut time = now();
    if time < limit {
        return sleep(agenda, rung, due, limit);
    }
    while grace == 0 && time < due {
        if polled_at.load(Relaxed) > acted_at.load(Relaxed) {
            agenda.grace.store(GRACE, Relaxed);
            return;
        }
        if agenda.due.load(Relaxed) != due {
            return;
        }
        hint::spin_loop();
        time = now();
    }
    if grace != 0 {
        agenda.grace.store(0, Relaxed);
        next_trial.store(time + TRIAL, Relaxed);
    } else if time > next_trial.load(Relaxed) {
        agenda.grace.store(GRACE, Relaxed);
    }
    nic.act(time);
    acted_at.store(now(), Relaxed);
    nic.tend();
}

/// Sleeps until a time, or until the bell is rung.
fn sleep(agenda: &Agenda, rung: u32, seen: u64, until: u64) {
    agenda.sleeps_until.store(until, SeqCst);
    // Whoever notes an earlier time from here on rings.
    if agenda.due.load(SeqCst) < seen {
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
            agenda.bell.as_ptr(),
            libc::FUTEX_WAIT_BITSET,
            rung,
            deadline,
            ptr::null::<u32>(),
            libc::FUTEX_BITSET_MATCH_ANY,
        );
    }
}

/// Wakes the ticker that a bell belongs to.
#[cold]
pub(super) fn ring(bell: &AtomicU32) {
    bell.fetch_add(1, SeqCst);
    // SAFETY: a word that is mapped for as long as it is borrowed. It may be in the file of another process.
    unsafe { libc::syscall(libc::SYS_futex, bell.as_ptr(), libc::FUTEX_WAKE, 1) };
}

impl Nic {
    /// The program is about to sleep, so its polls say nothing any more.
    pub(crate) fn expect_sleep(&self) {
        self.ticker.begin(self);
        self.ticker.acted_at.store(now(), Relaxed);
        self.ticker.next_trial.store(u64::MAX, Relaxed);
        let agenda = self.own_agenda();
        let had_grace = agenda.grace.swap(0, SeqCst) != 0;
        if had_grace && agenda.sleeps_until.load(SeqCst) > agenda.due.load(SeqCst) {
            ring(&agenda.bell);
        }
    }
}
