//! Snapshots: the status of every rank, collected on request.
//!
//! One collection is in progress at a time; requests that arrive meanwhile get its result. All ranks are
//! asked at once. A rank whose process is stopped cannot answer: after [`FIRST_LOOK`] the state of processes
//! on this host is looked at, and a stopped one is not awaited any longer. The others have
//! [`ANSWER_TIMEOUT`]. Then, where a silent rank is on another host, a rank of that host that has answered
//! looks at its state.

use super::{
    super::super::{
        snapshot::{JobMembers, Presence, ProcessState, Snapshot},
        wire::{Answer, FromServer, MAX_STATUS_BYTES, Member, communicator_id, encode},
    },
    Departure, Job, Outgoing,
};
use mio::Token;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// Time after which the processes of ranks that have not answered are looked at first.
const FIRST_LOOK: Duration = Duration::from_millis(250);

/// Time that a rank has to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Time that a rank has to look at other processes of its host.
const LOOK_TIMEOUT: Duration = Duration::from_millis(300);

/// Time for which a claim of a rank keeps the others from getting a snapshot.
const CLAIM_TIME: Duration = Duration::from_secs(5);

/// Maximum number of processes that one rank looks at.
const MAX_LOOKS: usize = 1024;

/// Receiver of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Requester {
    /// A rank.
    Rank(u32),
    /// A connection that belongs to no rank.
    Inquirer(Token),
}

/// Snapshots of a job.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    /// The collection in progress.
    current: Option<Collection>,
    /// Number of collections so far.
    count: u64,
    /// The latest claim, and its time.
    claim: Option<(u32, Instant)>,
}

/// A snapshot that is being collected.
#[derive(Debug)]
struct Collection {
    requesters: Vec<Requester>,
    phase: Phase,
    began: Instant,
    /// Status of each rank that has answered.
    answers: BTreeMap<u32, String>,
    /// Ranks that have not answered.
    awaited: BTreeSet<u32>,
    /// States of processes that were looked at, by rank.
    states: BTreeMap<u32, ProcessState>,
    /// Ranks that look at processes, and the ranks of these processes.
    looks: BTreeMap<u32, Vec<u32>>,
}

/// Phase of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Until the first look at processes of this host.
    Asked,
    /// Until the time to answer is over.
    Looked,
    /// Until ranks of other hosts have looked.
    LookedElsewhere,
}

impl Snapshots {
    /// Returns the deadline of the collection in progress.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let collection = self.current.as_ref()?;
        let after = match collection.phase {
            Phase::Asked => FIRST_LOOK,
            Phase::Looked => ANSWER_TIMEOUT,
            Phase::LookedElsewhere => ANSWER_TIMEOUT + LOOK_TIMEOUT,
        };
        Some(collection.began + after)
    }
}

impl Job {
    /// Returns the ranks of the job.
    pub(in super::super) fn members(&self) -> JobMembers {
        let members: Vec<&Member> =
            self.rank_states.iter().filter_map(|state| state.member.as_ref()).collect();
        JobMembers {
            id: if self.is_complete() { communicator_id(&self.name, members.iter().copied()) } else { 0 },
            job: self.name.clone(),
            size: self.ranks,
            rendezvous_pid: std::process::id(),
            ranks: members.iter().map(|member| (member.rank, member.pid, member.host.clone())).collect(),
        }
    }

    /// Starts to collect a snapshot, or adds the requester to the collection in progress.
    pub(in super::super) fn request_snapshot(&mut self, requester: Requester, claim: bool, now: Instant) {
        if let (Requester::Rank(rank), true) = (requester, claim) {
            let earlier = self.snapshots.claim.filter(|(by, at)| *by != rank && now - *at < CLAIM_TIME);
            if let Some((by, _)) = earlier {
                let refused = FromServer::Snapshot { claimed_by: Some(by), snapshot: None };
                return self.send(rank, encode(&refused).into());
            }
            self.snapshots.claim = Some((rank, now));
        }
        if let Some(collection) = &mut self.snapshots.current {
            collection.requesters.push(requester);
            return;
        }
        let awaited = if self.has_started() { self.present() } else { Vec::new() };
        self.snapshots.count += 1;
        let request: Arc<[u8]> = encode(&FromServer::RequestStatus { number: self.snapshots.count }).into();
        awaited.iter().for_each(|rank| self.send(*rank, Arc::clone(&request)));
        self.snapshots.current = Some(Collection {
            requesters: vec![requester],
            phase: Phase::Asked,
            began: now,
            answers: BTreeMap::new(),
            awaited: awaited.into_iter().collect(),
            states: BTreeMap::new(),
            looks: BTreeMap::new(),
        });
        self.finish_snapshot_if_complete();
    }

    /// Records the status of a rank. Late and unwanted ones are ignored.
    pub(super) fn record_status(&mut self, rank: u32, number: u64, text: String) {
        let Some(collection) = &mut self.snapshots.current else { return };
        if number == self.snapshots.count && collection.awaited.remove(&rank) {
            let text = if text.len() > MAX_STATUS_BYTES { String::new() } else { text };
            collection.answers.insert(rank, text);
            self.finish_snapshot_if_complete();
        }
    }

    /// Records the state of a rank's process, as seen on this host.
    pub(in super::super) fn report_process_state(&mut self, rank: u32, state: ProcessState) {
        let Some(collection) = &mut self.snapshots.current else { return };
        if state != ProcessState::Unknown && collection.awaited.contains(&rank) {
            collection.states.insert(rank, state);
            self.finish_snapshot_if_complete();
        }
    }

    /// Records the states of processes that a rank was asked to look at.
    pub(super) fn record_process_states(&mut self, rank: u32, number: u64, states: &[ProcessState]) {
        let Some(collection) = &mut self.snapshots.current else { return };
        if number != self.snapshots.count {
            return;
        }
        let looked_at = collection.looks.remove(&rank).unwrap_or_default();
        collection.states.extend(looked_at.into_iter().zip(states.iter().copied()));
        self.finish_snapshot_if_complete();
    }

    /// Drops the requests of a rank that has departed, and waits for its answer no longer.
    pub(super) fn forget_requester(&mut self, rank: u32) {
        let Some(collection) = &mut self.snapshots.current else { return };
        collection.requesters.retain(|requester| *requester != Requester::Rank(rank));
        collection.awaited.remove(&rank);
        collection.looks.remove(&rank);
        self.finish_snapshot_if_complete();
    }

    /// Drops the requests of a connection that has closed.
    pub(in super::super) fn forget_inquirer(&mut self, inquirer: Token) {
        if let Some(collection) = &mut self.snapshots.current {
            collection.requesters.retain(|requester| *requester != Requester::Inquirer(inquirer));
        }
    }

    /// Advances the collection to its next phase when that is due.
    pub(super) fn advance_snapshot(&mut self, now: Instant) {
        if self.snapshots.next_deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        let Some(collection) = &mut self.snapshots.current else { return };
        match collection.phase {
            Phase::Asked => {
                collection.phase = Phase::Looked;
                let looks = collection.awaited.iter().map(|rank| Outgoing::LookAt(*rank));
                self.outgoing.extend(looks);
            }
            Phase::Looked => {
                collection.phase = Phase::LookedElsewhere;
                self.look_elsewhere();
                self.finish_snapshot_if_complete();
            }
            Phase::LookedElsewhere => self.finish_snapshot(),
        }
    }

    /// Asks ranks that have answered for the states of silent processes on their hosts.
    fn look_elsewhere(&mut self) {
        let Some(mut collection) = self.snapshots.current.take() else { return };
        let member = |rank: &u32| self.rank_states[*rank as usize].member.as_ref();
        let mut helpers: BTreeMap<&str, u32> = BTreeMap::new();
        for rank in collection.answers.keys() {
            if let Some(member) = member(rank) {
                helpers.entry(&member.host).or_insert(*rank);
            }
        }
        let mut pids: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for rank in collection.awaited.iter().filter(|rank| !collection.states.contains_key(rank)) {
            let Some(member) = member(rank) else { continue };
            let Some(helper) = helpers.get(member.host.as_str()) else { continue };
            let looks = collection.looks.entry(*helper).or_default();
            if looks.len() < MAX_LOOKS {
                looks.push(*rank);
                pids.entry(*helper).or_default().push(member.pid);
            }
        }
        self.snapshots.current = Some(collection);
        let number = self.snapshots.count;
        for (helper, pids) in pids {
            self.send(helper, encode(&FromServer::RequestProcessStates { number, pids }).into());
        }
    }

    /// Finishes the collection if nothing more is to be expected.
    fn finish_snapshot_if_complete(&mut self) {
        let Some(collection) = &self.snapshots.current else { return };
        let is_settled = |rank: &u32| collection.states.get(rank).is_some_and(|state| state.is_final());
        let is_complete = match collection.phase {
            Phase::LookedElsewhere => collection.looks.is_empty(),
            _ => collection.awaited.iter().all(is_settled),
        };
        if is_complete {
            self.finish_snapshot();
        }
    }

    /// Sends the snapshot to all that have asked for it.
    fn finish_snapshot(&mut self) {
        let Some(mut collection) = self.snapshots.current.take() else { return };
        let ranks = (0..self.ranks).map(|rank| self.presence(rank, &mut collection)).collect();
        let snapshot = Snapshot { members: self.members(), ranks };
        let (mut to_ranks, mut to_inquirers) = (None, None);
        for requester in collection.requesters {
            match requester {
                Requester::Rank(rank) => {
                    let bytes: &mut Arc<[u8]> = to_ranks.get_or_insert_with(|| {
                        let snapshot = Some(snapshot.clone());
                        encode(&FromServer::Snapshot { claimed_by: None, snapshot }).into()
                    });
                    let bytes = Arc::clone(bytes);
                    self.send(rank, bytes);
                }
                Requester::Inquirer(token) => {
                    let bytes: &mut Arc<[u8]> = to_inquirers
                        .get_or_insert_with(|| encode(&Answer::Snapshot(snapshot.clone())).into());
                    self.outgoing.push(Outgoing::Inquirer(token, Arc::clone(bytes)));
                }
            }
        }
    }

    fn presence(&self, rank: u32, collection: &mut Collection) -> Presence {
        let state = &self.rank_states[rank as usize];
        match state.gone {
            Departure::Died => return Presence::Died(state.end.clone()),
            Departure::Goodbye | Departure::Rejected => return Presence::Left,
            Departure::None => {}
        }
        if state.member.is_none() {
            return Presence::NotJoined;
        }
        if let Some(text) = collection.answers.remove(&rank) {
            return Presence::Answered(text);
        }
        match collection.states.get(&rank) {
            Some(state) => Presence::Silent(*state),
            None if !self.has_started() => Presence::Starting,
            None => Presence::Silent(ProcessState::Unknown),
        }
    }
}

#[cfg(test)]
mod tests;
