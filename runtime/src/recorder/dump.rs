//! The form of a dump of the flight recorder: lines of JSON.
//!
//! The first line is about the rank, each further one about a call.

use super::{Kept, Outcome, Step, now};
use crate::error::{Error, PeerName};
use collectives::DType;
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};
use topology::Rank;
use transport::Counters;

/// The two clocks at one moment.
pub(super) struct Clock {
    monotonic: u64,
    since_1970: f64,
}

impl Clock {
    pub(super) fn read() -> Clock {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { monotonic: now(true), since_1970: since_1970.as_secs_f64() }
    }

    /// Seconds since 1970, to a microsecond.
    fn wall(&self, monotonic: u64) -> f64 {
        let ago = self.monotonic.saturating_sub(monotonic) as f64 * 1e-9;
        ((self.since_1970 - ago) * 1e6).round() * 1e-6
    }
}

impl Kept {
    pub(super) fn line<'s>(&self, step: Option<&'s Step>, clock: &Clock) -> Line<'s> {
        let took = self.ended.map(|ended| ended.saturating_sub(self.began) as f64 * 1e-3);
        Line {
            number: self.number,
            call: self.record.to_string(),
            seq: self.record.seq,
            dtype: self.record.dtype,
            count: self.record.count,
            bytes: self.bytes,
            began: clock.wall(self.began),
            ended: self.ended.map(|ended| clock.wall(ended)),
            micros: took,
            outcome: match self.outcome {
                Outcome::UnderWay => "under way",
                Outcome::Done => "done",
                Outcome::Failed => "failed",
            },
            step: step.map(|step| step.step.as_str()).filter(|step| !step.is_empty()),
            waited: step.map(|step| step.waited.as_secs_f64()),
        }
    }
}

/// One call for who reads a dump. Times are seconds.
#[derive(Serialize)]
pub(super) struct Line<'s> {
    number: u64,
    call: String,
    seq: u64,
    dtype: DType,
    count: u64,
    bytes: u64,
    /// Since 1970.
    began: f64,
    /// The same.
    ended: Option<f64>,
    micros: Option<f64>,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'s str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited: Option<f64>,
}

/// The rank of the calls, and its state.
#[derive(Debug)]
pub(crate) struct Flight<'f> {
    pub(crate) rank: Rank,
    pub(crate) names: &'f [PeerName],
    pub(crate) transport: &'static str,
    pub(crate) begun: u64,
    pub(crate) finished: u64,
    pub(crate) links: Counters,
    pub(crate) error: Option<&'f Error>,
}

impl Flight<'_> {
    pub(super) fn headline(&self, clock: &Clock) -> Headline {
        let us = &self.names[self.rank.index()];
        Headline {
            tbccl: env!("CARGO_PKG_VERSION"),
            rank: self.rank.0,
            size: self.names.len(),
            pid: us.pid,
            host: us.host.clone(),
            transport: self.transport,
            at: clock.wall(clock.monotonic),
            begun: self.begun,
            finished: self.finished,
            moved_bytes: self.links.moved_bytes,
            copied_bytes: self.links.copied_bytes,
            error: self.error.map(Error::to_string),
        }
    }
}

/// The first line of a dump.
#[derive(Serialize)]
pub(super) struct Headline {
    tbccl: &'static str,
    rank: u32,
    size: usize,
    pid: u32,
    host: String,
    transport: &'static str,
    /// Seconds since 1970.
    at: f64,
    begun: u64,
    finished: u64,
    /// As last told.
    moved_bytes: u64,
    copied_bytes: u64,
    error: Option<String>,
}
