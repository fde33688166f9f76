//! The table of a report: one row for each rank, or for each of its calls in progress.

use super::{
    Report,
    graph::{Graph, Node, NodePresence, Position},
    knot::{call_name, past_name},
    status::{JoinStatus, PastCall, RailStatus},
    words::seconds,
};
use serde::Serialize;
use std::fmt;

/// Maximum number of rows in a text.
const ROWS: usize = 256;

/// Maximum number of characters of an activity in a text.
const MAX_ACTIVITY: usize = 100;

/// A communicator of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CommunicatorRow {
    /// Call by which it was made from another one; empty for the first communicator of a job.
    pub made_by: String,
    /// Number of ranks.
    pub size: usize,
    /// Name of the transport.
    pub transport: String,
}

/// A rank of a job in a call, or outside of calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankRow {
    /// Name of the rank, such as `rank 3`.
    pub rank: String,
    /// Process id; 0 for a rank that has not joined.
    pub pid: u32,
    /// Host.
    pub host: String,
    /// Activity, such as `all_reduce number 17 of communicator 0`.
    pub activity: String,
    /// Time since the call began, or since the latest one ended.
    pub seconds: Option<f64>,
    /// Description of the call with all arguments.
    pub call: Option<String>,
    /// Name of the rank for which it waits.
    pub waits_for: Option<String>,
    /// Time without progress.
    pub waited: Option<f64>,
    /// Step of the plan, with ranks of the call's communicator.
    pub step: Option<String>,
    /// Rails to the rank for which it waits.
    pub rails: Vec<RailStatus>,
    /// The latest call that has ended.
    pub latest: Option<String>,
}

/// Returns the communicators.
pub(super) fn communicators(graph: &Graph) -> Vec<CommunicatorRow> {
    let row = |communicator: &super::graph::CommunicatorNode| CommunicatorRow {
        made_by: communicator.made_by.clone(),
        size: communicator.members.len(),
        transport: communicator.transport.clone(),
    };
    graph.communicators.iter().map(row).collect()
}

/// Returns the rows of all ranks: those of communicator 0 in rank order, then the others.
pub(super) fn ranks(graph: &Graph) -> Vec<RankRow> {
    let mut order: Vec<usize> = (0..graph.nodes.len()).collect();
    let first = |node: &usize| {
        let members = graph.communicators.iter().enumerate();
        let found = members.filter_map(|(at, communicator)| {
            Some((at, communicator.members.iter().position(|member| *member == Some(*node))?))
        });
        found.min().unwrap_or((usize::MAX, *node))
    };
    order.sort_by_cached_key(first);
    order.into_iter().flat_map(|node| rows_of(graph, node)).collect()
}

fn rows_of(graph: &Graph, node: usize) -> Vec<RankRow> {
    let calls: Vec<RankRow> = graph.calls_of(node).map(|at| row_of_call(graph, at)).collect();
    if calls.is_empty() { vec![row_outside(graph, node)] } else { calls }
}

/// Returns a row without an activity, but with the latest call that has ended.
fn blank(graph: &Graph, node: usize) -> RankRow {
    RankRow {
        rank: graph.label(node),
        pid: graph.nodes[node].pid,
        host: graph.nodes[node].host.clone(),
        activity: String::new(),
        seconds: None,
        call: None,
        waits_for: None,
        waited: None,
        step: None,
        rails: Vec::new(),
        latest: graph.latest_ended(node).map(|(communicator, past)| latest(graph, communicator, past)),
    }
}

fn row_of_call(graph: &Graph, at: Position) -> RankRow {
    let (communicator, status) = graph.part(at);
    let row = blank(graph, at.node);
    let Some(call) = &status.call else { return row };
    let wait = call.wait.as_ref();
    let more = if call.others > 0 { format!(" and {} more", call.others) } else { String::new() };
    RankRow {
        activity: call_name(graph, communicator, call) + &more,
        seconds: Some(call.seconds),
        call: Some(call.text.clone()),
        waits_for: wait.and_then(|_| graph.target(at)).map(|node| graph.label(node)),
        waited: wait.map(|wait| wait.seconds),
        step: wait.map(|wait| wait.step.clone()).filter(|step| !step.is_empty()),
        rails: wait.map(|wait| wait.rails.clone()).unwrap_or_default(),
        ..row
    }
}

/// Returns `barrier number 16, 8.2 s ago`.
fn latest(graph: &Graph, communicator: usize, past: &PastCall) -> String {
    let failed = if past.is_done { "" } else { " (failed)" };
    format!("{}{failed}, {} ago", past_name(graph, communicator, past), seconds(past.seconds))
}

fn row_outside(graph: &Graph, node: usize) -> RankRow {
    let Node { presence, parts, joining, .. } = &graph.nodes[node];
    let error = parts.iter().find_map(|(_, status)| status.error.as_ref());
    let activity = match presence {
        NodePresence::Answered => match (error, joining) {
            (Some(error), _) => format!("failed: {error}"),
            (None, Some(JoinStatus { made_by, .. })) if !made_by.is_empty() => {
                format!("waits for other ranks to join {made_by}")
            }
            (None, Some(_)) => "waits for other ranks to join".to_owned(),
            (None, None) if parts.is_empty() => "no communicator".to_owned(),
            (None, None) => "outside tbccl".to_owned(),
        },
        NodePresence::Silent(state) => state.to_string(),
        NodePresence::Left => "has closed the communicator".to_owned(),
        NodePresence::Died(how) => how.clone(),
        NodePresence::Starting => "waits for other ranks to join".to_owned(),
        NodePresence::NotJoined => "has not joined".to_owned(),
        NodePresence::NotReported => "not known".to_owned(),
    };
    let joined = joining.as_ref().filter(|_| error.is_none()).map(|joining| joining.seconds);
    RankRow {
        activity,
        seconds: joined.or_else(|| graph.latest_ended(node).map(|(_, past)| past.seconds)),
        ..blank(graph, node)
    }
}

/// Writes the table of a report.
pub(super) fn write(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const HEAD: [&str; 6] = ["rank", "process", "call", "for", "waits for", "latest ended call"];
    let rows: Vec<[String; 6]> = report.ranks.iter().take(ROWS).map(cells).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([HEAD[column].len()]).max().unwrap_or_default()
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    for cells in std::iter::once(&HEAD.map(str::to_owned)).chain(&rows) {
        let cells = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    if report.ranks.len() > ROWS {
        writeln!(f, "and {} more", report.ranks.len() - ROWS)?;
    }
    if report.communicators.len() > 1 {
        for (at, communicator) in report.communicators.iter().enumerate() {
            let CommunicatorRow { made_by, size, transport } = communicator;
            let made_by = if made_by.is_empty() { "the job" } else { made_by };
            writeln!(f, "communicator {at}: {made_by}, {size} ranks, {transport}")?;
        }
    }
    Ok(())
}

fn cells(row: &RankRow) -> [String; 6] {
    let process = if row.pid == 0 { "-".to_owned() } else { format!("{} on {}", row.pid, row.host) };
    let since = row.seconds.map_or_else(|| "-".to_owned(), seconds);
    let mut waits_for = match (&row.waits_for, &row.step) {
        (Some(peer), Some(step)) => format!("{peer} ({step})"),
        (Some(peer), None) => peer.clone(),
        (None, Some(step)) => step.clone(),
        (None, None) => "-".to_owned(),
    };
    if let Some(waited) = row.waited {
        waits_for.push_str(&format!(", for {}", seconds(waited)));
    }
    for rail in &row.rails {
        let state = if rail.is_up { "up" } else { "down" };
        waits_for.push_str(&format!("; rail {} to {}: {state}", rail.ours, rail.theirs));
    }
    let arguments = row.call.as_ref().and_then(|call| call.split_once(" of ")).map(|(_, arguments)| {
        // A message has named its other end.
        let end = [" to ", " from "].iter().find_map(|before| arguments.find(before));
        format!(" ({})", &arguments[..end.unwrap_or(arguments.len())])
    });
    let arguments = arguments.unwrap_or_default();
    let activity = shortened(row.activity.clone() + &arguments);
    let before = row.latest.clone().unwrap_or_else(|| "-".to_owned());
    [row.rank.clone(), process, activity, since, waits_for, before]
}

/// Shortens a text, such as an error message, so that a table stays readable.
fn shortened(text: String) -> String {
    match text.char_indices().nth(MAX_ACTIVITY) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
