//! Metrics of ranks: counts of calls, the state of rails, and the endpoint from which Prometheus reads them.
//!
//! | module | purpose |
//! |---|---|
//! | `address` | the address of the endpoint, as an option |
//! | `tally` | counts of calls by kind, which the thread that makes the calls writes |
//! | `rank` | the metrics of one rank, as data that processes send to each other |
//! | `families` | the table of all metrics: names, units, labels, values |
//! | `text` | the table's values as OpenMetrics text |
//! | `prometheus` | the same in the older text format of Prometheus |
//! | `http` | one request and its answer |
//! | `endpoint` | the process of a host that answers, and its successor |
//!
//! The values come from the flight recorder, the links and the endpoint of each communicator when they are
//! asked for. Only counts by kind of call are taken on the path of a call, and only with `TBCCL_METRICS`.
//! This module asks no rank: `communicator::metrics` does, and passes the answer.

mod address;
mod endpoint;
mod families;
mod http;
mod prometheus;
mod rank;
mod tally;
mod text;

pub use address::MetricsAddress;
pub(crate) use endpoint::{Source, serve};
pub use families::{FAMILIES, Family, Kind, Unit};
pub use rank::{HostMetrics, LinkMetrics, OperationMetrics, PollMetrics, RailMetrics, RankMetrics};
pub(crate) use tally::{KindCounts, Tally};
