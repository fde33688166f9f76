//! `tbccl trace summary`: time per collective and size, waits per peer, and the rank that others wait for.

use super::{
    super::{CommandError, print},
    format::{Category, Event, Scope},
    load,
};
use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

const EXAMPLES: &str = "\
Examples:
  tbccl trace summary job.json

A call lasts from its begin on the first rank to its end on the last one. A wait for a peer is the
time in which a receive was ready and no byte of it had arrived; waits for several peers overlap.
The last table counts how often each rank was the last one to begin a collective.";

/// Summarize a merged trace: time per collective and size, waits, slowest rank
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The merged file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// A call on all ranks. Times are nanoseconds.
#[derive(Debug)]
struct Call {
    name: String,
    algorithm: String,
    bytes: u64,
    first_begin: u64,
    last_begin: (u64, u32),
    last_end: u64,
}

/// Runs `tbccl trace summary`.
pub(super) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let (about, events) = load::merged(&args.file)?;
    let calls = calls(&events);
    let mut text = format!(
        "{} of {} ranks over {}, clocks of hosts within {:.1} us\n",
        about.ranks.len(),
        about.size,
        about.transport,
        about.clock_error_us
    );
    text.push_str(&table_of_calls(&calls));
    text.push_str(&table_of_waits(&events));
    text.push_str(&table_of_late_ranks(&calls, about.clock_error_us));
    print(&text);
    Ok(ExitCode::SUCCESS)
}

/// Returns the collectives, by number.
fn calls(events: &[Event]) -> Vec<Call> {
    let mut calls: BTreeMap<u64, Call> = BTreeMap::new();
    for event in events.iter().filter(|event| event.cat == Some(Category::Call)) {
        let (Some(args), Some((begin, end))) = (&event.args, event.times()) else { continue };
        let (Some(Scope::Collective), Some(number)) = (args.scope, args.call) else { continue };
        let call = calls.entry(number).or_insert_with(|| Call {
            name: event.name.clone(),
            algorithm: args.algorithm.clone().unwrap_or_default(),
            bytes: 0,
            first_begin: begin,
            last_begin: (begin, event.pid),
            last_end: end,
        });
        call.bytes = call.bytes.max(args.bytes.unwrap_or(0));
        call.first_begin = call.first_begin.min(begin);
        call.last_begin = call.last_begin.max((begin, event.pid));
        call.last_end = call.last_end.max(end);
    }
    calls.into_values().collect()
}

fn table_of_calls(calls: &[Call]) -> String {
    let mut by_size: BTreeMap<(&str, u64, &str), Vec<u64>> = BTreeMap::new();
    for call in calls {
        let times = by_size.entry((&call.name, call.bytes, &call.algorithm)).or_default();
        times.push(call.last_end - call.first_begin);
    }
    let mut text = format!(
        "\n{:<20} {:>12} {:<20} {:>8} {:>12} {:>12} {:>12}\n",
        "collective", "bytes", "algorithm", "calls", "median us", "largest us", "total ms"
    );
    for ((name, bytes, algorithm), mut times) in by_size {
        times.sort_unstable();
        let total: u64 = times.iter().sum();
        let (median, largest) = (times[times.len() / 2], times[times.len() - 1]);
        text.push_str(&format!(
            "{name:<20} {bytes:>12} {algorithm:<20} {:>8} {:>12.1} {:>12.1} {:>12.3}\n",
            times.len(),
            median as f64 / 1e3,
            largest as f64 / 1e3,
            total as f64 / 1e6
        ));
    }
    text
}

fn table_of_waits(events: &[Event]) -> String {
    let (mut waits, mut in_calls) = (BTreeMap::<(u32, u32), u64>::new(), BTreeMap::<u32, u64>::new());
    for event in events.iter().filter(|event| !event.is_simulated()) {
        let Some((begin, end)) = event.times() else { continue };
        match (event.cat, event.args.as_ref().and_then(|args| args.peer)) {
            (Some(Category::Wait), Some(peer)) => *waits.entry((event.pid, peer)).or_default() += end - begin,
            (Some(Category::Call), _) => *in_calls.entry(event.pid).or_default() += end - begin,
            _ => {}
        }
    }
    let mut text =
        format!("\n{:>6} {:>10} {:>12} {:>22}\n", "rank", "waits for", "ms", "share of time in calls");
    for ((rank, peer), waited) in waits {
        let in_calls = in_calls.get(&rank).copied().unwrap_or(0).max(1);
        let share = 100.0 * waited as f64 / in_calls as f64;
        text.push_str(&format!("{rank:>6} {peer:>10} {:>12.3} {share:>20.1} %\n", waited as f64 / 1e6));
    }
    text
}

/// A rank counts as late only by more than the error of the clocks.
fn table_of_late_ranks(calls: &[Call], error_us: f64) -> String {
    let mut late: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for call in calls {
        let (begin, rank) = call.last_begin;
        let by = begin - call.first_begin;
        if by as f64 > error_us * 1e3 {
            let (count, time) = late.entry(rank).or_default();
            (*count, *time) = (*count + 1, *time + by);
        }
    }
    let mut text = format!("\n{:>6} {:>14} {:>20}\n", "rank", "last to begin", "ms after the first");
    let mut rows: Vec<_> = late.into_iter().collect();
    rows.sort_by_key(|(_, (_, time))| std::cmp::Reverse(*time));
    for (rank, (count, time)) in rows {
        text.push_str(&format!("{rank:>6} {count:>14} {:>20.3}\n", time as f64 / 1e6));
    }
    text
}
