//! Traces: the calls, steps, messages, waits and failed rails of one rank with their times, for a browser.
//!
//! The executor records into a [`Tape`], whose events take no memory after the start; a communicator with a
//! trace writes its file when it closes or fails. A communicator without one has none of this: see
//! `Executor::run` for the branch between both.
//!
//! | module | purpose |
//! |---|---|
//! | `tape` | events of a rank: a ring of fixed size, and the calls and steps under way |
//! | `rails` | rails that were down |
//! | `layout` | threads of the trace viewer on which events are drawn |
//! | `file` | the file of a rank, as JSON for Chrome's trace viewer and Perfetto |
//!
//! Invariants: the tape is locked once per run, by the thread that makes the calls. Times are those of the
//! host's monotonic clock; samples of the rendezvous' clock in the file relate it to other hosts. A file
//! that can't be written is a warning and fails no call.
//!
//! Tagged messages have a communicator of their own, in whose trace `p2p` records them as they complete.

mod file;
mod layout;
mod rails;
mod tape;

pub(crate) use tape::{CallEnd, StepFacts, StepKind, StepMessage, TaggedEvent, Tape};

use crate::{error::PeerName, sync::locked};
use bootstrap::{ClockSample, Connection, monotonic_nanos};
use events::{target, warning};
use file::TraceFile;
use rails::RailLog;
use std::{
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
    folder: PathBuf,
    traced: TracedRank,
    /// Name of the host's clock: equal for processes that share it.
    clock: String,
    samples: Mutex<Vec<ClockSample>>,
    tape: Mutex<Tape>,
    rails: Mutex<RailLog>,
}

impl Trace {
    /// Creates the trace of a rank, with room for `events` events. `host_id` sets ranks of one machine apart.
    pub(crate) fn new(folder: &Path, events: u32, host_id: &str, lanes: u8, traced: TracedRank) -> Trace {
        Trace {
            folder: folder.to_owned(),
            traced,
            clock: clock_name(host_id),
            samples: Mutex::default(),
            tape: Mutex::new(Tape::new(events as usize, lanes)),
            rails: Mutex::default(),
        }
    }

    /// Returns the tape, for the thread that makes the calls.
    pub(crate) fn tape(&self) -> MutexGuard<'_, Tape> {
        locked(&self.tape)
    }

    /// Looks at the rails of an endpoint to all ranks, unless that was done a moment ago.
    pub(crate) fn observe_rails(&self, endpoint: &dyn Endpoint) {
        let (now, mut log) = (monotonic_nanos(), locked(&self.rails));
        if log.is_due(now) {
            let size = self.traced.names.len() as u32;
            (0..size).for_each(|peer| log.see(now, peer, &endpoint.rails(peer)));
        }
    }

    /// Compares this host's clock with the rendezvous'.
    pub(crate) fn sample_clock(&self, connection: &mut Connection) {
        let samples = connection.sample_clock(CLOCK_SAMPLES, CLOCK_TIMEOUT);
        locked(&self.samples).extend(samples);
    }

    /// Writes the file of this rank, or prints a warning. `error` is the reason for which the communicator
    /// has failed.
    pub(crate) fn write(&self, error: Option<String>) {
        let path = self.path();
        let samples = locked(&self.samples).clone();
        let tape = self.tape();
        let rails = locked(&self.rails);
        let outages = rails.outages();
        let (traced, clock) = (&self.traced, &*self.clock);
        let file = TraceFile { traced, clock, samples: &samples, error, tape: &tape, outages };
        if let Err(error) = file.write(&path) {
            let rank = Some(self.traced.rank.0);
            warning!(target::FAILURE, rank, "can't write the trace to {}: {error}", path.display());
        }
    }

    /// Returns the path of this rank's file.
    fn path(&self) -> PathBuf {
        let TracedRank { rank, communicator, .. } = &self.traced;
        self.folder.join(format!("rank-{rank}-{communicator}.json"))
    }
}

/// Returns the name of this host's clock. A container may have a clock of its own.
fn clock_name(host_id: &str) -> String {
    let namespace = std::fs::read_link("/proc/self/ns/time");
    let namespace = namespace.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    [&host::boot_id(), &*namespace, host_id].join("/")
}

#[cfg(test)]
mod tests;
