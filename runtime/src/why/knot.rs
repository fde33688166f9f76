//! The knot: the cause of a hang in one sentence.

use super::{
    cause::{Cause, Edge, find},
    graph::{Graph, NodePresence, Position},
    paused,
    status::{CallStatus, JoinStatus, Kind, PastCall, RailStatus},
    words::{NAMED, list, numbered, seconds},
};
use bootstrap::ProcessState;
use serde::Serialize;
use std::{collections::BTreeSet, fmt};

/// The cause of a hang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Knot {
    /// Kind of the cause.
    pub kind: KnotKind,
    /// The cause in one sentence.
    pub sentence: String,
    /// Processes of the ranks that are the cause: process id and host.
    pub processes: Vec<(u32, String)>,
}

/// Kind of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KnotKind {
    /// No rank waits, or none for long.
    NoWait,
    /// Ranks have not joined the job.
    NotJoined,
    /// A process does not answer: it is stopped, or its host is gone.
    Silent,
    /// A process did not run for a while, and does again: others had waited for it.
    Paused,
    /// A process has ended, or has closed the communicator.
    Gone,
    /// A rank's communicator has failed.
    Failed,
    /// Two ranks have made different calls.
    Mismatch,
    /// A rank has not made a call, or does not take part in a message.
    NeverCalled,
    /// Ranks wait for each other.
    Cycle,
    /// A message does not arrive.
    Undelivered,
    /// A rank waits for a message from any rank.
    AnySource,
    /// A rank works in the call.
    Busy,
    /// The cause is not known.
    Unknown,
}

impl fmt::Display for Knot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl Knot {
    /// Finds the knot. Waits shorter than `min_wait` seconds are no hang.
    pub(super) fn find(graph: &Graph, min_wait: f64) -> Knot {
        let longest = graph.waiting().first().and_then(|at| graph.waits_for(*at)).unwrap_or_default();
        if let Some(knot) = not_joined(graph) {
            return knot;
        }
        match find(graph) {
            Some(cause) if longest >= min_wait => after_pause(graph, &cause, longest),
            _ => no_wait(graph, longest),
        }
    }

    /// Adds a process, and puts a sentence about it in front.
    fn preceded(mut self, kind: KnotKind, process: (u32, String), sentence: &str) -> Knot {
        self.processes.retain(|other| *other != process);
        self.processes.insert(0, process);
        Knot { kind, sentence: format!("{sentence}; {}", self.sentence), processes: self.processes }
    }

    fn new(graph: &Graph, kind: KnotKind, nodes: &[usize], sentence: String) -> Knot {
        let process = |node: &usize| (graph.nodes[*node].pid, graph.nodes[*node].host.clone());
        Knot { kind, sentence, processes: nodes.iter().map(process).collect() }
    }
}

fn labels(graph: &Graph, nodes: &[usize]) -> Vec<String> {
    nodes.iter().map(|node| graph.label(*node)).collect()
}

/// Returns `all_reduce number 17 of communicator 0`, or `send number 3 to rank 1 of communicator 0`.
pub(super) fn call_name(graph: &Graph, communicator: usize, call: &CallStatus) -> String {
    let of = graph.of_communicator(communicator);
    let number = (!call.is_tagged).then_some(call.number);
    format!("{}{of}", numbered(&call.name, number))
}

/// Returns the name of an ended call, as [`call_name`] does.
pub(super) fn past_name(graph: &Graph, communicator: usize, call: &PastCall) -> String {
    format!("{}{}", numbered(&call.name, Some(call.number)), graph.of_communicator(communicator))
}

fn call_at(graph: &Graph, at: Position) -> String {
    let (communicator, status) = graph.part(at);
    status.call.as_ref().map(|call| call_name(graph, communicator, call)).unwrap_or_default()
}

/// Returns the nodes that wait, directly or not, and are not among the causes.
fn waiting_besides(graph: &Graph, causes: &[usize]) -> usize {
    let waiting: BTreeSet<usize> = graph.waiting().iter().map(|at| at.node).collect();
    waiting.iter().filter(|node| !causes.contains(node)).count()
}

/// Returns `; 3 ranks wait`, or nothing if only the waiting rank that the sentence names does.
fn and_others(graph: &Graph, causes: &[usize]) -> String {
    match waiting_besides(graph, causes) {
        0 | 1 => String::new(),
        count => format!("; {count} ranks wait"),
    }
}

fn not_joined(graph: &Graph) -> Option<Knot> {
    let with = |presence: &NodePresence| -> Vec<usize> {
        (0..graph.nodes.len()).filter(|node| graph.nodes[*node].presence == *presence).collect()
    };
    let absent = with(&NodePresence::NotJoined);
    let starting = with(&NodePresence::Starting);
    if absent.is_empty() && starting.is_empty() {
        return None;
    }
    let sentence = match (absent.len(), starting.len()) {
        (0, _) => format!("the ranks are starting: {} have joined", list(&labels(graph, &starting))),
        (1, others) => {
            format!("{} has not joined the job; {others} ranks have", list(&labels(graph, &absent)))
        }
        (_, others) => {
            format!("{} have not joined the job; {others} ranks have", list(&labels(graph, &absent)))
        }
    };
    Some(Knot::new(graph, KnotKind::NotJoined, &absent, sentence))
}

fn no_wait(graph: &Graph, longest: f64) -> Knot {
    let silent = |node: &usize| matches!(graph.nodes[*node].presence, NodePresence::Silent(_));
    let silent: Vec<usize> = (0..graph.nodes.len()).filter(silent).collect();
    if let Some(first) = silent.first() {
        let sentence = format!("{}; no rank waits for it", absence(graph, *first));
        return Knot::new(graph, KnotKind::Silent, &silent, sentence);
    }
    if longest > 0.0 {
        let sentence = format!("no rank has waited for longer than {}: the job moves", seconds(longest));
        return Knot::new(graph, KnotKind::NoWait, &[], sentence);
    }
    if let Some(sentence) = joining(graph) {
        return Knot::new(graph, KnotKind::NotJoined, &[], sentence);
    }
    let working = (0..graph.nodes.len()).filter(|node| graph.calls_of(*node).next().is_some()).count();
    if working > 0 {
        let ranks = if working == 1 { "1 rank is" } else { &format!("{working} ranks are") };
        let sentence = format!("no rank waits for another one; {ranks} at work in calls");
        return Knot::new(graph, KnotKind::NoWait, &[], sentence);
    }
    let outside = |node: usize| idle_time(graph, node).map(|time| (time, node));
    let longest = (0..graph.nodes.len()).filter_map(outside).max_by(|a, b| a.0.total_cmp(&b.0));
    let sentence = match longest {
        Some((time, node)) => format!(
            "no rank waits for another one; {} has been outside tbccl for the longest time, {}",
            graph.label(node),
            seconds(time)
        ),
        None => "no rank waits for another one".to_owned(),
    };
    Knot::new(graph, KnotKind::NoWait, &[], sentence)
}

/// Returns a sentence about ranks that make another communicator, while others do not.
fn joining(graph: &Graph) -> Option<String> {
    let is_joining = |node: &usize| graph.nodes[*node].joining.is_some();
    let (inside, outside): (Vec<usize>, Vec<usize>) = (0..graph.nodes.len()).partition(is_joining);
    let joining = graph.nodes[*inside.first()?].joining.as_ref()?;
    let verb = if inside.len() == 1 { "has" } else { "have" };
    let first = format!("{} {verb} {}", list(&labels(graph, &inside)), waited_to_join(joining));
    Some(match outside.first() {
        None => first,
        Some(node) => format!("{first}; {} {}", graph.label(*node), activity(graph, *node)),
    })
}

/// Returns the time since the latest call of a node that is in none.
fn idle_time(graph: &Graph, node: usize) -> Option<f64> {
    let latest = graph.latest_ended(node).filter(|_| graph.calls_of(node).next().is_none());
    latest.map(|(_, call)| call.seconds)
}

/// Returns the knot that a cause is after the longest wait. A process that did not run meanwhile comes first.
fn after_pause(graph: &Graph, cause: &Cause, waited: f64) -> Knot {
    let knot = knot_of(graph, cause);
    let Some((node, pause)) = paused::behind(graph, cause, waited) else { return knot };
    let (length, ended) = (seconds(pause.seconds), seconds(pause.ended));
    let sentence = format!("{} did not run for {length}, until {ended} ago", graph.label_with_process(node));
    let process = (graph.nodes[node].pid, graph.nodes[node].host.clone());
    knot.preceded(KnotKind::Paused, process, &sentence)
}

fn knot_of(graph: &Graph, cause: &Cause) -> Knot {
    match cause {
        Cause::Absent(edge) => absent(graph, *edge),
        Cause::Failed(edge) => failed(graph, *edge),
        Cause::Mismatch(edge) => mismatch(graph, *edge),
        Cause::NeverCalled(edge) => never_called(graph, *edge),
        Cause::Cycle(edges) => cycle(graph, edges),
        Cause::Undelivered(edge) => undelivered(graph, *edge),
        Cause::AnySource(at) => {
            let sentence = format!(
                "{} has waited in {} for {}, and no rank sends{}",
                graph.label(at.node),
                call_at(graph, *at),
                seconds(graph.waits_for(*at).unwrap_or_default()),
                possible_senders(graph, *at)
            );
            Knot::new(graph, KnotKind::AnySource, &[at.node], sentence)
        }
        Cause::Busy(edge) => busy(graph, *edge),
        Cause::Unknown(at) => {
            let (label, call) = (graph.label(at.node), call_at(graph, *at));
            let sentence = format!("{label} waits in {call}, and does not tell for which rank");
            Knot::new(graph, KnotKind::Unknown, &[at.node], sentence)
        }
    }
}

/// Names a rank at work, which tells of no wait. If another member does not answer, that one comes first: on
/// a busy machine a rank that waits for it may not have told so in time.
fn busy(graph: &Graph, edge: Edge) -> Knot {
    let communicator = graph.part(edge.from).0;
    let there = graph.in_communicator(edge.to, communicator);
    let call = there.map(|there| call_at(graph, there)).unwrap_or_default();
    let others = and_others(graph, &[edge.to]);
    let label = graph.label_for(edge.to, communicator);
    let working = format!("{label} is at work in {call}, and does not wait{others}");
    match silent_member(graph, communicator) {
        None => Knot::new(graph, KnotKind::Busy, &[edge.to], working),
        Some(silent) => {
            let sentence = format!("{}; {working}", absence(graph, silent));
            Knot::new(graph, KnotKind::Silent, &[silent, edge.to], sentence)
        }
    }
}

/// Returns a member of a communicator that gives no answer, or has died.
fn silent_member(graph: &Graph, communicator: usize) -> Option<usize> {
    let is_silent =
        |node: &usize| matches!(graph.nodes[*node].presence, NodePresence::Silent(_) | NodePresence::Died(_));
    graph.communicators[communicator].members.iter().flatten().copied().find(is_silent)
}

/// Returns what members do that may have to send: `: rank 1 has been outside tbccl for 8.2 s, after ...` of
/// the one that has been outside for longest, and of the one that began its call last; or nothing.
fn possible_senders(graph: &Graph, at: Position) -> String {
    let members = graph.communicators[graph.part(at).0].members.iter().flatten();
    let outside = members.filter_map(|node| Some((idle_time(graph, *node)?, *node)));
    let longest = outside.max_by(|a, b| a.0.total_cmp(&b.0));
    let longest = longest.map(|(_, node)| format!("{} {}", graph.label(node), activity(graph, node)));
    let found: Vec<String> = longest.into_iter().chain(latest_to_call(graph, at)).collect();
    if found.is_empty() { String::new() } else { format!(": {}", found.join("; ")) }
}

/// Time by which a member's wait is shorter than another one's, in seconds, from which it counts as late.
const LATE: f64 = 1.0;

/// Returns `the last to begin its call was rank 2, 0.1 s ago`, unless no member is late, on whatever
/// communicator. A member that was stopped for a while may have the message that others wait for.
fn latest_to_call(graph: &Graph, at: Position) -> Option<String> {
    let members = graph.communicators[graph.part(at).0].members.iter().flatten();
    let waits = members.filter_map(|node| {
        let calls = graph.calls_of(*node).filter_map(|call| graph.waits_for(call));
        Some((calls.min_by(f64::total_cmp)?, *node))
    });
    let own = graph.waits_for(at).unwrap_or_default();
    let (wait, node) = waits.min_by(|a, b| a.0.total_cmp(&b.0)).filter(|(wait, _)| wait + LATE <= own)?;
    Some(format!("the last to begin its call was {}, {} ago", graph.label(node), seconds(wait)))
}

/// Returns a sentence about a node that does not take part any more.
fn absence(graph: &Graph, node: usize) -> String {
    let who = graph.label_with_process(node);
    match &graph.nodes[node].presence {
        NodePresence::Silent(ProcessState::Stopped) => {
            let pid = graph.nodes[node].pid;
            format!("{who} is stopped (state T; `kill -CONT {pid}` there continues it)")
        }
        NodePresence::Silent(ProcessState::Ended) => format!("{who} has ended"),
        NodePresence::Silent(ProcessState::Unknown) => {
            format!("{who} did not answer: it is stopped, or its host is gone")
        }
        NodePresence::Silent(state) => format!("{who} did not answer: it is {state}"),
        NodePresence::Died(how) => format!("{who} {how}"),
        NodePresence::NotReported => format!("the rendezvous does not answer, so nothing is known of {who}"),
        _ => format!("{who} has closed the communicator"),
    }
}

fn absent(graph: &Graph, edge: Edge) -> Knot {
    let kind = match graph.nodes[edge.to].presence {
        NodePresence::Silent(_) => KnotKind::Silent,
        NodePresence::NotReported => KnotKind::Unknown,
        _ => KnotKind::Gone,
    };
    let sentence = format!(
        "{}; {} waits for it in {}{}",
        absence(graph, edge.to),
        graph.label(edge.from.node),
        call_at(graph, edge.from),
        and_more(graph, edge)
    );
    let communicator = graph.part(edge.from).0;
    match silent_member(graph, communicator).filter(|_| kind == KnotKind::Unknown) {
        None => Knot::new(graph, kind, &[edge.to], sentence),
        // The rendezvous may be that rank's.
        Some(silent) => {
            let sentence = format!("{}; {sentence}", absence(graph, silent));
            Knot::new(graph, KnotKind::Silent, &[silent, edge.to], sentence)
        }
    }
}

/// Returns `, and so do 3 more ranks`, of those that wait besides the two ranks of an edge.
fn and_more(graph: &Graph, edge: Edge) -> String {
    match waiting_besides(graph, &[edge.to, edge.from.node]) {
        0 => String::new(),
        1 => ", and 1 more rank waits".to_owned(),
        more => format!(", and {more} more ranks wait"),
    }
}

fn failed(graph: &Graph, edge: Edge) -> Knot {
    let (communicator, _) = graph.part(edge.from);
    let there = graph.in_communicator(edge.to, communicator);
    let error = there.and_then(|there| graph.part(there).1.error.clone()).unwrap_or_default();
    let of = graph.of_communicator(communicator);
    let label = graph.label_for(edge.to, communicator);
    let sentence = format!("a call{of} has failed on {label}: {error}");
    Knot::new(graph, KnotKind::Failed, &[edge.to], sentence)
}

fn mismatch(graph: &Graph, edge: Edge) -> Knot {
    let (communicator, ours) = graph.part(edge.from);
    let there = graph.in_communicator(edge.to, communicator).map(|there| graph.part(there).1);
    let (number, text) = ours.call.as_ref().map(|call| (call.number, call.text.clone())).unwrap_or_default();
    let theirs = there.and_then(|theirs| {
        let current = theirs.call.iter().filter(|call| call.number == number).map(|call| &call.text);
        current.chain(theirs.past.iter().filter(|call| call.number == number).map(|call| &call.text)).next()
    });
    let sentence = format!(
        "the ranks disagree on call {number}{}: {} called {text}, {} called {}",
        graph.of_communicator(communicator),
        graph.label_for(edge.from.node, communicator),
        graph.label_for(edge.to, communicator),
        theirs.map_or("another one", String::as_str)
    );
    Knot::new(graph, KnotKind::Mismatch, &[edge.from.node, edge.to], sentence)
}

fn never_called(graph: &Graph, edge: Edge) -> Knot {
    let (communicator, ours) = graph.part(edge.from);
    let Some(call) = &ours.call else { return knot_of(graph, &Cause::Unknown(edge.from)) };
    let name = call_name(graph, communicator, call);
    if call.kind != Kind::Collective {
        let [from, to] = [edge.from.node, edge.to].map(|node| graph.label_for(node, communicator));
        let lack = match call.kind {
            Kind::Send => format!("{to} does not receive the message that {from} sends in {name}"),
            _ => format!("{to} does not send the message for which {from} waits in {name}"),
        };
        let sentence = format!("{lack}: it {}", activity(graph, edge.to));
        return Knot::new(graph, KnotKind::NeverCalled, &[edge.to], sentence);
    }
    let members = &graph.communicators[communicator].members;
    let is_missing = |node: &usize| {
        let there = graph.in_communicator(*node, communicator).map(|there| graph.part(there).1);
        there.is_some_and(|theirs| theirs.entered < call.number && theirs.call.is_none())
    };
    let missing: Vec<usize> = members.iter().flatten().copied().filter(is_missing).collect();
    let first = missing.first().copied().unwrap_or(edge.to);
    let subject = if missing.len() > 1 { graph.label(first) } else { "it".to_owned() };
    let labels: Vec<String> = missing.iter().map(|node| graph.label_for(*node, communicator)).collect();
    let sentence = format!("{} never called {name}: {subject} {}", list(&labels), activity(graph, first));
    Knot::new(graph, KnotKind::NeverCalled, &missing, sentence)
}

/// Returns `waited for 8.2 s for other ranks to join split 3 of color 0`.
fn waited_to_join(joining: &JoinStatus) -> String {
    let made_by = if joining.made_by.is_empty() { "a communicator" } else { &joining.made_by };
    format!("waited for {} for other ranks to join {made_by}", seconds(joining.seconds))
}

/// Returns the activity of a node as the rest of a sentence that begins with the rank.
fn activity(graph: &Graph, node: usize) -> String {
    if let Some(at) = graph.calls_of(node).next() {
        let time = graph.call(at).map_or(0.0, |call| call.seconds);
        return format!("has been in {} for {}", call_at(graph, at), seconds(time));
    }
    if let Some(joining) = &graph.nodes[node].joining {
        return format!("has {}", waited_to_join(joining));
    }
    match graph.latest_ended(node) {
        Some((communicator, call)) => {
            let name = past_name(graph, communicator, call);
            format!("has been outside tbccl for {}, after {name}", seconds(call.seconds))
        }
        None => "has made no call yet".to_owned(),
    }
}

fn cycle(graph: &Graph, edges: &[Edge]) -> Knot {
    let nodes: Vec<usize> = edges.iter().map(|edge| edge.from.node).collect();
    let wait = |edge: &Edge| {
        let call = graph.call(edge.from);
        let step = call.filter(|call| call.is_tagged).and_then(|call| call.wait.as_ref());
        let step = step.map(|wait| format!(" ({})", wait.step)).unwrap_or_default();
        // A message names its other end.
        let names_peer = call.is_some_and(|call| call.kind != Kind::Collective);
        let target = if names_peer { String::new() } else { format!(" for {}", graph.label(edge.to)) };
        format!("{} in {}{step}{target}", graph.label(edge.from.node), call_at(graph, edge.from))
    };
    let waits: Vec<String> = edges.iter().map(wait).collect();
    let sentence = format!(
        "{} wait for each other: {}{}",
        list(&labels(graph, &nodes)),
        waits[..waits.len().min(NAMED)].join(", "),
        cycle_advice(graph, edges)
    );
    Knot::new(graph, KnotKind::Cycle, &nodes, sentence)
}

/// Returns the way out of a cycle of sends, or of calls on several communicators.
fn cycle_advice(graph: &Graph, edges: &[Edge]) -> &'static str {
    let communicators: BTreeSet<usize> = edges.iter().map(|edge| graph.part(edge.from).0).collect();
    let is_send = |edge: &Edge| graph.call(edge.from).is_some_and(|call| call.kind == Kind::Send);
    if communicators.len() > 1 {
        "; all ranks must make the calls of these communicators in the same order"
    } else if edges.iter().all(is_send) {
        "; a send that is too large for the buffers waits for its receive"
    } else {
        ""
    }
}

fn undelivered(graph: &Graph, edge: Edge) -> Knot {
    let (communicator, status) = graph.part(edge.from);
    let wait = status.call.as_ref().and_then(|call| call.wait.as_ref());
    let (ours, theirs) = (graph.label(edge.from.node), graph.label(edge.to));
    let (from, to) = if wait.is_some_and(|wait| wait.sends) { (&ours, &theirs) } else { (&theirs, &ours) };
    let rails = wait.map_or(&[][..], |wait| &wait.rails);
    let transport = &graph.communicators[communicator].transport;
    let sentence = format!(
        "no message gets from {from} to {to} ({}): {ours} waits in {}",
        how_connected(rails, transport),
        call_at(graph, edge.from)
    );
    Knot::new(graph, KnotKind::Undelivered, &[edge.from.node, edge.to], sentence)
}

/// Describes the rails between two ranks: those that are down, or all.
fn how_connected(rails: &[RailStatus], transport: &str) -> String {
    let names = |wanted: bool| -> Vec<String> {
        let rails = rails.iter().filter(|rail| rail.is_up == wanted);
        rails.map(|rail| format!("{} to {}", rail.ours, rail.theirs)).collect()
    };
    let (down, up) = (names(false), names(true));
    match (&down[..], &up[..]) {
        ([], []) => format!("over {transport}"),
        ([], up) => format!("over {transport}; up are the rails {}", list(up)),
        ([one], []) => format!("the rail {one} is down"),
        (down, []) => format!("all rails are down: {}", list(down)),
        (down, up) => format!("down are the rails {}, up are {}", list(down), list(up)),
    }
}
