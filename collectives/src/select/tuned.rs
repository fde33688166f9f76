//! Tuning files, which `tbccl tune` writes: the measured best choices for the links at hand.
//!
//! ```toml
//! version = 1
//!
//! [fingerprint]                   # the measured system
//! transport = "shm"
//! ranks = 4
//! hosts = 1
//! machine = "2 cores, Model X"
//!
//! [links]                         # for people and for models; no choice depends on it
//! latency_us = 0.4
//! gbs = 9.1
//! reduce_gbs = 11.8
//! copy_gbs = 12.4
//!
//! [[choice]]
//! collective = "all_reduce"
//! bytes = 65536                   # of one block
//! algorithm = "rsag_mesh"
//! segments = 1
//! us = 41.2                       # measured time, for people
//! ```
//!
//! A call uses the choice of its collective with the nearest size, by ratio. This module does not compare
//! fingerprints: the caller ignores a file with another fingerprint and reports it.

use super::{Call, Choice};
use crate::plan::algorithm;
use crate::{Collective, MAX_SEGMENTS};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The version of the file format.
const VERSION: u32 = 1;

/// The system that a file was measured on. Choices hold for systems with an equal fingerprint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    /// The transport, e.g. `shm`.
    pub transport: String,
    /// Number of ranks.
    pub ranks: u32,
    /// Number of hosts.
    pub hosts: u32,
    /// Description of every host, such as its processors.
    pub machine: String,
}

/// Measured speed of links and memory, one at a time. A gigabyte is 10^9 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// Half of a round trip of 8 bytes between ranks 0 and 1, in microseconds.
    pub latency_us: f64,
    /// Bandwidth of a stream of large messages from rank 0 to rank 1, in gigabytes per second.
    pub gbs: f64,
    /// Bandwidth of reductions per rank, with all ranks active, in gigabytes per second.
    pub reduce_gbs: f64,
    /// Bandwidth of copies per rank, with all ranks active, in gigabytes per second.
    pub copy_gbs: f64,
}

/// The measured best choice for one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedChoice {
    /// The collective.
    pub collective: Collective,
    /// Bytes of one block.
    pub bytes: u64,
    /// The name of the fastest algorithm.
    pub algorithm: String,
    /// Segments per chunk.
    pub segments: u32,
    /// Measured time, in microseconds.
    pub us: f64,
}

/// A tuning file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuned {
    version: u32,
    /// The measured system.
    pub fingerprint: Fingerprint,
    /// Speed of the links, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<Links>,
    /// The measured choices, in any order.
    #[serde(default, rename = "choice")]
    pub choices: Vec<TunedChoice>,
}

/// The error in a tuning file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}; measure anew with `tbccl tune`")]
pub struct TunedError(String);

impl Fingerprint {
    /// Returns the first field that differs from `other`: its name, the value here and the value in `other`.
    #[must_use]
    pub fn difference(&self, other: &Fingerprint) -> Option<(&'static str, String, String)> {
        let differ = |name, a: &dyn ToString, b: &dyn ToString| {
            let (a, b) = (a.to_string(), b.to_string());
            (a != b).then_some((name, a, b))
        };
        differ("transport", &self.transport, &other.transport)
            .or_else(|| differ("ranks", &self.ranks, &other.ranks))
            .or_else(|| differ("hosts", &self.hosts, &other.hosts))
            .or_else(|| differ("machine", &self.machine, &other.machine))
    }
}

impl Tuned {
    /// Creates a file without choices.
    #[must_use]
    pub fn new(fingerprint: Fingerprint) -> Tuned {
        Tuned { version: VERSION, fingerprint, links: None, choices: Vec::new() }
    }

    /// Formats the file as TOML.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// Parses the output of [`Tuned::to_toml`].
    ///
    /// # Errors
    /// [`TunedError`] for another version, an unknown algorithm, or a number out of range.
    pub fn from_toml(text: &str) -> Result<Tuned, TunedError> {
        let tuned: Tuned =
            toml::from_str(text).map_err(|e| TunedError(e.to_string().trim().replace('\n', " ")))?;
        if tuned.version != VERSION {
            return Err(TunedError(format!(
                "version {} is not known; this program reads {VERSION}",
                tuned.version
            )));
        }
        for best in &tuned.choices {
            algorithm(best.collective, &best.algorithm).map_err(|error| TunedError(error.to_string()))?;
            if !(1..=MAX_SEGMENTS).contains(&best.segments) {
                return Err(TunedError(format!("{} segments are out of range", best.segments)));
            }
        }
        Ok(tuned)
    }

    /// Returns the choice for a call, or `None` if its collective was not measured.
    #[must_use]
    pub fn choose(&self, call: Call) -> Option<Choice> {
        let of = self.choices.iter().filter(|best| best.collective == call.collective);
        let distance = |best: &&TunedChoice| {
            let (a, b) = (best.bytes.max(1) as f64, call.block_bytes.max(1) as f64);
            if a > b { a / b } else { b / a }
        };
        let nearest = of.min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
        let algorithm = algorithm(call.collective, &nearest.algorithm).ok()?.name;
        Some(Choice { algorithm, segments: nearest.segments, why: "measured to be the best near this size" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuned() -> Tuned {
        let fingerprint =
            Fingerprint { transport: "shm".into(), ranks: 4, hosts: 1, machine: "2 cores".into() };
        let best = |bytes, algorithm: &str| TunedChoice {
            collective: Collective::AllReduce,
            bytes,
            algorithm: algorithm.into(),
            segments: 1,
            us: 1.5,
        };
        let links = Links { latency_us: 0.5, gbs: 9.0, reduce_gbs: 11.0, copy_gbs: 12.5 };
        let choices = vec![best(1024, "mesh"), best(1 << 20, "ring")];
        Tuned { links: Some(links), choices, ..Tuned::new(fingerprint) }
    }

    #[test]
    fn the_nearest_size_decides() {
        let at = |collective, block_bytes| {
            tuned().choose(Call { collective, ranks: 4, block_bytes }).map(|choice| choice.algorithm)
        };
        assert_eq!(at(Collective::AllReduce, 0), Some("mesh"));
        assert_eq!(at(Collective::AllReduce, 30 << 10), Some("mesh"));
        assert_eq!(at(Collective::AllReduce, 40 << 10), Some("ring"));
        assert_eq!(at(Collective::AllReduce, 1 << 40), Some("ring"));
        assert_eq!(at(Collective::Barrier, 0), None);
    }

    #[test]
    fn a_file_is_read_back_and_another_machine_s_is_told_apart() {
        let text = tuned().to_toml();
        let read = Tuned::from_toml(&text).expect("our own");
        assert_eq!(read, tuned());
        let without = Tuned { links: None, ..tuned() };
        assert_eq!(Tuned::from_toml(&without.to_toml()), Ok(without));
        let here = Fingerprint { ranks: 8, ..read.fingerprint.clone() };
        assert_eq!(read.fingerprint.difference(&here), Some(("ranks", "4".into(), "8".into())));
        assert_eq!(read.fingerprint.difference(&read.fingerprint), None);
        for (from, to, word) in [
            ("version = 1", "version = 7", "version 7"),
            ("\"mesh\"", "\"mash\"", "did you mean `mesh`"),
            ("segments = 1", "segments = 0", "0 segments"),
            ("ranks = 4", "ranks = -4", "-4"),
        ] {
            let error = Tuned::from_toml(&text.replacen(from, to, 1)).expect_err("spoiled").to_string();
            assert!(error.contains(word) && error.contains("tbccl tune"), "{error}");
        }
    }
}
