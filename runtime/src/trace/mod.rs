//! Traces: the calls, steps, messages, waits and failed rails of one rank with their times, for a browser.
//!
//! The executor records into a `Tape`, whose events take no memory after the start; a communicator with a
//! trace writes its file when it closes or fails. A communicator without one has none of this: see
//! `Executor::run` for the branch between both. The events of a rank that is killed stay in a file, which
//! [`json_of_ring`] reads.
//!
//! | module | purpose |
//! |---|---|
//! | `tape` | the recording: a ring of events, and the calls and steps under way |
//! | `clock` | the clock of events, and its relation to the host's |
//! | `counter` | the processor's counter of time |
//! | `event` | events, and their form as words |
//! | `ring` | the ring of events, in memory or in a file that survives the process |
//! | `recover` | the file of a rank that was killed, from its ring |
//! | `rails` | rails that were down |
//! | `layout` | threads of the trace viewer on which events are drawn |
//! | `about` | the description of a rank in its file |
//! | `file` | the file of a rank, as JSON for Chrome's trace viewer and Perfetto |
//!
//! Invariants: the tape is locked once per run, by the thread that makes the calls. Times are ticks of
//! `EventClock` as they are recorded, and those of the host's monotonic clock in files of traces; samples of
//! the rendezvous' clock in the file relate it to other hosts. A file
//! that can't be written is a warning and fails no call. The file of a ring exists until the file of the
//! trace is complete.
//!
//! Tagged messages have a communicator of their own, in whose trace `p2p` records them as they complete.

mod about;
mod clock;
mod counter;
mod event;
mod file;
mod layout;
mod rails;
mod recover;
mod ring;
mod tape;

pub(crate) use event::{CallEnd, StepKind, StepMessage, TaggedEvent};
pub use recover::json_of_ring;
pub(crate) use tape::{StepFacts, Tape};

use crate::{error::PeerName, sync::locked};
use about::About;
use bootstrap::{ClockSample, Connection, monotonic_nanos};
use clock::{ClockPair, EventClock};
use events::{target, warning};
use file::TraceFile;
use rails::RailLog;
use recover::RingFile;
use ring::Ring;
use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use topology::Rank;
use transport::{driver::Endpoint, host};

/// Samples of the rendezvous' clock at the start and at the end of a communicator.
const CLOCK_SAMPLES: usize = 12;

/// Longest wait for one sample.
const CLOCK_TIMEOUT: Duration = Duration::from_millis(200);

/// Identity of a rank and of its communicator, as in the rank's file.
#[derive(Clone, Debug)]
pub(crate) struct TracedRank {
    pub(crate) rank: Rank,
    pub(crate) names: Arc<[PeerName]>,
    pub(crate) transport: &'static str,
    /// Name of the communicator, equal on its ranks and different from others.
    pub(crate) communicator: String,
    /// Call by which the communicator was made from another one; empty for the first one of a job.
    pub(crate) made_by: String,
}

/// The trace of one rank of a communicator.
#[derive(Debug)]
pub(crate) struct Trace {
    /// Path of this rank's file.
    path: PathBuf,
    traced: TracedRank,
    /// The clock of events.
    event_clock: EventClock,
    /// Name of the host's clock: equal for processes that share it.
    clock: String,
    samples: Mutex<Vec<ClockSample>>,
    tape: Mutex<Tape>,
    rails: Mutex<RailLog>,
    /// The file of the ring, until that of the trace is written.
    ring_file: Mutex<Option<RingFile>>,
}

/// The options of a trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceOptions<'o> {
    /// Folder for the files of ranks.
    pub(crate) folder: &'o Path,
    /// Latest events that are kept.
    pub(crate) events: u32,
    /// Text that sets ranks of one machine apart.
    pub(crate) host_id: &'o str,
    /// Lanes between two ranks.
    pub(crate) lanes: u8,
}

impl Trace {
    /// Creates the trace of a rank. `connection` leads to the rendezvous, whose clock is compared. `None` if
    /// there is no memory for the events, which is a warning.
    pub(crate) fn new(
        options: TraceOptions<'_>,
        traced: TracedRank,
        connection: Option<&mut Connection>,
    ) -> Option<Trace> {
        let TraceOptions { folder, events, host_id, lanes } = options;
        let path = folder.join(format!("rank-{}-{}.json", traced.rank, traced.communicator));
        let clock = clock_name(host_id);
        let samples = connection.map(sample_clock).unwrap_or_default();
        let about = About::new(&traced, &clock, &samples);
        let (event_clock, start) = EventClock::start();
        let (ring_file, ring) = ring_of(&path, (events as usize).max(1), &start, &about)?;
        Some(Trace {
            path,
            traced,
            event_clock,
            clock,
            samples: Mutex::new(samples),
            tape: Mutex::new(Tape::new(ring, event_clock, lanes)),
            rails: Mutex::new(RailLog::new(event_clock)),
            ring_file: Mutex::new(ring_file),
        })
    }

    /// Returns the time on the clock of events.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.event_clock.now()
    }

    /// Returns the tape, for the thread that makes the calls.
    pub(crate) fn tape(&self) -> MutexGuard<'_, Tape> {
        locked(&self.tape)
    }

    /// Looks at the rails of an endpoint to all ranks, unless that was done a moment ago.
    pub(crate) fn observe_rails(&self, endpoint: &dyn Endpoint) {
        let mut log = locked(&self.rails);
        if log.is_due(self.now()) {
            let (now, size) = (monotonic_nanos(), self.traced.names.len() as u32);
            (0..size).for_each(|peer| log.see(now, peer, &endpoint.rails(peer)));
        }
    }

    /// Compares this host's clock with the rendezvous'.
    pub(crate) fn sample_clock(&self, connection: &mut Connection) {
        locked(&self.samples).extend(sample_clock(connection));
    }

    /// Writes the file of this rank, or prints a warning. `error` is the reason for which the communicator
    /// has failed.
    pub(crate) fn write(&self, error: Option<String>) {
        let about = About::new(&self.traced, &self.clock, &locked(&self.samples));
        let tape = self.tape();
        let content = tape.content();
        let rails = locked(&self.rails);
        let file = TraceFile {
            about: about.with_loss(&content, error),
            events: &content.events,
            algorithms: tape.algorithms(),
            outages: rails.outages(),
            latest: content.timeline.nanos(tape.latest()),
            open_outcome: "under way",
        };
        let written = file.write(&self.path);
        let ring_file = locked(&self.ring_file).take();
        match (written, ring_file) {
            (Ok(()), Some(ring_file)) => {
                if let Err(error) = ring_file.remove() {
                    self.warn("remove", ring_file.path(), &error, "");
                }
            }
            (Err(error), Some(ring_file)) => {
                let instead = format!("; `tbccl trace merge` reads {} instead", ring_file.path().display());
                self.warn("write the trace to", &self.path, &error, &instead);
            }
            (Err(error), None) => self.warn("write the trace to", &self.path, &error, ""),
            (Ok(()), None) => {}
        }
    }

    fn warn(&self, action: &str, path: &Path, error: &io::Error, remedy: &str) {
        let rank = Some(self.traced.rank.0);
        warning!(target::FAILURE, rank, "can't {action} {}: {error}{remedy}", path.display());
    }
}

/// Returns the ring of a rank: in a file, or in memory with a warning.
fn ring_of(
    trace: &Path,
    capacity: usize,
    start: &[ClockPair; 2],
    about: &About,
) -> Option<(Option<RingFile>, Ring)> {
    let why = match RingFile::create(trace, capacity, start, about) {
        Ok((file, ring)) => return Some((Some(file), ring)),
        Err(error) => error,
    };
    let rank = Some(about.rank);
    match Ring::in_memory(capacity, start) {
        Ok(ring) => {
            let folder = trace.parent().unwrap_or(trace).display();
            warning!(
                target::FAILURE,
                rank,
                "can't keep the events of the trace in a file of {folder}: {why}; if the rank is killed, it \
                 leaves no trace"
            );
            Some((None, ring))
        }
        Err(error) => {
            warning!(target::FAILURE, rank, "no trace: no memory for {capacity} events: {error}");
            None
        }
    }
}

fn sample_clock(connection: &mut Connection) -> Vec<ClockSample> {
    connection.sample_clock(CLOCK_SAMPLES, CLOCK_TIMEOUT)
}

/// Returns the name of this host's clock. A container may have a clock of its own.
fn clock_name(host_id: &str) -> String {
    let namespace = std::fs::read_link("/proc/self/ns/time");
    let namespace = namespace.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    [&host::boot_id(), &*namespace, host_id].join("/")
}

#[cfg(test)]
mod tests;
