//! Totals of each rank over a job.

use rustix::time::{ClockId, clock_gettime};
use std::{fmt::Write, time::Duration};
use tbccl::{Communicator, PollCounters, Rank, Result, kernels};

/// One rank's totals.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankStats {
    rank: u32,
    sent_messages: u64,
    received_messages: u64,
    moved_bytes: u64,
    copied_bytes: u64,
    /// Messages sent again, connections renewed, and work requests that devices refused.
    recoveries: [u64; 3],
    /// Microseconds of processor time.
    cpu_us: u64,
    polls: PollCounters,
}

const NUMBERS: usize = 13 + PollCounters::BATCHES;

/// Gathers the totals of all ranks, in rank order.
pub(super) fn gather(comm: &mut Communicator) -> Result<Vec<RankStats>> {
    let (counters, polls) = (comm.counters(), comm.poll_counters());
    let mut local = vec![
        counters.sent_messages,
        counters.received_messages,
        counters.moved_bytes,
        counters.copied_bytes,
        processor_time(comm.transport()).as_micros() as u64,
        polls.polls,
        polls.empty_polls,
        polls.depth_high_water,
        polls.async_events,
        polls.wake_ups,
        counters.retransmissions,
        counters.reconnections,
        counters.refused,
    ];
    local.extend(polls.batches);
    let mut all = vec![0; NUMBERS * comm.size() as usize];
    comm.all_gather(&local, &mut all)?;
    let rows = (0..comm.size()).map(|r| &all[Rank(r).index() * NUMBERS..][..NUMBERS]);
    Ok(rows
        .zip(0..)
        .map(|(row, rank)| RankStats {
            rank,
            sent_messages: row[0],
            received_messages: row[1],
            moved_bytes: row[2],
            copied_bytes: row[3],
            recoveries: std::array::from_fn(|i| row[10 + i]),
            cpu_us: row[4],
            polls: PollCounters {
                polls: row[5],
                empty_polls: row[6],
                depth_high_water: row[7],
                async_events: row[8],
                wake_ups: row[9],
                batches: std::array::from_fn(|i| row[13 + i]),
            },
        })
        .collect())
}

/// Returns the processor time of this rank: that of the process, or of the thread if ranks are threads.
pub(super) fn processor_time(transport: &str) -> Duration {
    let clock = if transport == "local" { ClockId::ThreadCPUTime } else { ClockId::ProcessCPUTime };
    let time = clock_gettime(clock);
    Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

/// Returns the totals as a table.
pub(super) fn table(rows: &[RankStats]) -> String {
    let mut text = format!(
        "#\n# Totals of each rank, checks and agreements included; kernels for {}\n# {:>5} {:>12} {:>12} \
        {:>16} {:>16} {:>10}\n",
        kernels::isa_name(),
        "rank",
        "sent",
        "received",
        "moved (B)",
        "copied (B)",
        "cpu (s)"
    );
    for row in rows {
        let seconds = row.cpu_us as f64 / 1e6;
        let _ = writeln!(
            text,
            "# {:>5} {:>12} {:>12} {:>16} {:>16} {seconds:>10.3}",
            row.rank, row.sent_messages, row.received_messages, row.moved_bytes, row.copied_bytes
        );
    }
    if rows.iter().any(|row| row.polls.polls > 0) {
        text += &polls_table(rows);
    }
    text
}

/// Returns the totals as JSON lines, one per rank, each with the single key `stats`.
pub(super) fn json(rows: &[RankStats]) -> String {
    let line = |row: &RankStats| {
        let RankStats { polls, .. } = row;
        let stats = serde_json::json!({
            "rank": row.rank,
            "sent_messages": row.sent_messages,
            "received_messages": row.received_messages,
            "moved_bytes": row.moved_bytes,
            "copied_bytes": row.copied_bytes,
            "repeated": row.recoveries[0],
            "renewed": row.recoveries[1],
            "refused": row.recoveries[2],
            "cpu_us": row.cpu_us,
            "polls": polls.polls,
            "empty_polls": polls.empty_polls,
            "batches": polls.batches,
            "depth_high_water": polls.depth_high_water,
            "async_events": polls.async_events,
            "wake_ups": polls.wake_ups,
        });
        format!("{}\n", serde_json::json!({ "stats": stats }))
    };
    rows.iter().map(line).collect()
}

/// Returns the table of completion-queue polls and recoveries.
fn polls_table(rows: &[RankStats]) -> String {
    let mut text = format!(
        "#\n# Completion queues, repeated messages, renewed connections, and refused work requests\n\
         # {:>5} {:>14} {:>14} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8}  batches of 1, 2, ... {} or more\n",
        "rank",
        "polls",
        "empty",
        "depth",
        "events",
        "wakes",
        "repeated",
        "renewed",
        "refused",
        PollCounters::BATCHES
    );
    for RankStats { rank, polls, recoveries: [repeated, renewed, refused], .. } in rows {
        let PollCounters { polls, empty_polls, batches, depth_high_water, async_events, wake_ups } = polls;
        let batches = batches.map(|count| count.to_string()).join(" ");
        let _ = writeln!(
            text,
            "# {rank:>5} {polls:>14} {empty_polls:>14} {depth_high_water:>8} {async_events:>8} {wake_ups:>8} \
             {repeated:>9} {renewed:>8} {refused:>8}  {batches}"
        );
    }
    text
}
