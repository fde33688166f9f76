//! A link over the channels of one lane, whose connections are replaced when they break.
//!
//! Used between ranks with more than one path. A long message is distributed over the channels by measured
//! [`Shares`].

use super::{
    TcpConfig,
    liveness::LivenessCheck,
    match_acks::MatchAcks,
    outgoing::sendable,
    receive::{ExpectedPart, Polled, RecvTarget, ReduceBuffer},
    resume::{ChannelTable, SharedChannel},
    shares::{SHARES_BYTES, SHARES_DIGEST, Sample, ShareMeter, Shares},
    wire::{Header, MAX_MESSAGE_BYTES, Striping},
};
use crate::{
    Capabilities, Counters, Link, RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError,
    memory::{Span, SpanMut},
};
use std::sync::Arc;

/// Link on one lane to a peer.
#[derive(Debug)]
pub(super) struct ResumableLink {
    table: Arc<ChannelTable>,
    match_acks: Arc<MatchAcks>,
    peer: u32,
    lane: u8,
    capabilities: Capabilities,
    counters: Counters,
    striping: Striping,
    channels: Vec<Arc<SharedChannel>>,
    /// Whether the channels have been connected.
    is_connected: bool,
    /// Whether a message is being sent, so that its parts have started.
    sending: bool,
    /// Bit set of the complete parts of the current outgoing message, and of the incoming one.
    sent: u32,
    received: u32,
    /// Number of messages that asked for a match acknowledgement.
    ack_requests: u64,
    out_shares: ShareMeter,
    in_shares: Shares,
    reduce_buffer: ReduceBuffer,
    send_liveness: LivenessCheck,
    recv_liveness: LivenessCheck,
}

impl ResumableLink {
    pub(super) fn new(
        table: Arc<ChannelTable>,
        match_acks: Arc<MatchAcks>,
        peer: u32,
        lane: u8,
    ) -> ResumableLink {
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
        ResumableLink {
            striping: table.connections.striping(peer),
            channels: table.lane(peer, lane),
            table,
            match_acks,
            peer,
            lane,
            capabilities,
            counters: Counters::default(),
            is_connected: false,
            sending: false,
            sent: 0,
            received: 0,
            ack_requests: 0,
            out_shares: ShareMeter::default(),
            in_shares: Shares::default(),
            reduce_buffer: ReduceBuffer::default(),
            send_liveness: LivenessCheck::default(),
            recv_liveness: LivenessCheck::default(),
        }
    }

    /// Whether the link is connected. Requests the connections if not.
    #[inline]
    fn is_connected(&mut self) -> Result<bool, TransportError> {
        if self.is_connected { Ok(true) } else { self.connect() }
    }

    #[cold]
    fn connect(&mut self) -> Result<bool, TransportError> {
        let mut is_connected = true;
        for channel in &self.channels {
            is_connected &= channel.connect(&self.table)?;
        }
        self.is_connected = is_connected;
        Ok(is_connected)
    }

    /// Starts a message; returns false if the receiver must learn of new shares first, and can't yet.
    fn begin(&mut self, state: &SendState, len: usize) -> Result<bool, TransportError> {
        if len as u64 > MAX_MESSAGE_BYTES {
            let what = "a message longer than 2^48 - 1 bytes";
            return Err(TransportError::Protocol { peer: self.peer, what });
        }
        let count = self.striping.count(len);
        if count > 1 && !self.announce_shares()? {
            return Ok(false);
        }
        for part in 0..count {
            let header = Header {
                digest: state.digest,
                len: len as u64,
                part: part as u8,
                match_ack: state.match_ack && part == 0,
            };
            let (_, len) = self.out_shares.announced().range(&self.striping, len, part);
            self.channels[part].lock().channel.begin(&header, len);
        }
        (self.sending, self.sent) = (true, 0);
        Ok(true)
    }

    /// Announces shares that have changed. Returns whether the receiver knows the shares.
    fn announce_shares(&mut self) -> Result<bool, TransportError> {
        let Some(shares) = self.out_shares.news() else { return Ok(true) };
        let header = Header { digest: SHARES_DIGEST, len: SHARES_BYTES as u64, part: 0, match_ack: false };
        self.channels[0].lock().channel.begin(&header, SHARES_BYTES);
        let _ = self.channels[0].write(&self.table, Span::from(&shares.encode()[..]), SHARES_BYTES)?;
        let is_announced = self.channels[0].lock().channel.has_begun();
        if is_announced {
            self.out_shares.announce(shares);
        }
        Ok(is_announced)
    }

    /// Takes in the state of all connections when a message that uses all of them is written.
    fn measure(&mut self) {
        let mut samples = [Sample::default(); TcpConfig::MAX_SOCKETS as usize];
        for (sample, channel) in samples.iter_mut().zip(&self.channels) {
            let Some((acknowledged, unreceived)) = channel.lock().channel.acknowledged() else {
                return self.out_shares.restart();
            };
            *sample = Sample { acknowledged, is_busy: unreceived > 0 };
        }
        self.out_shares.sample(&samples[..self.channels.len()]);
    }

    /// Checks whether a sent message was matched.
    #[cold]
    fn poll_match_ack(&mut self, number: u64) -> Result<SendProgress, TransportError> {
        if self.match_acks.is_matched(&self.table.connections, self.lane, number)? {
            return Ok(SendProgress::Complete);
        }
        self.check_paths(false)?;
        Ok(SendProgress::Posted)
    }

    /// Checks the paths now and then, after an empty poll.
    #[inline]
    fn check_paths(&mut self, receives: bool) -> Result<(), TransportError> {
        let liveness = if receives { &mut self.recv_liveness } else { &mut self.send_liveness };
        if !liveness.is_due() {
            return Ok(());
        }
        for channel in &self.channels {
            channel.check_path(&self.table)?;
        }
        self.match_acks.check_path();
        self.match_acks.flush(&self.table.connections);
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
        let (base, len) = self.in_shares.range(&self.striping, state.len, part);
        let expected = ExpectedPart { digest: state.digest, total: state.len, part: part as u8, base, len };
        let mut target = RecvTarget {
            sink,
            reduce_buffer: &mut self.reduce_buffer,
            copied: &mut self.counters.copied_bytes,
        };
        self.channels[part].receive(&self.table, &expected, &mut target)
    }

    /// Receives bytes of the first part, and new shares ahead of it.
    #[inline]
    fn poll_first_part(&mut self, state: &RecvState, sink: &mut dyn Sink) -> Result<Polled, TransportError> {
        match self.poll_part(0, state, sink) {
            Err(TransportError::Mismatch { found: SHARES_DIGEST, .. }) => self.receive_shares(),
            polled => polled,
        }
    }

    #[cold]
    fn receive_shares(&mut self) -> Result<Polled, TransportError> {
        let mut bytes = [0; SHARES_BYTES];
        let expected =
            ExpectedPart { digest: SHARES_DIGEST, total: SHARES_BYTES, part: 0, base: 0, len: SHARES_BYTES };
        let mut target = RecvTarget {
            sink: &mut SharesSink(&mut bytes),
            reduce_buffer: &mut self.reduce_buffer,
            copied: &mut 0,
        };
        let polled = self.channels[0].receive(&self.table, &expected, &mut target)?;
        if polled != Polled::Complete {
            return Ok(polled);
        }
        self.channels[0].lock().channel.next();
        let what = "shares of connections that are 0";
        self.in_shares = Shares::decode(bytes).ok_or(TransportError::Protocol { peer: self.peer, what })?;
        Ok(Polled::Advanced)
    }

    /// Contiguous bytes received of the current message: complete parts, and the bytes of the next one.
    fn received_prefix(&self, count: usize) -> usize {
        let mut bytes = 0;
        for (part, channel) in self.channels[..count].iter().enumerate() {
            bytes += channel.lock().channel.received_of_part();
            if self.received & 1 << part == 0 {
                break;
            }
        }
        bytes
    }

    /// Ends the current incoming message, and acknowledges the match if the sender asks for it.
    #[inline]
    fn finish_message(&mut self, count: usize, len: usize) {
        let match_ack = self.first_header().is_some_and(|header| header.match_ack);
        self.channels[..count].iter().for_each(|channel| channel.lock().channel.next());
        self.received = 0;
        self.counters.received_messages += 1;
        self.counters.moved_bytes += len as u64;
        self.count_encryption(len);
        if match_ack {
            self.match_acks.record_match(&self.table.connections, self.lane);
        }
    }

    /// Counts the copies of a message into or out of records.
    fn count_encryption(&mut self, len: usize) {
        if self.table.is_encrypted {
            self.counters.copied_bytes += len as u64;
        }
    }

    fn first_header(&self) -> Option<Header> {
        self.channels[0].lock().channel.header()
    }
}

impl Link for ResumableLink {
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
        if !self.sending && !self.begin(state, src.len())? {
            self.check_paths(false)?;
            return Ok(SendProgress::Idle);
        }
        let count = self.striping.count(src.len());
        let (all, mut moved) = ((1u32 << count) - 1, false);
        for part in 0..count {
            if self.sent & 1 << part != 0 {
                continue;
            }
            let (base, len) = self.out_shares.announced().range(&self.striping, src.len(), part);
            let ready = sendable(base, len, ready);
            let (advanced, done) = self.channels[part].write(&self.table, src.sub(base, len), ready)?;
            moved |= advanced | done;
            if done {
                self.sent |= 1 << part;
                self.counters.copied_bytes += self.channels[part].lock().channel.take_copied();
            }
        }
        if self.sent == all {
            self.sending = false;
            self.send_liveness.reset();
            if count > 1 && count == self.striping.sockets {
                self.measure();
            }
            self.counters.sent_messages += 1;
            self.count_encryption(src.len());
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
        self.sending = self.channels[..count].iter().any(|channel| channel.lock().channel.has_begun());
        self.check_paths(false)?;
        Ok(SendProgress::Idle)
    }

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
            // The header on the first channel decides whether the message is the expected one, and which
            // shares it has; the other channels wait for it.
            if part > 0 && self.received & 1 == 0 && self.first_header().is_none_or(is_of_shares) {
                break;
            }
            let polled = match part {
                0 => self.poll_first_part(state, sink)?,
                _ => self.poll_part(part, state, sink)?,
            };
            match polled {
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
        self.check_paths(true)?;
        Ok(RecvProgress::Idle)
    }

    fn peek_digest(&self) -> Option<u64> {
        self.first_header().filter(|header| !is_of_shares(*header)).map(|header| header.digest)
    }
}

fn is_of_shares(header: Header) -> bool {
    header.digest == SHARES_DIGEST
}

/// Destination of received shares.
struct SharesSink<'a>(&'a mut [u8; SHARES_BYTES]);

impl Sink for SharesSink<'_> {
    fn write(&mut self, offset: usize, data: Span<'_>) {
        SpanMut::from(&mut self.0[offset..offset + data.len()]).copy_from(data);
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        Some(SpanMut::from(&mut self.0[..]))
    }
}
