//! Joining a job: from an address of the rendezvous to a connection and the list of members.
//!
//! The rank sends its hello and its arena, and waits for the welcome. While another job uses the rendezvous,
//! it tries again.

use super::{
    Connection,
    absence::{broken, died_during_start},
    channel::{Channel, Phase, start_and_contribution, unexpected},
};
use crate::{
    address::Address,
    connect::{ConnectSpec, RendezvousHost, open_connection},
    error::{Error, Result},
    frame_stream::Payload,
    wire::{FromServer, Hello, Member, communicator_id, encode},
};
use events::{target, tracing::debug};
use rustix::{fd::OwnedFd, io::Errno};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Time beyond the rank's timeout that the server may take to answer. The server answers at the deadline
/// itself; this limit is for a server that hangs.
const SERVER_GRACE: Duration = Duration::from_secs(10);

/// The same where another rank runs the server: it may start this much later and still report missing ranks.
/// An error comes within two seconds after the time limit; this leaves half a second for a busy machine.
const HOST_GRACE: Duration = Duration::from_millis(1500);

/// Pause between attempts to join while another job uses the rendezvous.
const BUSY_RETRY: Duration = Duration::from_millis(20);

/// Result of joining a job.
#[derive(Debug)]
pub struct Joined {
    /// The rank's connection to the rendezvous.
    pub connection: Connection,
    /// All members, in rank order.
    pub members: Vec<Member>,
    /// Arena descriptors of all ranks, in rank order; empty if ranks share no memory.
    pub arenas: Vec<OwnedFd>,
    /// Number of the communicator, equal on all ranks.
    pub id: u64,
}

/// Reason to try to join again.
#[derive(Debug)]
enum Retry {
    /// Another job, of this name, uses the rendezvous.
    Busy(String),
    /// The previous job closed its listener and dropped this connection before it read the hello.
    Closed(Error),
}

impl Retry {
    /// Returns the error to report when no time is left for another attempt.
    fn into_error(self, rendezvous: &ConnectSpec, hello: &Hello) -> Error {
        match self {
            Retry::Busy(job) => {
                let at = rendezvous
                    .rendezvous_host
                    .as_ref()
                    .map_or_else(|| "the rendezvous".to_owned(), RendezvousHost::label);
                Error::Rendezvous(format!(
                    "{at} is making `{job}`, not `{}`: all ranks that make a communicator must call the same \
                     function with the same arguments",
                    hello.job
                ))
            }
            Retry::Closed(error) => {
                let host = rendezvous.rendezvous_host.as_ref();
                let death = host.and_then(|host| Some((host, host.cause()?)));
                death.map_or(error, |(host, (rank, how))| died_during_start(host, rank, &how))
            }
        }
    }
}

impl Connection {
    /// Joins the job at a rendezvous and waits until all ranks have joined.
    ///
    /// `arena` is this rank's shared memory, if the ranks share any. While another job uses the rendezvous,
    /// joining is tried again until the timeout in `hello`.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the server cannot be reached, refuses the rank, or does not answer in time;
    /// [`Error::Absent`] instead where the rendezvous is another rank's, naming missing ranks;
    /// [`Error::System`] if a system call fails.
    pub fn join(rendezvous: &ConnectSpec, hello: &Hello, arena: Option<&OwnedFd>) -> Result<Joined> {
        Connection::join_with(rendezvous, hello, arena, &[])
    }

    /// Joins as [`Connection::join`], starts as [`Connection::start`] with an obstacle, and makes the first
    /// [`Connection::exchange`], all in one round trip. For ranks that share no memory; all ranks may join in
    /// either way.
    ///
    /// # Errors
    /// As for the three.
    pub fn join_and_exchange(
        rendezvous: &ConnectSpec,
        hello: &Hello,
        obstacle: String,
        data: &[u8],
    ) -> Result<(Joined, Vec<Vec<u8>>)> {
        let ahead = start_and_contribution(Some(obstacle), data)?;
        let mut joined = Connection::join_with(rendezvous, hello, None, &ahead)?;
        let parts = joined.connection.finish_start()?;
        Ok((joined, parts))
    }

    /// Joins. `ahead` are messages that follow the hello at once.
    fn join_with(
        rendezvous: &ConnectSpec,
        hello: &Hello,
        arena: Option<&OwnedFd>,
        ahead: &[u8],
    ) -> Result<Joined> {
        let began = Instant::now();
        let timeout = Duration::from_millis(hello.timeout_ms);
        loop {
            match Channel::try_to_join(rendezvous, (hello, ahead), arena, began)? {
                Ok((channel, members, arenas)) => {
                    let id = communicator_id(&hello.job, &members);
                    return Ok(Joined { connection: Connection::new(channel), members, arenas, id });
                }
                Err(retry) if began.elapsed() + BUSY_RETRY > timeout => {
                    return Err(retry.into_error(rendezvous, hello));
                }
                Err(retry) => {
                    debug!(target: target::BOOTSTRAP, rank = hello.member.rank, "joins again: {retry:?}");
                    thread::sleep(BUSY_RETRY);
                }
            }
        }
    }
}

/// Channel of a rank that has joined, the members of the job, and their arenas.
type JoinedChannel = (Channel, Vec<Member>, Vec<OwnedFd>);

impl Channel {
    /// Tries once to join, of attempts since `began`; an inner error asks for another attempt.
    fn try_to_join(
        rendezvous: &ConnectSpec,
        (hello, ahead): (&Hello, &[u8]),
        arena: Option<&OwnedFd>,
        began: Instant,
    ) -> Result<Result<JoinedChannel, Retry>> {
        let mut channel = Channel::open(rendezvous, hello, began)?;
        if !ahead.is_empty() {
            channel.frames.send(ahead.to_vec());
        }
        let members = match channel.wait_for_welcome(rendezvous, hello, arena, began) {
            Ok(Ok(members)) => members,
            Ok(Err(job)) => return Ok(Err(Retry::Busy(job))),
            // A rank that has died does not open its rendezvous again.
            Err(error) if channel.closed_while_waiting && rendezvous.rendezvous_host.is_some() => {
                return Ok(Err(Retry::Closed(error)));
            }
            Err(Error::Rendezvous(why)) if channel.closed_while_waiting && rendezvous.secret.is_none() => {
                return Err(Error::Rendezvous(format!(
                    "{why}; one that has a secret closes connections without it (TBCCL_SECRET, \
                     TBCCL_SECRET_FILE)"
                )));
            }
            Err(error) => return Err(error),
        };
        channel.phase = Phase::Starting;
        channel.serving_rank =
            members.iter().find(|member| member.hosts_rendezvous).map(|member| member.rank);
        let in_order = members.iter().zip(0..).all(|(member, rank)| member.rank == rank);
        if members.len() != hello.size as usize || !in_order {
            return Err(Error::Rendezvous(format!(
                "unexpected answer of the rendezvous: {} ranks, not {}",
                members.len(),
                hello.size
            )));
        }
        let count = if arena.is_some() { members.len() } else { 0 };
        let arenas = (0..count).map(|_| channel.descriptor()).collect::<Result<Vec<_>>>()?;
        Ok(Ok((channel, members, arenas)))
    }

    /// Waits until all ranks have joined and returns them; an inner error is the name of another job at this
    /// rendezvous.
    fn wait_for_welcome(
        &mut self,
        rendezvous: &ConnectSpec,
        hello: &Hello,
        arena: Option<&OwnedFd>,
        began: Instant,
    ) -> Result<Result<Vec<Member>, String>> {
        if let Some(arena) = arena
            && let Err(job) = self.send_arena(rendezvous, hello, arena, began)?
        {
            return Ok(Err(job));
        }
        match self.answer("waiting for the other ranks")? {
            FromServer::Welcome { members } => Ok(Ok(members)),
            FromServer::Busy { job } => Ok(Err(job)),
            other => Err(self.join_error(other)),
        }
    }

    /// Connects to the rendezvous and sends the hello. `began` is the time of the first attempt.
    fn open(rendezvous: &ConnectSpec, hello: &Hello, began: Instant) -> Result<Channel> {
        let action = format!("rank {} can't reach the rendezvous", hello.member.rank);
        let reached = open_connection(rendezvous)
            .map_err(|why| broken(rendezvous.rendezvous_host.as_ref(), &action, &why));
        let grace = if rendezvous.rendezvous_host.is_some() { HOST_GRACE } else { SERVER_GRACE };
        let timeout = Duration::from_millis(hello.timeout_ms).saturating_add(grace);
        let mut channel = Channel::new(reached?, hello.member.rank, hello.size, timeout);
        channel.rendezvous_host.clone_from(&rendezvous.rendezvous_host);
        // An error means that the socket is broken, which the next read reports.
        let _ = channel.frames.socket().set_peer_timeout(Duration::from_millis(hello.peer_timeout_ms));
        // Other ranks wait for each other by clocks of their own; they don't begin when a server does.
        let waited = if rendezvous.rendezvous_host.is_some() { began.elapsed() } else { Duration::ZERO };
        channel.frames.send(encode(&Hello { waited_ms: waited.as_millis() as u64, ..hello.clone() }));
        Ok(channel)
    }

    /// Sends this rank's arena descriptor, which requires a Unix socket; an inner error is the name of
    /// another job at this rendezvous.
    fn send_arena(
        &mut self,
        rendezvous: &ConnectSpec,
        hello: &Hello,
        arena: &OwnedFd,
        began: Instant,
    ) -> Result<Result<(), String>> {
        if self.frames.socket().is_tcp() {
            let address = match self.answer("asking for the rendezvous address on this host")? {
                FromServer::Redirect { address } => address,
                FromServer::Busy { job } => return Ok(Err(job)),
                other => return Err(self.join_error(other)),
            };
            let addresses = Address::parse_list(&address).map_err(Error::Rendezvous)?;
            if addresses.iter().any(Address::is_remote) {
                return Err(unexpected(&FromServer::Redirect { address }));
            }
            let local = ConnectSpec { addresses, timeout: Duration::ZERO, ..rendezvous.clone() };
            *self = Channel::open(&local, hello, began).map_err(|_| {
                Error::Rendezvous(format!(
                    "rank {} on {} is to share memory with ranks of another host, or of another user or \
                     container: set TBCCL_TRANSPORT to one that reaches them",
                    hello.member.rank, hello.member.host
                ))
            })?;
        }
        let copy =
            arena.try_clone().map_err(|e| Error::system("sending the descriptor of the shared memory", e))?;
        self.frames.send(Payload::Descriptor(Arc::new(copy)));
        Ok(Ok(()))
    }

    fn descriptor(&mut self) -> Result<OwnedFd> {
        const WHAT: &str = "receiving the descriptors of the other ranks' memory";
        self.wait(WHAT, |channel| Ok(channel.frames.bytes(1)))?;
        // A byte without its descriptor means that this process's table of descriptors is full.
        self.frames.descriptor().ok_or_else(|| Error::system(WHAT, Errno::MFILE))
    }
}
