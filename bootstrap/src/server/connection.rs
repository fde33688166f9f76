//! One connection, from the stranger that it begins as to the rank that it becomes.
//!
//! What has come is cut into what a guest may say at its stage: nothing before it has proved that it belongs to the
//! job, then a greeting, then the words of a rank. What the words mean is the job's business.

use super::super::{
    frame_stream::{FrameStream, ReadProgress},
    wire::{FromRank, Hello, MAGIC, MAX_EXCHANGE_BYTES, MAX_FROM_RANK_BYTES, MAX_HELLO_BYTES, PROTOCOL},
};
use rustix::fd::OwnedFd;
use std::{
    io::{self, ErrorKind},
    time::Instant,
};

/// Bytes read from one connection before others have their turn.
const TURN_BYTES: usize = 256 << 10;

/// How far a guest has come.
#[derive(Debug)]
pub(super) enum Stage {
    /// It is to prove that it belongs to the job.
    Unauthenticated,
    /// It is to say who it is.
    AwaitingHello,
    /// It has said so; the descriptor of its arena is to come.
    AwaitingArena(Box<Hello>),
    /// It is this rank.
    Rank(u32),
    /// It is this rank, and bytes of an exchange are to come.
    Contributing(u32, u32),
    /// It is not listened to any more, and has to go once it has been told why.
    Closing,
}

/// What a guest has said.
#[derive(Debug)]
pub(super) enum Message {
    /// Which rank it is, with its arena if it has one.
    Hello(Box<Hello>, Option<OwnedFd>),
    /// That it is of another version of tbccl; why it can't be let in.
    OtherVersion(String),
    /// A word of a rank, and the bytes that came with it.
    FromRank(u32, FromRank, Vec<u8>),
}

/// One connection.
#[derive(Debug)]
pub(super) struct InboundConnection {
    pub(super) frames: FrameStream,
    pub(super) stage: Stage,
    /// When it came.
    pub(super) since: Instant,
    /// Until when it has to have come further.
    pub(super) deadline: Option<Instant>,
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

impl InboundConnection {
    /// The rank that it is, if it has been let in as one and not sent away.
    pub(super) fn rank(&self) -> Option<u32> {
        match self.stage {
            Stage::Rank(rank) | Stage::Contributing(rank, _) => Some(rank),
            _ => None,
        }
    }

    /// Reads what has come, as far as its turn goes.
    pub(super) fn fill(&mut self) -> io::Result<ReadProgress> {
        let filled = self.frames.fill(TURN_BYTES);
        if matches!(self.stage, Stage::Closing) {
            self.frames.discard_input();
        }
        filled
    }

    /// What it has said next, once it has come.
    ///
    /// # Errors
    /// When it is nothing that a guest says there.
    pub(super) fn next(&mut self) -> io::Result<Option<Message>> {
        loop {
            match &self.stage {
                Stage::Unauthenticated | Stage::Closing => return Ok(None),
                Stage::AwaitingHello => {
                    let Some(greeting) = self.frames.frame(MAX_HELLO_BYTES)? else { return Ok(None) };
                    match read_greeting(greeting)? {
                        Ok(hello) if hello.arena && !self.frames.socket().is_tcp() => {
                            self.stage = Stage::AwaitingArena(hello);
                        }
                        Ok(hello) => return Ok(Some(Message::Hello(hello, None))),
                        Err(why) => return Ok(Some(Message::OtherVersion(why))),
                    }
                }
                Stage::AwaitingArena(_) => return self.arena(),
                Stage::Rank(rank) => {
                    let rank = *rank;
                    if self.frames.waiting_descriptors() > 0 {
                        return Err(invalid("a descriptor that nobody asked for"));
                    }
                    match self.frames.frame(MAX_FROM_RANK_BYTES)? {
                        Some(FromRank::Exchange { bytes }) if bytes > MAX_EXCHANGE_BYTES => {
                            return Err(invalid("more bytes than can be exchanged"));
                        }
                        Some(FromRank::Exchange { bytes }) => self.stage = Stage::Contributing(rank, bytes),
                        Some(word) => return Ok(Some(Message::FromRank(rank, word, Vec::new()))),
                        None => return Ok(None),
                    }
                }
                Stage::Contributing(rank, bytes) => {
                    let (rank, bytes) = (*rank, *bytes);
                    let Some(contribution) = self.frames.bytes(bytes as usize) else { return Ok(None) };
                    self.stage = Stage::Rank(rank);
                    return Ok(Some(Message::FromRank(rank, FromRank::Exchange { bytes }, contribution)));
                }
            }
        }
    }

    fn arena(&mut self) -> io::Result<Option<Message>> {
        if self.frames.bytes(1).is_none() {
            return Ok(None);
        }
        let fd = self.frames.descriptor().ok_or_else(|| invalid("no descriptor came with the greeting"))?;
        match std::mem::replace(&mut self.stage, Stage::AwaitingHello) {
            Stage::AwaitingArena(hello) => Ok(Some(Message::Hello(hello, Some(fd)))),
            _ => Ok(None),
        }
    }
}

/// A greeting of ours, or why not in a way that another version of us understands.
fn read_greeting(text: serde_json::Value) -> io::Result<Result<Box<Hello>, String>> {
    let theirs = text.get("protocol").and_then(serde_json::Value::as_u64);
    if text.get("magic").is_some_and(|magic| magic == MAGIC) && theirs != Some(PROTOCOL.into()) {
        let theirs = theirs.map_or_else(|| "unknown".to_owned(), |p| p.to_string());
        return Ok(Err(format!(
            "a rank speaks protocol {theirs}, the launcher {PROTOCOL}: use the same version of tbccl everywhere"
        )));
    }
    serde_json::from_value(text).map(|hello| Ok(Box::new(hello))).map_err(io::Error::from)
}
