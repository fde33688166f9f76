//! Rates between two samples, by rank and by rail.
//!
//! A counter that has gone back is that of another process, and gives no rate.

use super::sample::{RankId, RankState, Sample};
use serde::Serialize;
use tbccl::metrics::{RailMetrics, RankMetrics};

/// Rates of all ranks and rails.
#[derive(Debug, Serialize)]
pub(super) struct Rates {
    /// Time between the samples.
    pub(super) seconds: f64,
    pub(super) ranks: Vec<RankRates>,
    pub(super) rails: Vec<RailRates>,
}

/// Rates of a rank. Shares are of the time between the samples.
#[derive(Debug, Serialize)]
pub(super) struct RankRates {
    /// Number of the job, as in the metrics' label `job_id`.
    pub(super) job_id: String,
    pub(super) rank: u32,
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) operations_per_second: Option<f64>,
    pub(super) received_bytes_per_second: Option<f64>,
    /// Share of time in calls that were carried out; none where calls are not counted.
    pub(super) call_share: Option<f64>,
    /// Share of time in waits of milliseconds and longer.
    pub(super) waiting_share: Option<f64>,
    /// Retransmissions and new connections since the job began.
    pub(super) resent: Option<u64>,
    /// Failures since the job began.
    pub(super) errors: Option<u64>,
    /// Activity.
    pub(super) now: String,
}

/// Rates of a rail at one end.
#[derive(Debug, Serialize)]
pub(super) struct RailRates {
    pub(super) job_id: String,
    pub(super) rank: u32,
    pub(super) peer: u32,
    pub(super) device: String,
    pub(super) peer_device: String,
    pub(super) is_up: bool,
    /// Bytes that this end sends per second, where the transport counts them.
    pub(super) sent_bytes_per_second: Option<f64>,
    /// Bytes that this end receives per second, where the transport counts them.
    pub(super) received_bytes_per_second: Option<f64>,
    pub(super) signaling_bytes_per_second: Option<f64>,
}

impl Rates {
    /// Returns the rates between two samples, for the ranks of the later one.
    pub(super) fn between(earlier: &Sample, later: &Sample) -> Rates {
        let seconds = later.at.saturating_duration_since(earlier.at).as_secs_f64();
        let before = |id: &RankId| earlier.ranks.get(id).and_then(|state| state.metrics.as_ref());
        let ranks = later
            .ranks
            .iter()
            .map(|(id, state)| RankRates::between(*id, before(id), state, seconds))
            .collect();
        let rails = later.ranks.iter().flat_map(|(id, state)| {
            let now = state.metrics.iter().flat_map(|metrics| &metrics.rails);
            now.map(move |rail| RailRates::between(*id, before(id), rail, seconds))
        });
        Rates { seconds, ranks, rails: rails.collect() }
    }
}

fn job_id(job: u64) -> String {
    format!("{job:016x}")
}

impl RankRates {
    fn between(
        (job, rank): RankId,
        before: Option<&RankMetrics>,
        state: &RankState,
        seconds: f64,
    ) -> RankRates {
        let now = state.metrics.as_ref();
        let both = before.zip(now).filter(|(before, now)| before.pid == now.pid && seconds > 0.0);
        let rate = |of: fn(&RankMetrics) -> f64| {
            let (before, now) = both?;
            let more = of(now) - of(before);
            (more >= 0.0).then_some(more / seconds)
        };
        let share = |of: fn(&RankMetrics) -> f64| rate(of).map(|share| share.min(1.0));
        let is_counting = now.is_some_and(|now| now.is_counting);
        RankRates {
            job_id: job_id(job),
            rank,
            host: state.process.0.clone(),
            pid: state.process.1,
            operations_per_second: rate(|of| of.finished as f64),
            received_bytes_per_second: rate(received_bytes),
            call_share: share(call_seconds).filter(|_| is_counting),
            waiting_share: share(|of| of.wait_seconds),
            resent: now
                .map(|now| now.links.iter().map(|link| link.retransmissions + link.reconnections).sum()),
            errors: now.map(|now| now.errors.values().sum()),
            now: state.now.clone(),
        }
    }
}

fn received_bytes(of: &RankMetrics) -> f64 {
    of.links.iter().map(|link| link.received_bytes as f64).sum()
}

fn call_seconds(of: &RankMetrics) -> f64 {
    of.operations.iter().map(|operation| operation.seconds).sum()
}

impl RailRates {
    fn between(
        (job, rank): RankId,
        before: Option<&RankMetrics>,
        now: &RailMetrics,
        seconds: f64,
    ) -> RailRates {
        let is_same = |rail: &&RailMetrics| (rail.peer, rail.number) == (now.peer, now.number);
        let earlier = before.and_then(|before| before.rails.iter().find(is_same));
        let rate = |of: fn(&RailMetrics) -> Option<u64>| {
            let more = of(now)?.checked_sub(of(earlier?)?)?;
            (seconds > 0.0).then_some(more as f64 / seconds)
        };
        RailRates {
            job_id: job_id(job),
            rank,
            peer: now.peer,
            device: now.ours.clone(),
            peer_device: now.theirs.clone(),
            is_up: now.is_up,
            sent_bytes_per_second: rate(|rail| rail.sent_bytes),
            received_bytes_per_second: rate(|rail| rail.received_bytes),
            signaling_bytes_per_second: now.signaling_rate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        collections::BTreeMap,
        time::{Duration, Instant},
    };
    use tbccl::metrics::{LinkMetrics, OperationMetrics};

    fn metrics(finished: u64, received: u64, wait: f64) -> RankMetrics {
        RankMetrics {
            pid: 7,
            finished,
            wait_seconds: wait,
            links: vec![LinkMetrics {
                received_bytes: received,
                retransmissions: 2,
                ..LinkMetrics::default()
            }],
            rails: vec![RailMetrics {
                peer: 1,
                sent_bytes: Some(received),
                received_bytes: Some(2 * received),
                is_up: true,
                ..RailMetrics::default()
            }],
            ..RankMetrics::default()
        }
    }

    fn sample(at: Instant, metrics: Option<RankMetrics>) -> Sample {
        let state = RankState { process: ("mac".into(), 7), metrics, now: "outside tbccl".into() };
        Sample { at, ranks: BTreeMap::from([((5, 0), state)]) }
    }

    #[test]
    fn rates_are_differences_by_time() {
        let began = Instant::now();
        let earlier = sample(began, Some(metrics(10, 1000, 1.0)));
        let later = sample(began + Duration::from_secs(2), Some(metrics(14, 5000, 1.5)));
        let rates = Rates::between(&earlier, &later);
        let rank = &rates.ranks[0];
        assert_eq!((rank.operations_per_second, rank.received_bytes_per_second), (Some(2.0), Some(2000.0)));
        assert_eq!((rank.waiting_share, rank.call_share), (Some(0.25), None), "calls are not counted");
        assert_eq!((rank.resent, rank.job_id.as_str()), (Some(2), "0000000000000005"));
        assert_eq!(rates.rails[0].sent_bytes_per_second, Some(2000.0));
        assert_eq!(rates.rails[0].received_bytes_per_second, Some(4000.0));
    }

    #[test]
    fn a_rank_that_is_new_silent_or_another_process_has_no_rates() {
        let began = Instant::now();
        let known = sample(began, Some(metrics(10, 1000, 1.0)));
        let other = RankMetrics { pid: 8, ..metrics(20, 2000, 2.0) };
        for (earlier, later) in [
            (sample(began, None), known.clone()),
            (known.clone(), sample(began, None)),
            (known.clone(), sample(began + Duration::from_secs(1), Some(other))),
            (known.clone(), known),
        ] {
            let rates = Rates::between(&earlier, &later);
            assert_eq!(rates.ranks[0].operations_per_second, None, "{rates:?}");
        }
    }

    #[test]
    fn a_share_is_one_at_most() {
        let began = Instant::now();
        let with = |seconds| {
            let operations = vec![OperationMetrics { seconds, ..OperationMetrics::default() }];
            RankMetrics { operations, is_counting: true, ..metrics(1, 1, 0.0) }
        };
        let (earlier, later) = (sample(began, Some(with(1.0))), began + Duration::from_secs(1));
        let rates = Rates::between(&earlier, &sample(later, Some(with(9.0))));
        assert_eq!(rates.ranks[0].call_share, Some(1.0));
    }
}
