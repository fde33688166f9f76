//! The thread that answers requests for the status of this process.
//!
//! One thread watches all connections of the process. It sleeps until a message arrives on one of them. The
//! thread that makes the calls most likely reads the message itself, since it waits; if not, it computes or
//! waits elsewhere, and this thread reads after [`GRACE`]. So a job that works costs one wake-up per message
//! and no lock.
//!
//! It wakes twice a second besides, which tells of times in which the process did not run (`pauses`).
//!
//! The thread starts with the first connection and ends after the last one. A forked child of the process has
//! no such thread, and starts none for its parent's connections.

use super::{
    channel::Channel,
    locked,
    pauses::{LONGEST_SLEEP, PAUSES},
};
use crate::clock::monotonic_nanos;
use mio::{Events, Interest, Poll, Registry, Token, Waker, unix::SourceFd};
use rustix::fd::{AsFd, AsRawFd, RawFd};
use std::{
    collections::BTreeMap,
    io::ErrorKind,
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak},
    thread,
    time::{Duration, Instant},
};
use transport::forks::Origin;

/// Time in which the thread that makes the calls may read a message.
const GRACE: Duration = Duration::from_millis(20);

const WAKE: Token = Token(0);

/// The connections of this process, and the thread that watches them.
static WATCHED: Mutex<Watched> =
    Mutex::new(Watched { channels: BTreeMap::new(), latest: 0, thread: None, urgent: Vec::new() });

struct Watched {
    /// Connections by token.
    channels: BTreeMap<usize, Weak<Mutex<Channel>>>,
    /// Token of the latest connection.
    latest: usize,
    thread: Option<Thread>,
    /// Connections with requests that another thread has read.
    urgent: Vec<usize>,
}

/// The means to reach the running thread.
struct Thread {
    registry: Registry,
    waker: Waker,
    origin: Origin,
}

/// A connection that the thread watches, until this is dropped.
#[derive(Debug)]
pub(super) struct Registration {
    token: usize,
    fd: RawFd,
    origin: Origin,
}

fn watched() -> MutexGuard<'static, Watched> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a connection. Without a thread, for which the system may lack resources, requests are answered only
/// while the rank waits.
pub(super) fn register(channel: &Arc<Mutex<Channel>>) -> Option<Registration> {
    let fd = locked(channel).frames.as_fd().as_raw_fd();
    let mut watched = watched();
    if watched.thread.as_ref().is_none_or(|thread| !thread.origin.is_here()) {
        watched.start_thread()?;
    }
    watched.latest += 1;
    let token = watched.latest;
    let thread = watched.thread.as_ref()?;
    if thread.registry.register(&mut SourceFd(&fd), Token(token), Interest::READABLE).is_err() {
        if watched.channels.is_empty() {
            // It ends, since it has nothing to watch.
            let _ = thread.waker.wake();
        }
        return None;
    }
    watched.channels.insert(token, Arc::downgrade(channel));
    Some(Registration { token, fd, origin: Origin::here() })
}

impl Watched {
    /// Starts the thread, without connections.
    fn start_thread(&mut self) -> Option<()> {
        // In a forked child these belong to the parent, with a lock that its thread may have held.
        std::mem::forget((std::mem::take(&mut self.channels), self.thread.take()));
        let poll = Poll::new().ok()?;
        let registry = poll.registry().try_clone().ok()?;
        let waker = Waker::new(&registry, WAKE).ok()?;
        thread::Builder::new().name("tbccl-status".into()).spawn(|| run(poll)).ok()?;
        self.thread = Some(Thread { registry, waker, origin: Origin::here() });
        Some(())
    }

    /// Forgets the thread, which is about to end.
    fn end_thread(&mut self) {
        PAUSES.end();
        self.thread = None;
    }
}

impl Registration {
    /// Wakes the thread, after another one has read a request.
    pub(super) fn wake_thread(&self) {
        let mut watched = watched();
        watched.urgent.push(self.token);
        if let Some(thread) = &watched.thread {
            // If this fails, the request is answered with the next message.
            let _ = thread.waker.wake();
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            return;
        }
        let mut watched = watched();
        watched.channels.remove(&self.token);
        let Some(thread) = &watched.thread else { return };
        let _ = thread.registry.deregister(&mut SourceFd(&self.fd));
        if watched.channels.is_empty() {
            let _ = thread.waker.wake();
        }
    }
}

/// Answers requests until no connection is left.
fn run(mut poll: Poll) {
    let mut events = Events::with_capacity(64);
    let mut due: BTreeMap<usize, Instant> = BTreeMap::new();
    loop {
        let next = due.values().min().map(|at| at.saturating_duration_since(Instant::now()));
        PAUSES.sleep(process::id(), monotonic_nanos());
        let polled = poll.poll(&mut events, Some(next.unwrap_or(LONGEST_SLEEP)));
        PAUSES.wake(monotonic_nanos());
        match polled {
            Err(e) if e.kind() != ErrorKind::Interrupted => return watched().end_thread(),
            _ => {}
        }
        let now = Instant::now();
        for event in events.iter().filter(|event| event.token() != WAKE) {
            due.entry(event.token().0).or_insert(now + GRACE);
        }
        {
            let mut watched = watched();
            if watched.channels.is_empty() {
                return watched.end_thread();
            }
            due.extend(watched.urgent.drain(..).map(|token| (token, now)));
            due.retain(|token, _| watched.channels.contains_key(token));
        }
        let overdue: Vec<usize> = due.iter().filter(|(_, at)| **at <= now).map(|(token, _)| *token).collect();
        for token in overdue {
            match serve(token) {
                Served::Done => due.remove(&token),
                Served::Busy => due.insert(token, Instant::now() + GRACE),
            };
        }
    }
}

/// Outcome of reading one connection.
enum Served {
    Done,
    /// Another thread uses the connection.
    Busy,
}

/// Reads a connection and answers its requests. The connection is free while the answers are made: they
/// describe calls that may wait for it.
fn serve(token: usize) -> Served {
    let channel = watched().channels.get(&token).and_then(Weak::upgrade);
    let Some(channel) = channel else { return Served::Done };
    let requests = match channel.try_lock() {
        Err(TryLockError::WouldBlock) => return Served::Busy,
        Err(TryLockError::Poisoned(_)) => return Served::Done,
        Ok(mut open) => {
            open.read_ahead(Duration::ZERO);
            open.take_requests()
        }
    };
    if let Some(requests) = requests {
        let answers = requests.answer();
        let mut open = locked(&channel);
        answers.iter().for_each(|answer| open.post(answer));
    }
    Served::Done
}
