//! A rank's side of the rendezvous.
//!
//! Before the job has started the rank waits for what it is told; from then on it only looks whether something has
//! come, and what it says is queued: whether the rendezvous reads is no matter for a call that is under way.

use super::{
    address::{Address, Place, go_to, wait_for},
    liveness,
    muster::Keeper,
    pipe::{Filled, Parcel, Pipe},
    wire::{FromRank, FromServer, Hello, MAX_EXCHANGE_BYTES, MOST_TO_RANK, Member, Word, frame_of},
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
const TURN_BYTES: usize = 1 << 20;

/// How often a rank that waits says that it lives.
const BEAT: Duration = Duration::from_millis(500);

/// How long a rank that leaves waits for its last words to be taken.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The server gives its own answer at the deadline; this is for a server that is stuck.
const GRACE: Duration = Duration::from_secs(10);

/// The same where the server comes later than those who wait for it: by so much it may, and still say who is missing.
const KEEPERS_GRACE: Duration = Duration::from_secs(2);

/// Between attempts to join where another job meets for now.
const BUSY: Duration = Duration::from_millis(20);

/// A rank's open connection to the rendezvous.
#[derive(Debug)]
pub struct Connection {
    pipe: Pipe,
    /// The rank in whose process the rendezvous is, where it was opened for this job alone.
    keeper: Option<Keeper>,
    rank: u32,
    ranks: u32,
    /// How long the rendezvous may take to answer while the job starts.
    patience: Duration,
    /// Set when the connection has come to its end.
    ended: bool,
    /// Set when it came to its end while an answer was waited for.
    hung_up: bool,
    /// News that came while something else was waited for.
    early: VecDeque<FromServer>,
    /// Up to which version the others' boards are known.
    seen: u64,
    /// Have we asked for what is newer, without an answer yet?
    asked: bool,
    /// When we last said that we live, and had the kernel look whether the server's host does.
    beat: Instant,
    probed: Instant,
}

/// Why a rank is to come again.
#[derive(Debug)]
enum NotYet {
    /// Another job meets there at present, of this name.
    Busy(String),
    /// Whoever met there was done just when we came, and hung up before it knew what we came for.
    HungUp(Error),
}

impl NotYet {
    /// What it is when there is no time left to come again.
    fn late(self, place: &Place, hello: &Hello) -> Error {
        match self {
            NotYet::Busy(job) => {
                let at = place.keeper.as_ref().map_or_else(|| "the rendezvous".to_owned(), Keeper::title);
                Error::Rendezvous(format!(
                    "`{job}` is being made at {at}, and not `{}`: all ranks that make one communicator call the same \
                     with the same arguments",
                    hello.job
                ))
            }
            NotYet::HungUp(error) => error,
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
    News(Vec<(u32, Vec<Word>)>),
    /// The first failure of the job.
    Failed(Vec<Word>),
    /// The launcher is gone.
    ServerGone,
}

/// The connection is of no use.
fn broken(keeper: Option<&Keeper>, what: &str, e: &dyn std::fmt::Display) -> Error {
    match keeper {
        None => Error::Rendezvous(format!("{what}: {e}; is the launcher (tbccl run) still running?")),
        Some(keeper) => Error::Absent {
            ranks: vec![Rank(keeper.rank)],
            why: format!(
                "{what} at {}: {e}; it has ended, or not come to make the communicator",
                keeper.title()
            ),
        },
    }
}

/// Joining was refused, for want of some ranks or for another reason.
fn refused(why: String, absent: &[u32], keeper: Option<&Keeper>) -> Error {
    if absent.is_empty() || keeper.is_none() {
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
    pub fn join(place: &Place, hello: &Hello, arena: Option<&OwnedFd>) -> Result<Joined> {
        let began = Instant::now();
        let patience = Duration::from_millis(hello.patience_ms);
        loop {
            match Connection::try_to_join(place, hello, arena)? {
                Ok(joined) => return Ok(joined),
                Err(not_yet) if began.elapsed() + BUSY > patience => return Err(not_yet.late(place, hello)),
                Err(_) => thread::sleep(BUSY),
            }
        }
    }

    /// As `join`, or why it is too early.
    fn try_to_join(place: &Place, hello: &Hello, arena: Option<&OwnedFd>) -> Result<Result<Joined, NotYet>> {
        let mut connection = Connection::open(place, hello)?;
        let members = match connection.be_let_in(hello, arena) {
            Ok(Ok(members)) => members,
            Ok(Err(job)) => return Ok(Err(NotYet::Busy(job))),
            // A keeper that has died is not found again.
            Err(error) if connection.hung_up && place.keeper.is_some() => {
                return Ok(Err(NotYet::HungUp(error)));
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
    fn be_let_in(&mut self, hello: &Hello, arena: Option<&OwnedFd>) -> Result<Result<Vec<Member>, String>> {
        if let Some(arena) = arena
            && let Err(job) = self.hand_over(arena, hello)?
        {
            return Ok(Err(job));
        }
        match self.answer("waiting for the other ranks")? {
            FromServer::Welcome { members } => Ok(Ok(members)),
            FromServer::Busy { job } => Ok(Err(job)),
            other => Err(self.unwelcome(other)),
        }
    }

    /// Connects, and greets.
    fn open(place: &Place, hello: &Hello) -> Result<Connection> {
        let what = format!("rank {} can't reach the rendezvous", hello.member.rank);
        let reached = go_to(place).map_err(|why| broken(place.keeper.as_ref(), &what, &why));
        let grace = if place.keeper.is_some() { KEEPERS_GRACE } else { GRACE };
        let patience = Duration::from_millis(hello.patience_ms).saturating_add(grace);
        let mut connection = Connection::over(reached?, hello.member.rank, hello.size, patience);
        connection.keeper.clone_from(&place.keeper);
        // A socket that can't be told is broken, which reading from it says.
        let _ = connection.pipe.socket().bear_silence(Duration::from_millis(hello.silence_ms));
        connection.pipe.send(frame_of(hello));
        Ok(connection)
    }

    /// A rank's, of so many, over an open pipe; it waits so long for answers while the job starts.
    pub(super) fn over(pipe: Pipe, rank: u32, ranks: u32, patience: Duration) -> Connection {
        let now = Instant::now();
        Connection {
            pipe,
            keeper: None,
            rank,
            ranks,
            patience,
            ended: false,
            hung_up: false,
            early: VecDeque::new(),
            seen: 0,
            asked: false,
            beat: now,
            probed: now,
        }
    }

    /// What an answer is that no rank is let in with.
    fn unwelcome(&self, answer: FromServer) -> Error {
        match answer {
            FromServer::Refused { why, absent } => refused(why, &absent, self.keeper.as_ref()),
            other => unexpected(&other),
        }
    }

    /// Hands the memory of this rank over to the others, which takes a socket of this host; or says which other job
    /// meets there.
    fn hand_over(&mut self, arena: &OwnedFd, hello: &Hello) -> Result<Result<(), String>> {
        if self.pipe.socket().is_tcp() {
            let address = match self.answer("asking for the way to the ranks of this host")? {
                FromServer::Elsewhere { address } => address,
                FromServer::Busy { job } => return Ok(Err(job)),
                other => return Err(self.unwelcome(other)),
            };
            let addresses = Address::list(&address).map_err(Error::Rendezvous)?;
            if addresses.iter().any(Address::is_remote) {
                return Err(unexpected(&FromServer::Elsewhere { address }));
            }
            let place =
                Place { addresses, secret: None, patience: Duration::ZERO, keeper: self.keeper.clone() };
            *self = Connection::open(&place, hello).map_err(|_| {
                Error::Rendezvous(format!(
                    "rank {} on {} is to share memory with ranks of another host, or of another user or container: set \
                     TBCCL_TRANSPORT to one that reaches them",
                    hello.member.rank, hello.member.host
                ))
            })?;
        }
        let copy = arena.try_clone().map_err(|e| Error::system("handing over memory", e))?;
        self.pipe.send(Parcel::Descriptor(Arc::new(copy)));
        Ok(Ok(()))
    }

    /// Waits, while the job starts, until `next` finds what it looks for.
    fn wait<T>(&mut self, what: &str, mut next: impl FnMut(&mut Pipe) -> io::Result<Option<T>>) -> Result<T> {
        let deadline = Instant::now().checked_add(self.patience);
        loop {
            if let Some(found) = next(&mut self.pipe).map_err(|e| self.broken(what, &e))? {
                return Ok(found);
            }
            let left = deadline.map_or(Duration::from_secs(3600), |at| at - Instant::now().min(at));
            if left.is_zero() {
                return Err(self.broken(what, &ErrorKind::TimedOut.into()));
            }
            if let Err(e) = self.pump(left.min(liveness::PROBING)) {
                self.hung_up = true;
                return Err(self.broken(what, &e));
            }
            self.look_after();
        }
    }

    /// A rank has died before all had started.
    fn died_early(&self, rank: u32, how: &str) -> Error {
        let keeper = self.keeper.as_ref();
        let who = keeper.map_or_else(|| format!("rank {rank}"), |keeper| keeper.title_of(rank));
        refused(format!("{who} {how} while the job was starting"), &[rank], keeper)
    }

    fn broken(&self, what: &str, e: &io::Error) -> Error {
        broken(self.keeper.as_ref(), what, e)
    }

    /// The next frame, while the job starts.
    fn answer(&mut self, what: &str) -> Result<FromServer> {
        self.wait(what, |pipe| pipe.frame(MOST_TO_RANK))
    }

    fn descriptor(&mut self) -> Result<OwnedFd> {
        const WHAT: &str = "receiving the other ranks' memory";
        self.wait(WHAT, |pipe| Ok(pipe.bytes(1)))?;
        // A byte without its descriptor says that our table of descriptors is full.
        self.pipe.descriptor().ok_or_else(|| Error::system(WHAT, Errno::MFILE))
    }

    /// Writes what is queued, waits until something comes, for so long at most, and reads it.
    fn pump(&mut self, within: Duration) -> io::Result<()> {
        if self.ended {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        // A server that does not take what we say may have said why: reading tells.
        let is_flushed = self.pipe.flush().unwrap_or(true);
        wait_for(self.pipe.as_fd(), is_flushed, within)?;
        match self.pipe.fill(TURN_BYTES) {
            Ok(Filled::Ended) => self.ended = true,
            Ok(_) => {}
            Err(e) => {
                self.ended = true;
                return Err(e);
            }
        }
        Ok(())
    }

    /// Reports what stands against reading the others' memory; returns the first obstacle of any rank.
    pub fn agree_on_pulling(&mut self, obstacle: Option<String>) -> Result<Option<String>> {
        self.pipe.send(frame_of(&FromRank::Probed { obstacle }));
        loop {
            match self.answer("starting together")? {
                FromServer::Go { obstacle } => return Ok(obstacle),
                refused @ FromServer::Refused { .. } => return Err(self.unwelcome(refused)),
                // All had probed, and so the job had begun, before we were told to go.
                FromServer::Died { rank, how } => return Err(self.died_early(rank, &how)),
                early @ (FromServer::Failed { .. } | FromServer::News { .. }) => self.early.push_back(early),
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
        let mut said = frame_of(&FromRank::Exchange { bytes });
        said.extend_from_slice(data);
        self.pipe.send(said);
        loop {
            match self.answer("exchanging how ranks are reached")? {
                FromServer::Exchanged { bytes } => return self.parts(&bytes),
                refused @ FromServer::Refused { .. } => return Err(self.unwelcome(refused)),
                FromServer::Died { rank, how } => return Err(self.died_early(rank, &how)),
                other => self.early.push_back(other),
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
        let mut part =
            |len: &u32| self.wait("exchanging how ranks are reached", |pipe| Ok(pipe.bytes(*len as usize)));
        lengths.iter().map(&mut part).collect()
    }

    /// Says that this rank can't go on with starting, so that the others need not wait for it.
    pub fn give_up(&mut self, why: &str) {
        self.say_last(&FromRank::GivenUp { why: why.to_owned() });
    }

    /// Tells what is new on our board, and asks for what is new on others'. Does not wait, and says nothing when it has
    /// nothing to tell and has asked before.
    pub fn look(&mut self, words: Vec<Word>) {
        if words.is_empty() && self.asked {
            return;
        }
        self.asked = true;
        self.say(&FromRank::Look { seen: self.seen, words });
    }

    /// Says that the job has failed. The failure that holds comes as a notice.
    pub fn raise(&mut self, words: Vec<Word>) {
        self.say(&FromRank::Raise { words });
    }

    /// Says something without waiting until it is taken.
    fn say(&mut self, word: &FromRank) {
        self.pipe.send(frame_of(word));
        // If the launcher is gone, reading says so.
        let _ = self.pipe.flush();
    }

    /// Over TCP: shows that we live, and looks whether the host at the other end does. Not more than is needed, and not
    /// on top of what is not taken yet.
    fn look_after(&mut self) {
        if !self.pipe.socket().is_tcp() {
            return;
        }
        let now = Instant::now();
        if now - self.probed >= liveness::PROBING {
            self.probed = now;
            self.ended |= self.pipe.socket().is_silent();
        }
        if now - self.beat >= BEAT && self.pipe.is_flushed() {
            self.beat = now;
            self.say(&FromRank::Beat);
        }
    }

    /// The next notice, if one has come within a time. Other frames are none.
    pub fn notice(&mut self, within: Duration) -> Option<Notice> {
        self.look_after();
        let until = Instant::now() + within;
        let mut has_looked = false;
        loop {
            let frame = match self.early.pop_front() {
                Some(frame) => Ok(Some(frame)),
                None => self.pipe.frame(MOST_TO_RANK),
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
            let _ = self.pump(left);
        }
    }

    fn notice_in(&mut self, frame: FromServer) -> Option<Notice> {
        match frame {
            FromServer::Died { rank, how } => Some(Notice::Died { rank, how }),
            FromServer::Failed { words } => Some(Notice::Failed(words)),
            FromServer::News { version, mut boards } => {
                (self.seen, self.asked) = (version, false);
                boards.retain(|(rank, _)| *rank != self.rank && *rank < self.ranks);
                Some(Notice::News(boards))
            }
            _ => None,
        }
    }

    /// Says that this rank ends in an orderly way, and what was last new on its board.
    pub fn goodbye(&mut self, words: Vec<Word>) {
        self.say_last(&FromRank::Goodbye { words });
    }

    /// Says something and sees to it that it arrives: closing a TCP connection on which something has come that was
    /// not read takes back what was sent.
    fn say_last(&mut self, word: &FromRank) {
        self.say(word);
        let until = Instant::now() + LAST_WORDS;
        let is_tcp = self.pipe.socket().is_tcp();
        let mut has_finished = false;
        while !self.ended && Instant::now() < until {
            if self.pipe.is_flushed() {
                if !is_tcp {
                    return;
                }
                if !has_finished {
                    self.pipe.socket().finish();
                    has_finished = true;
                }
            }
            if self.pump(until.saturating_duration_since(Instant::now())).is_err() {
                return;
            }
            self.pipe.forget();
        }
    }
}
