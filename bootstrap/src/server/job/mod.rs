//! State of a job: which ranks have joined, started and departed, and the messages to send to them.
//!
//! A [`Job`] handles messages and events and queues outgoing messages; it reads no socket and no clock.
//! Messages are validated here: after a message out of turn the caller closes the connection.
//!
//! | module | purpose |
//! |---|---|
//! | `boards` | words that ranks publish, and requests for changes |
//! | `exchange` | exchanges of bytes between all ranks |
//! | `messages` | error messages |
//! | `snapshots` | snapshots: the status of every rank |

mod boards;
mod exchange;
mod messages;
mod snapshots;

pub(super) use snapshots::Requester;

use super::{
    super::{
        frame_stream::Payload,
        wire::{FromRank, FromServer, Hello, MAGIC, Member, encode},
    },
    JobStatus,
};
use boards::Boards;
use messages::{option_mismatch, sanitize};
use mio::Token;
use rustix::fd::OwnedFd;
use snapshots::Snapshots;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};
use topology::MAX_RANKS;

/// Maximum timeout. Longer timeouts of ranks are cut to it.
const MAX_TIMEOUT: Duration = Duration::from_secs(366 * 24 * 3600);

/// Shortest time in which other ranks may join after one that has waited for this rendezvous.
const LATE_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum length of a host name in bytes.
const MAX_HOST_NAME_BYTES: usize = 255;

/// Maximum length of a rank's list of reconnect addresses in bytes.
const MAX_ADDRESSES_BYTES: usize = 2000;

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

/// Delay after a broken connection in which the launcher may report how the process ended.
const EXIT_REPORT_DELAY: Duration = Duration::from_millis(100);

/// Reason why no rank joins any more.
const ENDED: &str = "the rendezvous is ending, with the launcher or the process that has it";

/// Reason why a rank is not admitted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotAdmitted {
    /// The rank cannot join, for this reason.
    Refused(String),
    /// The rank belongs to another job, which may use this rendezvous later.
    OtherJob,
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

    /// Admits a rank, or returns the reason why not.
    pub(super) fn admit(
        &mut self,
        hello: Hello,
        arena: Option<OwnedFd>,
        now: Instant,
    ) -> Result<u32, NotAdmitted> {
        let rank = hello.member.rank;
        if hello.magic == MAGIC && hello.job != self.name {
            return Err(NotAdmitted::OtherJob);
        }
        self.check(&hello).map_err(NotAdmitted::Refused)?;
        let timeout = Duration::from_millis(hello.timeout_ms).min(MAX_TIMEOUT);
        let waited = Duration::from_millis(hello.waited_ms);
        let left = timeout.saturating_sub(waited).max(LATE_TIMEOUT.min(timeout));
        let state = &mut self.rank_states[rank as usize];
        state.member = Some(hello.member);
        state.arena = arena.map(Arc::new);
        (state.timeout, state.deadline) = (timeout, Some(now + left));
        self.options.get_or_insert((rank, hello.options));
        self.joined += 1;
        if self.is_complete() {
            self.welcome();
        }
        Ok(rank)
    }

    fn check(&mut self, hello: &Hello) -> Result<(), String> {
        let rank = hello.member.rank;
        if hello.magic != MAGIC {
            return Err("this is not a tbccl rank".into());
        }
        if let Some(reason) = &self.refused {
            return Err(reason.clone());
        }
        if self.ranks == 0 && (1..=MAX_RANKS).contains(&hello.size) {
            self.ranks = hello.size;
            self.rank_states = (0..hello.size).map(|_| RankState::default()).collect();
        }
        if hello.size != self.ranks || rank >= self.ranks {
            let reason = format!("rank {rank} of {} cannot join a job of {} ranks", hello.size, self.ranks);
            self.refuse_unless_complete(&reason);
            return Err(reason);
        }
        if hello.member.host.len() > MAX_HOST_NAME_BYTES || hello.member.host.contains(char::is_control) {
            return Err(format!("rank {rank} has an invalid host name"));
        }
        if hello.member.reconnect_addresses.len() > MAX_ADDRESSES_BYTES
            || hello.member.reconnect_addresses.contains(char::is_control)
        {
            return Err(format!("rank {rank} has invalid reconnect addresses"));
        }
        if let Some(taken) = &self.rank_states[rank as usize].member {
            return Err(format!(
                "rank {rank} has already joined (process {} on {}); start each rank once",
                taken.pid, taken.host
            ));
        }
        if let Some((first, options)) = &self.options
            && let Some(reason) = option_mismatch(*first, options, rank, &hello.options)
        {
            self.refuse(&reason);
            return Err(reason);
        }
        Ok(())
    }

    /// Sends the list of members and all arenas to all ranks, since all have joined.
    fn welcome(&mut self) {
        let members = self.rank_states.iter().filter_map(|state| state.member.clone()).collect();
        self.send_to_all(&FromServer::Welcome { members });
        let arenas: Vec<Arc<OwnedFd>> =
            self.rank_states.iter().filter_map(|state| state.arena.clone()).collect();
        for rank in 0..self.ranks {
            let payloads = arenas.iter().map(|arena| Payload::Descriptor(Arc::clone(arena)));
            self.outgoing.extend(payloads.map(|payload| Outgoing::Payload(rank, payload)));
        }
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

    fn probed(&mut self, rank: u32, obstacle: Option<String>) -> Result<(), ProtocolError> {
        let state = &mut self.rank_states[rank as usize];
        if state.probed.is_some() {
            return Err(format!("rank {rank} reported out of turn"));
        }
        state.probed = Some(obstacle.map(|text| sanitize(&text)));
        self.probed += 1;
        if self.has_started() {
            // All ranks have mapped all arenas. The memory has to end with the ranks, so the server drops its
            // descriptors.
            for state in &mut self.rank_states {
                state.arena = None;
                // Those that have contributed wait for the exchange.
                if state.contribution.is_none() {
                    state.deadline = None;
                }
            }
            let obstacle = self.rank_states.iter().find_map(|state| state.probed.clone().flatten());
            self.send_to_all(&FromServer::Go { obstacle });
        }
        Ok(())
    }

    /// Handles the departure of a rank that cannot start.
    fn give_up(&mut self, rank: u32, why: &str, absent: Vec<u32>) {
        let why = sanitize(why);
        let reason = if absent.is_empty() { format!("rank {}: {why}", self.label(rank)) } else { why };
        if self.refused.is_none() {
            self.absent = absent.into_iter().filter(|absent| *absent < self.ranks).collect();
        }
        // The refusal comes first, so that other ranks learn the reason and not only the departure.
        self.refuse(&reason);
        self.leave(rank);
    }

    fn leave(&mut self, rank: u32) {
        if self.rank_states[rank as usize].gone != Departure::None {
            return;
        }
        self.mark_gone(rank, Departure::Goodbye);
        self.outgoing.push(Outgoing::End(rank));
    }

    fn mark_gone(&mut self, rank: u32, how: Departure) {
        let state = &mut self.rank_states[rank as usize];
        if state.member.is_some() && state.gone == Departure::None {
            self.gone += 1;
        }
        state.gone = how;
        (state.seen, state.rest, state.deadline, state.lost) = (None, None, None, None);
        self.awaiting_updates.remove(&rank);
        self.forget_requester(rank);
        if self.has_started() {
            self.abort_exchange_if_departed();
        }
    }

    /// Tells a rank why the job cannot go on, and closes its connection.
    pub(super) fn reject(&mut self, rank: u32, reason: &str) {
        let refused = FromServer::Refused { why: reason.to_owned(), absent: self.absent.clone() };
        self.send(rank, encode(&refused).into());
        let state = &mut self.rank_states[rank as usize];
        if state.contribution.take().is_some() {
            self.contributed -= 1;
        }
        self.rank_states[rank as usize].gone = Departure::Rejected;
        self.rank_states[rank as usize].deadline = None;
        self.gone += 1;
        self.forget_requester(rank);
        self.outgoing.push(Outgoing::End(rank));
    }

    /// Refuses the job: tells all waiting ranks the reason, and all that join later.
    pub(super) fn refuse(&mut self, reason: &str) {
        if self.refused.is_some() {
            return;
        }
        self.refused = Some(reason.to_owned());
        for rank in self.present() {
            let state = &self.rank_states[rank as usize];
            if !self.has_started() || state.contribution.is_some() {
                self.reject(rank, reason);
            }
        }
    }

    /// Refuses the job because its rendezvous ends, unless it runs: for the reason `why`, if there is one.
    /// Ranks that have not begun an exchange would otherwise wait for it, and not learn why it fails.
    pub(super) fn end(&mut self, why: Option<&str>) {
        let is_running = self.has_started() && self.contributed == 0 && self.refused.is_none();
        if is_running {
            return self.refuse(why.unwrap_or(ENDED));
        }
        let is_host = |state: &RankState| state.member.as_ref().is_some_and(|member| member.hosts_rendezvous);
        let host = self.host.or_else(|| self.ranks_where(is_host).first().copied());
        if self.refused.is_none() {
            self.absent = host.into_iter().collect();
        }
        let host = host.map(|host| {
            format!("rank {} has failed to join, and with it the rendezvous in its process", self.label(host))
        });
        self.refuse(why.or(host.as_deref()).unwrap_or(ENDED));
        let reason = self.refused.clone().unwrap_or_default();
        for rank in self.present() {
            self.reject(rank, &reason);
        }
    }

    /// Refuses the job because of a rank that cannot belong to it, unless all ranks have joined.
    pub(super) fn refuse_unless_complete(&mut self, reason: &str) {
        if !self.is_complete() {
            self.refuse(reason);
        }
    }

    /// Records that a rank's connection broke; `how` is the rest of a sentence.
    pub(super) fn connection_lost(&mut self, rank: u32, how: &str, now: Instant) {
        let state = &mut self.rank_states[rank as usize];
        if state.gone == Departure::None && state.lost.is_none() {
            state.lost = Some((now + EXIT_REPORT_DELAY, how.to_owned()));
            state.seen = None;
            self.awaiting_updates.remove(&rank);
        }
    }

    /// Records the launcher's report that a rank's process ended; `how` is the rest of a sentence.
    pub(super) fn report_exit(&mut self, rank: u32, pid: u32, how: &str) {
        if self.rank_states.get(rank as usize).is_some_and(|state| state.gone == Departure::None) {
            self.die(rank, how, &format!(" (process {pid})"));
        }
    }

    /// Records the launcher's report that a rank's process ended with status 0. After joining, only the
    /// rank's own goodbye counts.
    pub(super) fn report_success(&mut self, rank: u32, pid: u32) {
        if self.rank_states.get(rank as usize).is_some_and(|state| state.member.is_none()) {
            self.refuse(&format!("rank {rank} (process {pid}) ended with status 0 without joining the job"));
        }
    }

    fn die(&mut self, rank: u32, how: &str, process: &str) {
        let had_started = self.has_started();
        how.clone_into(&mut self.rank_states[rank as usize].end);
        self.mark_gone(rank, Departure::Died);
        self.died += 1;
        if had_started {
            self.send_to_all(&FromServer::Died { rank, how: how.to_owned() });
        } else {
            self.absent = vec![rank];
            self.refuse(&format!("rank {}{process} {how} before all ranks had joined", self.label(rank)));
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

    /// Returns the ranks that all others waited for, and a sentence about them.
    fn late_ranks(&self) -> (Vec<u32>, String) {
        let (absent_ranks, what) = if self.is_complete() {
            (self.ranks_where(|state| state.probed.is_none()), "joined, but have not started")
        } else {
            (self.ranks_where(|state| state.member.is_none()), "not joined")
        };
        let names = self.list_ranks(&absent_ranks);
        let reason = format!(
            "these ranks have {what} in time: {names}; start them, or allow more time with TBCCL_TIMEOUT"
        );
        (absent_ranks, reason)
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
