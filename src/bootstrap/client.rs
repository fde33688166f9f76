//! A rank's side of the rendezvous.

use super::{
    server::connect,
    wire::{FromRank, FromServer, Hello, MAX_EXCHANGE_BYTES, Member, Word, read_frame, write_frame},
};
use crate::error::{Error, Result};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd, OwnedFd},
    io::Errno,
};
use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

/// A rank's open connection to the rendezvous.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    ranks: u32,
    /// News that came while something else was waited for.
    early: VecDeque<FromServer>,
    /// Up to which version the others' boards are known.
    seen: u64,
    /// Have we asked for what is newer, without an answer yet?
    asked: bool,
}

/// What a rank learns by joining.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) connection: Connection,
    /// Everyone, in rank order.
    pub(crate) members: Vec<Member>,
    /// Everyone's arena, in rank order; empty where ranks have none.
    pub(crate) arenas: Vec<OwnedFd>,
}

/// News that came over the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A rank's process ended.
    Died { rank: u32, how: String },
    /// What is new on others' boards.
    News(Vec<(u32, Vec<Word>)>),
    /// The first failure of the job.
    Failed(Vec<Word>),
    /// The launcher is gone.
    ServerGone,
}

fn bootstrap(what: &str, e: &io::Error) -> Error {
    Error::Bootstrap(format!("{what}: {e}; is the launcher (tbccl run) still running?"))
}

impl Connection {
    /// Joins the job at `address`, with an arena if ranks have such; waits until everyone has joined.
    pub(crate) fn join(address: &str, hello: &Hello, arena: Option<&OwnedFd>) -> Result<Joined> {
        let mut stream = connect(address).map_err(|e| bootstrap("connecting to the rendezvous", &e))?;
        // The server gives its own answer at the deadline; this one is for a server that is stuck.
        let patience = Duration::from_millis(hello.patience_ms) + Duration::from_secs(10);
        stream.set_read_timeout(Some(patience)).map_err(|e| bootstrap("joining the job", &e))?;
        write_frame(&mut stream, hello).map_err(|e| bootstrap("joining the job", &e))?;
        if let Some(arena) = arena {
            transport::driver::shm::send_descriptor(stream.as_fd(), arena.as_fd())
                .map_err(|e| bootstrap("handing over memory", &e.into()))?;
        }
        let members = match read_frame(&mut stream)
            .map_err(|e| bootstrap("waiting for the other ranks", &e))?
        {
            FromServer::Welcome { members } => members,
            FromServer::Refused { why } => return Err(Error::Bootstrap(why)),
            other => return Err(Error::Bootstrap(format!("unexpected answer of the launcher: {other:?}"))),
        };
        let mut arenas = Vec::with_capacity(members.len());
        for _ in members.iter().filter(|_| arena.is_some()) {
            let fd = transport::driver::shm::receive_descriptor(stream.as_fd());
            arenas.push(fd.map_err(|e| match e {
                // What recvmsg says when the descriptor table is full is only that it got no descriptor.
                Errno::PROTO => Error::system("receiving the other ranks' memory", Errno::MFILE),
                e => Error::system("receiving the other ranks' memory", e),
            })?);
        }
        let ranks = members.len() as u32;
        let connection = Connection { stream, ranks, early: VecDeque::new(), seen: 0, asked: false };
        Ok(Joined { connection, members, arenas })
    }

    /// Reports what stands against reading the others' memory; returns the first obstacle of any rank.
    pub(crate) fn agree_on_pulling(&mut self, obstacle: Option<String>) -> Result<Option<String>> {
        let failed = |e: io::Error| bootstrap("starting together", &e);
        write_frame(&mut self.stream, &FromRank::Probed { obstacle }).map_err(failed)?;
        loop {
            match read_frame(&mut self.stream).map_err(failed)? {
                FromServer::Go { obstacle } => return Ok(obstacle),
                FromServer::Refused { why } => return Err(Error::Bootstrap(why)),
                // All had probed, and so the job had begun, before we were told to go.
                FromServer::Died { rank, how } => {
                    return Err(Error::Bootstrap(format!("rank {rank} {how} while the job was starting")));
                }
                early @ (FromServer::Failed { .. } | FromServer::News { .. }) => self.early.push_back(early),
                other => {
                    return Err(Error::Bootstrap(format!("unexpected answer of the launcher: {other:?}")));
                }
            }
        }
    }

    /// Gives `data` to everyone; returns what everyone has given, in rank order. All ranks call it equally often.
    pub(crate) fn exchange(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>> {
        let failed = |e: io::Error| bootstrap("exchanging how ranks are reached", &e);
        let bytes =
            u32::try_from(data.len()).ok().filter(|len| *len <= MAX_EXCHANGE_BYTES).ok_or_else(|| {
                Error::Bootstrap(format!(
                    "{} bytes to exchange; up to {MAX_EXCHANGE_BYTES} can be",
                    data.len()
                ))
            })?;
        write_frame(&mut self.stream, &FromRank::Exchange { bytes }).map_err(failed)?;
        self.stream.write_all(data).map_err(failed)?;
        loop {
            match read_frame(&mut self.stream).map_err(failed)? {
                FromServer::Exchanged { bytes } => return self.read_parts(&bytes),
                FromServer::Refused { why } => return Err(Error::Bootstrap(why)),
                FromServer::Died { rank, how } => {
                    return Err(Error::Bootstrap(format!("rank {rank} {how} while the job was starting")));
                }
                other => self.early.push_back(other),
            }
        }
    }

    fn read_parts(&mut self, lengths: &[u32]) -> Result<Vec<Vec<u8>>> {
        if lengths.len() != self.ranks as usize || lengths.iter().any(|len| *len > MAX_EXCHANGE_BYTES) {
            return Err(Error::Bootstrap(format!(
                "unexpected answer of the launcher: {} parts of up to {} bytes",
                lengths.len(),
                lengths.iter().max().unwrap_or(&0)
            )));
        }
        let mut part = |len: &u32| {
            let mut part = vec![0; *len as usize];
            self.stream.read_exact(&mut part).map(|()| part)
        };
        let parts: io::Result<Vec<_>> = lengths.iter().map(&mut part).collect();
        parts.map_err(|e| bootstrap("exchanging how ranks are reached", &e))
    }

    /// Says that this rank can't go on with starting, so that the others need not wait for it.
    pub(crate) fn give_up(&mut self, why: &str) {
        let _ = write_frame(&mut self.stream, &FromRank::GivenUp { why: why.to_owned() });
    }

    /// Tells what is new on our board, and asks for what is new on others'. Does not wait, and says nothing when it has
    /// nothing to tell and has asked before.
    pub(crate) fn look(&mut self, words: Vec<Word>) {
        if words.is_empty() && self.asked {
            return;
        }
        self.asked = true;
        // If the launcher is gone, reading says so.
        let _ = write_frame(&mut self.stream, &FromRank::Look { seen: self.seen, words });
    }

    /// Says that the job has failed. The failure that holds comes as a notice.
    pub(crate) fn raise(&mut self, words: Vec<Word>) {
        let _ = write_frame(&mut self.stream, &FromRank::Raise { words });
    }

    /// The next notice, if one has come within a time. Other frames are none.
    pub(crate) fn notice(&mut self, within: Duration) -> Option<Notice> {
        if let Some(frame) = self.early.pop_front() {
            return self.notice_in(frame);
        }
        let limit = Timespec { tv_sec: within.as_secs() as _, tv_nsec: within.subsec_nanos().into() };
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        match poll(&mut fds, Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => return None,
            Ok(_) => {}
            Err(_) => return Some(Notice::ServerGone),
        }
        match read_frame(&mut self.stream) {
            Ok(frame) => self.notice_in(frame),
            Err(_) => Some(Notice::ServerGone),
        }
    }

    fn notice_in(&mut self, frame: FromServer) -> Option<Notice> {
        match frame {
            FromServer::Died { rank, how } => Some(Notice::Died { rank, how }),
            FromServer::Failed { words } => Some(Notice::Failed(words)),
            FromServer::News { version, boards } => {
                (self.seen, self.asked) = (version, false);
                Some(Notice::News(boards))
            }
            _ => None,
        }
    }

    /// Says that this rank ends in an orderly way, and what was last new on its board.
    pub(crate) fn goodbye(&mut self, words: Vec<Word>) {
        // If the launcher is gone there is nobody to tell.
        let _ = write_frame(&mut self.stream, &FromRank::Goodbye { words });
    }
}
