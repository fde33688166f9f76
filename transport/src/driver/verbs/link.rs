//! The verbs transport as links.
//!
//! A link is a stream to a peer of an engine that all links of the process share. Polling one drives them
//! all.

use super::{
    engine::Engine,
    env::Env,
    peer::Peer,
    shared_engine::SharedEngine,
    stream::{BULK_BYTES, LARGE_BYTES},
    wire::SHORT_PAYLOAD,
};
use crate::{
    Capabilities, Counters, Link, PollCounters, RecvProgress, RecvState, SendProgress, SendState, Sink,
    TransportError,
    memory::{Span, SpanMut},
};
use std::sync::{Arc, MutexGuard};

/// Polls of the completion queues that a waiting message makes at a time. More than one, since going through
/// the executor takes longer than a poll; few, since the message may not be the only one that is waited for.
const POLLS: usize = 3;

/// Ranks of a communicator as members of the network.
#[derive(Debug)]
pub(super) struct Members {
    rank: usize,
    all: Vec<u32>,
    /// Whether ranks and members have equal numbers.
    is_first: bool,
}

impl Members {
    /// `all` lists the members by rank; `rank` is this one.
    pub(super) fn new(rank: u32, all: Vec<u32>) -> Members {
        let is_first = all.iter().copied().eq(0..all.len() as u32);
        Members { rank: rank as usize, all, is_first }
    }

    /// Members by rank.
    pub(super) fn all(&self) -> &[u32] {
        &self.all
    }

    /// Checks that all ranks can still be reached.
    ///
    /// # Errors
    /// The error of the first one that can't.
    #[inline]
    pub(super) fn check(&self, engine: &Engine) -> Result<(), TransportError> {
        if !engine.has_broken_peer() {
            return Ok(());
        }
        let mut others = self.all.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        let checked = others.try_for_each(|(_, member)| engine.check(*member as usize));
        checked.map_err(|error| self.renumber(error))
    }

    /// Names the rank in an error that names a member.
    #[cold]
    fn renumber(&self, error: TransportError) -> TransportError {
        if self.is_first {
            return error;
        }
        let rank_of = |member: u32| {
            let rank = self.all.iter().position(|other| *other == member);
            rank.map_or(member, |rank| rank as u32)
        };
        match error {
            TransportError::NoRail { peer, causes } => {
                let causes = format!("by the ranks of the first communicator: {causes}");
                TransportError::NoRail { peer: rank_of(peer), causes }
            }
            TransportError::Protocol { peer, what } => TransportError::Protocol { peer: rank_of(peer), what },
            TransportError::Lost { peer, what } => TransportError::Lost { peer: rank_of(peer), what },
            other => other,
        }
    }
}

/// A lane to a peer.
#[derive(Debug)]
pub(super) struct VerbsLink {
    engine: Arc<SharedEngine>,
    members: Arc<Members>,
    /// The member at the other end.
    peer: usize,
    /// Index of the stream.
    stream: usize,
    /// Whether this link reports the counters of the rails, and those of the completion queues.
    reports: (bool, bool),
    capabilities: Capabilities,
}

impl VerbsLink {
    /// `rank` is at the other end of the stream. `reports` tells whether the link reports the counters of the
    /// rails to that rank, and those of the completion queues.
    pub(super) fn new(
        engine: &Arc<SharedEngine>,
        members: &Arc<Members>,
        (rank, stream): (u32, usize),
        reports: (bool, bool),
    ) -> VerbsLink {
        let piece_bytes = engine.lock().rules.piece_bytes;
        let capabilities = Capabilities {
            driver: "verbs",
            inline_bytes: SHORT_PAYLOAD,
            piece_bytes,
            direct: false,
            pull: false,
            announced_bytes: Some(BULK_BYTES + 1),
            eager_bytes: LARGE_BYTES,
            packed_bytes: 3 * SHORT_PAYLOAD,
            coarse_prefixes: false,
        };
        let (engine, members) = (Arc::clone(engine), Arc::clone(members));
        let peer = members.all[rank as usize] as usize;
        VerbsLink { engine, members, peer, stream, reports, capabilities }
    }

    /// Makes a step of the peer.
    #[inline(always)]
    fn step<P>(
        &self,
        engine: &mut Engine,
        step: impl FnOnce(&mut Peer, &mut Env<'_>) -> Result<P, TransportError>,
    ) -> Result<P, TransportError> {
        match engine.with_peer(self.peer, step) {
            Ok(progress) => Ok(progress),
            Err(error) => Err(self.failed(engine, error)),
        }
    }

    /// Drives the engine for a message that waits, and unlocks it if nothing has arrived; returns it locked
    /// otherwise.
    #[inline]
    fn drive<'e>(
        &'e self,
        mut engine: MutexGuard<'e, Engine>,
    ) -> Result<Option<MutexGuard<'e, Engine>>, TransportError> {
        for _ in 0..POLLS {
            if engine.progress() {
                return Ok(Some(engine));
            }
        }
        self.members.check(&engine)?;
        drop(engine);
        self.engine.yield_to_waiting();
        Ok(None)
    }

    /// Takes in the error of a call. One that does not say that ranks are in different operations ends the
    /// use of the peer.
    #[cold]
    fn failed(&self, engine: &mut Engine, error: TransportError) -> TransportError {
        if !matches!(error, TransportError::Mismatch { .. } | TransportError::Length { .. }) {
            engine.give_up(self.peer, &error);
        }
        self.members.renumber(error)
    }
}

impl Link for VerbsLink {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn counters(&self) -> Counters {
        let engine = self.engine.lock();
        let Some(peer) = &engine.peers[self.peer] else { return Counters::default() };
        let mut counters = peer.counters(self.stream);
        if self.reports.0 {
            counters += peer.shared_counters();
        }
        counters
    }

    fn poll_counters(&self) -> PollCounters {
        if self.reports.1 { self.engine.lock().poll_counters() } else { PollCounters::default() }
    }

    #[inline]
    fn poll_send(&mut self, state: &mut SendState, src: Span<'_>) -> Result<SendProgress, TransportError> {
        self.poll_send_prefix(state, src, src.len())
    }

    /// Fragments and pieces go as soon as all of their bytes are valid.
    #[inline]
    fn poll_send_prefix(
        &mut self,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        let mut engine = self.engine.lock();
        let progress =
            self.step(&mut engine, |peer, env| peer.poll_send(env, self.stream, state, src, ready))?;
        if !matches!(progress, SendProgress::Idle | SendProgress::Posted) {
            return Ok(progress);
        }
        let Some(mut engine) = self.drive(engine)? else { return Ok(progress) };
        self.step(&mut engine, |peer, env| peer.poll_send(env, self.stream, state, src, ready))
    }

    #[inline]
    fn poll_recv(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        let mut engine = self.engine.lock();
        if engine.may_receive(self.peer, self.stream, state) {
            let progress =
                self.step(&mut engine, |peer, env| peer.poll_recv(env, self.stream, state, sink))?;
            if progress != RecvProgress::Idle {
                return Ok(progress);
            }
        }
        let Some(mut engine) = self.drive(engine)? else { return Ok(RecvProgress::Idle) };
        self.step(&mut engine, |peer, env| peer.poll_recv(env, self.stream, state, sink))
    }

    fn peek_digest(&self) -> Option<u64> {
        self.engine.lock().peers[self.peer].as_ref().and_then(|peer| peer.peek_digest(self.stream))
    }

    fn announce(
        &mut self,
        state: &mut RecvState,
        destination: Option<SpanMut<'_>>,
    ) -> Result<bool, TransportError> {
        let mut engine = self.engine.lock();
        let (peer, mut env) = engine.peer(self.peer)?;
        match peer.announce(&mut env, self.stream, state, destination) {
            Ok(announced) => Ok(announced),
            Err(error) => Err(self.failed(&mut engine, error)),
        }
    }

    fn abort(&mut self) {
        self.engine.lock().drive(self.peer, |peer, env| peer.end_stream(env, self.stream));
    }
}
