//! `tbccl trace check`: whether a merged trace holds what it must.

use super::{
    super::{CommandError, WRONG, print},
    format::{AboutMerged, Event, Phase},
    load,
    matching::{Matching, match_messages},
    merge::lost_until,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::ExitCode,
};

const EXAMPLES: &str = "\
Examples:
  tbccl trace check job.json

Checks that slices of a thread lie inside of each other or apart, that every send has its receive
where both ranks have the whole call, that no receive ends before its send began by more than the
error of the clocks, and that arrows have two ends. The exit status is 1 if one does not hold.";

/// Check a merged trace: nesting, messages, clocks
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The merged file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Most problems that are printed.
const PRINTED: usize = 20;

/// Runs `tbccl trace check`.
pub(super) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let (about, events) = load::merged(&args.file)?;
    let matching = match_messages(&events, |rank| lost_until(&about, rank));
    let mut problems = nesting(&events);
    problems.extend(matching.alone.iter().map(|at| format!("{} has no other end", place(&events[*at]))));
    problems.extend(causality(&about, &events, &matching));
    problems.extend(arrows(&events, matching.pairs.len()));
    let slices = events.iter().filter(|event| event.ph == Phase::Slice).count();
    let mut text = format!(
        "{} ranks, {slices} slices, {} messages with both ends, {} with one end in failed or lost calls; \
         clocks of hosts agree within {:.1} us\n",
        about.ranks.len(),
        matching.pairs.len(),
        matching.excused,
        about.clock_error_us
    );
    problems.iter().take(PRINTED).for_each(|problem| text.push_str(&format!("wrong: {problem}\n")));
    if problems.len() > PRINTED {
        text.push_str(&format!("and {} more\n", problems.len() - PRINTED));
    }
    print(&text);
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

/// Returns the place of an event, for messages.
fn place(event: &Event) -> String {
    let call = event.args.as_ref().and_then(|args| args.call);
    let call = call.map_or_else(String::new, |call| format!(" of call {call}"));
    format!("rank {}, {:.3} us: {}{call}", event.pid, event.ts.unwrap_or_default(), event.name)
}

/// A slice with its begin and end, in nanoseconds.
type Timed<'e> = (u64, u64, &'e Event);

/// Returns the slices that have no times, or that overlap others of their thread without being inside.
fn nesting(events: &[Event]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut threads: BTreeMap<(u32, u64), Vec<Timed<'_>>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.ph == Phase::Slice) {
        match event.times() {
            Some((begin, end)) => {
                threads.entry((event.pid, event.tid)).or_default().push((begin, end, event));
            }
            None => problems.push(format!("{} has no valid times", place(event))),
        }
    }
    // Simulated steps of one direction may overlap.
    threads.retain(|_, slices| !slices[0].2.is_simulated());
    for slices in threads.values_mut() {
        slices.sort_by_key(|(begin, end, _)| (*begin, std::cmp::Reverse(*end)));
        let mut around: Vec<u64> = Vec::new();
        for (begin, end, event) in slices {
            while around.last().is_some_and(|until| *until <= *begin) {
                around.pop();
            }
            if around.last().is_some_and(|until| *until < *end) {
                problems.push(format!("{} overlaps the slice before it", place(event)));
            }
            around.push(*end);
        }
    }
    problems
}

/// Returns the receives that end before their send began, beyond the error of the clocks. For ranks of one
/// clock that is the error of their readings.
fn causality(about: &AboutMerged, events: &[Event], matching: &Matching) -> Vec<String> {
    let clock = |rank: u32| about.clocks.iter().position(|clock| clock.ranks.contains(&rank));
    let is_early = |(send, receive): &&(usize, usize)| {
        let (send, receive) = (&events[*send], &events[*receive]);
        let error_us = match (clock(send.pid), clock(receive.pid)) {
            (Some(one), Some(other)) if one == other => 2.0 * about.clocks[one].event_error_us,
            _ => about.clock_error_us,
        };
        let error = (error_us * 1e3).ceil() as u64;
        // The end of a receive that was cut off is that of the file.
        let is_cut_off = receive.args.as_ref().is_some_and(|args| args.outcome.is_some());
        if is_cut_off {
            return false;
        }
        let (Some((began, _)), Some((_, ended))) = (send.times(), receive.times()) else { return false };
        ended + error < began
    };
    let early = matching.pairs.iter().filter(is_early);
    early.map(|(_, receive)| format!("{} ends before its send began", place(&events[*receive]))).collect()
}

/// Returns the arrows that don't have two ends.
fn arrows(events: &[Event], pairs: usize) -> Vec<String> {
    let ids = |phase: Phase| -> BTreeSet<Option<u64>> {
        events.iter().filter(|event| event.ph == phase).map(|event| event.id).collect()
    };
    let (begins, ends) = (ids(Phase::FlowStart), ids(Phase::FlowEnd));
    if begins == ends && begins.len() == pairs {
        return Vec::new();
    }
    vec![format!("{} arrows begin and {} end, for {pairs} messages", begins.len(), ends.len())]
}
