//! The table of all metrics: name, unit, meaning and labels of each, and its values for a rank.
//!
//! The text of the endpoint, the page docs/metrics.md and the check of the dashboard follow from this table.
//! Names and labels are an interface: users' dashboards and alerts have them.

use super::rank::{LinkMetrics, OperationMetrics, RailMetrics, RankMetrics};
use Kind::{Counter, Gauge, Info};
use Unit::{Bytes, BytesPerSecond, Seconds};

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows; its series have the suffix `_total`.
    Counter,
    /// A state.
    Gauge,
    /// Facts, as labels of a series of the value 1; it has the suffix `_info`.
    Info,
}

/// Unit of a metric, which is a part of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Bytes per second.
    BytesPerSecond,
    /// Seconds.
    Seconds,
}

impl Unit {
    /// Returns the unit as it stands in names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bytes => "bytes",
            BytesPerSecond => "bytes_per_second",
            Seconds => "seconds",
        }
    }
}

/// A metric with all of its series.
#[derive(Debug)]
pub struct Family {
    /// Name without prefix, unit and suffix.
    pub name: &'static str,
    /// Unit; `None` for numbers of things.
    pub unit: Option<Unit>,
    /// Kind.
    pub kind: Kind,
    /// Meaning, as a noun phrase.
    pub help: &'static str,
    /// Labels beside those of the rank ([`Family::RANK_LABELS`]).
    pub labels: &'static [&'static str],
    /// Returns the series of a rank.
    pub(super) read: fn(&RankMetrics) -> Vec<Sample>,
    /// Value for a rank that does not answer.
    pub(super) silent: Option<Value>,
}

impl Family {
    /// Labels of every series.
    pub const RANK_LABELS: [&'static str; 3] = ["job_id", "host", "rank"];

    /// Returns the name of the series, as in queries.
    #[must_use]
    pub fn series(&self) -> String {
        let unit = self.unit.map(|unit| format!("_{}", unit.name())).unwrap_or_default();
        let suffix = match self.kind {
            Counter => "_total",
            Gauge => "",
            Info => "_info",
        };
        match self.name {
            "" => format!("tbccl{unit}{suffix}"),
            name => format!("tbccl_{name}{unit}{suffix}"),
        }
    }
}

/// Value of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Count(u64),
    Number(f64),
}

/// One series: the values of the family's labels, and its own value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) labels: Vec<String>,
    pub(super) value: Value,
}

fn one(value: Value) -> Vec<Sample> {
    vec![Sample { labels: Vec::new(), value }]
}

fn operations(of: &RankMetrics, value: fn(&OperationMetrics) -> Value) -> Vec<Sample> {
    let sample = |operation: &OperationMetrics| Sample {
        labels: vec![operation.collective.clone(), operation.transport.clone()],
        value: value(operation),
    };
    of.operations.iter().map(sample).collect()
}

fn links(of: &RankMetrics, value: fn(&LinkMetrics) -> u64) -> Vec<Sample> {
    let sample = |link: &LinkMetrics| Sample {
        labels: vec![link.transport.clone()],
        value: Value::Count(value(link)),
    };
    of.links.iter().map(sample).collect()
}

fn rails(of: &RankMetrics, value: fn(&RailMetrics) -> Option<Value>) -> Vec<Sample> {
    let sample = |rail: &RailMetrics| {
        let labels =
            vec![rail.peer.to_string(), rail.number.to_string(), rail.ours.clone(), rail.theirs.clone()];
        Some(Sample { labels, value: value(rail)? })
    };
    of.rails.iter().filter_map(sample).collect()
}

fn registered(of: &RankMetrics) -> Vec<Sample> {
    let sample =
        |(owner, bytes): (&str, u64)| Sample { labels: vec![owner.into()], value: Value::Count(bytes) };
    [("library", of.library_bytes), ("program", of.program_bytes)].map(sample).into()
}

fn errors(of: &RankMetrics) -> Vec<Sample> {
    let sample =
        |(name, count): (&String, &u64)| Sample { labels: vec![name.clone()], value: Value::Count(*count) };
    of.errors.iter().map(sample).collect()
}

fn info(of: &RankMetrics) -> Vec<Sample> {
    let labels = vec![of.version.clone(), of.size.to_string(), of.transport.clone(), of.pid.to_string()];
    vec![Sample { labels, value: Value::Count(1) }]
}

const fn family(
    name: &'static str,
    unit: Option<Unit>,
    kind: Kind,
    help: &'static str,
    labels: &'static [&'static str],
    read: fn(&RankMetrics) -> Vec<Sample>,
) -> Family {
    Family { name, unit, kind, help, labels, read, silent: None }
}

const OPERATION: &[&str] = &["collective", "transport"];
const TRANSPORT: &[&str] = &["transport"];
const RAIL: &[&str] = &["peer", "rail", "device", "peer_device"];

/// All metrics, in the order of the text and of the documentation.
pub const FAMILIES: &[Family] = &[
    family("", None, Info, "Facts about a rank", &["version", "size", "transport", "pid"], info),
    Family {
        silent: Some(Value::Count(0)),
        ..family("rank_up", None, Gauge, "Whether the rank's process answers", &[], |_| one(Value::Count(1)))
    },
    family("communicators", None, Gauge, "Open communicators", &[], |of| one(Value::Count(of.communicators))),
    family("call", Some(Seconds), Gauge, "Time in the call in progress, 0 outside of calls", &[], |of| {
        one(Value::Number(of.call_seconds))
    }),
    family("operations", None, Counter, "Calls that were carried out", OPERATION, |of| {
        operations(of, |operation| Value::Count(operation.done))
    }),
    family("failed_operations", None, Counter, "Calls that have failed", OPERATION, |of| {
        operations(of, |operation| Value::Count(operation.failed))
    }),
    family(
        "operation",
        Some(Bytes),
        Counter,
        "Bytes of the larger of input and output, of calls that were carried out",
        OPERATION,
        |of| operations(of, |operation| Value::Count(operation.bytes)),
    ),
    family(
        "operation_bus",
        Some(Bytes),
        Counter,
        "The same bytes, times the factor of bus bandwidth that nccl-tests has for the collective",
        OPERATION,
        |of| operations(of, |operation| Value::Number(operation.bus_bytes)),
    ),
    family(
        "operation",
        Some(Seconds),
        Counter,
        "Time in calls that were carried out, waits included; each call of a group has the time of the group",
        OPERATION,
        |of| operations(of, |operation| Value::Number(operation.seconds)),
    ),
    family("waits", None, Counter, "Waits in calls in which nothing moved for milliseconds", &[], |of| {
        one(Value::Count(of.waits))
    }),
    family("wait", Some(Seconds), Counter, "Time in these waits", &[], |of| {
        one(Value::Number(of.wait_seconds))
    }),
    family("sent_messages", None, Counter, "Messages sent", TRANSPORT, |of| {
        links(of, |link| link.sent_messages)
    }),
    family("received_messages", None, Counter, "Messages received", TRANSPORT, |of| {
        links(of, |link| link.received_messages)
    }),
    family("received", Some(Bytes), Counter, "Payload bytes received", TRANSPORT, |of| {
        links(of, |link| link.received_bytes)
    }),
    family(
        "copied",
        Some(Bytes),
        Counter,
        "Payload bytes copied in addition to moving them",
        TRANSPORT,
        |of| links(of, |link| link.copied_bytes),
    ),
    family(
        "retransmissions",
        None,
        Counter,
        "Messages, and pieces of messages, sent again after a loss or damage",
        TRANSPORT,
        |of| links(of, |link| link.retransmissions),
    ),
    family(
        "reconnections",
        None,
        Counter,
        "Connections made anew after a loss or a failure",
        TRANSPORT,
        |of| links(of, |link| link.reconnections),
    ),
    family(
        "refused_requests",
        None,
        Counter,
        "Times at which a device accepted less work than it had reported",
        TRANSPORT,
        |of| links(of, |link| link.refused),
    ),
    family("polls", None, Counter, "Polls of completion queues of devices", &[], |of| {
        one(Value::Count(of.polls.polls))
    }),
    family("empty_polls", None, Counter, "Polls that found no completion", &[], |of| {
        one(Value::Count(of.polls.empty_polls))
    }),
    family(
        "device_events",
        None,
        Counter,
        "Asynchronous events of devices: changes of ports, failures of queues",
        &[],
        |of| one(Value::Count(of.polls.device_events)),
    ),
    family("wake_ups", None, Counter, "Times at which a device woke the sleeping rank", &[], |of| {
        one(Value::Count(of.polls.wake_ups))
    }),
    family("rail_up", None, Gauge, "Whether the rail to a peer is up", RAIL, |of| {
        rails(of, |rail| Some(Value::Count(rail.is_up.into())))
    }),
    family(
        "rail_signaling",
        Some(BytesPerSecond),
        Gauge,
        "Signaling rate of the rail's local port in each direction",
        RAIL,
        |of| rails(of, |rail| rail.signaling_rate.map(Value::Number)),
    ),
    family("rail_sent", Some(Bytes), Counter, "Bytes sent by the rail", RAIL, |of| {
        rails(of, |rail| rail.sent_bytes.map(Value::Count))
    }),
    family("rail_received", Some(Bytes), Counter, "Bytes received by the rail (TCP)", RAIL, |of| {
        rails(of, |rail| rail.received_bytes.map(Value::Count))
    }),
    family(
        "registered",
        Some(Bytes),
        Gauge,
        "Registered memory in use, by its owner",
        &["owner"],
        registered,
    ),
    family("errors", None, Counter, "Failures of communicators by type of the error", &["type"], errors),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_follow_the_conventions_and_are_unique() {
        let mut names = BTreeSet::new();
        for family in FAMILIES {
            let name = family.series();
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert_eq!(name.ends_with("_total"), family.kind == Counter, "{name}");
            assert!(family.unit.is_none_or(|unit| name.contains(unit.name())), "{name}");
            assert!(names.insert(name.clone()), "{name} is there twice");
        }
    }

    #[test]
    fn a_series_has_a_value_for_each_label() {
        let of = RankMetrics {
            operations: vec![OperationMetrics::default()],
            links: vec![LinkMetrics::default()],
            rails: vec![RailMetrics {
                signaling_rate: Some(1.0),
                sent_bytes: Some(1),
                received_bytes: Some(1),
                ..RailMetrics::default()
            }],
            errors: [("Timeout".to_owned(), 1)].into(),
            ..RankMetrics::default()
        };
        for family in FAMILIES {
            let samples = (family.read)(&of);
            assert!(!samples.is_empty(), "{}", family.series());
            assert!(samples.iter().all(|sample| sample.labels.len() == family.labels.len()), "{family:?}");
        }
    }
}
