//! The metrics of one rank, as data that processes send to each other as JSON.
//!
//! A rank has one entry for all of its communicators, open and closed ones, so that counters never go back
//! while the rank runs.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Metrics of the ranks of one host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostMetrics {
    /// Ranks that have answered.
    pub ranks: Vec<RankMetrics>,
    /// Ranks of processes that have not: job, rank, process id and host.
    pub silent: Vec<(u64, u32, u32, String)>,
}

/// Metrics of one rank of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankMetrics {
    /// Number of the job: that of its first communicator.
    pub job: u64,
    /// Rank in the first communicator.
    pub rank: u32,
    /// Ranks of the first communicator.
    pub size: u32,
    /// Name of the host.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Version of the library.
    pub version: String,
    /// Transport of the first communicator.
    pub transport: String,
    /// Number of open communicators.
    pub communicators: u64,
    /// Time in the oldest call in progress, in seconds; 0 outside of calls.
    pub call_seconds: f64,
    /// Calls that have begun, of all kinds.
    pub begun: u64,
    /// Calls that were carried out, of all kinds.
    pub finished: u64,
    /// Whether calls are counted by kind (`TBCCL_METRICS`).
    pub is_counting: bool,
    /// Calls by kind and transport.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<OperationMetrics>,
    /// Waits of milliseconds and longer.
    pub waits: u64,
    /// Time in these waits, in seconds.
    pub wait_seconds: f64,
    /// Counters of links by transport.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkMetrics>,
    /// Counters of polls of devices.
    pub polls: PollMetrics,
    /// Rails to the other ranks of the first communicator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rails: Vec<RailMetrics>,
    /// Registered memory of the library that is in use, in bytes.
    pub library_bytes: u64,
    /// Memory that the program has registered, in bytes.
    pub program_bytes: u64,
    /// Failures of communicators by the name of the error.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
}

/// Calls of one kind over one transport.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperationMetrics {
    /// Name of the collective; `send` or `recv` for messages.
    pub collective: String,
    /// Name of the transport.
    pub transport: String,
    /// Calls that were carried out.
    pub done: u64,
    /// Calls that have failed.
    pub failed: u64,
    /// Bytes of the larger of input and output, of calls that were carried out.
    pub bytes: u64,
    /// The same, times nccl-tests' factor of bus bandwidth.
    pub bus_bytes: f64,
    /// Time in calls that were carried out, in seconds.
    pub seconds: f64,
}

/// Counters of the links over one transport.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkMetrics {
    /// Name of the transport.
    pub transport: String,
    /// Messages sent.
    pub sent_messages: u64,
    /// Messages received.
    pub received_messages: u64,
    /// Payload bytes received.
    pub received_bytes: u64,
    /// Payload bytes that were copied in addition.
    pub copied_bytes: u64,
    /// Messages, and pieces of messages, that were sent again.
    pub retransmissions: u64,
    /// Connections that were made anew.
    pub reconnections: u64,
    /// Times at which a device accepted less work than it had reported.
    pub refused: u64,
}

/// Counters of polls of devices' queues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PollMetrics {
    /// Polls.
    pub polls: u64,
    /// Polls that found nothing.
    pub empty_polls: u64,
    /// Asynchronous events of devices.
    pub device_events: u64,
    /// Times at which a device woke a sleeping rank.
    pub wake_ups: u64,
}

/// State of a rail to another rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RailMetrics {
    /// The other rank.
    pub peer: u32,
    /// Number of the rail among those to that rank.
    pub number: u32,
    /// Name of the local device.
    pub ours: String,
    /// Name of the peer's device.
    pub theirs: String,
    /// Whether the rail is up.
    pub is_up: bool,
    /// Signaling rate in each direction, in bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signaling_rate: Option<f64>,
    /// Bytes posted to the rail, where the transport counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_bytes: Option<u64>,
    /// Bytes received from the rail, where the transport counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_bytes: Option<u64>,
}

impl RankMetrics {
    /// Adds the counters of another communicator of the same rank. States are left as they are.
    pub(crate) fn add_counters(&mut self, other: &RankMetrics) {
        self.begun += other.begun;
        self.finished += other.finished;
        self.is_counting |= other.is_counting;
        self.waits += other.waits;
        self.wait_seconds += other.wait_seconds;
        for more in &other.operations {
            let is_same = |of: &&mut OperationMetrics| {
                of.collective == more.collective && of.transport == more.transport
            };
            match self.operations.iter_mut().find(is_same) {
                Some(sum) => sum.add(more),
                None => self.operations.push(more.clone()),
            }
        }
        for more in &other.links {
            match self.links.iter_mut().find(|of| of.transport == more.transport) {
                Some(sum) => sum.add(more),
                None => self.links.push(more.clone()),
            }
        }
        self.polls.add(&other.polls);
        for (name, count) in &other.errors {
            *self.errors.entry(name.clone()).or_default() += count;
        }
    }

    /// Keeps at most this number of rails, those that are down first.
    pub(crate) fn limit_rails(&mut self, most: usize) {
        if self.rails.len() > most {
            self.rails.sort_by_key(|rail| rail.is_up);
            self.rails.truncate(most);
        }
    }
}

impl OperationMetrics {
    fn add(&mut self, more: &OperationMetrics) {
        self.done += more.done;
        self.failed += more.failed;
        self.bytes += more.bytes;
        self.bus_bytes += more.bus_bytes;
        self.seconds += more.seconds;
    }
}

impl LinkMetrics {
    fn add(&mut self, more: &LinkMetrics) {
        self.sent_messages += more.sent_messages;
        self.received_messages += more.received_messages;
        self.received_bytes += more.received_bytes;
        self.copied_bytes += more.copied_bytes;
        self.retransmissions += more.retransmissions;
        self.reconnections += more.reconnections;
        self.refused += more.refused;
    }
}

impl PollMetrics {
    fn add(&mut self, more: &PollMetrics) {
        self.polls += more.polls;
        self.empty_polls += more.empty_polls;
        self.device_events += more.device_events;
        self.wake_ups += more.wake_ups;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_communicators_add_up_by_kind_and_transport() {
        let operation = |collective: &str, transport: &str, done| OperationMetrics {
            collective: collective.into(),
            transport: transport.into(),
            done,
            bytes: 10 * done,
            ..OperationMetrics::default()
        };
        let of = |operations: Vec<OperationMetrics>, error: &str| RankMetrics {
            begun: 3,
            operations,
            errors: BTreeMap::from([(error.to_owned(), 1)]),
            ..RankMetrics::default()
        };
        let mut sum = of(vec![operation("all_reduce", "shm", 1)], "Timeout");
        sum.add_counters(&of(
            vec![operation("all_reduce", "tcp", 2), operation("all_reduce", "shm", 4)],
            "Timeout",
        ));
        assert_eq!(sum.operations, [operation("all_reduce", "shm", 5), operation("all_reduce", "tcp", 2)]);
        assert_eq!((sum.begun, sum.errors["Timeout"]), (6, 2));
    }

    #[test]
    fn rails_that_are_down_are_kept_first() {
        let rail = |number, is_up| RailMetrics { number, is_up, ..RailMetrics::default() };
        let rails = vec![rail(0, true), rail(1, true), rail(2, false)];
        let mut metrics = RankMetrics { rails, ..RankMetrics::default() };
        metrics.limit_rails(2);
        assert_eq!(metrics.rails, [rail(2, false), rail(0, true)]);
    }
}
