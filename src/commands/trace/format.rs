//! Files of ranks and merged files: Chrome's trace format, and the object `tbccl` that comes first in it.

use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, BufReader},
    path::Path,
};
use tbccl::trace::json_of_ring;

/// Version of the object `tbccl` that this program reads and writes.
pub(super) const FORMAT: u32 = 1;

/// First process number of simulated ranks.
pub(super) const SIMULATED: u32 = 1_000_000;

/// A file.
#[derive(Debug, Deserialize)]
pub(super) struct TraceFile {
    /// Description of the ranks; none in simulated traces.
    #[serde(default)]
    pub(super) tbccl: Option<About>,
    #[serde(rename = "traceEvents")]
    pub(super) events: Vec<Event>,
}

/// Description of a file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum About {
    Rank(AboutRank),
    Merged(AboutMerged),
}

/// Description of the file of a rank.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct AboutRank {
    pub(super) format: u32,
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) host: String,
    pub(super) process: u32,
    pub(super) communicator: String,
    pub(super) made_by: String,
    pub(super) transport: String,
    pub(super) clock: AboutClock,
    /// Number of events that the ring has lost.
    pub(super) lost: u64,
    /// Time of the latest end among the lost events, in microseconds.
    pub(super) lost_until: f64,
    /// Reason for which the communicator has failed.
    pub(super) error: Option<String>,
}

/// Description of a host's clock.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct AboutClock {
    pub(super) name: String,
    /// Local time before, time of the rendezvous, local time after; nanoseconds.
    pub(super) samples: Vec<[u64; 3]>,
    /// Nanoseconds by which times of events are off this clock at most.
    #[serde(default)]
    pub(super) event_error: u64,
}

/// Description of a merged file.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct AboutMerged {
    pub(super) format: u32,
    pub(super) size: u32,
    pub(super) communicator: String,
    pub(super) made_by: String,
    pub(super) transport: String,
    /// Largest error of a time on one host beside a time on another one, in microseconds.
    pub(super) clock_error_us: f64,
    pub(super) clocks: Vec<MergedClock>,
    pub(super) ranks: Vec<MergedRank>,
}

/// A host's clock in a merged file.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct MergedClock {
    pub(super) ranks: Vec<u32>,
    /// Time of the reference minus time of this clock, at the first event.
    pub(super) offset_us: f64,
    pub(super) drift_ppm: f64,
    pub(super) error_us: f64,
    /// Microseconds by which times of events are off this clock at most.
    #[serde(default)]
    pub(super) event_error_us: f64,
    pub(super) samples: usize,
}

/// A rank in a merged file.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct MergedRank {
    pub(super) rank: u32,
    pub(super) host: String,
    pub(super) process: u32,
    pub(super) lost: u64,
    /// Time of the latest end among the lost events, in microseconds of this file; none without lost events.
    pub(super) lost_until: Option<f64>,
    pub(super) error: Option<String>,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum Phase {
    #[serde(rename = "X")]
    Slice,
    #[serde(rename = "M")]
    Metadata,
    #[serde(rename = "s")]
    FlowStart,
    #[serde(rename = "f")]
    FlowEnd,
}

/// Category of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Category {
    Call,
    Send,
    Receive,
    Local,
    Wait,
    /// The time in which a rail was down.
    Rail,
    /// The arrow between a send and its receive.
    Message,
}

/// An event. Times are microseconds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Event {
    pub(super) ph: Phase,
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cat: Option<Category>,
    pub(super) pid: u32,
    #[serde(default)]
    pub(super) tid: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ts: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) dur: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<u64>,
    /// `e` for the end of a flow that belongs to the slice around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bp: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) args: Option<Box<EventArgs>>,
}

/// Values of an event.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct EventArgs {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sort_index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) what: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) call: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) scope: Option<Scope>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) direction: Option<Category>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) algorithm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) step: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peer_device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lane: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) index: Option<u32>,
    /// Number, context and tag of a tagged message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) context: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tag: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outcome: Option<String>,
    /// Time at which a simulated step could have begun, and the reason why it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ready: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after: Option<String>,
}

/// How calls are numbered: the collectives of a communicator, the messages between two ranks, or the tagged
/// messages of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Scope {
    Collective,
    Message,
    Tagged,
}

impl Event {
    /// Returns begin and end of a slice in nanoseconds; `None` for other events and for times that are none.
    pub(super) fn times(&self) -> Option<(u64, u64)> {
        let nanos =
            |micros: f64| (micros.is_finite() && micros >= 0.0).then(|| (micros * 1e3).round() as u64);
        if self.ph != Phase::Slice {
            return None;
        }
        let begin = nanos(self.ts?)?;
        Some((begin, begin.checked_add(nanos(self.dur?)?)?))
    }

    /// Sets begin and end of a slice, in nanoseconds.
    pub(super) fn set_times(&mut self, begin: u64, end: u64) {
        (self.ts, self.dur) = (Some(micros(begin)), Some(micros(end.saturating_sub(begin))));
    }

    /// Whether the event is of a simulated rank.
    pub(super) fn is_simulated(&self) -> bool {
        self.pid >= SIMULATED
    }
}

/// Returns microseconds.
pub(super) fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

/// Reads a file.
///
/// # Errors
/// The system's error, or the place at which the file is no trace, as the rest of a sentence.
pub(super) fn read(path: &Path) -> Result<TraceFile, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    checked(serde_json::from_reader(BufReader::with_capacity(1 << 16, file)))
}

/// Reads the ring of events that a killed rank has left.
///
/// # Errors
/// The system's error, or the reason for which the ring is of no use, as the rest of a sentence.
pub(super) fn read_ring(path: &Path) -> Result<TraceFile, String> {
    checked(serde_json::from_slice(&json_of_ring(path)?))
}

fn checked(file: serde_json::Result<TraceFile>) -> Result<TraceFile, String> {
    let file = file.map_err(reason)?;
    let format = match &file.tbccl {
        Some(About::Rank(about)) => about.format,
        Some(About::Merged(about)) => about.format,
        None => FORMAT,
    };
    if format != FORMAT {
        return Err(format!("it has format {format}, and this version of tbccl reads {FORMAT}"));
    }
    Ok(file)
}

fn reason(error: serde_json::Error) -> String {
    match error.classify() {
        serde_json::error::Category::Io => io::Error::from(error).to_string(),
        serde_json::error::Category::Eof => "the file ends early; was the disk full?".to_owned(),
        _ => format!("it is no trace of tbccl: {error}"),
    }
}
