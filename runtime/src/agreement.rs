//! The boards of a job: the calls that each rank is in, and the first failure of the job.
//!
//! Every rank writes its own board and reads the others'. The failure is the exception: it is on rank 0's
//! board, and the first rank to claim it writes it, so that all ranks report the same cause.
//!
//! Where boards are not shared memory, a rank has mirrors of the others'. Changes of its own board
//! ([`Agreement::news`]) travel to them by the bootstrap connection, and so does the failure: the rendezvous
//! decides which one was first, and that one is entered ([`Agreement::enter_failure`]).
//!
//! | words | content |
//! |---|---|
//! | 0 | number of the latest collective entered |
//! | 1 | number of the latest collective finished |
//! | 2 | not 0: this rank has closed its communicator |
//! | 3 | not 0: this rank is sending or receiving a message |
//! | 4 | on rank 0's board: the rank that reports a hang, and since when |
//! | 8.. | the failure: claimed by (rank + 1), ready, kind, two ranks, two records, length, text |
//! | 160..168 | the latest message call |
//! | 256..768 | the latest 64 collectives, one cache line each |
//!
//! A line is written as a sequence lock: stamp 0, words, stamp; readers accept it only if the stamp is the
//! same before and after. Contents of a line have different stamps: the numbers of collectives, and a count
//! of messages, whose own numbers count per pair.
//!
//! This module does not wait; the watch of a call decides which boards are read, and when.

use crate::{
    call::{CallRecord, Words},
    error::{Error, PeerName, Place},
};
use bootstrap::Word;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use topology::Rank;
use transport::{
    Board, TransportError,
    sync::{AtomicU64, fence, sleep},
};

const ENTERED: usize = 0;
const FINISHED: usize = 1;
const LEFT: usize = 2;
const IN_MESSAGE: usize = 3;
const REPORT: usize = 4;
const FAILURE: usize = 8;
const FAILURE_TEXT: usize = FAILURE + 16;
const FAILURE_TEXT_BYTES: usize = 960;
const MESSAGE: usize = 160;
const CALLS: usize = 256;
const CALLS_KEPT: u64 = 64;

/// The first failure of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A rank's process ended.
    Died { rank: Rank, how: String },
    /// Two ranks are in different calls.
    Mismatch { calls: [(Rank, CallRecord); 2] },
    /// A rank failed in another way, and says so.
    Failed { rank: Rank, message: String },
}

impl Failure {
    /// Returns the error of the failure for a call at `place`.
    pub(crate) fn into_error(self, names: &[PeerName], place: Place) -> Error {
        match self {
            Failure::Died { rank, how } => Error::PeerDied {
                peer: names.get(rank.index()).cloned().unwrap_or(PeerName {
                    rank,
                    pid: 0,
                    host: "unknown".into(),
                }),
                how,
                place: Box::new(place),
            },
            Failure::Mismatch { calls } => Error::Mismatch { calls: Box::new(calls) },
            Failure::Failed { rank, message } => Error::Remote { rank, message },
        }
    }
}

/// The boards of all ranks, as seen by one rank.
#[derive(Clone, Debug)]
pub(crate) struct Agreement {
    rank: Rank,
    boards: Vec<Board>,
    /// The boards of this rank and of rank 0, which every call uses.
    own: Board,
    first: Board,
    /// Whether the boards of the other ranks are mapped here, not mirrored.
    mapped: bool,
}

/// The board of one rank, for a wait that borrows the rest.
#[derive(Debug)]
pub(crate) struct PeerBoard(Board);

impl PeerBoard {
    /// Whether the record of the collective with this number is there.
    #[inline]
    pub(crate) fn has_record(&self, seq: u64) -> bool {
        self.0.words()[call_at(seq)].load(Acquire) == seq
    }

    /// Whether the rank has entered the collective with this number. A rank that is far ahead has written
    /// another record over that of the collective.
    #[inline]
    pub(crate) fn has_entered(&self, seq: u64) -> bool {
        self.0.words()[ENTERED].load(Acquire) >= seq
    }
}

/// The words of this rank's board that the other ranks know.
#[derive(Debug)]
pub(crate) struct Published(Box<[u64; Board::WORDS]>);

impl Default for Published {
    fn default() -> Published {
        Published(Box::new([0; Board::WORDS]))
    }
}

impl Agreement {
    pub(crate) fn new(rank: Rank, boards: Vec<Board>) -> Agreement {
        let (own, first) = (boards[rank.index()].clone(), boards[0].clone());
        Agreement { rank, boards, own, first, mapped: true }
    }

    /// Creates a board for this rank, and mirrors of the other ranks' boards.
    pub(crate) fn mirrored(rank: Rank, ranks: u32) -> Result<Agreement, TransportError> {
        let boards = (0..ranks).map(|_| Board::private()).collect::<Result<Vec<_>, _>>()?;
        Ok(Agreement { mapped: false, ..Agreement::new(rank, boards) })
    }

    /// Whether the boards of the other ranks are mapped here.
    #[inline]
    pub(crate) fn is_mapped(&self) -> bool {
        self.mapped
    }

    /// Returns the words of this rank's board that changed since the last call.
    pub(crate) fn news(&self, published: &mut Published) -> Vec<Word> {
        let own = self.own().iter().zip(published.0.iter_mut()).enumerate();
        own.filter(|(index, _)| !(FAILURE..MESSAGE).contains(index))
            .filter_map(|(index, (word, known))| {
                let value = word.load(Relaxed);
                (std::mem::replace(known, value) != value).then_some((index as u16, value))
            })
            .collect()
    }

    /// Enters changes of a peer's board into its mirror. Invalid words are ignored.
    pub(crate) fn mirror(&self, peer: u32, words: &[Word]) {
        let Some(board) = self.boards.get(peer as usize).filter(|_| Rank(peer) != self.rank) else { return };
        for (index, value) in words.iter().filter(|(index, _)| !(FAILURE..MESSAGE).contains(&(*index).into()))
        {
            if let Some(word) = board.words().get(usize::from(*index)) {
                word.store(*value, Relaxed);
            }
        }
    }

    /// Returns the board words of a failure.
    pub(crate) fn failure_words(&self, failure: &Failure) -> Vec<Word> {
        let words: Vec<AtomicU64> = (0..MESSAGE).map(|_| AtomicU64::new(0)).collect();
        words[FAILURE].store(u64::from(self.rank.0) + 1, Relaxed);
        words[FAILURE + 1].store(1, Relaxed);
        write_failure(&words, failure);
        let set = words.iter().enumerate().map(|(index, word)| (index as u16, word.load(Relaxed)));
        set.filter(|(_, value)| *value != 0).collect()
    }

    /// Makes this the failure of the job, as the rendezvous decided, unless this rank knows of one already.
    ///
    /// Other threads may ask for the failure meanwhile.
    pub(crate) fn enter_failure(&self, words: &[Word]) {
        let area = &self.first.words()[..MESSAGE];
        let claim = words.iter().find(|(index, value)| usize::from(*index) == FAILURE && *value != 0);
        let is_first = |(_, rank): &Word| area[FAILURE].compare_exchange(0, *rank, Acquire, Relaxed).is_ok();
        if !claim.is_some_and(is_first) {
            return;
        }
        for (index, value) in words.iter().filter(|(index, _)| usize::from(*index) > FAILURE + 1) {
            if let Some(word) = area.get(usize::from(*index)) {
                word.store(*value, Relaxed);
            }
        }
        area[FAILURE + 1].store(1, Release);
        fence(Release);
    }

    fn own(&self) -> &[AtomicU64] {
        self.own.words()
    }

    /// Publishes that this rank enters a collective, whose record has these words.
    #[inline]
    pub(crate) fn enter(&self, record: &Words) {
        let (own, [seq, ..]) = (self.own(), *record);
        write_line(line(own, call_at(seq)), seq, record);
        own[ENTERED].store(seq, Release);
    }

    /// Publishes that this rank has finished a collective.
    #[inline]
    pub(crate) fn finish(&self, seq: u64) {
        self.own()[FINISHED].store(seq, Relaxed);
    }

    /// Publishes that this rank sends or receives a message, whose record has these words. Does nothing if
    /// that is published: each new stamp is news for all ranks.
    #[inline]
    pub(crate) fn enter_message(&self, record: &Words) {
        let line = line(self.own(), MESSAGE);
        let is_published = || (1..).zip(record).all(|(at, word)| line[at].load(Relaxed) == *word);
        if self.own()[IN_MESSAGE].load(Relaxed) != 0 && is_published() {
            return;
        }
        write_line(line, line[0].load(Relaxed) + 1, record);
        self.own()[IN_MESSAGE].store(1, Relaxed);
    }

    /// Publishes that this rank has finished its message.
    #[inline]
    pub(crate) fn finish_message(&self) {
        self.own()[IN_MESSAGE].store(0, Relaxed);
    }

    /// Publishes that this rank's communicator is closed.
    pub(crate) fn leave(&self) {
        self.own()[LEFT].store(1, Release);
    }

    pub(crate) fn has_left(&self, peer: Rank) -> bool {
        self.boards[peer.index()].words()[LEFT].load(Acquire) != 0
    }

    /// Whether a rank has closed its communicator, and no failure is known. A rank that has failed raises its
    /// failure before it leaves, so its departure is never taken for the cause.
    pub(crate) fn has_left_in_good_order(&self, peer: Rank) -> bool {
        self.has_left(peer) && !self.has_failure()
    }

    /// Whether a rank has finished the collective with this number.
    pub(crate) fn has_finished(&self, peer: Rank, seq: u64) -> bool {
        self.boards[peer.index()].words()[FINISHED].load(Acquire) >= seq
    }

    /// Returns the board of a rank. It takes no memory of its own.
    pub(crate) fn board(&self, peer: Rank) -> PeerBoard {
        PeerBoard(self.boards[peer.index()].clone())
    }

    /// Returns the number of the latest collective that a rank has entered.
    #[inline]
    pub(crate) fn entered(&self, peer: Rank) -> u64 {
        self.boards[peer.index()].words()[ENTERED].load(Acquire)
    }

    /// Returns the collective with this number on a rank, if the rank has entered it and it is among the
    /// latest ones.
    pub(crate) fn call(&self, peer: Rank, seq: u64) -> Option<CallRecord> {
        let words = self.boards[peer.index()].words();
        read_line(line(words, call_at(seq))).filter(|record| record.seq == seq)
    }

    /// Returns the call of a rank with this digest, if it is among its latest ones.
    pub(crate) fn find(&self, peer: Rank, digest: u64) -> Option<CallRecord> {
        let words = self.boards[peer.index()].words();
        let calls = (0..CALLS_KEPT as usize).map(|i| CALLS + 8 * i);
        calls
            .chain([MESSAGE])
            .filter_map(|at| read_line(line(words, at)))
            .find(|call| call.digest() == digest)
    }

    /// Returns the message that a rank sends or receives.
    pub(crate) fn message(&self, peer: Rank) -> Option<CallRecord> {
        let words = self.boards[peer.index()].words();
        (words[IN_MESSAGE].load(Acquire) != 0).then(|| read_line(line(words, MESSAGE))).flatten()
    }

    /// Makes this rank the one that reports a hang, for the next seconds. False if another one is.
    ///
    /// For boards that are mapped; the ranks of one host have one clock.
    pub(crate) fn claim_report(&self) -> bool {
        const CLAIM_SECONDS: u64 = 5;
        const RANK_BITS: u32 = 24;
        let now = clock_gettime(ClockId::Monotonic).tv_sec as u64 + 1;
        let claim = now << RANK_BITS | u64::from(self.rank.0);
        let word = &self.first.words()[REPORT];
        let free = |held: u64| {
            let is_own = held & ((1 << RANK_BITS) - 1) == u64::from(self.rank.0);
            (is_own || (held >> RANK_BITS) + CLAIM_SECONDS <= now).then_some(claim)
        };
        word.fetch_update(AcqRel, Acquire, free).is_ok()
    }

    /// Returns the latest known activity of a rank, for people.
    pub(crate) fn activity(&self, peer: Rank) -> String {
        let seen = self.activity_seen(peer);
        if self.mapped { seen } else { format!("{seen}, as far as it has told") }
    }

    fn activity_seen(&self, peer: Rank) -> String {
        let words = self.boards[peer.index()].words();
        let (entered, finished) = (words[ENTERED].load(Acquire), words[FINISHED].load(Acquire));
        if self.has_left(peer) {
            return format!("rank {peer} has closed its communicator");
        }
        if let Some(message) = self.message(peer) {
            return format!("rank {peer} is in a {message}");
        }
        match self.call(peer, entered) {
            None => format!("rank {peer} has entered no collective"),
            Some(call) if finished < entered => format!("rank {peer} is in call {entered} ({call})"),
            Some(call) => format!("rank {peer} is outside, after call {entered} ({call})"),
        }
    }

    /// Whether a rank of the job has failed. Cheap enough for every call.
    #[inline]
    pub(crate) fn has_failure(&self) -> bool {
        self.first.words()[FAILURE].load(Relaxed) != 0
    }

    /// Makes this the failure of the job, unless there is one already. Returns the failure that holds.
    pub(crate) fn raise(&self, failure: Failure) -> Failure {
        let words = self.first.words();
        let claim = u64::from(self.rank.0) + 1;
        if words[FAILURE].compare_exchange(0, claim, Acquire, Relaxed).is_err() {
            return self.failure().unwrap_or(failure);
        }
        write_failure(words, &failure);
        words[FAILURE + 1].store(1, Release);
        // A peer that reads memory which this rank's user overwrites from now on also sees that the job has
        // failed.
        fence(Release);
        failure
    }

    /// Returns the failure of the job, if any. A claimed failure that never becomes ready, since its writer
    /// died, is reported as such.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let words = self.first.words();
        let claim = words[FAILURE].load(Acquire);
        if claim == 0 {
            return None;
        }
        for _ in 0..1000 {
            if words[FAILURE + 1].load(Acquire) != 0 {
                return Some(read_failure(words));
            }
            sleep(std::time::Duration::from_micros(100));
        }
        Some(Failure::Failed {
            rank: Rank((claim - 1) as u32),
            message: "it ended while reporting a failure".into(),
        })
    }
}

/// Returns the place of the record of a collective.
fn call_at(seq: u64) -> usize {
    CALLS + 8 * (seq % CALLS_KEPT) as usize
}

fn line(words: &[AtomicU64], at: usize) -> &[AtomicU64; 8] {
    words[at..at + 8].try_into().expect("eight words")
}

#[inline]
fn write_line(line: &[AtomicU64; 8], stamp: u64, record: &Words) {
    line[0].store(0, Relaxed);
    fence(Release);
    for (at, word) in record.iter().enumerate() {
        line[1 + at].store(*word, Relaxed);
    }
    line[0].store(stamp, Release);
}

fn read_line(line: &[AtomicU64; 8]) -> Option<CallRecord> {
    let stamp = line[0].load(Acquire);
    let words = std::array::from_fn(|i| line[1 + i].load(Relaxed));
    fence(Acquire);
    if stamp == 0 || line[0].load(Relaxed) != stamp { None } else { CallRecord::decode(words) }
}

fn write_failure(words: &[AtomicU64], failure: &Failure) {
    let put = |at: usize, value: u64| words[FAILURE + at].store(value, Relaxed);
    match failure {
        Failure::Died { rank, how } => {
            put(2, 1);
            put(3, rank.0.into());
            write_text(words, how);
        }
        Failure::Failed { rank, message } => {
            put(2, 2);
            put(3, rank.0.into());
            write_text(words, message);
        }
        Failure::Mismatch { calls } => {
            put(2, 3);
            for (i, (rank, call)) in calls.iter().enumerate() {
                put(3 + i, rank.0.into());
                for (j, word) in call.encode().into_iter().enumerate() {
                    put(5 + i * CallRecord::WORDS + j, word);
                }
            }
        }
    }
}

fn read_failure(words: &[AtomicU64]) -> Failure {
    let get = |at: usize| words[FAILURE + at].load(Relaxed);
    let rank = Rank(get(3) as u32);
    let call = |i: usize| {
        let record = CallRecord::decode(std::array::from_fn(|j| get(5 + i * CallRecord::WORDS + j)))?;
        Some((Rank(get(3 + i) as u32), record))
    };
    match get(2) {
        1 => Failure::Died { rank, how: read_text(words) },
        3 if let (Some(first), Some(second)) = (call(0), call(1)) => {
            Failure::Mismatch { calls: [first, second] }
        }
        _ => Failure::Failed { rank, message: read_text(words) },
    }
}

fn write_text(words: &[AtomicU64], text: &str) {
    let mut bytes = text.as_bytes();
    if bytes.len() > FAILURE_TEXT_BYTES {
        bytes = &bytes[..text.floor_char_boundary(FAILURE_TEXT_BYTES)];
    }
    words[FAILURE_TEXT - 1].store(bytes.len() as u64, Relaxed);
    for (word, part) in words[FAILURE_TEXT..].iter().zip(bytes.chunks(8)) {
        let mut value = [0; 8];
        value[..part.len()].copy_from_slice(part);
        word.store(u64::from_le_bytes(value), Relaxed);
    }
}

fn read_text(words: &[AtomicU64]) -> String {
    let len = (words[FAILURE_TEXT - 1].load(Relaxed) as usize).min(FAILURE_TEXT_BYTES);
    let bytes: Vec<u8> = words[FAILURE_TEXT..FAILURE_TEXT + len.div_ceil(8)]
        .iter()
        .flat_map(|word| word.load(Relaxed).to_le_bytes())
        .take(len)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests;
