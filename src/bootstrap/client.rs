//! A rank's side of the rendezvous.

use super::{
    server::connect,
    wire::{FromRank, FromServer, Hello, Member, read_frame, write_frame},
};
use crate::error::{Error, Result};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd, OwnedFd},
    io::Errno,
};
use std::{io, os::unix::net::UnixStream, time::Duration};

/// A rank's open connection to the rendezvous.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
}

/// What a rank learns by joining.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) connection: Connection,
    /// Everyone, in rank order.
    pub(crate) members: Vec<Member>,
    /// Everyone's arena, in rank order.
    pub(crate) arenas: Vec<OwnedFd>,
}

/// News that came over the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A rank's process ended.
    Died { rank: u32, how: String },
    /// The launcher is gone.
    ServerGone,
}

fn bootstrap(what: &str, e: &io::Error) -> Error {
    Error::Bootstrap(format!("{what}: {e}; is the launcher (tbccl run) still running?"))
}

impl Connection {
    /// Joins the job at `address`; waits until everyone has.
    pub(crate) fn join(address: &str, hello: &Hello, arena: impl AsFd) -> Result<Joined> {
        let mut stream = connect(address).map_err(|e| bootstrap("connecting to the rendezvous", &e))?;
        // The server gives its own answer at the deadline; this one is for a server that is stuck.
        let patience = Duration::from_millis(hello.patience_ms) + Duration::from_secs(10);
        stream.set_read_timeout(Some(patience)).map_err(|e| bootstrap("joining the job", &e))?;
        write_frame(&mut stream, hello).map_err(|e| bootstrap("joining the job", &e))?;
        transport::driver::shm::send_descriptor(stream.as_fd(), arena.as_fd())
            .map_err(|e| bootstrap("handing over memory", &e.into()))?;
        let members = match read_frame(&mut stream)
            .map_err(|e| bootstrap("waiting for the other ranks", &e))?
        {
            FromServer::Welcome { members } => members,
            FromServer::Refused { why } => return Err(Error::Bootstrap(why)),
            other => return Err(Error::Bootstrap(format!("unexpected answer of the launcher: {other:?}"))),
        };
        let mut arenas = Vec::with_capacity(members.len());
        for _ in &members {
            let fd = transport::driver::shm::receive_descriptor(stream.as_fd());
            arenas.push(fd.map_err(|e| match e {
                // What recvmsg says when the descriptor table is full is only that it got no descriptor.
                Errno::PROTO => Error::system("receiving the other ranks' memory", Errno::MFILE),
                e => Error::system("receiving the other ranks' memory", e),
            })?);
        }
        Ok(Joined { connection: Connection { stream }, members, arenas })
    }

    /// Reports what stands against reading the others' memory; returns the first obstacle of any rank.
    pub(crate) fn agree_on_pulling(&mut self, obstacle: Option<String>) -> Result<Option<String>> {
        let failed = |e: io::Error| bootstrap("starting together", &e);
        write_frame(&mut self.stream, &FromRank::Probed { obstacle }).map_err(failed)?;
        match read_frame(&mut self.stream).map_err(failed)? {
            FromServer::Go { obstacle } => Ok(obstacle),
            FromServer::Refused { why } => Err(Error::Bootstrap(why)),
            // All had probed, and so the job had begun, before we were told to go.
            FromServer::Died { rank, how } => {
                Err(Error::Bootstrap(format!("rank {rank} {how} while the job was starting")))
            }
            other => Err(Error::Bootstrap(format!("unexpected answer of the launcher: {other:?}"))),
        }
    }

    /// The next notice, if one has come. Does not wait.
    pub(crate) fn notice(&mut self) -> Option<Notice> {
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) | Err(Errno::INTR) => return None,
            Ok(_) => {}
            Err(_) => return Some(Notice::ServerGone),
        }
        match read_frame(&mut self.stream) {
            Ok(FromServer::Died { rank, how }) => Some(Notice::Died { rank, how }),
            Ok(_) => None,
            Err(_) => Some(Notice::ServerGone),
        }
    }

    /// Says that this rank ends in an orderly way.
    pub(crate) fn goodbye(&mut self) {
        // If the launcher is gone there is nobody to tell.
        let _ = write_frame(&mut self.stream, &FromRank::Goodbye);
    }
}
