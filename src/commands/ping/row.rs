//! One line of the result: a rail in one direction, as measured by its two ranks.

use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// A rail, as seen by its sending rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Rail {
    /// Index among the rails between the two ranks; `None` for all together, or for a connection without
    /// named rails.
    pub(super) number: Option<usize>,
    /// Devices at its two ends.
    pub(super) ours: Option<String>,
    pub(super) theirs: Option<String>,
    /// The signalling rate of the slower one of its ports, in Gb/s.
    pub(super) rate: Option<f64>,
    pub(super) thunderbolt: bool,
    pub(super) up: bool,
}

/// Half round trips, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Latency {
    pub(super) us_min: f64,
    pub(super) us_median: f64,
    pub(super) us_p99: f64,
    pub(super) round_trips: usize,
}

/// A measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) from: u32,
    pub(super) to: u32,
    /// Number of rails measured together.
    pub(super) rails: usize,
    pub(super) rail: Rail,
    pub(super) latency: Latency,
    /// Arriving data in Gb/s.
    pub(super) gigabits: f64,
}

/// Share of the rate below which a rail is marked as slow.
const SLOW: f64 = 0.6;
/// Published latency in microseconds of half a round trip over Thunderbolt 5.
const THUNDERBOLT_5: RangeInclusive<u32> = 5..=10;

impl Row {
    /// Returns the fraction of the rate that arrives.
    pub(super) fn share(&self) -> Option<f64> {
        self.rail.rate.filter(|rate| *rate > 0.0).map(|rate| self.gigabits / rate)
    }

    /// Whether less arrives than a cable of this rate should deliver.
    pub(super) fn is_slow(&self) -> bool {
        self.rail.up && self.share().is_some_and(|share| share < SLOW)
    }

    /// Returns the published latency of such cables, in microseconds.
    pub(super) fn expected(&self) -> Option<RangeInclusive<u32>> {
        self.rail.thunderbolt.then_some(THUNDERBOLT_5)
    }

    /// Returns the rail's name.
    pub(super) fn name(&self) -> String {
        match (&self.rail.ours, &self.rail.theirs) {
            (Some(ours), Some(theirs)) => format!("{ours} > {theirs}"),
            _ if self.rails > 1 => format!("all {} rails", self.rails),
            _ => "-".to_owned(),
        }
    }

    /// Returns the remark on a rail that is down.
    pub(super) fn remark(&self) -> Option<String> {
        (!self.rail.up).then(|| {
            format!(
                "rank {} to rank {}, {}: down; check the cable and both ports, see `tbccl devices` on both \
                machines",
                self.from,
                self.to,
                self.name()
            )
        })
    }

    /// Returns the row as a line of JSON.
    pub(super) fn json(&self, transport: &str, bytes: u64) -> String {
        let Row { from, to, rail, latency, gigabits, .. } = self;
        let number = |value: f64| rail.up.then_some(value);
        let line = serde_json::json!({
            "from": from,
            "to": to,
            "transport": transport,
            "rail": rail.number,
            "rails": self.rails,
            "device": rail.ours,
            "peer_device": rail.theirs,
            "up": rail.up,
            "us_min": number(latency.us_min),
            "us_median": number(latency.us_median),
            "us_p99": number(latency.us_p99),
            "us_expected": self.expected().map(|us| [*us.start(), *us.end()]),
            "round_trips": latency.round_trips,
            "bytes": bytes,
            "gigabits": number(*gigabits),
            "rate": rail.rate,
            "slow": self.is_slow(),
        });
        format!("{line}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(gigabits: f64, rate: Option<f64>, up: bool) -> Row {
        let (ours, theirs) = (Some("en2".to_owned()), Some("en5".to_owned()));
        let rail = Rail { number: Some(0), ours, theirs, rate, thunderbolt: true, up };
        Row { from: 2, to: 3, rails: 1, rail, gigabits, ..Row::default() }
    }

    #[test]
    fn less_than_sixty_percent_of_a_known_rate_is_slow() {
        assert!(row(47.9, Some(80.0), true).is_slow() && !row(48.1, Some(80.0), true).is_slow());
        assert!(!row(1.0, None, true).is_slow());
        assert_eq!(row(40.0, Some(80.0), true).remark(), None);
    }

    #[test]
    fn a_rail_that_is_down_has_no_figures() {
        let down = row(40.0, Some(80.0), false);
        assert!(down.remark().is_some_and(|remark| remark.contains("en2 > en5: down; check the cable")));
        let line: serde_json::Value = serde_json::from_str(&down.json("verbs", 1)).expect("JSON");
        assert!(line["gigabits"].is_null() && line["us_median"].is_null() && line["up"] == false, "{line}");
        assert_eq!((&line["slow"], &line["us_expected"][1]), (&false.into(), &10.into()));
    }
}
