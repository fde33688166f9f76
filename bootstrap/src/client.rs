//! A rank's side of the rendezvous.
//!
//! Before the job has started the rank waits for what it is told; from then on it only looks whether something has
//! come, and what it says is queued: whether the rendezvous reads is no matter for a call that is under way.

use super::{
    address::Address,
    connect::{ConnectSpec, RendezvousHost, open_connection, wait_for},
    frame_stream::{FrameStream, Payload, ReadProgress},
    liveness,
    wire::{FromRank, FromServer, Hello, MAX_EXCHANGE_BYTES, MAX_TO_RANK_BYTES, Member, Word, encode},
};
use crate::error::{Error, Result};
use rustix::{
    fd::{AsFd, OwnedFd},
    io::Errno,
};
use std::{
    collections::VecDeque,
    io::{self, ErrorKind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use topology::Rank;

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// How often a rank that waits says that it lives.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// How long a rank that leaves waits for its last words to be taken.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// The server gives its own answer at the deadline; this is for a server that is stuck.
const SERVER_GRACE: Duration = Duration::from_secs(10);

/// The same where the server comes later than those who wait for it: by so much it may, and still say who is missing.
const HOST_GRACE: Duration = Duration::from_secs(2);

/// Between attempts to join where another job meets for now.
const BUSY_RETRY: Duration = Duration::from_millis(20);

/// A rank's open connection to the rendezvous.
#[derive(Debug)]
pub struct Connection {
    frames: FrameStream,
    /// The rank in whose process the rendezvous is, where it was opened for this job alone.
    rendezvous_host: Option<RendezvousHost>,
    rank: u32,
    ranks: u32,
    /// How long the rendezvous may take to answer while the job starts.
    timeout: Duration,
    /// Set when the connection has come to its end.
    ended: bool,
    /// Set when it came to its end while an answer was waited for.
    closed_while_waiting: bool,
    /// News that came while something else was waited for.
    deferred: VecDeque<FromServer>,
    /// Up to which version the others' boards are known.
    seen: u64,
    /// Have we asked for what is newer, without an answer yet?
    update_requested: bool,
    /// When we last said that we live, and had the kernel look whether the server's host does.
    last_heartbeat: Instant,
    last_probe: Instant,
}

/// Why a rank is to come again.
#[derive(Debug)]
enum Retry {
    /// Another job meets there at present, of this name.
    Busy(String),
    /// Whoever met there was done just when we came, and hung up before it knew what we came for.
    Closed(Error),
}

impl Retry {
    /// What it is when there is no time left to come again.
    fn into_error(self, rendezvous: &ConnectSpec, hello: &Hello) -> Error {
        match self {
            Retry::Busy(job) => {
                let at = rendezvous
                    .rendezvous_host
                    .as_ref()
                    .map_or_else(|| "the rendezvous".to_owned(), RendezvousHost::label);
                Error::Rendezvous(format!(
                    "`{job}` is being made at {at}, and not `{}`: all ranks that make one communicator call the same \
                     with the same arguments",
                    hello.job
                ))
            }
            Retry::Closed(error) => error,
        }
    }
}

/// What a rank learns by joining.
#[derive(Debug)]
pub struct Joined {
    /// The rank's connection to the rendezvous.
    pub connection: Connection,
    /// Everyone, in rank order.
    pub members: Vec<Member>,
    /// Everyone's arena, in rank order; empty where ranks have none.
    pub arenas: Vec<OwnedFd>,
}

/// News that came over the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A rank's process ended.
    Died {
        /// The rank whose process ended.
        rank: u32,
        /// How the process ended, as the rest of a sentence.
        how: String,
    },
    /// What is new on others' boards.
    BoardUpdate(Vec<(u32, Vec<Word>)>),
    /// The first failure of the job.
    Failed(Vec<Word>),
    /// The launcher is gone.
    ServerGone,
}

/// The connection is of no use.
fn broken(rendezvous_host: Option<&RendezvousHost>, action: &str, e: &dyn std::fmt::Display) -> Error {
    match rendezvous_host {
        None => Error::Rendezvous(format!("{action}: {e}; is the launcher (tbccl run) still running?")),
        Some(rendezvous_host) => Error::Absent {
            ranks: vec![Rank(rendezvous_host.rank)],
            why: format!(
                "{action} at {}: {e}; it has ended, or not come to make the communicator",
                rendezvous_host.label()
            ),
        },
    }
}

/// Joining was refused, for want of some ranks or for another reason.
fn refused(why: String, absent: &[u32], rendezvous_host: Option<&RendezvousHost>) -> Error {
    if absent.is_empty() || rendezvous_host.is_none() {
        return Error::Rendezvous(why);
    }
    Error::Absent { ranks: absent.iter().copied().map(Rank).collect(), why }
}

fn unexpected(other: &FromServer) -> Error {
    Error::Rendezvous(format!("unexpected answer of the launcher: {other:?}"))
}

impl Connection {
    /// Joins the job at a place, with an arena if ranks have such; waits until everyone has joined. Where another job
    /// meets there for now, tries again until the rank's patience is at its end.
    pub fn join(rendezvous: &ConnectSpec, hello: &Hello, arena: Option<&OwnedFd>) -> Result<Joined> {
        let began = Instant::now();
        let timeout = Duration::from_millis(hello.timeout_ms);
        loop {
            match Connection::try_to_join(rendezvous, hello, arena)? {
                Ok(joined) => return Ok(joined),
                Err(retry) if began.elapsed() + BUSY_RETRY > timeout => {
                    return Err(retry.into_error(rendezvous, hello));
                }
                Err(_) => thread::sleep(BUSY_RETRY),
            }
        }
    }

    /// As `join`, or why it is too early.
    fn try_to_join(
        rendezvous: &ConnectSpec,
        hello: &Hello,
        arena: Option<&OwnedFd>,
    ) -> Result<Result<Joined, Retry>> {
        let mut connection = Connection::open(rendezvous, hello)?;
        let members = match connection.wait_for_welcome(hello, arena) {
            Ok(Ok(members)) => members,
            Ok(Err(job)) => return Ok(Err(Retry::Busy(job))),
            // A keeper that has died is not found again.
            Err(error) if connection.closed_while_waiting && rendezvous.rendezvous_host.is_some() => {
                return Ok(Err(Retry::Closed(error)));
            }
            Err(error) => return Err(error),
        };
        let in_order = members.iter().zip(0..).all(|(member, rank)| member.rank == rank);
        if members.len() != hello.size as usize || !in_order {
            return Err(Error::Rendezvous(format!(
                "unexpected answer of the launcher: {} ranks, not {}",
                members.len(),
                hello.size
            )));
        }
        let count = if arena.is_some() { members.len() } else { 0 };
        let arenas = (0..count).map(|_| connection.descriptor()).collect::<Result<Vec<_>>>()?;
        Ok(Ok(Joined { connection, members, arenas }))
    }

    /// Waits until all are there, and says who they are; or which other job meets there.
    fn wait_for_welcome(
        &mut self,
        hello: &Hello,
        arena: Option<&OwnedFd>,
    ) -> Result<Result<Vec<Member>, String>> {
        if let Some(arena) = arena
            && let Err(job) = self.send_arena(arena, hello)?
        {
            return Ok(Err(job));
        }
        match self.answer("waiting for the other ranks")? {
            FromServer::Welcome { members } => Ok(Ok(members)),
            FromServer::Busy { job } => Ok(Err(job)),
            other => Err(self.join_error(other)),
        }
    }

    /// Connects, and greets.
    fn open(rendezvous: &ConnectSpec, hello: &Hello) -> Result<Connection> {
        let action = format!("rank {} can't reach the rendezvous", hello.member.rank);
        let reached = open_connection(rendezvous)
            .map_err(|why| broken(rendezvous.rendezvous_host.as_ref(), &action, &why));
        let grace = if rendezvous.rendezvous_host.is_some() { HOST_GRACE } else { SERVER_GRACE };
        let timeout = Duration::from_millis(hello.timeout_ms).saturating_add(grace);
        let mut connection = Connection::new(reached?, hello.member.rank, hello.size, timeout);
        connection.rendezvous_host.clone_from(&rendezvous.rendezvous_host);
        // A socket that can't be told is broken, which reading from it says.
        let _ = connection.frames.socket().set_peer_timeout(Duration::from_millis(hello.peer_timeout_ms));
        connection.frames.send(encode(hello));
        Ok(connection)
    }

    /// A rank's, of so many, over an open pipe; it waits so long for answers while the job starts.
    pub(super) fn new(frames: FrameStream, rank: u32, ranks: u32, timeout: Duration) -> Connection {
        let now = Instant::now();
        Connection {
            frames,
            rendezvous_host: None,
            rank,
            ranks,
            timeout,
            ended: false,
            closed_while_waiting: false,
            deferred: VecDeque::new(),
            seen: 0,
            update_requested: false,
            last_heartbeat: now,
            last_probe: now,
        }
    }

    /// What an answer is that no rank is let in with.
    fn join_error(&self, answer: FromServer) -> Error {
        match answer {
            FromServer::Refused { why, absent } => refused(why, &absent, self.rendezvous_host.as_ref()),
            other => unexpected(&other),
        }
    }

    /// Hands the memory of this rank over to the others, which takes a socket of this host; or says which other job
    /// meets there.
    fn send_arena(&mut self, arena: &OwnedFd, hello: &Hello) -> Result<Result<(), String>> {
        if self.frames.socket().is_tcp() {
            let address = match self.answer("asking for the way to the ranks of this host")? {
                FromServer::Redirect { address } => address,
                FromServer::Busy { job } => return Ok(Err(job)),
                other => return Err(self.join_error(other)),
            };
            let addresses = Address::parse_list(&address).map_err(Error::Rendezvous)?;
            if addresses.iter().any(Address::is_remote) {
                return Err(unexpected(&FromServer::Redirect { address }));
            }
            let rendezvous = ConnectSpec {
                addresses,
                secret: None,
                timeout: Duration::ZERO,
                rendezvous_host: self.rendezvous_host.clone(),
            };
            *self = Connection::open(&rendezvous, hello).map_err(|_| {
                Error::Rendezvous(format!(
                    "rank {} on {} is to share memory with ranks of another host, or of another user or container: set \
                     TBCCL_TRANSPORT to one that reaches them",
                    hello.member.rank, hello.member.host
                ))
            })?;
        }
        let copy = arena.try_clone().map_err(|e| Error::system("handing over memory", e))?;
        self.frames.send(Payload::Descriptor(Arc::new(copy)));
        Ok(Ok(()))
    }

    /// Waits, while the job starts, until `next` finds what it looks for.
    fn wait<T>(
        &mut self,
        action: &str,
        mut next: impl FnMut(&mut FrameStream) -> io::Result<Option<T>>,
    ) -> Result<T> {
        let deadline = Instant::now().checked_add(self.timeout);
        loop {
            if let Some(found) = next(&mut self.frames).map_err(|e| self.broken(action, &e))? {
                return Ok(found);
            }
            let left = deadline.map_or(Duration::from_secs(3600), |at| at - Instant::now().min(at));
            if left.is_zero() {
                return Err(self.broken(action, &ErrorKind::TimedOut.into()));
            }
            if let Err(e) = self.poll_socket(left.min(liveness::PROBE_INTERVAL)) {
                self.closed_while_waiting = true;
                return Err(self.broken(action, &e));
            }
            self.check_liveness();
        }
    }

    /// A rank has died before all had started.
    fn died_during_start(&self, rank: u32, how: &str) -> Error {
        let rendezvous_host = self.rendezvous_host.as_ref();
        let who = rendezvous_host
            .map_or_else(|| format!("rank {rank}"), |rendezvous_host| rendezvous_host.label_of(rank));
        refused(format!("{who} {how} while the job was starting"), &[rank], rendezvous_host)
    }

    fn broken(&self, action: &str, e: &io::Error) -> Error {
        broken(self.rendezvous_host.as_ref(), action, e)
    }

    /// The next frame, while the job starts.
    fn answer(&mut self, action: &str) -> Result<FromServer> {
        self.wait(action, |frames| frames.frame(MAX_TO_RANK_BYTES))
    }

    fn descriptor(&mut self) -> Result<OwnedFd> {
        const WHAT: &str = "receiving the other ranks' memory";
        self.wait(WHAT, |frames| Ok(frames.bytes(1)))?;
        // A byte without its descriptor says that our table of descriptors is full.
        self.frames.descriptor().ok_or_else(|| Error::system(WHAT, Errno::MFILE))
    }

    /// Writes what is queued, waits until something comes, for so long at most, and reads it.
    fn poll_socket(&mut self, within: Duration) -> io::Result<()> {
        if self.ended {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        // A server that does not take what we say may have said why: reading tells.
        let is_flushed = self.frames.flush().unwrap_or(true);
        wait_for(self.frames.as_fd(), is_flushed, within)?;
        match self.frames.fill(READ_BYTES) {
            Ok(ReadProgress::Closed) => self.ended = true,
            Ok(_) => {}
            Err(e) => {
                self.ended = true;
                return Err(e);
            }
        }
        Ok(())
    }

    /// Reports what stands against reading the others' memory; returns the first obstacle of any rank.
    pub fn start(&mut self, obstacle: Option<String>) -> Result<Option<String>> {
        self.frames.send(encode(&FromRank::Probed { obstacle }));
        loop {
            match self.answer("starting together")? {
                FromServer::Go { obstacle } => return Ok(obstacle),
                refused @ FromServer::Refused { .. } => return Err(self.join_error(refused)),
                // All had probed, and so the job had begun, before we were told to go.
                FromServer::Died { rank, how } => return Err(self.died_during_start(rank, &how)),
                deferred @ (FromServer::Failed { .. } | FromServer::BoardUpdate { .. }) => {
                    self.deferred.push_back(deferred)
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Gives `data` to everyone; returns what everyone has given, in rank order. All ranks call it equally often.
    pub fn exchange(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>> {
        let bytes =
            u32::try_from(data.len()).ok().filter(|len| *len <= MAX_EXCHANGE_BYTES).ok_or_else(|| {
                Error::Rendezvous(format!(
                    "{} bytes to exchange; up to {MAX_EXCHANGE_BYTES} can be",
                    data.len()
                ))
            })?;
        let mut message = encode(&FromRank::Exchange { bytes });
        message.extend_from_slice(data);
        self.frames.send(message);
        loop {
            match self.answer("exchanging how ranks are reached")? {
                FromServer::Exchanged { bytes } => return self.parts(&bytes),
                refused @ FromServer::Refused { .. } => return Err(self.join_error(refused)),
                FromServer::Died { rank, how } => return Err(self.died_during_start(rank, &how)),
                other => self.deferred.push_back(other),
            }
        }
    }

    fn parts(&mut self, lengths: &[u32]) -> Result<Vec<Vec<u8>>> {
        if lengths.len() != self.ranks as usize || lengths.iter().any(|len| *len > MAX_EXCHANGE_BYTES) {
            return Err(Error::Rendezvous(format!(
                "unexpected answer of the launcher: {} parts of up to {} bytes",
                lengths.len(),
                lengths.iter().max().unwrap_or(&0)
            )));
        }
        let mut part = |len: &u32| {
            self.wait("exchanging how ranks are reached", |frames| Ok(frames.bytes(*len as usize)))
        };
        lengths.iter().map(&mut part).collect()
    }

    /// Says that this rank can't go on with starting, so that the others need not wait for it.
    pub fn abort_start(&mut self, why: &str) {
        self.send_final(&FromRank::Abort { why: why.to_owned() });
    }

    /// Tells what is new on our board, and asks for what is new on others'. Does not wait, and says nothing when it has
    /// nothing to tell and has asked before.
    pub fn sync_board(&mut self, words: Vec<Word>) {
        if words.is_empty() && self.update_requested {
            return;
        }
        self.update_requested = true;
        self.post(&FromRank::SyncBoard { seen: self.seen, words });
    }

    /// Says that the job has failed. The failure that holds comes as a notice.
    pub fn report_failure(&mut self, words: Vec<Word>) {
        self.post(&FromRank::ReportFailure { words });
    }

    /// Says something without waiting until it is taken.
    fn post(&mut self, message: &FromRank) {
        self.frames.send(encode(message));
        // If the launcher is gone, reading says so.
        let _ = self.frames.flush();
    }

    /// Over TCP: shows that we live, and looks whether the host at the other end does. Not more than is needed, and not
    /// on top of what is not taken yet.
    fn check_liveness(&mut self) {
        if !self.frames.socket().is_tcp() {
            return;
        }
        let now = Instant::now();
        if now - self.last_probe >= liveness::PROBE_INTERVAL {
            self.last_probe = now;
            self.ended |= self.frames.socket().is_peer_silent();
        }
        if now - self.last_heartbeat >= HEARTBEAT_INTERVAL && self.frames.is_flushed() {
            self.last_heartbeat = now;
            self.post(&FromRank::Heartbeat);
        }
    }

    /// The next notice, if one has come within a time. Other frames are none.
    pub fn notice(&mut self, within: Duration) -> Option<Notice> {
        self.check_liveness();
        let until = Instant::now() + within;
        let mut has_looked = false;
        loop {
            let frame = match self.deferred.pop_front() {
                Some(frame) => Ok(Some(frame)),
                None => self.frames.frame(MAX_TO_RANK_BYTES),
            };
            match frame {
                Ok(Some(frame)) => match self.notice_in(frame) {
                    None => continue,
                    notice => return notice,
                },
                Ok(None) if self.ended => return Some(Notice::ServerGone),
                Ok(None) => {}
                Err(_) => return Some(Notice::ServerGone),
            }
            let left = until.saturating_duration_since(Instant::now());
            if has_looked && left.is_zero() {
                return None;
            }
            has_looked = true;
            // A connection that breaks has come to its end, and what came before is still there.
            let _ = self.poll_socket(left);
        }
    }

    fn notice_in(&mut self, frame: FromServer) -> Option<Notice> {
        match frame {
            FromServer::Died { rank, how } => Some(Notice::Died { rank, how }),
            FromServer::Failed { words } => Some(Notice::Failed(words)),
            FromServer::BoardUpdate { version, mut boards } => {
                (self.seen, self.update_requested) = (version, false);
                boards.retain(|(rank, _)| *rank != self.rank && *rank < self.ranks);
                Some(Notice::BoardUpdate(boards))
            }
            _ => None,
        }
    }

    /// Says that this rank ends in an orderly way, and what was last new on its board.
    pub fn goodbye(&mut self, words: Vec<Word>) {
        self.send_final(&FromRank::Goodbye { words });
    }

    /// Says something and sees to it that it arrives: closing a TCP connection on which something has come that was
    /// not read takes back what was sent.
    fn send_final(&mut self, message: &FromRank) {
        self.post(message);
        let until = Instant::now() + FLUSH_TIMEOUT;
        let is_tcp = self.frames.socket().is_tcp();
        let mut has_finished = false;
        while !self.ended && Instant::now() < until {
            if self.frames.is_flushed() {
                if !is_tcp {
                    return;
                }
                if !has_finished {
                    self.frames.socket().finish();
                    has_finished = true;
                }
            }
            if self.poll_socket(until.saturating_duration_since(Instant::now())).is_err() {
                return;
            }
            self.frames.discard_input();
        }
    }
}
