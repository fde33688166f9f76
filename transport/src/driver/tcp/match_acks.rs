//! Acknowledgements that a message was matched, on a connection of their own between two ranks.
//!
//! On a message connection, an acknowledgement would queue behind messages that its receiver has not
//! received, and may receive only after the acknowledgement: a deadlock. The connection is made for the first
//! acknowledgement.
//!
//! An acknowledgement carries the count of matched messages of its lane that asked for one. A later count
//! includes the earlier ones, so at most one acknowledgement per lane is pending.

use super::{
    channel::{Channel, connection_error, open_channel},
    connection_table::{ConnectionTable, lock},
    receive::{ExpectedPart, Polled, RecvTarget, ReduceBuffer},
    resume::{ChannelTable, Phase, SharedChannel},
    wire::Header,
};
use crate::{
    Sink, TransportError,
    memory::{Span, SpanMut},
};
use std::sync::{Arc, Mutex};

/// Digest of acknowledgements, in place of an operation's digest.
const DIGEST: u64 = u64::from_le_bytes(*b"matched!");
/// Bytes of an acknowledgement: a lane and a count, 8 bytes each.
const ACK_BYTES: usize = 16;

/// Match acknowledgements exchanged with one peer.
#[derive(Debug)]
pub(super) struct MatchAcks {
    peer: u32,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    connection: Option<AckConnection>,
    requested: bool,
    /// By lane: the peer's messages that this rank has matched, and the count that was last sent to the peer.
    matched: Vec<u64>,
    acked: Vec<u64>,
    /// By lane: this rank's messages that the peer has matched, as acknowledged.
    peer_acked: Vec<u64>,
    /// The acknowledgement being sent, and the buffer of the one being received.
    outbox: Option<[u8; ACK_BYTES]>,
    inbox: [u8; ACK_BYTES],
    failure: Option<Failure>,
}

/// The connection that carries acknowledgements.
#[derive(Debug)]
enum AckConnection {
    /// A connection whose end is an error.
    Single(Box<Channel>),
    /// One that is replaced when it breaks.
    Resumable(Arc<SharedChannel>, Arc<ChannelTable>),
}

impl AckConnection {
    fn begin(&mut self, header: &Header) {
        match self {
            AckConnection::Single(channel) => channel.outgoing.begin(header, ACK_BYTES),
            AckConnection::Resumable(channel, _) => channel.lock().channel.begin(header, ACK_BYTES),
        }
    }

    /// Writes the acknowledgement, as far as there is room. Returns whether all of it is written.
    fn write(&mut self, peer: u32, ack: Span<'_>) -> Result<bool, TransportError> {
        match self {
            AckConnection::Single(channel) => {
                let written = channel.outgoing.write(&channel.socket, ack, ack.len());
                written.map_err(|error| connection_error(peer, &error))?;
                Ok(channel.outgoing.is_complete())
            }
            AckConnection::Resumable(channel, table) => Ok(channel.write(table, ack, ack.len())?.1),
        }
    }

    fn receive(&mut self, peer: u32, inbox: &mut [u8; ACK_BYTES]) -> Result<Polled, TransportError> {
        let expected = ExpectedPart { digest: DIGEST, total: ACK_BYTES, part: 0, base: 0, len: ACK_BYTES };
        let mut target = RecvTarget {
            sink: &mut AckSink(inbox),
            reduce_buffer: &mut ReduceBuffer::default(),
            copied: &mut 0,
        };
        let polled = match self {
            AckConnection::Single(channel) => {
                let polled = channel.incoming.poll(&*channel.socket, &expected, &mut target);
                polled.map_err(|failed| failed.into_transport_error(peer))
            }
            AckConnection::Resumable(channel, table) => channel.receive(table, &expected, &mut target),
        };
        if matches!(polled, Ok(Polled::Complete)) {
            match self {
                AckConnection::Single(channel) => channel.incoming.next(),
                AckConnection::Resumable(channel, _) => channel.lock().channel.next(),
            }
        }
        polled
    }
}

/// Why the connection is of no further use.
#[derive(Clone, Copy, Debug)]
enum Failure {
    /// The peer's process has closed the connection.
    Closed,
    Lost,
}

impl MatchAcks {
    pub(super) fn new(peer: u32, lanes: u8) -> MatchAcks {
        let none = vec![0; usize::from(lanes)];
        let inner =
            Inner { matched: none.clone(), acked: none.clone(), peer_acked: none, ..Inner::default() };
        MatchAcks { peer, inner: Mutex::new(inner) }
    }

    /// Returns the acknowledgements of a peer whose connections are replaced when they break.
    pub(super) fn resumable(peer: u32, table: &Arc<ChannelTable>) -> MatchAcks {
        let lanes = table.connections.lanes;
        let acks = MatchAcks::new(peer, lanes);
        let channel = table.lane(peer, lanes).pop();
        lock(&acks.inner).connection =
            channel.map(|channel| AckConnection::Resumable(channel, Arc::clone(table)));
        acks
    }

    /// Checks the path of the connection, if it is one that is replaced when it breaks.
    pub(super) fn check_path(&self) {
        let inner = lock(&self.inner);
        if let Some(AckConnection::Resumable(channel, table)) = &inner.connection {
            // A send that waits for an acknowledgement detects the failure by itself.
            let _ = channel.check_path(table);
        }
    }

    /// Records that this rank matched a message of the peer that asked for an acknowledgement.
    pub(super) fn record_match(&self, table: &ConnectionTable, lane: u8) {
        lock(&self.inner).matched[usize::from(lane)] += 1;
        self.flush(table);
    }

    /// Sends pending acknowledgements as far as the socket has room.
    pub(super) fn flush(&self, table: &ConnectionTable) {
        let mut inner = lock(&self.inner);
        // A send that waits for an acknowledgement detects the broken connection by itself.
        let _ = inner.send(table, self.peer);
    }

    /// Whether the peer has matched message `number` of a lane.
    ///
    /// # Errors
    /// [`TransportError::Closed`] or [`TransportError::Lost`] if the connection broke before the
    /// acknowledgement arrived.
    pub(super) fn is_matched(
        &self,
        table: &ConnectionTable,
        lane: u8,
        number: u64,
    ) -> Result<bool, TransportError> {
        let mut inner = lock(&self.inner);
        let is_acked = |inner: &Inner| inner.peer_acked[usize::from(lane)] >= number;
        if is_acked(&inner) {
            return Ok(true);
        }
        let received = inner.receive(table, self.peer);
        // The acknowledgement counts even if the end of the connection follows it.
        if is_acked(&inner) { Ok(true) } else { received.map(|()| false) }
    }

    /// Sends pending acknowledgements as far as the socket has room. Returns whether none is left, or none
    /// can be sent.
    pub(super) fn is_flushed(&self, table: &ConnectionTable) -> bool {
        let mut inner = lock(&self.inner);
        if inner.send(table, self.peer).is_err() {
            return true;
        }
        inner.failure.is_some() || inner.outbox.is_none() && inner.acked == inner.matched
    }
}

impl Inner {
    /// Takes the connection once it is made, and requests it if `request` is set. Returns whether there is
    /// one.
    fn connect(&mut self, table: &ConnectionTable, peer: u32, request: bool) -> Result<bool, TransportError> {
        match self.failure {
            None => {}
            Some(Failure::Closed) => return Err(TransportError::Closed { peer }),
            Some(Failure::Lost) => {
                let what = "the connection for acknowledgements of matches has failed".to_owned();
                return Err(TransportError::Lost { peer, what });
            }
        }
        if let Some(AckConnection::Resumable(channel, _)) = &self.connection {
            return Ok(request || channel.lock().phase() != Phase::Unconnected);
        }
        if self.connection.is_none() {
            let taken = table.take(peer, table.lanes)?;
            let taken = taken.and_then(|mut one| one.pop());
            self.connection =
                taken.map(|one| AckConnection::Single(Box::new(open_channel(table, peer, one))));
            if self.connection.is_none() && request && !self.requested {
                self.requested = true;
                table.request(peer, table.lanes);
            }
        }
        Ok(self.connection.is_some())
    }

    fn send(&mut self, table: &ConnectionTable, peer: u32) -> Result<(), TransportError> {
        if self.outbox.is_none() && self.acked == self.matched {
            return Ok(());
        }
        if !self.connect(table, peer, true)? {
            return Ok(());
        }
        let Inner { connection: Some(connection), matched, acked, outbox, .. } = self else {
            return Ok(());
        };
        loop {
            if outbox.is_none() {
                let Some(lane) = (0..acked.len()).find(|lane| acked[*lane] < matched[*lane]) else {
                    return Ok(());
                };
                acked[lane] = matched[lane];
                let mut ack = [0; ACK_BYTES];
                ack[..8].copy_from_slice(&(lane as u64).to_le_bytes());
                ack[8..].copy_from_slice(&acked[lane].to_le_bytes());
                *outbox = Some(ack);
                let header = Header { digest: DIGEST, len: ACK_BYTES as u64, part: 0, match_ack: false };
                connection.begin(&header);
            }
            let Some(ack) = outbox else { return Ok(()) };
            if !connection.write(peer, Span::from(&ack[..]))? {
                return Ok(());
            }
            *outbox = None;
        }
    }

    fn receive(&mut self, table: &ConnectionTable, peer: u32) -> Result<(), TransportError> {
        while self.connect(table, peer, false)? {
            let Inner { connection: Some(connection), inbox, peer_acked, failure, .. } = self else {
                return Ok(());
            };
            match connection.receive(peer, inbox) {
                Ok(Polled::Complete) => {}
                Ok(Polled::Idle) => return Ok(()),
                Ok(Polled::Advanced) => continue,
                Err(error) => {
                    let is_closed = matches!(error, TransportError::Closed { .. });
                    *failure = Some(if is_closed { Failure::Closed } else { Failure::Lost });
                    return Err(error);
                }
            }
            let number = |at: usize| u64::from_le_bytes(inbox[at..at + 8].try_into().expect("eight bytes"));
            let (lane, count) = (number(0), number(8));
            let known = peer_acked.get_mut(lane as usize).filter(|known| **known < count);
            *known.ok_or(TransportError::Protocol {
                peer,
                what: "an acknowledgement of a match that is not due",
            })? = count;
        }
        Ok(())
    }
}

/// Destination of a received acknowledgement.
struct AckSink<'a>(&'a mut [u8; ACK_BYTES]);

impl Sink for AckSink<'_> {
    fn write(&mut self, offset: usize, data: Span<'_>) {
        SpanMut::from(&mut self.0[offset..offset + data.len()]).copy_from(data);
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        Some(SpanMut::from(&mut self.0[..]))
    }
}
