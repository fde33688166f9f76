//! The verbs transport as links.
//!
//! A link is a stream to a peer of an [`Engine`] that all links of the rank share. Polling one drives them
//! all.

use super::{
    engine::{Engine, lock},
    wire::SHORT_PAYLOAD,
};
use crate::{
    Capabilities, Counters, Link, PollCounters, RecvProgress, RecvState, SendProgress, SendState, Sink,
    TransportError,
    memory::{Span, SpanMut},
};
use std::sync::{Arc, Mutex};

/// A lane to a peer.
#[derive(Debug)]
pub(super) struct VerbsLink {
    engine: Arc<Mutex<Engine>>,
    peer: usize,
    lane: usize,
    capabilities: Capabilities,
}

impl VerbsLink {
    pub(super) fn new(engine: Arc<Mutex<Engine>>, peer: u32, lane: u8) -> VerbsLink {
        let piece_bytes = lock(&engine).rules.piece_bytes;
        let capabilities = Capabilities {
            driver: "verbs",
            inline_bytes: SHORT_PAYLOAD,
            piece_bytes,
            direct: false,
            pull: false,
            announced: true,
        };
        VerbsLink { engine, peer: peer as usize, lane: usize::from(lane), capabilities }
    }
}

impl Link for VerbsLink {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn counters(&self) -> Counters {
        let engine = lock(&self.engine);
        engine.peers[self.peer].as_ref().map_or(Counters::default(), |peer| peer.counters(self.lane))
    }

    fn poll_counters(&self) -> PollCounters {
        let engine = lock(&self.engine);
        // One link reports for all that share the queues.
        let is_first = self.lane == 0 && engine.peers.iter().position(Option::is_some) == Some(self.peer);
        if is_first { engine.poll_counters() } else { PollCounters::default() }
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
        let mut engine = lock(&self.engine);
        let (peer, mut env) = engine.peer(self.peer);
        let progress = peer.poll_send(&mut env, self.lane, state, src, ready)?;
        if !matches!(progress, SendProgress::Idle | SendProgress::Posted) || !engine.progress()? {
            return Ok(progress);
        }
        let (peer, mut env) = engine.peer(self.peer);
        peer.poll_send(&mut env, self.lane, state, src, ready)
    }

    #[inline]
    fn poll_recv(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        let mut engine = lock(&self.engine);
        let (peer, mut env) = engine.peer(self.peer);
        let progress = peer.poll_recv(&mut env, self.lane, state, sink)?;
        if progress != RecvProgress::Idle || !engine.progress()? {
            return Ok(progress);
        }
        let (peer, mut env) = engine.peer(self.peer);
        peer.poll_recv(&mut env, self.lane, state, sink)
    }

    fn peek_digest(&self) -> Option<u64> {
        lock(&self.engine).peers[self.peer].as_ref().and_then(|peer| peer.peek_digest(self.lane))
    }

    fn announce(
        &mut self,
        state: &mut RecvState,
        destination: Option<SpanMut<'_>>,
    ) -> Result<bool, TransportError> {
        let mut engine = lock(&self.engine);
        let (peer, mut env) = engine.peer(self.peer);
        peer.announce(&mut env, self.lane, state, destination)
    }

    fn abort(&mut self) {
        lock(&self.engine).abort(self.peer);
    }
}
