//! A link over the connections of one lane.

use super::{
    channel::{Channel, connection_error, open_channel},
    connection_table::ConnectionTable,
    liveness::LivenessCheck,
    match_acks::MatchAcks,
    outgoing::sendable,
    receive::{ExpectedPart, Polled, RecvTarget, ReduceBuffer},
    wire::{Header, MAX_MESSAGE_BYTES, Striping},
};
use crate::{
    Capabilities, Counters, Link, RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError,
    memory::Span,
};
use std::sync::Arc;

/// Link on one lane to a peer.
#[derive(Debug)]
pub(super) struct TcpLink {
    table: Arc<ConnectionTable>,
    match_acks: Arc<MatchAcks>,
    peer: u32,
    lane: u8,
    capabilities: Capabilities,
    counters: Counters,
    striping: Striping,
    /// Whether the connector has been asked to connect.
    requested: bool,
    /// The lane's connections; empty before they are made.
    channels: Vec<Channel>,
    /// Whether a message is being sent, so that its parts have started.
    sending: bool,
    /// Number of messages that asked for a match acknowledgement.
    ack_requests: u64,
    /// Bit set of the complete parts of the current incoming message.
    received: u32,
    reduce_buffer: ReduceBuffer,
    send_liveness: LivenessCheck,
    recv_liveness: LivenessCheck,
}

impl TcpLink {
    pub(super) fn new(
        table: Arc<ConnectionTable>,
        match_acks: Arc<MatchAcks>,
        peer: u32,
        lane: u8,
    ) -> TcpLink {
        let capabilities = Capabilities {
            driver: "tcp",
            inline_bytes: 0,
            piece_bytes: super::outgoing::MAX_WRITE_BYTES,
            direct: false,
            pull: false,
            announced_bytes: None,
            eager_bytes: super::EAGER_BYTES,
            packed_bytes: 0,
            coarse_prefixes: true,
        };
        TcpLink {
            striping: table.striping(peer),
            table,
            match_acks,
            peer,
            lane,
            capabilities,
            counters: Counters::default(),
            requested: false,
            channels: Vec::new(),
            sending: false,
            ack_requests: 0,
            received: 0,
            reduce_buffer: ReduceBuffer::default(),
            send_liveness: LivenessCheck::default(),
            recv_liveness: LivenessCheck::default(),
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
            self.channels =
                connections.into_iter().map(|one| open_channel(&self.table, self.peer, one)).collect();
        } else if !self.requested {
            self.requested = true;
            self.table.request(self.peer, self.lane);
        }
        Ok(!self.channels.is_empty())
    }

    fn begin(&mut self, state: &SendState, len: usize) -> Result<(), TransportError> {
        if len as u64 > MAX_MESSAGE_BYTES {
            let what = "a message longer than 2^48 - 1 bytes";
            return Err(TransportError::Protocol { peer: self.peer, what });
        }
        for part in 0..self.striping.count(len) {
            let header = Header {
                digest: state.digest,
                len: len as u64,
                part: part as u8,
                match_ack: state.match_ack && part == 0,
            };
            self.channels[part].outgoing.begin(&header, self.striping.range(len, part).1);
        }
        self.sending = true;
        Ok(())
    }

    /// Checks whether a sent message was matched.
    #[cold]
    fn poll_match_ack(&mut self, number: u64) -> Result<SendProgress, TransportError> {
        if self.match_acks.is_matched(&self.table, self.lane, number)? {
            return Ok(SendProgress::Complete);
        }
        self.check_liveness(Direction::Out)?;
        Ok(SendProgress::Posted)
    }

    /// Checks now and then, after an empty poll, whether the peer's host still answers.
    #[inline]
    fn check_liveness(&mut self, direction: Direction) -> Result<(), TransportError> {
        let liveness = match direction {
            Direction::Out => &mut self.send_liveness,
            Direction::In => &mut self.recv_liveness,
        };
        if !liveness.is_due() {
            return Ok(());
        }
        for channel in &self.channels {
            if let Some(what) = liveness.check(channel.socket.fd(), self.table.peer_timeout) {
                self.table.probes.forget();
                return Err(TransportError::Lost { peer: self.peer, what });
            }
        }
        self.match_acks.flush(&self.table);
        Ok(())
    }

    /// Receives bytes of one part of the expected message.
    #[inline]
    fn poll_part(
        &mut self,
        part: usize,
        state: &RecvState,
        sink: &mut dyn Sink,
    ) -> Result<Polled, TransportError> {
        let (base, len) = self.striping.range(state.len, part);
        let expected = ExpectedPart { digest: state.digest, total: state.len, part: part as u8, base, len };
        let mut target = RecvTarget {
            sink,
            reduce_buffer: &mut self.reduce_buffer,
            copied: &mut self.counters.copied_bytes,
        };
        let Channel { socket, incoming, .. } = &mut self.channels[part];
        incoming
            .poll(&**socket, &expected, &mut target)
            .map_err(|failed| failed.into_transport_error(self.peer))
    }

    /// Contiguous bytes received of the current message: complete parts, and the bytes of the next one.
    fn received_prefix(&self, count: usize) -> usize {
        let mut bytes = 0;
        for (part, channel) in self.channels[..count].iter().enumerate() {
            bytes += channel.incoming.received();
            if self.received & 1 << part == 0 {
                break;
            }
        }
        bytes
    }

    /// Ends the current incoming message, and acknowledges the match if the sender asks for it.
    #[inline]
    fn finish_message(&mut self, count: usize, len: usize) {
        let match_ack = self.channels[0].incoming.header().is_some_and(|header| header.match_ack);
        self.channels[..count].iter_mut().for_each(|channel| channel.incoming.next());
        self.received = 0;
        self.counters.received_messages += 1;
        self.counters.moved_bytes += len as u64;
        if match_ack {
            self.match_acks.record_match(&self.table, self.lane);
        }
    }
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
            return self.poll_match_ack(number);
        }
        if !self.is_connected()? {
            return Ok(SendProgress::Idle);
        }
        if !self.sending {
            self.begin(state, src.len())?;
        }
        let count = self.striping.count(src.len());
        let (mut moved, mut through) = (false, true);
        for (part, channel) in self.channels[..count].iter_mut().enumerate() {
            if channel.outgoing.is_complete() {
                continue;
            }
            let (base, len) = self.striping.range(src.len(), part);
            let written =
                channel.outgoing.write(&channel.socket, src.sub(base, len), sendable(base, len, ready));
            moved |= written.map_err(|error| connection_error(self.peer, &error))?;
            through &= channel.outgoing.is_complete();
            self.counters.copied_bytes += channel.outgoing.take_copied();
        }
        if through {
            self.sending = false;
            self.send_liveness.reset();
            self.counters.sent_messages += 1;
            if !state.match_ack {
                return Ok(SendProgress::Complete);
            }
            self.ack_requests += 1;
            state.awaits = Some(self.ack_requests);
            return Ok(SendProgress::Posted);
        }
        if moved {
            self.send_liveness.reset();
            return Ok(SendProgress::Advanced);
        }
        self.sending = self.channels[..count].iter().any(|channel| channel.outgoing.has_begun());
        self.check_liveness(Direction::Out)?;
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
        let count = self.striping.count(state.len);
        let (all, mut moved) = ((1u32 << count) - 1, false);
        for part in 0..count {
            if self.received & 1 << part != 0 {
                continue;
            }
            // The header on the first connection decides whether the message is the expected one; the other
            // connections wait for it.
            if part > 0 && self.channels[0].incoming.header().is_none() {
                break;
            }
            match self.poll_part(part, state, sink)? {
                Polled::Idle => {}
                Polled::Advanced => moved = true,
                Polled::Complete => {
                    self.received |= 1 << part;
                    moved = true;
                }
            }
        }
        if self.received == all {
            self.finish_message(count, state.len);
            self.recv_liveness.reset();
            state.received = state.len;
            return Ok(RecvProgress::Complete);
        }
        if moved {
            self.recv_liveness.reset();
            state.received = self.received_prefix(count);
            return Ok(RecvProgress::Advanced);
        }
        self.check_liveness(Direction::In)?;
        Ok(RecvProgress::Idle)
    }

    fn peek_digest(&self) -> Option<u64> {
        self.channels.first().and_then(|channel| channel.incoming.header()).map(|header| header.digest)
    }
}
