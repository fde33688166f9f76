//! Connections as a link.

use super::{
    channel::{Channel, channel, lost},
    confirm::Confirmations,
    outgoing::FED_BYTES,
    part::{Expected, Fold, Polled, Taking},
    table::Table,
    vital::Patience,
    wire::{Head, MESSAGE_MOST, Parts},
};
use crate::{
    Capabilities, Counters, Link, RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError,
    memory::Span,
};
use std::sync::Arc;

/// A lane to a peer.
#[derive(Debug)]
pub(super) struct TcpLink {
    table: Arc<Table>,
    confirmations: Arc<Confirmations>,
    peer: u32,
    lane: u8,
    capabilities: Capabilities,
    counters: Counters,
    parts: Parts,
    /// Whether the connector has been asked to connect.
    asked: bool,
    /// None before there is a connection.
    channels: Vec<Channel>,
    /// A message is being sent; its parts are begun.
    sending: bool,
    /// Messages that asked to be confirmed.
    confirmable: u64,
    /// The parts that have come of the message that is being received, as bits.
    received: u32,
    fold: Fold,
    send_patience: Patience,
    recv_patience: Patience,
}

impl TcpLink {
    pub(super) fn new(table: Arc<Table>, confirmations: Arc<Confirmations>, peer: u32, lane: u8) -> TcpLink {
        let capabilities = Capabilities {
            driver: "tcp",
            inline_bytes: 0,
            piece_bytes: super::outgoing::WRITE_MOST,
            direct: false,
            pull: false,
            announced: false,
        };
        TcpLink {
            parts: table.parts(peer),
            table,
            confirmations,
            peer,
            lane,
            capabilities,
            counters: Counters::default(),
            asked: false,
            channels: Vec::new(),
            sending: false,
            confirmable: 0,
            received: 0,
            fold: Fold::default(),
            send_patience: Patience::default(),
            recv_patience: Patience::default(),
        }
    }

    /// Whether the link is connected. Requests the connection if not.
    #[inline]
    fn is_connected(&mut self) -> Result<bool, TransportError> {
        if self.channels.is_empty() { self.connect() } else { Ok(true) }
    }

    #[cold]
    fn connect(&mut self) -> Result<bool, TransportError> {
        if let Some(connections) = self.table.take(self.peer, self.lane)? {
            self.channels = connections.into_iter().map(|one| channel(&self.table, one)).collect();
        } else if !self.asked {
            self.asked = true;
            self.table.want(self.peer, self.lane);
        }
        Ok(!self.channels.is_empty())
    }

    fn begin(&mut self, state: &SendState, len: usize) -> Result<(), TransportError> {
        if len as u64 > MESSAGE_MOST {
            let what = "a message to send that is longer than any can be";
            return Err(TransportError::Protocol { peer: self.peer, what });
        }
        for part in 0..self.parts.count(len) {
            let head = Head {
                digest: state.digest,
                len: len as u64,
                part: part as u8,
                confirm: state.match_ack && part == 0,
            };
            self.channels[part].outgoing.begin(&head, self.parts.range(len, part).1);
        }
        self.sending = true;
        Ok(())
    }

    /// A message that was sent and waits to be confirmed.
    #[cold]
    fn poll_confirmation(&mut self, number: u64) -> Result<SendProgress, TransportError> {
        if self.confirmations.has_matched(&self.table, self.lane, number)? {
            return Ok(SendProgress::Complete);
        }
        self.look_after(Direction::Out)?;
        Ok(SendProgress::Posted)
    }

    /// After a poll that has found nothing: is the other end still there?
    #[inline]
    fn look_after(&mut self, direction: Direction) -> Result<(), TransportError> {
        let patience = match direction {
            Direction::Out => &mut self.send_patience,
            Direction::In => &mut self.recv_patience,
        };
        if !patience.is_over() {
            return Ok(());
        }
        for channel in &self.channels {
            if let Some(what) = patience.look(channel.socket.fd(), self.table.peer_timeout) {
                return Err(TransportError::Lost { peer: self.peer, what });
            }
        }
        self.confirmations.flush(&self.table);
        Ok(())
    }

    /// Takes what has come of a part of the message that is expected.
    #[inline]
    fn poll_part(
        &mut self,
        part: usize,
        state: &RecvState,
        sink: &mut dyn Sink,
    ) -> Result<Polled, TransportError> {
        let (base, len) = self.parts.range(state.len, part);
        let expected = Expected { digest: state.digest, total: state.len, part: part as u8, base, len };
        let mut taking = Taking { sink, fold: &mut self.fold, copied: &mut self.counters.copied_bytes };
        let Channel { socket, incoming, .. } = &mut self.channels[part];
        incoming.poll(&**socket, &expected, &mut taking).map_err(|failed| failed.of(self.peer))
    }

    /// Contiguous bytes received of the current message: complete parts, and the bytes of the next one.
    fn taken(&self, count: usize) -> usize {
        let mut taken = 0;
        for (part, channel) in self.channels[..count].iter().enumerate() {
            taken += channel.incoming.taken();
            if self.received & 1 << part == 0 {
                break;
            }
        }
        taken
    }

    /// The message has come.
    #[inline]
    fn finish_message(&mut self, count: usize, len: usize) {
        let confirm = self.channels[0].incoming.head().is_some_and(|head| head.confirm);
        self.channels[..count].iter_mut().for_each(|channel| channel.incoming.next());
        self.received = 0;
        self.counters.received_messages += 1;
        self.counters.moved_bytes += len as u64;
        if confirm {
            self.confirmations.matched(&self.table, self.lane);
        }
    }
}

/// Bytes that may be sent of a part of `len` bytes at `base` when `ready` bytes of the message are available.
#[inline]
fn fed(base: usize, len: usize, ready: usize) -> usize {
    let there = ready.saturating_sub(base).min(len);
    if there < len { there / FED_BYTES * FED_BYTES } else { len }
}

#[derive(Clone, Copy)]
enum Direction {
    Out,
    In,
}

impl Link for TcpLink {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    #[inline]
    fn poll_send(&mut self, state: &mut SendState, src: Span<'_>) -> Result<SendProgress, TransportError> {
        self.poll_send_prefix(state, src, src.len())
    }

    #[inline]
    fn poll_send_prefix(
        &mut self,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        if let Some(number) = state.awaits {
            return self.poll_confirmation(number);
        }
        if !self.is_connected()? {
            return Ok(SendProgress::Idle);
        }
        if !self.sending {
            self.begin(state, src.len())?;
        }
        let count = self.parts.count(src.len());
        let (mut moved, mut through) = (false, true);
        for (part, channel) in self.channels[..count].iter_mut().enumerate() {
            if channel.outgoing.is_through() {
                continue;
            }
            let (base, len) = self.parts.range(src.len(), part);
            let written = channel.outgoing.write(&channel.socket, src.sub(base, len), fed(base, len, ready));
            moved |= written.map_err(|error| lost(self.peer, &error))?;
            through &= channel.outgoing.is_through();
            self.counters.copied_bytes += channel.outgoing.take_copied();
        }
        if through {
            self.sending = false;
            self.send_patience.reset();
            self.counters.sent_messages += 1;
            if !state.match_ack {
                return Ok(SendProgress::Complete);
            }
            self.confirmable += 1;
            state.awaits = Some(self.confirmable);
            return Ok(SendProgress::Posted);
        }
        if moved {
            self.send_patience.reset();
            return Ok(SendProgress::Advanced);
        }
        self.sending = self.channels[..count].iter().any(|channel| channel.outgoing.has_begun());
        self.look_after(Direction::Out)?;
        Ok(SendProgress::Idle)
    }

    #[inline]
    fn poll_recv(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        if !self.is_connected()? {
            return Ok(RecvProgress::Idle);
        }
        let count = self.parts.count(state.len);
        let (all, mut moved) = ((1u32 << count) - 1, false);
        for part in 0..count {
            if self.received & 1 << part != 0 {
                continue;
            }
            // The first connection's head decides whether the message is the expected one; the others wait
            // for it.
            if part > 0 && self.channels[0].incoming.head().is_none() {
                break;
            }
            match self.poll_part(part, state, sink)? {
                Polled::Nothing => {}
                Polled::Some => moved = true,
                Polled::All => {
                    self.received |= 1 << part;
                    moved = true;
                }
            }
        }
        if self.received == all {
            self.finish_message(count, state.len);
            self.recv_patience.reset();
            state.received = state.len;
            return Ok(RecvProgress::Complete);
        }
        if moved {
            self.recv_patience.reset();
            state.received = self.taken(count);
            return Ok(RecvProgress::Advanced);
        }
        self.look_after(Direction::In)?;
        Ok(RecvProgress::Idle)
    }

    fn peek_digest(&self) -> Option<u64> {
        self.channels.first().and_then(|channel| channel.incoming.head()).map(|head| head.digest)
    }
}
