//! The outcome of a simulation as text.

use super::{Outcome, PathStep, StartReason, critical_path};
use crate::Schedule;
use std::fmt::Write;
use topology::{Cluster, Rank};

/// Maximum number of shown lines of the critical path, and of shown links.
const MAX_LINES: usize = 24;

/// Returns the bus bandwidth in bytes per second, as nccl-tests define it. `bytes` is the larger of input and
/// output, and `seconds` the time of the operation.
#[must_use]
pub fn bus_bandwidth(schedule: &Schedule, bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds * schedule.collective.busbw_factor(schedule.ranks())
}

impl StartReason {
    /// Returns the cause of a step's delay, as text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            StartReason::Start => "the call's beginning",
            StartReason::Dependency => "an earlier step",
            StartReason::Fifo => "its turn",
            StartReason::Rank => "a busy rank",
            StartReason::Message => "its message",
            StartReason::Grant => "the receiver's grant",
            StartReason::Credit => "room at the receiver",
        }
    }
}

/// Returns the critical path and the busiest links, as text.
#[must_use]
pub fn report(schedule: &Schedule, cluster: &Cluster, outcome: &Outcome) -> String {
    let mut text = String::new();
    // Writing to a string can't fail.
    let _ = write_path(&mut text, schedule, &critical_path(outcome));
    let _ = write_links(&mut text, cluster, outcome);
    text
}

fn write_path(text: &mut String, schedule: &Schedule, path: &[PathStep]) -> std::fmt::Result {
    writeln!(text, "critical path, {} steps (microseconds):", path.len())?;
    writeln!(text, "{:>10} {:>10}  {:<8} {:<22} step", "begin", "end", "rank", "after")?;
    let skipped = path.len().saturating_sub(MAX_LINES);
    for (at, on_path) in path.iter().enumerate() {
        if skipped > 0 && at == MAX_LINES / 2 {
            writeln!(text, "{:>10} {skipped} more", "...")?;
        }
        if (MAX_LINES / 2..MAX_LINES / 2 + skipped).contains(&at) {
            continue;
        }
        let PathStep { rank: Rank(rank), step, begin, end, reason, .. } = on_path;
        let action = &schedule.programs[*rank as usize].steps[*step as usize].action;
        let (begin, end) = (begin * 1e6, end * 1e6);
        writeln!(text, "{begin:>10.2} {end:>10.2}  {rank:<8} {:<22} {step}: {action}", reason.name())?;
    }
    Ok(())
}

fn write_links(text: &mut String, cluster: &Cluster, outcome: &Outcome) -> std::fmt::Result {
    let mut links: Vec<_> =
        cluster.links().iter().zip(&outcome.links).filter(|(_, used)| used.bytes > 0).collect();
    let load = |(link, used): &(&topology::Link, &super::LinkUse)| {
        used.bytes as f64 / link.bytes_per_second / outcome.makespan
    };
    links.sort_by(|a, b| load(b).total_cmp(&load(a)));
    writeln!(text, "links, the fullest first ({} were used):", links.len())?;
    writeln!(text, "{:>7} {:>7} {:>14} {:>7}  link", "full", "busy", "bytes", "shared")?;
    for pair in links.iter().take(MAX_LINES / 2) {
        let (link, used) = pair;
        let (full, busy) = (100.0 * load(pair), 100.0 * used.busy / outcome.makespan);
        writeln!(
            text,
            "{full:>6.1}% {busy:>6.1}% {:>14} {:>7}  {}",
            used.bytes, used.max_streams, link.name
        )?;
    }
    Ok(())
}
