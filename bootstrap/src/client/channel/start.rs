//! The start of a job from the welcome on, and exchanges: the rank waits for the server's answers.

use super::Channel;
use crate::{
    client::absence::{broken, died_during_start, out_of_reach, refused},
    connect::RendezvousHost,
    error::{Error, Result},
    wire::{FromRank, FromServer, MAX_EXCHANGE_BYTES, encode},
};
use std::io::{self, ErrorKind};
use topology::Rank;

/// Progress of a rank towards a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Phase {
    /// Until the welcome. A connection that ends is opened again.
    Joining,
    /// Until the first exchange in a call.
    Starting,
    /// The communicator works.
    Running,
}

/// Encodes a contribution to an exchange.
fn contribution(data: &[u8]) -> Result<Vec<u8>> {
    let fitting = u32::try_from(data.len()).ok().filter(|len| *len <= MAX_EXCHANGE_BYTES);
    let bytes = fitting.ok_or_else(|| {
        let len = data.len();
        Error::Rendezvous(format!("{len} bytes to exchange exceed the limit of {MAX_EXCHANGE_BYTES}"))
    })?;
    let mut message = encode(&FromRank::Exchange { bytes });
    message.extend_from_slice(data);
    Ok(message)
}

/// Encodes a report that the rank can start, and its contribution to the first exchange.
pub(in crate::client) fn start_and_contribution(obstacle: Option<String>, data: &[u8]) -> Result<Vec<u8>> {
    Ok([encode(&FromRank::Probed { obstacle }), contribution(data)?].concat())
}

pub(in crate::client) fn unexpected(other: &FromServer) -> Error {
    Error::Rendezvous(format!("unexpected answer of the rendezvous: {other:?}"))
}

impl Channel {
    /// Returns the error for an answer that does not let this rank in.
    pub(in crate::client) fn join_error(&self, answer: FromServer) -> Error {
        match answer {
            FromServer::Refused { why, absent } => refused(why, &absent, self.rendezvous_host.as_ref()),
            other => unexpected(&other),
        }
    }

    /// Returns the error for a rank that died before all ranks had started.
    pub(super) fn died_during_start(&self, rank: u32, how: &str) -> Error {
        match &self.rendezvous_host {
            None => Error::Rendezvous(format!("rank {rank} {how} while the job was starting")),
            Some(host) => died_during_start(host, rank, how),
        }
    }

    pub(in crate::client) fn broken(&self, action: &str, e: &io::Error) -> Error {
        match (&self.rendezvous_host, self.serving_rank) {
            // The rank tries again, and need not wait for the notice of a death.
            (Some(host), _) if self.phase == Phase::Joining => match host.first_death() {
                Some((rank, how)) => died_during_start(host, rank, &how),
                None => out_of_reach(host, action, e),
            },
            // The wait has looked for deaths to its end.
            (Some(host), _) if e.kind() == ErrorKind::TimedOut => out_of_reach(host, action, e),
            (None, Some(rank)) => Error::Rendezvous(format!(
                "{action}: {e}; rank {rank}, whose process has the rendezvous, has ended"
            )),
            (host, _) => broken(host.as_ref(), action, e),
        }
    }

    /// Waits for the next message, while the job starts.
    pub(in crate::client) fn answer(&mut self, action: &str) -> Result<FromServer> {
        // The status thread may have read it.
        let ends_start =
            |frame: &FromServer| matches!(frame, FromServer::Refused { .. } | FromServer::Died { .. });
        if let Some(frame) = self.deferred.iter().position(ends_start).and_then(|at| self.deferred.remove(at))
        {
            return Ok(frame);
        }
        let answer = self.wait(action, Channel::next_frame);
        if let Err(Error::Absent { ranks, why }) = &answer {
            self.report_absent(ranks, why);
        }
        answer
    }

    /// Tells the ranks that start with this one of the death for which it gives up. Some may not have noticed
    /// the death, and would take this rank for the dead one.
    fn report_absent(&mut self, ranks: &[Rank], why: &str) {
        let death = self.rendezvous_host.as_ref().and_then(RendezvousHost::first_death);
        if self.phase != Phase::Running && death.is_some_and(|(dead, _)| ranks == [Rank(dead)]) {
            let absent = ranks.iter().map(|rank| rank.0).collect();
            self.send_final(&FromRank::Abort { why: why.to_owned(), absent });
        }
    }

    /// Reports whether this rank can read the other ranks' memory, and waits until all ranks have reported.
    ///
    /// `obstacle` is the reason why this rank cannot. Returns the first obstacle of any rank.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] or [`Error::Absent`] if a rank gave up, died or was late.
    pub(in crate::client) fn start(&mut self, obstacle: Option<String>) -> Result<Option<String>> {
        self.frames.send(encode(&FromRank::Probed { obstacle }));
        self.wait_for_start()
    }

    /// Waits for the start and the first exchange of a rank that has joined with [`start_and_contribution`].
    pub(in crate::client) fn wait_for_start_and_exchange(&mut self) -> Result<Vec<Vec<u8>>> {
        self.wait_for_start()?;
        self.wait_for_exchange()
    }

    fn wait_for_start(&mut self) -> Result<Option<String>> {
        loop {
            match self.answer("starting together")? {
                FromServer::Go { obstacle } => return Ok(obstacle),
                refused @ FromServer::Refused { .. } => return Err(self.join_error(refused)),
                // The other ranks had all reported, so the job had started before this rank received `Go`.
                FromServer::Died { rank, how } => return Err(self.died_during_start(rank, &how)),
                deferred @ (FromServer::Failed { .. } | FromServer::BoardUpdate { .. }) => {
                    self.deferred.push_back(deferred);
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Sends `data` to all ranks and returns the data of all ranks, in rank order.
    ///
    /// All ranks must call this the same number of times.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if `data` is larger than 1 MiB; otherwise as [`Connection::start`].
    pub(in crate::client) fn exchange(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.frames.send(contribution(data)?);
        self.wait_for_exchange()
    }

    /// See [`Connection::exchange_in_call`](super::Connection::exchange_in_call).
    pub(in crate::client) fn exchange_in_call(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.phase = Phase::Running;
        self.frames.send(contribution(data)?);
        self.wait_for_exchange_or(|_, why, absent| match absent {
            [] => Error::Rendezvous(why),
            _ => Error::Absent { ranks: absent.iter().copied().map(Rank).collect(), why },
        })
    }

    fn wait_for_exchange(&mut self) -> Result<Vec<Vec<u8>>> {
        self.wait_for_exchange_or(|this, why, absent| refused(why, absent, this.rendezvous_host.as_ref()))
    }

    /// Waits for the end of an exchange. `refused` makes the error of a refusal, of the reason and the ranks
    /// that are missing.
    fn wait_for_exchange_or(
        &mut self,
        refused: impl FnOnce(&Channel, String, &[u32]) -> Error,
    ) -> Result<Vec<Vec<u8>>> {
        loop {
            match self.answer("exchanging the ranks' addresses")? {
                FromServer::Exchanged { bytes } => return self.parts(&bytes),
                FromServer::Refused { why, absent } => return Err(refused(self, why, &absent)),
                FromServer::Died { rank, how } => return Err(self.died_during_start(rank, &how)),
                other => self.deferred.push_back(other),
            }
        }
    }

    fn parts(&mut self, lengths: &[u32]) -> Result<Vec<Vec<u8>>> {
        if lengths.len() != self.ranks as usize || lengths.iter().any(|len| *len > MAX_EXCHANGE_BYTES) {
            return Err(Error::Rendezvous(format!(
                "unexpected answer of the rendezvous: {} parts of up to {} bytes",
                lengths.len(),
                lengths.iter().max().unwrap_or(&0)
            )));
        }
        let mut part = |len: &u32| {
            self.wait("exchanging the ranks' addresses", |channel| Ok(channel.frames.bytes(*len as usize)))
        };
        lengths.iter().map(&mut part).collect()
    }
}
