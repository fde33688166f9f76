//! Causes of a hang: from a waiting rank along the ranks that wait for each other, to the one that does not.
//!
//! A walk ends at a rank that is outside the call, silent, failed or in another call, at a message that does
//! not arrive, or where it comes back to a rank: a cycle. Of the causes that walks from all waiting ranks
//! find, the most telling one is the knot.

use super::{
    graph::{Graph, NodePresence, Position},
    status::{CallStatus, CommunicatorStatus, Kind},
};
use std::collections::BTreeSet;

/// A rank that waits, and the one for which it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) from: Position,
    pub(super) to: usize,
}

/// A cause of waits. An edge is the last wait before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The rank does not answer, has ended, or has left.
    Absent(Edge),
    /// The rank's communicator has failed.
    Failed(Edge),
    /// Both ranks have a call of this number, and the calls differ.
    Mismatch(Edge),
    /// The rank has not made the call.
    NeverCalled(Edge),
    /// Each rank waits for the next one, and the last one for the first.
    Cycle(Vec<Edge>),
    /// The other rank has sent what this one waits for, or both take part in the same call.
    Undelivered(Edge),
    /// The rank waits for a message from any rank.
    AnySource(Position),
    /// The other rank is in the call, and does not wait.
    Busy(Edge),
    /// The rank waits, and for whom is not known.
    Unknown(Position),
}

impl Cause {
    /// Returns the order of causes: the most telling one first.
    fn order(&self) -> u32 {
        match self {
            Cause::Absent(_) => 0,
            Cause::Failed(_) => 1,
            Cause::Mismatch(_) => 2,
            Cause::NeverCalled(_) => 3,
            Cause::Cycle(_) => 4,
            Cause::Undelivered(_) => 5,
            Cause::AnySource(_) => 6,
            Cause::Busy(_) => 7,
            Cause::Unknown(_) => 8,
        }
    }
}

/// Returns the most telling cause of the waits, the one with the longest wait among equals; `None` if no rank
/// waits.
pub(super) fn find(graph: &Graph) -> Option<Cause> {
    let mut seen = BTreeSet::new();
    let causes = graph.waiting().into_iter().filter_map(|from| walk(graph, from, &mut seen));
    // Of equal causes the first one stays.
    causes.min_by_key(Cause::order)
}

/// Next position of a walk, or its end.
enum Step {
    To(Position),
    End(Cause),
}

/// Walks from a waiting rank to a cause. `None` where it meets an earlier walk, which has found the cause.
/// `seen` holds the positions of all walks.
fn walk(graph: &Graph, from: Position, seen: &mut BTreeSet<Position>) -> Option<Cause> {
    let (mut at, mut path) = (from, Vec::<Edge>::new());
    loop {
        if !seen.insert(at) {
            let start = path.iter().position(|edge| edge.from == at)?;
            return Some(cycle(graph, path.split_off(start)));
        }
        let call = graph.call(at);
        if call.is_some_and(|call| call.kind == Kind::Recv && call.peer.is_none()) {
            // A rank that does not answer may be the one that was about to send.
            let absent = absent_member(graph, at).map(|to| Cause::Absent(Edge { from: at, to }));
            return Some(absent.unwrap_or(Cause::AnySource(at)));
        }
        let Some(to) = graph.target(at) else { return Some(Cause::Unknown(at)) };
        let edge = Edge { from: at, to };
        path.push(edge);
        match step(graph, edge) {
            Step::End(cause) => return Some(cause),
            Step::To(next) => at = next,
        }
    }
}

/// Returns a member of the communicator of a position that has not entered its collective and is in no call.
fn outsider(graph: &Graph, at: Position) -> Option<usize> {
    let (communicator, ours) = graph.part(at);
    let number = ours.call.as_ref()?.number;
    graph.communicators[communicator].members.iter().flatten().copied().find(|node| {
        let theirs = graph.in_communicator(*node, communicator).map(|there| graph.part(there).1);
        theirs.is_some_and(|theirs| theirs.entered < number) && graph.calls_of(*node).next().is_none()
    })
}

/// Returns a member of the communicator of a position that does not answer, has ended or has left.
fn absent_member(graph: &Graph, at: Position) -> Option<usize> {
    let members = graph.communicators[graph.part(at).0].members.iter().flatten().copied();
    members.into_iter().find(|node| {
        let presence = &graph.nodes[*node].presence;
        use NodePresence::{Died, Left, NotReported, Silent};
        matches!(presence, Silent(_) | Died(_) | NotReported | Left)
    })
}

/// Returns the cause that a cycle is. Plans have no cycles, so in one call a message does not arrive.
fn cycle(graph: &Graph, mut edges: Vec<Edge>) -> Cause {
    // The same cycle, wherever a walk has come into it.
    let first = (0..edges.len()).min_by_key(|at| edges[*at].from).unwrap_or_default();
    edges.rotate_left(first);
    let call = |edge: &Edge| {
        let (communicator, status) = graph.part(edge.from);
        let call = status.call.as_ref()?;
        (call.kind == Kind::Collective).then_some((communicator, call.number, call.digest))
    };
    let first = edges.first().and_then(call);
    if first.is_none() || edges.iter().any(|edge| call(edge) != first) {
        return Cause::Cycle(edges);
    }
    // The ranks tell of one wait each, and may wait for further ranks.
    let absent =
        edges.iter().find_map(|edge| Some(Edge { from: edge.from, to: absent_member(graph, edge.from)? }));
    if let Some(edge) = absent {
        return Cause::Absent(edge);
    }
    let outside =
        edges.iter().find_map(|edge| Some(Edge { from: edge.from, to: outsider(graph, edge.from)? }));
    if let Some(edge) = outside {
        return Cause::NeverCalled(edge);
    }
    // The first one to wait, unless a rail is down elsewhere.
    let down = |edge: &&Edge| rails_down(graph, **edge) > 0;
    let waited = |edge: &&Edge| graph.waits_for(edge.from).unwrap_or_default();
    let longest = edges.iter().max_by(|a, b| waited(a).total_cmp(&waited(b)));
    edges.iter().find(down).or(longest).map_or(Cause::Cycle(Vec::new()), |edge| Cause::Undelivered(*edge))
}

/// Returns the number of rails of a wait that are down.
pub(super) fn rails_down(graph: &Graph, edge: Edge) -> usize {
    let wait = graph.call(edge.from).and_then(|call| call.wait.as_ref());
    wait.map_or(0, |wait| wait.rails.iter().filter(|rail| !rail.is_up).count())
}

/// Judges the rank for which another one waits.
fn step(graph: &Graph, edge: Edge) -> Step {
    if graph.nodes[edge.to].presence != NodePresence::Answered {
        return Step::End(Cause::Absent(edge));
    }
    let (communicator, ours) = graph.part(edge.from);
    let Some(there) = graph.in_communicator(edge.to, communicator) else {
        return Step::End(Cause::Absent(edge));
    };
    let theirs = graph.part(there).1;
    if theirs.error.is_some() {
        return Step::End(Cause::Failed(edge));
    }
    let Some(call) = &ours.call else { return Step::End(Cause::Unknown(edge.from)) };
    match call.kind {
        Kind::Collective => step_in_collective(graph, edge, call, there),
        Kind::Send | Kind::Recv => step_in_message(graph, edge, (ours, call), there),
    }
}

fn step_in_collective(graph: &Graph, edge: Edge, call: &CallStatus, there: Position) -> Step {
    let theirs = graph.part(there).1;
    if theirs.entered < call.number {
        // An earlier collective, a message, or no call of this communicator.
        return elsewhere(graph, edge, there);
    }
    if theirs.digest_of(call.number).is_some_and(|digest| digest != call.digest) {
        return Step::End(Cause::Mismatch(edge));
    }
    match &theirs.call {
        Some(current) if current.kind == Kind::Collective && current.number == call.number => {
            on(graph, edge, there)
        }
        // The rank has done its part.
        _ => Step::End(Cause::Undelivered(edge)),
    }
}

fn step_in_message(
    graph: &Graph,
    edge: Edge,
    (ours, call): (&CommunicatorStatus, &CallStatus),
    there: Position,
) -> Step {
    let Some(current) = &graph.part(there).1.call else { return elsewhere(graph, edge, there) };
    let is_other_end = !call.is_tagged
        && current.kind != Kind::Collective
        && current.kind != call.kind
        && (current.peer.is_none() || current.peer == Some(ours.rank))
        && current.others == 0
        && call.others == 0;
    if !is_other_end {
        return on(graph, edge, there);
    }
    let is_same = current.number == call.number && current.peer.is_some();
    let differs = is_same && current.digest != call.digest;
    Step::End(if differs { Cause::Mismatch(edge) } else { Cause::Undelivered(edge) })
}

/// Goes on with a rank that is in a call of the communicator.
fn on(graph: &Graph, edge: Edge, there: Position) -> Step {
    if graph.waits_for(there).is_some() { Step::To(there) } else { Step::End(Cause::Busy(edge)) }
}

/// Goes on with a rank that has not made the call: with the call in which it waits, here or in another
/// communicator.
fn elsewhere(graph: &Graph, edge: Edge, there: Position) -> Step {
    if graph.call(there).is_some() {
        return on(graph, edge, there);
    }
    // It waits for ranks to join. One that does not answer may be missing there.
    if graph.nodes[edge.to].joining.is_some()
        && let Some(to) = absent_member(graph, edge.from)
    {
        return Step::End(Cause::Absent(Edge { to, ..edge }));
    }
    let waiting = graph.calls_of(edge.to).find(|at| graph.waits_for(*at).is_some());
    waiting.map_or(Step::End(Cause::NeverCalled(edge)), Step::To)
}
