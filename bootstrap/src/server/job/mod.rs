//! State of a job: which ranks have joined, started and departed, and the messages to send to them.
//!
//! A [`Job`] handles messages and events and queues outgoing messages; it reads no socket and no clock.
//! Messages are validated here: after a message out of turn the caller closes the connection.
//!
//! | module | purpose |
//! |---|---|
//! | `boards` | words that ranks publish, and requests for changes |
//! | `departures` | goodbyes, refusals, deaths, and the end of the job |
//! | `exchange` | exchanges of bytes between all ranks |
//! | `joining` | admission of ranks, until all have started |
//! | `messages` | error messages |
//! | `snapshots` | snapshots: the status of every rank |

mod boards;
mod departures;
mod exchange;
mod joining;
mod messages;
mod snapshots;

pub(super) use joining::NotAdmitted;
pub(super) use snapshots::Requester;

use super::{
    super::{
        frame_stream::Payload,
        wire::{FromRank, FromServer, Member, encode},
    },
    JobStatus,
};
use boards::Boards;
use mio::Token;
use rustix::fd::OwnedFd;
use snapshots::Snapshots;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// An outgoing action.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// Send a payload to a rank.
    Payload(u32, Payload),
    /// Close a rank's connection once its output is sent.
    End(u32),
    /// Send bytes over a connection that belongs to no rank.
    Inquirer(Token, Arc<[u8]>),
    /// Look at the state of a rank's process, and report it with [`Job::report_process_state`].
    LookAt(u32),
}

/// A job from the first hello to the last goodbye.
#[derive(Debug)]
pub(super) struct Job {
    /// Name, where several jobs meet at the same address.
    name: String,
    /// Display labels by rank; empty if ranks are shown as numbers.
    labels: Vec<String>,
    /// The rank whose process runs this, if that is known before it joins.
    host: Option<u32>,
    /// Number of ranks; 0 until the first rank tells it.
    ranks: u32,
    /// State of each rank, by rank.
    rank_states: Vec<RankState>,
    /// Options that all ranks must share, and the rank that set them first.
    options: Option<(u32, BTreeMap<String, String>)>,
    /// Reason why the job cannot start.
    refused: Option<String>,
    /// Missing ranks, if they are the reason.
    absent: Vec<u32>,
    boards: Boards,
    /// Ranks with a pending request for board updates.
    awaiting_updates: BTreeSet<u32>,
    /// Number of ranks that have joined, and of these: reported, contributed to the current exchange, and
    /// departed.
    joined: u32,
    probed: u32,
    contributed: u32,
    gone: u32,
    died: u32,
    /// Whether a launcher reports how the ranks' processes end.
    has_exit_reports: bool,
    snapshots: Snapshots,
    outgoing: Vec<Outgoing>,
}

/// State of one rank.
#[derive(Debug, Default)]
pub(super) struct RankState {
    member: Option<Member>,
    arena: Option<Arc<OwnedFd>>,
    /// `Some(obstacle)` once the rank has reported.
    probed: Option<Option<String>>,
    /// Contribution of the rank to the current exchange.
    contribution: Option<Arc<[u8]>>,
    gone: Departure,
    /// The way in which the process ended, as the rest of a sentence.
    end: String,
    /// How long the rank waits for other ranks, and until when it does now.
    timeout: Duration,
    deadline: Option<Instant>,
    /// Whether the launcher has reported that the process ended with status 0.
    succeeded: bool,
    /// How the connection broke, and until when the launcher may report the exit of the process instead.
    lost: Option<(Instant, String)>,
    /// Version of the boards that the rank knows, while its request for updates is pending.
    seen: Option<u64>,
    /// Rest of an update: the version that the rank knows, the one that it knows afterwards, and the rank
    /// whose words come next.
    rest: Option<(u64, u64, u32)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Departure {
    #[default]
    None,
    Goodbye,
    Died,
    /// The rank was told why the job cannot go on.
    Rejected,
}

/// Description of a message out of turn, after which the rank's connection is closed.
pub(super) type ProtocolError = String;

impl Job {
    pub(super) fn new(ranks: u32) -> Job {
        Job {
            name: String::new(),
            labels: Vec::new(),
            host: None,
            ranks,
            absent: Vec::new(),
            rank_states: (0..ranks).map(|_| RankState::default()).collect(),
            options: None,
            refused: None,
            boards: Boards::default(),
            awaiting_updates: BTreeSet::new(),
            joined: 0,
            probed: 0,
            contributed: 0,
            gone: 0,
            died: 0,
            has_exit_reports: false,
            snapshots: Snapshots::default(),
            outgoing: Vec::new(),
        }
    }

    /// Creates a job with a name, for an address at which several jobs meet. `host` is the rank whose process
    /// runs it.
    pub(super) fn named(name: String, labels: Vec<String>, host: u32) -> Job {
        let ranks = labels.len() as u32;
        Job { name, labels, host: Some(host), ..Job::new(ranks) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of ranks; 0 while it is not known.
    pub(super) fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Returns the missing ranks because of which the job could not start.
    pub(super) fn absent(&self) -> &[u32] {
        &self.absent
    }

    /// Returns the display label of a rank.
    pub(super) fn label(&self, rank: u32) -> String {
        self.labels.get(rank as usize).cloned().unwrap_or_else(|| rank.to_string())
    }

    /// Returns the actions queued since the last call, in order.
    pub(super) fn take_outgoing(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.outgoing)
    }

    pub(super) fn send(&mut self, rank: u32, bytes: Arc<[u8]>) {
        self.outgoing.push(Outgoing::Payload(rank, Payload::Bytes(bytes)));
    }

    /// Sends the same message to all present ranks.
    pub(super) fn send_to_all(&mut self, what: &FromServer) {
        let bytes: Arc<[u8]> = encode(what).into();
        for rank in self.present() {
            self.send(rank, Arc::clone(&bytes));
        }
    }

    /// Returns the ranks that have joined and not departed.
    pub(super) fn present(&self) -> Vec<u32> {
        let is_here = |rank: &u32| {
            let state = &self.rank_states[*rank as usize];
            state.member.is_some() && state.gone == Departure::None && state.lost.is_none()
        };
        (0..self.ranks).filter(is_here).collect()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.ranks > 0 && self.joined == self.ranks
    }

    fn has_started(&self) -> bool {
        self.ranks > 0 && self.probed == self.ranks
    }

    /// Whether no rank is expected or served any more.
    pub(super) fn is_over(&self) -> bool {
        (self.ranks > 0 && self.gone == self.ranks) || (self.refused.is_some() && self.gone == self.joined)
    }

    /// Returns the progress of the job.
    pub(super) fn status(&self) -> JobStatus {
        let (joined, gone, died) = (self.joined, self.gone, self.died);
        JobStatus { joined, gone, died, is_over: self.is_over(), refused: self.refused.clone() }
    }

    /// Handles a message of a rank. `bytes` are those of an exchange.
    pub(super) fn handle(
        &mut self,
        rank: u32,
        message: FromRank,
        bytes: Vec<u8>,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        if matches!(message, FromRank::Heartbeat) || self.rank_states[rank as usize].gone != Departure::None {
            return Ok(());
        }
        match message {
            FromRank::Probed { obstacle } => self.probed(rank, obstacle),
            FromRank::Abort { why, absent } => {
                self.give_up(rank, &why, absent);
                Ok(())
            }
            // A rank that shares no memory need not wait for the others with its report, and one that has
            // reported need not wait with its first contribution.
            FromRank::Exchange { .. } if self.rank_states[rank as usize].probed.is_some() => {
                self.contribute(rank, bytes, now)
            }
            _ if !self.has_started() => {
                Err(format!("rank {rank} sent a message before all ranks had started"))
            }
            FromRank::Exchange { .. } => Err(format!("rank {rank} contributed without having started")),
            FromRank::SyncBoard { seen, words } => {
                self.sync_board(rank, seen, &words);
                Ok(())
            }
            FromRank::ReportFailure { words } => {
                self.report_failure(words);
                Ok(())
            }
            FromRank::Goodbye { words } => {
                self.publish(rank, &words);
                self.leave(rank);
                Ok(())
            }
            // The event loop answers requests for the time.
            FromRank::Heartbeat | FromRank::RequestTime { .. } => Ok(()),
            FromRank::RequestSnapshot { claim } => {
                self.request_snapshot(Requester::Rank(rank), claim, now);
                Ok(())
            }
            FromRank::Status { number, text } => {
                self.record_status(rank, number, text);
                Ok(())
            }
            FromRank::ProcessStates { number, states } => {
                self.record_process_states(rank, number, &states);
                Ok(())
            }
        }
    }

    /// Returns the next deadline.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let of = |state: &RankState| {
            state.deadline.into_iter().chain(state.lost.as_ref().map(|(deadline, _)| *deadline)).min()
        };
        self.rank_states.iter().filter_map(of).chain(self.snapshots.next_deadline()).min()
    }

    /// Handles expired deadlines.
    pub(super) fn tick(&mut self, now: Instant) {
        self.advance_snapshot(now);
        for rank in 0..self.ranks {
            if let Some((_, how)) =
                self.rank_states[rank as usize].lost.take_if(|(deadline, _)| *deadline <= now)
            {
                self.die(rank, &how, "");
            }
        }
        if self.rank_states.iter().any(|state| state.deadline.is_some_and(|deadline| deadline <= now)) {
            // The timeout of one rank fails the whole job: a rank that joined later would wait for this one
            // in vain.
            let (absent, reason) =
                if self.has_started() { self.missing_contributors() } else { self.late_ranks() };
            self.absent = absent;
            self.refuse(&reason);
        }
    }

    pub(super) fn ranks_where(&self, holds: impl Fn(&RankState) -> bool) -> Vec<u32> {
        (0..self.ranks).filter(|rank| holds(&self.rank_states[*rank as usize])).collect()
    }

    /// Lists the labels of ranks, up to a number that people read.
    pub(super) fn list_ranks(&self, of: &[u32]) -> String {
        const SHOWN: usize = 20;
        let names: Vec<String> = of.iter().take(SHOWN).map(|rank| self.label(*rank)).collect();
        match of.len().saturating_sub(SHOWN) {
            0 => names.join(", "),
            more => format!("{} and {more} more", names.join(", ")),
        }
    }
}
