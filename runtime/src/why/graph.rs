//! The ranks of a job as a graph: who is in which communicator, and which rank waits for which.
//!
//! A node is one rank of the job: a process, or a thread where the ranks of a process are threads. It may
//! belong to several communicators. Answers about the same process are merged.

use super::status::{CallStatus, CommunicatorStatus, JoinStatus, Kind, PastCall, PauseStatus, ProcessStatus};
use bootstrap::{Presence, ProcessState, Snapshot};
use std::collections::{BTreeMap, BTreeSet};

/// Presence of a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NodePresence {
    /// The status is known.
    Answered,
    /// No answer; the state of the process.
    Silent(ProcessState),
    /// The rank has closed its communicator.
    Left,
    /// The process has ended, in this way.
    Died(String),
    /// The rank has joined, and waits for other ranks to join.
    Starting,
    /// The rank has not joined.
    NotJoined,
    /// Another rank names it, and the rendezvous has not told of it.
    NotReported,
}

/// One rank of a job.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) presence: NodePresence,
    /// Communicators by index, and the node's status in each.
    pub(super) parts: Vec<(usize, CommunicatorStatus)>,
    /// Communicator that the process is joining.
    pub(super) joining: Option<JoinStatus>,
    /// The latest time in which the process did not run.
    pub(super) pause: Option<PauseStatus>,
}

impl Node {
    fn without_status(host: String, pid: u32, presence: NodePresence) -> Node {
        Node { host, pid, presence, parts: Vec::new(), joining: None, pause: None }
    }
}

/// A communicator of a job.
#[derive(Debug)]
pub(super) struct CommunicatorNode {
    id: u64,
    pub(super) made_by: String,
    pub(super) transport: String,
    age: f64,
    /// Node of each rank, where it is known.
    pub(super) members: Vec<Option<usize>>,
}

/// A node in the call of one of its communicators: indices of a node and of its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) node: usize,
    pub(super) part: usize,
}

/// The ranks of a job. Communicators are numbered by age, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
    pub(super) communicators: Vec<CommunicatorNode>,
    /// First node of each process, by process id and host.
    processes: BTreeMap<(u32, String), usize>,
}

impl Graph {
    /// Builds the graph from snapshots, and from statuses that are known without one. `state_of` returns the
    /// states of processes that only other ranks name.
    pub(super) fn new(
        snapshots: &[Snapshot],
        own: &[ProcessStatus],
        state_of: &dyn Fn(&str, u32) -> ProcessState,
    ) -> Graph {
        let mut graph = Graph::default();
        let parse = |text: &String| serde_json::from_str::<ProcessStatus>(text).ok();
        let answered = snapshots.iter().flat_map(|snapshot| &snapshot.ranks).filter_map(|rank| match rank {
            Presence::Answered(text) => parse(text),
            _ => None,
        });
        let mut known = BTreeSet::new();
        for process in answered.chain(own.iter().cloned()) {
            if known.insert((process.host.clone(), process.pid)) {
                graph.add_process(process);
            }
        }
        snapshots.iter().for_each(|snapshot| graph.add_absent(snapshot));
        snapshots.iter().for_each(|snapshot| graph.add_members_of(snapshot));
        graph.add_named_members(state_of);
        graph.number_communicators();
        graph
    }

    fn add_process(&mut self, process: ProcessStatus) {
        let mut places: BTreeMap<u64, Vec<(usize, CommunicatorStatus)>> = BTreeMap::new();
        for status in process.communicators {
            let at = self.communicator(status.id, status.size);
            let communicator = &mut self.communicators[at];
            communicator.made_by.clone_from(&status.made_by);
            communicator.transport.clone_from(&status.transport);
            communicator.age = communicator.age.max(status.age);
            places.entry(status.place).or_default().push((at, status));
        }
        if places.is_empty() {
            places.insert(0, Vec::new());
        }
        for parts in places.into_values() {
            let node = self.nodes.len();
            for (at, status) in &parts {
                if let Some(member) = self.communicators[*at].members.get_mut(status.rank as usize) {
                    *member = Some(node);
                }
            }
            let (host, joining) = (process.host.clone(), process.joining.first().cloned());
            let presence = NodePresence::Answered;
            let pause = process.pause;
            self.add_node(Node { host, pid: process.pid, presence, parts, joining, pause });
        }
    }

    fn add_node(&mut self, node: Node) {
        self.processes.entry((node.pid, node.host.clone())).or_insert(self.nodes.len());
        self.nodes.push(node);
    }

    /// Adds the ranks of a snapshot that have not answered.
    fn add_absent(&mut self, snapshot: &Snapshot) {
        for (rank, presence) in (0..).zip(&snapshot.ranks) {
            let presence = match presence {
                Presence::Answered(_) => NodePresence::Answered,
                Presence::Silent(state) => NodePresence::Silent(*state),
                Presence::Left => NodePresence::Left,
                Presence::Died(how) => NodePresence::Died(how.clone()),
                Presence::Starting => NodePresence::Starting,
                Presence::NotJoined => NodePresence::NotJoined,
            };
            let member = snapshot.members.ranks.iter().find(|(of, ..)| *of == rank);
            let (pid, host) = member.map_or((0, String::new()), |(_, pid, host)| (*pid, host.clone()));
            if pid == 0 || self.node_of_process(&host, pid).is_none() {
                self.add_node(Node::without_status(host, pid, presence));
                if pid == 0 {
                    // No process is known, so the rank is found by its number only.
                    let at = self.communicator(snapshot.members.id, snapshot.members.size);
                    self.communicators[at].members[rank as usize] = Some(self.nodes.len() - 1);
                }
            }
        }
    }

    fn add_members_of(&mut self, snapshot: &Snapshot) {
        let is_open = |presence: &Presence| !matches!(presence, Presence::Left);
        if !snapshot.ranks.iter().any(is_open) {
            return;
        }
        let at = self.communicator(snapshot.members.id, snapshot.members.size);
        if self.communicators[at].made_by.is_empty() {
            self.communicators[at].made_by.clone_from(&snapshot.members.job);
        }
        for (rank, pid, host) in &snapshot.members.ranks {
            self.add_member(at, *rank, *pid, host);
        }
    }

    /// Adds the members that statuses name.
    fn add_named_members(&mut self, state_of: &dyn Fn(&str, u32) -> ProcessState) {
        let named = |node: &Node| -> Vec<(usize, Vec<(u32, String)>)> {
            node.parts.iter().map(|(at, status)| (*at, status.members.clone())).collect()
        };
        for (at, members) in self.nodes.iter().flat_map(named).collect::<Vec<_>>() {
            for (rank, (pid, host)) in (0..).zip(members) {
                if pid != 0 && self.node_of_process(&host, pid).is_none() {
                    let presence = match state_of(&host, pid) {
                        state if state.is_final() => NodePresence::Silent(state),
                        _ => NodePresence::NotReported,
                    };
                    self.add_node(Node::without_status(host.clone(), pid, presence));
                }
                self.add_member(at, rank, pid, &host);
            }
        }
    }

    fn add_member(&mut self, at: usize, rank: u32, pid: u32, host: &str) {
        let node = self.node_of_process(host, pid);
        if let (Some(member), Some(node)) = (self.communicators[at].members.get_mut(rank as usize), node) {
            member.get_or_insert(node);
        }
    }

    /// Numbers the communicators: those made by no call first, then by age.
    fn number_communicators(&mut self) {
        let mut order: Vec<usize> = (0..self.communicators.len()).collect();
        order.sort_by(|a, b| {
            let (a, b) = (&self.communicators[*a], &self.communicators[*b]);
            let is_made = |communicator: &CommunicatorNode| !communicator.made_by.is_empty();
            is_made(a).cmp(&is_made(b)).then(b.age.total_cmp(&a.age))
        });
        let mut new = vec![0; order.len()];
        order.iter().enumerate().for_each(|(to, from)| new[*from] = to);
        for node in &mut self.nodes {
            node.parts.iter_mut().for_each(|(at, _)| *at = new[*at]);
            node.parts.sort_by_key(|(at, _)| *at);
        }
        let mut all: Vec<Option<CommunicatorNode>> =
            std::mem::take(&mut self.communicators).into_iter().map(Some).collect();
        self.communicators = order.iter().filter_map(|from| all[*from].take()).collect();
    }

    /// Returns the index of the communicator with this number, which is added if it is new.
    fn communicator(&mut self, id: u64, size: u32) -> usize {
        let known = self.communicators.iter().position(|communicator| communicator.id == id);
        known.unwrap_or_else(|| {
            self.communicators.push(CommunicatorNode {
                id,
                made_by: String::new(),
                transport: String::new(),
                age: 0.0,
                members: vec![None; size as usize],
            });
            self.communicators.len() - 1
        })
    }

    fn node_of_process(&self, host: &str, pid: u32) -> Option<usize> {
        self.processes.get(&(pid, host.to_owned())).copied().filter(|_| pid != 0)
    }

    /// Returns the communicator, by index, and the status of a position.
    pub(super) fn part(&self, at: Position) -> (usize, &CommunicatorStatus) {
        let (communicator, status) = &self.nodes[at.node].parts[at.part];
        (*communicator, status)
    }

    /// Returns the call in progress at a position.
    pub(super) fn call(&self, at: Position) -> Option<&CallStatus> {
        self.part(at).1.call.as_ref()
    }

    /// Returns the time for which a position waits; `None` if it does not.
    pub(super) fn waits_for(&self, at: Position) -> Option<f64> {
        self.call(at)?.wait.as_ref().map(|wait| wait.seconds)
    }

    /// Returns the position of a node in a communicator.
    pub(super) fn in_communicator(&self, node: usize, communicator: usize) -> Option<Position> {
        let part = self.nodes[node].parts.iter().position(|(at, _)| *at == communicator)?;
        Some(Position { node, part })
    }

    /// Returns all positions in a call that waits, the longest wait first.
    pub(super) fn waiting(&self) -> Vec<Position> {
        let mut waiting: Vec<Position> = (0..self.nodes.len()).flat_map(|node| self.calls_of(node)).collect();
        waiting.retain(|at| self.waits_for(*at).is_some());
        waiting.sort_by(|a, b| {
            let seconds = |at: &Position| self.waits_for(*at).unwrap_or_default();
            seconds(b).total_cmp(&seconds(a)).then(a.cmp(b))
        });
        waiting
    }

    /// Returns the positions of a node that are in a call.
    pub(super) fn calls_of(&self, node: usize) -> impl Iterator<Item = Position> + '_ {
        let parts = self.nodes[node].parts.iter().enumerate();
        parts.filter(|(_, (_, status))| status.call.is_some()).map(move |(part, _)| Position { node, part })
    }

    /// Returns the latest call of a node that has ended, and its communicator.
    pub(super) fn latest_ended(&self, node: usize) -> Option<(usize, &PastCall)> {
        let parts = self.nodes[node].parts.iter();
        let latest = parts.filter_map(|(at, status)| Some((*at, status.past.first()?)));
        latest.min_by(|(_, a), (_, b)| a.seconds.total_cmp(&b.seconds))
    }

    /// Returns the node for which a position waits; `None` if it is not one, or not known.
    pub(super) fn target(&self, at: Position) -> Option<usize> {
        let (communicator, status) = self.part(at);
        let call = status.call.as_ref()?;
        let members = &self.communicators[communicator].members;
        if let Some(peer) = call.wait.as_ref().and_then(|wait| wait.peer).or(call.peer) {
            return members.get(peer as usize).copied().flatten();
        }
        if call.kind != Kind::Collective {
            return None;
        }
        // One that has not entered the call.
        let has_entered = |node: &usize| {
            let theirs = self.in_communicator(*node, communicator).map(|at| self.part(at).1);
            theirs.is_some_and(|theirs| theirs.entered >= call.number)
        };
        members.iter().flatten().copied().find(|node| *node != at.node && !has_entered(node))
    }

    /// Returns the first communicator of which a node is a member, and its rank there.
    fn naming_rank(&self, node: usize) -> Option<(usize, usize)> {
        let rank_in = |communicator: &CommunicatorNode| {
            communicator.members.iter().position(|member| *member == Some(node))
        };
        (0..).zip(&self.communicators).find_map(|(at, c)| Some((at, rank_in(c)?)))
    }

    /// Returns the name of a node in a sentence about a call of a communicator. If its rank is one of another
    /// communicator, its process is added: an error of the call numbers ranks as its own communicator does.
    pub(super) fn label_for(&self, node: usize, communicator: usize) -> String {
        match self.naming_rank(node) {
            Some((at, _)) if at != communicator => {
                format!("{} ({})", self.label(node), self.process_name(node))
            }
            _ => self.label(node),
        }
    }

    /// Returns the name of a node: its rank in communicator 0, or in the first one of which it is a member.
    pub(super) fn label(&self, node: usize) -> String {
        match self.naming_rank(node) {
            Some((0, rank)) => format!("rank {rank}"),
            Some((at, rank)) => format!("rank {rank} of communicator {at}"),
            None => self.process_name(node),
        }
    }

    /// Returns the name of a node, and its process: `rank 3 (process 77 on a)`.
    pub(super) fn label_with_process(&self, node: usize) -> String {
        let (label, process) = (self.label(node), self.process_name(node));
        if label == process { label } else { format!("{label} ({process})") }
    }

    /// Returns the process of a node: `process 77 on a`.
    pub(super) fn process_name(&self, node: usize) -> String {
        let Node { pid, host, .. } = &self.nodes[node];
        format!("process {pid} on {host}")
    }

    /// Returns ` of communicator 1`, or nothing if there is only one.
    pub(super) fn of_communicator(&self, communicator: usize) -> String {
        match self.communicators.len() {
            1 => String::new(),
            _ => format!(" of communicator {communicator}"),
        }
    }
}
