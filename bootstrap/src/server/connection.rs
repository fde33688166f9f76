//! One inbound connection, from an unauthenticated peer to a rank of the job.
//!
//! Received bytes are parsed according to the stage: nothing before authentication, then a hello, then
//! messages of a rank. The job interprets the messages.

use super::super::{
    frame_stream::{FrameStream, ReadProgress},
    wire::{
        FromRank, Hello, MAGIC, MAX_EXCHANGE_BYTES, MAX_FROM_RANK_BYTES, MAX_HELLO_BYTES, PROTOCOL, Question,
    },
};
use mio::{Interest, Registry, Token};
use rustix::fd::OwnedFd;
use std::{
    io::{self, ErrorKind},
    time::Instant,
};

/// Maximum bytes read from one connection before other connections are served.
const TURN_BYTES: usize = 256 << 10;

/// Stage of a connection.
#[derive(Debug)]
pub(super) enum Stage {
    /// The peer has not proved that it has the secret.
    Unauthenticated,
    /// The hello is expected.
    AwaitingHello,
    /// The hello has arrived; the descriptor of the arena is expected.
    AwaitingArena(Box<Hello>),
    /// The connection belongs to this rank.
    Rank(u32),
    /// The connection belongs to this rank, and this many bytes of an exchange are expected.
    Contributing(u32, u32),
    /// The peer is a process of this user that is no rank. It may ask questions, and nothing else.
    Inquirer,
    /// Input is ignored; the connection closes once the reason has been sent.
    Closing,
}

/// A message from a peer.
#[derive(Debug)]
pub(super) enum Message {
    /// Hello of a rank, with its arena if it has one.
    Hello(Box<Hello>, Option<OwnedFd>),
    /// Hello of another version of tbccl: the reason for the refusal.
    OtherVersion(String),
    /// Message of a rank, and the bytes that belong to it.
    FromRank(u32, FromRank, Vec<u8>),
    /// Question of a process that is no rank.
    Question(Question),
}

/// One inbound connection.
#[derive(Debug)]
pub(super) struct InboundConnection {
    pub(super) frames: FrameStream,
    pub(super) stage: Stage,
    /// Time of acceptance.
    pub(super) since: Instant,
    /// When the connection closes unless it reaches the next stage.
    pub(super) deadline: Option<Instant>,
    /// Whether the system tells when the socket has room again.
    awaits_room: bool,
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

impl InboundConnection {
    /// Creates a connection that is accepted now and registered for input.
    pub(super) fn new(
        frames: FrameStream,
        stage: Stage,
        since: Instant,
        deadline: Option<Instant>,
    ) -> InboundConnection {
        InboundConnection { frames, stage, since, deadline, awaits_room: false }
    }

    /// Writes queued output, and ends the output of a closing connection. Room in the socket is an event only
    /// while output is left: every answer that a rank reads makes room.
    ///
    /// # Errors
    /// If the connection is broken.
    pub(super) fn flush(&mut self, token: Token, registry: &Registry) -> io::Result<()> {
        let awaits_room = !self.frames.flush()?;
        if awaits_room != std::mem::replace(&mut self.awaits_room, awaits_room) {
            let room = awaits_room.then_some(Interest::WRITABLE);
            let interest = room.map_or(Interest::READABLE, |room| Interest::READABLE | room);
            registry.reregister(self.frames.socket(), token, interest)?;
        }
        if !awaits_room && matches!(self.stage, Stage::Closing) {
            self.frames.finish();
        }
        Ok(())
    }

    /// Returns the rank of the connection, if it is admitted and not closing.
    pub(super) fn rank(&self) -> Option<u32> {
        match self.stage {
            Stage::Rank(rank) | Stage::Contributing(rank, _) => Some(rank),
            _ => None,
        }
    }

    /// Reads available bytes, up to the limit of one turn.
    pub(super) fn fill(&mut self) -> io::Result<ReadProgress> {
        let filled = self.frames.fill(TURN_BYTES);
        if matches!(self.stage, Stage::Closing) {
            self.frames.discard_input();
        }
        filled
    }

    /// Returns the next complete message.
    ///
    /// # Errors
    /// If the message is not valid at this stage.
    pub(super) fn next(&mut self) -> io::Result<Option<Message>> {
        loop {
            match &self.stage {
                Stage::Unauthenticated if self.frames.waiting_descriptors() > 0 => {
                    return Err(invalid("a descriptor before the proof that it has the secret"));
                }
                Stage::Unauthenticated | Stage::Closing => return Ok(None),
                Stage::AwaitingHello => {
                    let Some(greeting) = self.frames.frame(MAX_HELLO_BYTES)? else { return Ok(None) };
                    match parse_hello(greeting)? {
                        Ok(hello) if hello.arena && !self.frames.socket().is_tcp() => {
                            self.stage = Stage::AwaitingArena(hello);
                        }
                        Ok(hello) => return Ok(Some(Message::Hello(hello, None))),
                        Err(why) => return Ok(Some(Message::OtherVersion(why))),
                    }
                }
                Stage::AwaitingArena(_) => return self.arena(),
                Stage::Inquirer if self.frames.waiting_descriptors() > 0 => {
                    return Err(invalid("an unexpected descriptor"));
                }
                Stage::Inquirer => return Ok(self.frames.frame(MAX_HELLO_BYTES)?.map(Message::Question)),
                Stage::Rank(rank) => {
                    let rank = *rank;
                    if self.frames.waiting_descriptors() > 0 {
                        return Err(invalid("an unexpected descriptor"));
                    }
                    match self.frames.frame(MAX_FROM_RANK_BYTES)? {
                        Some(FromRank::Exchange { bytes }) if bytes > MAX_EXCHANGE_BYTES => {
                            return Err(invalid("an exchange of too many bytes"));
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
        let fd = self.frames.descriptor().ok_or_else(|| invalid("no descriptor came with the hello"))?;
        match std::mem::replace(&mut self.stage, Stage::AwaitingHello) {
            Stage::AwaitingArena(hello) => Ok(Some(Message::Hello(hello, Some(fd)))),
            _ => Ok(None),
        }
    }
}

/// Parses a hello; an inner error is the reason why another version of tbccl is refused.
fn parse_hello(text: serde_json::Value) -> io::Result<Result<Box<Hello>, String>> {
    let theirs = text.get("protocol").and_then(serde_json::Value::as_u64);
    if text.get("magic").is_some_and(|magic| magic == MAGIC) && theirs != Some(PROTOCOL.into()) {
        let theirs = theirs.map_or_else(|| "unknown".to_owned(), |p| p.to_string());
        return Ok(Err(format!(
            "a rank speaks protocol {theirs}, the launcher {PROTOCOL}: use the same version of tbccl \
             everywhere"
        )));
    }
    serde_json::from_value(text).map(|hello| Ok(Box::new(hello))).map_err(io::Error::from)
}
