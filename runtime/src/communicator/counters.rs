//! Counters of one communicator, as metrics.

use super::control::Control;
use crate::{
    call::CallRecord,
    metrics::{KindCounts, LinkMetrics, OperationMetrics, PollMetrics, RankMetrics},
};
use collectives::Collective;

/// Returns the counters of a communicator, without facts and states.
pub(super) fn counters_of(control: &Control) -> RankMetrics {
    let stats = control.published_stats();
    let (waits, waited) = control.gauges.waits();
    let error = control.failed().map(|error| (error.variant().to_owned(), 1));
    RankMetrics {
        begun: stats.begun,
        finished: stats.finished,
        is_counting: control.recorder.tally().is_some(),
        operations: operations_of(control),
        waits,
        wait_seconds: waited.as_secs_f64(),
        links: vec![LinkMetrics {
            transport: control.transport().to_owned(),
            sent_messages: stats.links.sent_messages,
            received_messages: stats.links.received_messages,
            received_bytes: stats.links.moved_bytes,
            copied_bytes: stats.links.copied_bytes,
            retransmissions: stats.links.retransmissions,
            reconnections: stats.links.reconnections,
            refused: stats.links.refused,
        }],
        polls: PollMetrics {
            polls: stats.polls.polls,
            empty_polls: stats.polls.empty_polls,
            device_events: stats.polls.async_events,
            wake_ups: stats.polls.wake_ups,
        },
        errors: error.into_iter().collect(),
        ..RankMetrics::default()
    }
}

fn operations_of(control: &Control) -> Vec<OperationMetrics> {
    let size = control.names().len() as u32;
    let counts = control.recorder.tally().into_iter().flat_map(|tally| tally.counts());
    let operation = |counts: KindCounts| {
        let name = CallRecord::kind_name(counts.kind);
        let collective = Collective::ALL.into_iter().find(|collective| collective.name() == name);
        let factor = collective.map_or(1.0, |collective| collective.busbw_factor(size));
        OperationMetrics {
            collective: name.to_owned(),
            transport: control.transport().to_owned(),
            done: counts.done,
            failed: counts.failed,
            bytes: counts.bytes,
            bus_bytes: counts.bytes as f64 * factor,
            seconds: counts.nanos as f64 * 1e-9,
        }
    };
    counts.map(operation).collect()
}
