//! Feeds the messages of one rank with frames of a hostile peer, for tests and the fuzz target `p2p_frames`
//! under `fuzz/`.
//!
//! A script posts sends and receives on rank 0, and sends frames and payloads from rank 1, whose links the
//! harness owns. Rank 0 either keeps its invariants or reports an error of the peer.
//!
//! # Safety
//! Sends and receives use memory of the harness, which outlives the engine.

use super::{
    engine::{Engine, Posted},
    frame::{FRAME_BYTES, Frame},
    parker::Parker,
    peer::{CONTROL, CREDIT_UNITS, DATA, EAGER_DIGEST, FRAME_DIGEST, PeerError, data_digest, packed_digest},
};
use crate::{Communicator, Config, communicator::LinkAccess};
use std::sync::Arc;
use topology::Rank;
use transport::{
    Capabilities, Counters, Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink,
    TransportError,
    memory::{Span, SpanMut},
};

/// Longest message that the links send ahead of its receive.
const EAGER_BYTES: usize = 16 << 10;

/// Longest packed message, its frame among it, of links that pack.
const PACKED_BYTES: usize = 4 << 10;

/// Bytes that sends and receives may use.
const MEMORY_BYTES: usize = 64 << 10;
/// Acts of a script that are carried out.
const MAX_ACTS: usize = 64;

/// Unread rest of a script.
struct Script<'s>(&'s [u8]);

impl Script<'_> {
    /// Returns the next byte; 0 behind the end.
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Returns a length around the limits of short, eager and announced messages.
    fn len(&mut self) -> usize {
        let byte = usize::from(self.byte());
        match byte >> 6 {
            0 => byte,
            1 => 16 * byte,
            2 => EAGER_BYTES - 191 + (byte & 63) + 128,
            _ => 1000 * (byte & 31),
        }
    }

    fn frame(&mut self) -> [u8; FRAME_BYTES] {
        let (kind, context, tag) = (self.byte() % 6, u32::from(self.byte() & 1), i32::from(self.byte() & 3));
        let (number, len, credit) =
            (u64::from(self.byte() & 7), self.len(), u16::from(self.byte() & 3) * 700);
        let frame = match kind {
            0 => Frame::Short { context, tag, len: len % 37 },
            1 => Frame::Eager { context, tag, len },
            2 => Frame::RequestToSend { context, tag, number, len },
            3 => Frame::ClearToSend { number },
            4 => Frame::Reject { number },
            _ => Frame::Credit,
        };
        frame.encode(credit)
    }
}

/// A link that takes frames and their messages in one, as those over RDMA do.
#[derive(Debug)]
struct PackingLink {
    inner: Box<dyn Link>,
    capabilities: Capabilities,
}

impl PackingLink {
    fn new(inner: Box<dyn Link>) -> PackingLink {
        let capabilities = Capabilities { packed_bytes: PACKED_BYTES, ..inner.capabilities().clone() };
        PackingLink { inner, capabilities }
    }
}

impl Link for PackingLink {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn poll_send(&mut self, state: &mut SendState, src: Span<'_>) -> Result<SendProgress, TransportError> {
        self.inner.poll_send(state, src)
    }

    fn poll_recv(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        self.inner.poll_recv(state, sink)
    }

    fn peek_digest(&self) -> Option<u64> {
        self.inner.peek_digest()
    }

    fn abort(&mut self) {
        self.inner.abort();
    }
}

/// A sink that drops a message.
struct Discard;

impl Sink for Discard {
    fn write(&mut self, _: usize, _: Span<'_>) {}

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        None
    }
}

/// Carries out a script: each act is a byte, and the bytes of its arguments. Links take packed messages if
/// the highest bit of the first byte is set.
///
/// # Panics
/// If a peer makes rank 0 violate an invariant.
pub fn feed(script: &[u8]) {
    let config = Config { slab_bytes: Some(1 << 16), ..Config::default() };
    let mut ranks = Communicator::local(2, &config).expect("memory").into_iter().map(LinkAccess::new);
    let mut memory = vec![0u8; MEMORY_BYTES];
    let start = memory.as_mut_ptr();
    let mut links = ranks.next().expect("two");
    if script.first().is_some_and(|first| *first >= 128) {
        links.wrap_link(Rank(1), CONTROL, |link| Box::new(PackingLink::new(link)));
    }
    let mut engine = Engine::new(links, Arc::new(Parker::default()));
    let mut hostile = ranks.next().expect("two");
    let mut script = Script(script);
    let mut posted = Vec::new();
    for _ in 0..MAX_ACTS {
        if script.0.is_empty() || engine.failed().is_some() {
            break;
        }
        let act = script.byte();
        match act % 8 {
            0 | 1 => {
                let (len, from, tag) = (script.len().min(MEMORY_BYTES), script.byte(), script.byte());
                // SAFETY: `memory` outlives the engine, which is dropped below, and has `len` bytes.
                let dst = unsafe { SpanMut::new(start, len) };
                let from = (from & 1 == 0).then_some(Rank(1));
                let tag = (tag & 4 == 0).then_some(i32::from(tag & 3));
                posted.extend(engine.recv(from, u32::from(tag.is_none()), tag, dst));
            }
            2 => {
                let (len, tag) = (script.len().min(MEMORY_BYTES), i32::from(script.byte() & 3));
                // SAFETY: as above.
                let src = unsafe { Span::new(start, len) };
                posted.extend(engine.send(Rank(1), 0, tag, src));
            }
            3 => {
                let bytes: [u8; FRAME_BYTES] = std::array::from_fn(|_| script.byte());
                send(&mut hostile, CONTROL, FRAME_DIGEST, &bytes);
            }
            4 => send(&mut hostile, CONTROL, FRAME_DIGEST, &script.frame()),
            5 if act & 8 != 0 => {
                let (frame, len) = (script.frame(), script.len());
                // The frame's own length is right in half of the messages.
                let len = match Frame::decode(&frame) {
                    Ok((Frame::Eager { len, .. }, _)) if act & 16 != 0 => len,
                    _ => len,
                };
                let message = [&frame[..], &vec![5; len]].concat();
                send(&mut hostile, CONTROL, packed_digest(message.len()), &message);
            }
            5 => {
                let len = script.len();
                send(&mut hostile, CONTROL, EAGER_DIGEST | (len as u64) << 1, &vec![7; len]);
            }
            6 => {
                let (number, len) = (u64::from(script.byte() & 7), script.len());
                send(&mut hostile, DATA, data_digest(number), &vec![9; len]);
            }
            _ => {
                let lane = if script.byte() & 1 == 0 { CONTROL } else { DATA };
                receive(&mut hostile, lane, script.len());
            }
        }
        match engine.drive_peer_once(1) {
            Ok(()) => {}
            Err(PeerError::Link(error)) => {
                assert!(!error.to_string().is_empty());
                break;
            }
            Err(PeerError::Job) => panic!("rank 0 has failed the job without an error of the peer"),
        }
        assert!(engine.credit_of(1) <= CREDIT_UNITS);
    }
    for result in posted.iter().filter_map(|posted| match posted {
        Posted::Done(result) => Some(result.clone()),
        Posted::Pending(state) => state.result(),
    }) {
        assert!(result.is_err() || result.is_ok_and(|delivery| delivery.bytes <= MEMORY_BYTES));
    }
    drop(engine);
    drop(memory);
}

/// Sends a message of the hostile rank, as far as the link takes it at once.
fn send(hostile: &mut LinkAccess, lane: u8, digest: u64, bytes: &[u8]) {
    let mut state = SendState::new(digest, Protocol::Copy);
    // Rank 0 may have revoked its memory.
    let _ = hostile.link(Rank(0), lane).poll_send(&mut state, Span::from(bytes));
}

/// Takes a message of rank 0, if there is one of this length.
fn receive(hostile: &mut LinkAccess, lane: u8, len: usize) {
    let link = hostile.link(Rank(0), lane);
    let Some(digest) = link.peek_digest() else { return };
    let len = if digest == FRAME_DIGEST { FRAME_BYTES } else { len };
    let mut state = RecvState::new(digest, len);
    while let Ok(RecvProgress::Advanced) = link.poll_recv(&mut state, &mut Discard) {}
}

#[cfg(test)]
mod tests {
    use super::feed;

    #[test]
    fn inputs_that_fuzzing_has_found_are_replayed() {
        support::replay("p2p_frames", feed);
    }
}
