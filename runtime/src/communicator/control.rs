//! The control of a communicator: the part that other threads may use while a call is in progress (abort,
//! counters, failure).
//!
//! A communicator belongs to the thread that makes its calls. Its control is shared, and no lock that a call
//! in progress holds guards it. A call reads one word of the control whenever something has moved, and more
//! on request.
//!
//! An abort sets that word, which makes the call in progress and every further one fail. Where boards are
//! shared memory it also raises the job's failure at once, so that peers see it even if no call is in
//! progress here.

use super::{
    Communicator, Identifier,
    gauges::{EndpointState, Gauges},
    wait_cell::WaitCell,
};
use crate::{
    agreement::{Agreement, Failure},
    call::CallRecord,
    error::{Error, PeerName, Place, Result},
    executor::Links,
    forks,
    metrics::Tally,
    recorder::{Flight, Recorder},
    sync::locked,
    trace::Trace,
    why::Wait,
};
use bootstrap::SnapshotRequester;
use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, OnceLock, PoisonError,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    time::{Duration, Instant},
};
use topology::Rank;
use transport::{Counters, PollCounters, forks::Origin};

/// Bit of `wanted`: the program has aborted the communicator.
const ABORTED: u32 = 1;
/// Bit of `wanted`: a thread waits for the counters of the links.
const STATS: u32 = 2;
/// Bit of `wanted`: a thread waits for the wait of the call in progress.
const WAIT: u32 = 4;
/// Bit of `wanted`: a thread waits for the state of the endpoint.
const ENDPOINT: u32 = 8;

/// Returns whether the program wants to end a waiting call. Called on the thread that makes the call.
pub(crate) type InterruptCheck = fn() -> bool;

/// Counters of a communicator, as one rank of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Calls that have begun; each call of a group counts.
    pub begun: u64,
    /// Calls that have finished.
    pub finished: u64,
    /// Counters of all links together.
    pub links: Counters,
    /// Counters per peer, for peers with links.
    pub peers: Vec<(Rank, Counters)>,
    /// Counters of polls for completions.
    pub polls: PollCounters,
}

/// Counters of the links, as last published.
#[derive(Debug, Default)]
struct Published {
    /// Number of publications.
    generation: u64,
    stats: Stats,
}

/// The part of a communicator that other threads use.
#[derive(Debug)]
pub(crate) struct Control {
    rank: Rank,
    /// The process that has the communicator.
    origin: Origin,
    names: Arc<[PeerName]>,
    transport: &'static str,
    agreement: Agreement,
    /// Requests to the call in progress, as bits. Shared with executors.
    wanted: Arc<AtomicU32>,
    /// The function that long waits poll.
    interrupt_check: OnceLock<InterruptCheck>,
    /// The error of every further call.
    failed: Mutex<Option<Error>>,
    published: Mutex<Published>,
    newly_published: Condvar,
    pub(super) recorder: Recorder,
    /// The folder of flight recorders, written on failure and on SIGUSR2.
    folder: Option<PathBuf>,
    /// The file of reports of a hang; stderr if `None`.
    hang_report: Option<PathBuf>,
    trace: Option<Arc<Trace>>,
    id: u64,
    made_by: String,
    place: AtomicU64,
    made: Instant,
    /// The way to the statuses of all ranks; none where ranks are threads.
    requester: Option<SnapshotRequester>,
    wait: WaitCell,
    /// Values that only metrics show.
    pub(super) gauges: Gauges,
}

/// The values that a control is made of.
#[derive(Debug)]
pub(super) struct ControlParts {
    pub(super) rank: Rank,
    pub(super) names: Arc<[PeerName]>,
    pub(super) transport: &'static str,
    pub(super) agreement: Agreement,
    pub(super) identifier: Identifier,
    pub(super) requester: Option<SnapshotRequester>,
    pub(super) folder: Option<PathBuf>,
    pub(super) hang_report: Option<PathBuf>,
    /// Whether calls are counted by kind.
    pub(super) counts_calls: bool,
    /// Bytes of memory that the program has registered.
    pub(super) lent_bytes: Arc<AtomicU64>,
    pub(super) trace: Option<Arc<Trace>>,
}

impl Control {
    pub(super) fn new(parts: ControlParts) -> Control {
        let ControlParts { rank, names, transport, agreement, requester, folder, hang_report, .. } = parts;
        let Identifier { id, made_by, place } = parts.identifier;
        Control {
            rank,
            origin: Origin::here(),
            names,
            transport,
            agreement,
            wanted: Arc::default(),
            interrupt_check: OnceLock::new(),
            failed: Mutex::default(),
            published: Mutex::default(),
            newly_published: Condvar::new(),
            recorder: Recorder::new(parts.counts_calls.then(Box::<Tally>::default)),
            folder,
            hang_report,
            trace: parts.trace,
            id,
            made_by,
            place: AtomicU64::new(place),
            made: Instant::now(),
            requester,
            wait: WaitCell::default(),
            gauges: Gauges::new(parts.lent_bytes),
        }
    }

    /// Returns the word that is not 0 while the call in progress has requests to serve.
    pub(super) fn wanted(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.wanted)
    }

    /// Whether the boards of the other ranks are mapped here.
    pub(crate) fn is_mapped(&self) -> bool {
        self.agreement.is_mapped()
    }

    /// Fails in a forked child of the process that has the communicator.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<()> {
        forks::check(self.origin)
    }

    /// Makes the call in progress and every further one fail. In a forked child this has no effect.
    pub(crate) fn abort(&self) {
        if !self.origin.is_here() {
            return;
        }
        if self.wanted.fetch_or(ABORTED, AcqRel) & ABORTED != 0 {
            return;
        }
        let error = Error::Aborted { place: Box::new(self.place_of_latest()) };
        if self.is_mapped() {
            self.agreement.raise(Failure::Failed { rank: self.rank, message: error.to_string() });
        }
        self.set_failed(&error);
    }

    #[inline]
    pub(crate) fn is_aborted(&self) -> bool {
        self.wanted.load(Acquire) & ABORTED != 0
    }

    /// Sets the function that calls poll during long waits. Set once; later ones are ignored.
    pub(crate) fn set_interrupt_check(&self, check: InterruptCheck) {
        let _ = self.interrupt_check.set(check);
    }

    /// Whether the program wants to end the call that this thread waits for.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt_check.get().is_some_and(|check| check())
    }

    /// Returns the place of the latest collective that this rank has entered.
    fn place_of_latest(&self) -> Place {
        let seq = self.agreement.entered(self.rank);
        let call = self.agreement.call(self.rank, seq).unwrap_or(CallRecord::nothing(seq));
        Place { rank: self.rank, call, step: None, waited: Duration::ZERO }
    }

    /// Records the error of the communicator. The first error stays.
    pub(super) fn set_failed(&self, error: &Error) {
        locked(&self.failed).get_or_insert_with(|| error.clone());
    }

    /// Returns the error of the communicator, as far as this rank knows without asking others.
    pub(crate) fn error(&self) -> Option<Error> {
        if let Some(error) = self.failed() {
            return Some(error);
        }
        let failure = self.agreement.has_failure().then(|| self.agreement.failure()).flatten()?;
        Some(failure.into_error(&self.names, self.place_of_latest()))
    }

    /// Publishes the counters of the links, if a thread waits for them.
    #[inline]
    pub(super) fn publish_if_wanted(&self, stats: impl FnOnce() -> Stats) {
        if self.wanted.load(Acquire) & STATS != 0 {
            self.publish(stats());
        }
    }

    /// Publishes the counters of the links.
    #[cold]
    pub(super) fn publish(&self, stats: Stats) {
        self.wanted.fetch_and(!STATS, AcqRel);
        let mut published = locked(&self.published);
        published.generation += 1;
        published.stats = stats;
        self.newly_published.notify_all();
    }

    /// Asks the call in progress, or else the next one, for the counters of the links and the state of the
    /// endpoint.
    pub(super) fn request_counters(&self) {
        self.wanted.fetch_or(STATS | ENDPOINT, AcqRel);
    }

    /// Publishes the state of the endpoint, if a thread waits for it.
    #[inline]
    pub(super) fn publish_endpoint_if_wanted(&self, state: impl FnOnce() -> EndpointState) {
        if self.wanted.load(Acquire) & ENDPOINT != 0 {
            self.wanted.fetch_and(!ENDPOINT, AcqRel);
            self.gauges.set_endpoint(state());
        }
    }

    /// Returns the counters of the links: those that the call in progress publishes within 20 ms, or else the
    /// last published ones.
    pub(crate) fn fresh_stats(&self) -> Stats {
        const FRESH_TIMEOUT: Duration = Duration::from_millis(20);
        let published = locked(&self.published);
        let before = published.generation;
        self.wanted.fetch_or(STATS, AcqRel);
        let (published, _) = self
            .newly_published
            .wait_timeout_while(published, FRESH_TIMEOUT, |published| published.generation == before)
            .unwrap_or_else(PoisonError::into_inner);
        self.with_call_counts(published.stats.clone())
    }

    /// Returns the counters that were published last.
    pub(crate) fn published_stats(&self) -> Stats {
        let stats = locked(&self.published).stats.clone();
        self.with_call_counts(stats)
    }

    pub(super) fn with_call_counts(&self, stats: Stats) -> Stats {
        Stats { begun: self.recorder.begun(), finished: self.recorder.finished(), ..stats }
    }

    /// Returns the error of every further call, if it is known.
    pub(crate) fn failed(&self) -> Option<Error> {
        locked(&self.failed).clone()
    }

    /// Publishes the final counters of a communicator.
    pub(crate) fn publish_final(&self, comm: &Communicator) {
        self.publish(stats_of(comm.executor.links()));
    }

    /// Writes the latest calls as lines of JSON, the oldest first, after a line about this rank.
    pub(crate) fn dump(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let (error, stats) = (self.error(), self.published_stats());
        let flight = Flight {
            rank: self.rank,
            names: &self.names,
            transport: self.transport,
            begun: stats.begun,
            finished: stats.finished,
            links: stats.links,
            error: error.as_ref(),
        };
        self.recorder.dump(&flight, out)
    }

    /// Returns the folder that the options name for flight recorders.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the file for reports of a hang, if the options name one.
    pub(super) fn hang_report(&self) -> Option<&Path> {
        self.hang_report.as_deref()
    }

    /// Returns the trace of the communicator, if the options ask for one.
    pub(super) fn trace(&self) -> Option<&Trace> {
        self.trace.as_deref()
    }

    /// Returns the trace of the communicator, to be recorded in by what owns the communicator.
    pub(crate) fn shared_trace(&self) -> Option<Arc<Trace>> {
        self.trace.clone()
    }

    pub(super) fn names(&self) -> &[PeerName] {
        &self.names
    }

    pub(super) fn transport(&self) -> &'static str {
        self.transport
    }

    /// Returns the number of the communicator, equal on all ranks.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the call by which it was made from another one; empty for the first one of a job.
    pub(super) fn made_by(&self) -> &str {
        &self.made_by
    }

    /// Returns the number that tells ranks of one process apart, equal for all communicators of a rank.
    pub(super) fn place(&self) -> u64 {
        self.place.load(Relaxed)
    }

    pub(super) fn set_place(&self, place: u64) {
        self.place.store(place, Relaxed);
    }

    /// Whether both are ranks of one communicator at the same place.
    pub(super) fn is_at_place_of(&self, other: &Control) -> bool {
        self.id == other.id && self.place() == other.place()
    }

    /// Returns the time since the communicator was made.
    pub(super) fn age(&self) -> Duration {
        self.made.elapsed()
    }

    /// Whether this process has made the communicator, and is not a forked child of that one.
    pub(super) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Returns the way to the statuses of all ranks; none where ranks are threads.
    pub(super) fn requester(&self) -> Option<&SnapshotRequester> {
        self.requester.as_ref()
    }

    /// Returns the number of the latest collective that this rank has entered.
    pub(super) fn entered(&self) -> u64 {
        self.agreement.entered(self.rank)
    }

    /// Returns the tagged message that this rank waits for. Other calls are in the recorder.
    pub(super) fn tagged_message(&self) -> Option<CallRecord> {
        if self.recorder.begun() > 0 { None } else { self.agreement.message(self.rank) }
    }

    /// Publishes that this rank waits for no tagged message any more.
    pub(crate) fn finish_tagged_message(&self) {
        self.agreement.finish_message();
    }

    /// Whether a call is in progress.
    pub(super) fn is_in_call(&self) -> bool {
        self.recorder.is_in_call() || self.tagged_message().is_some()
    }

    /// Asks the call in progress for its wait. Returns the number of waits published so far.
    pub(super) fn request_wait(&self) -> u64 {
        let count = self.wait.count();
        self.wanted.fetch_or(WAIT, AcqRel);
        count
    }

    /// Returns the wait that is published after the first `count` ones and before the deadline, if any is.
    pub(super) fn published_wait(&self, count: u64, deadline: Instant) -> Option<Wait> {
        let wait = self.wait.after(count, deadline);
        self.wanted.fetch_and(!WAIT, AcqRel);
        wait
    }

    /// Publishes a wait that holds until it is released.
    pub(super) fn hold_wait(&self, wait: Option<Wait>) {
        self.wait.hold(wait);
    }

    /// Ends the time for which a wait holds.
    pub(super) fn release_wait(&self) {
        self.wait.release();
    }

    /// Publishes the wait of the call in progress, if a thread has asked for it; `None` for a call that
    /// moves.
    #[inline]
    pub(super) fn publish_wait_if_wanted(&self, wait: impl FnOnce() -> Option<Wait>) {
        if self.wanted.load(Acquire) & WAIT != 0 {
            self.wanted.fetch_and(!WAIT, AcqRel);
            self.wait.publish(wait());
        }
    }
}

/// Returns the links' counters, by peer and lane.
pub(super) fn stats_of(links: &Links) -> Stats {
    let mut peers: Vec<(Rank, Counters)> = Vec::new();
    for (index, counters) in links.counters_by_index() {
        let peer = Rank((index / usize::from(Communicator::LANES)) as u32);
        match peers.last_mut() {
            Some((last, sum)) if *last == peer => *sum += counters,
            _ => peers.push((peer, counters)),
        }
    }
    Stats { links: links.counters(), peers, polls: links.poll_counters(), ..Stats::default() }
}

/// Returns the error of a call on a finalized communicator.
pub(crate) fn closed() -> Error {
    Error::InvalidArgument("the communicator has been finalized".into())
}
