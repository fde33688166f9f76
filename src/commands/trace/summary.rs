//! `tbccl trace summary`: time per collective and size, waits per peer, the rank that others wait for, and
//! tagged messages.

use super::{
    super::{CommandError, print},
    format::{AboutMerged, Category, Event, Scope},
    load,
    matching::{ends, match_messages},
    merge::lost_until,
};
use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

const EXAMPLES: &str = "\
Examples:
  tbccl trace summary job.json

A call lasts from its begin on the first rank to its end on the last one. A wait for a peer is the
time in which a receive was ready and no byte of it had arrived; waits for several peers overlap.
The third table counts how often each rank was the last one to begin a collective.

Tagged messages have a table by sender, receiver, context and tag. A message lasts from the time at
which both ranks had asked for it to its arrival. Times before that are waits of the rank that asked
first, for the sender or for the receiver.";

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
    text.push_str(&table_of_tagged(&about, &events));
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

/// Most rows of the table of tagged messages.
const TAGGED_ROWS: usize = 50;

/// Tagged messages of a sender, receiver, context and tag. Times are nanoseconds.
#[derive(Debug, Default)]
struct Tagged {
    bytes: u64,
    /// Times of the messages, from the later request to the arrival.
    times: Vec<u64>,
    /// Sums of the times in which the receiver waited for the sender's request, and the other way round.
    for_sender: u64,
    for_receiver: u64,
}

/// Returns the table of tagged messages whose ends are both in the trace; nothing without any.
fn table_of_tagged(about: &AboutMerged, events: &[Event]) -> String {
    let mut found: BTreeMap<(u32, u32, u32, i32), Tagged> = BTreeMap::new();
    for (send, receive) in match_messages(events, |rank| lost_until(about, rank)).pairs {
        let (send, receive) = (&events[send], &events[receive]);
        let (Some(args), Some((from, to))) = (&send.args, ends(send)) else { continue };
        let (Some(Scope::Tagged), Some(context), Some(tag)) = (args.scope, args.context, args.tag) else {
            continue;
        };
        let (Some((sent, _)), Some((posted, arrived))) = (send.times(), receive.times()) else { continue };
        let row = found.entry((from, to, context, tag)).or_default();
        row.bytes += args.bytes.unwrap_or(0);
        row.times.push(arrived.saturating_sub(sent.max(posted)));
        row.for_sender += sent.saturating_sub(posted);
        row.for_receiver += posted.saturating_sub(sent);
    }
    let mut rows: Vec<_> = found.into_iter().collect();
    if rows.is_empty() {
        return String::new();
    }
    rows.sort_by_key(|(key, row)| (std::cmp::Reverse(row.times.iter().sum::<u64>()), *key));
    let mut text = format!(
        "\n{:>6} {:>6} {:>8} {:>11} {:>9} {:>14} {:>12} {:>12} {:>12} {:>14} {:>16}\n",
        "from",
        "to",
        "context",
        "tag",
        "messages",
        "bytes",
        "median us",
        "largest us",
        "total ms",
        "for sender ms",
        "for receiver ms"
    );
    let more = rows.len().saturating_sub(TAGGED_ROWS);
    for ((from, to, context, tag), row) in rows.iter_mut().take(TAGGED_ROWS) {
        row.times.sort_unstable();
        let (count, total) = (row.times.len(), row.times.iter().sum::<u64>());
        text.push_str(&format!("{from:>6} {to:>6} {context:>8} {tag:>11} {count:>9} "));
        text.push_str(&format!(
            "{:>14} {:>12.1} {:>12.1} {:>12.3} {:>14.3} {:>16.3}\n",
            row.bytes,
            row.times[count / 2] as f64 / 1e3,
            row.times[count - 1] as f64 / 1e3,
            total as f64 / 1e6,
            row.for_sender as f64 / 1e6,
            row.for_receiver as f64 / 1e6,
        ));
    }
    if more > 0 {
        text.push_str(&format!("and {more} more, each with less time\n"));
    }
    text
}
