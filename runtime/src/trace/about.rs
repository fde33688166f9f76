//! The description of a rank in its file: the object `tbccl`.

use super::{TracedRank, ring::Content};
use bootstrap::ClockSample;
use serde::{Deserialize, Serialize};

/// Version of the object.
const FORMAT: u32 = 1;

/// Returns microseconds.
pub(super) fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

/// The description of a rank.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct About {
    format: u32,
    kind: String,
    version: String,
    pub(super) rank: u32,
    pub(super) size: u32,
    host: String,
    process: u32,
    communicator: String,
    made_by: String,
    transport: String,
    clock: Clock,
    /// Number of events that the ring has lost.
    lost: u64,
    /// Time of the latest end among the lost events, in microseconds.
    lost_until: f64,
    /// Reason for which the communicator has failed.
    error: Option<String>,
}

/// The clock of a rank's host.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Clock {
    name: String,
    reference: String,
    /// Local time before, time of the rendezvous, local time after; nanoseconds.
    samples: Vec<[u64; 3]>,
    /// Nanoseconds by which times of events are off this clock at most.
    event_error: u64,
}

impl About {
    /// Returns the description of a rank that has recorded nothing.
    pub(super) fn new(traced: &TracedRank, clock: &str, samples: &[ClockSample]) -> About {
        let TracedRank { rank, names, transport, communicator, made_by } = traced;
        let own = &names[rank.index()];
        About {
            format: FORMAT,
            kind: "rank".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            rank: rank.0,
            size: names.len() as u32,
            host: own.host.clone(),
            process: own.pid,
            communicator: communicator.clone(),
            made_by: made_by.clone(),
            transport: (*transport).to_owned(),
            clock: Clock {
                name: clock.to_owned(),
                reference: "rendezvous".to_owned(),
                samples: samples.iter().map(|s| [s.sent, s.server, s.received]).collect(),
                event_error: 0,
            },
            lost: 0,
            lost_until: 0.0,
            error: None,
        }
    }

    /// Returns the description with the loss and the clock of a ring, and the reason for which the
    /// communicator has failed.
    pub(super) fn with_loss(self, content: &Content, error: Option<String>) -> About {
        let clock = Clock { event_error: content.clock_error, ..self.clock };
        About { lost: content.lost, lost_until: micros(content.lost_until), error, clock, ..self }
    }
}
