//! The states of a channel: unconnected, running, stopped; and the exchange that connects it.

use super::{
    super::{
        receive::{ExpectedPart, Polled, RecvError, RecvTarget},
        wire::Header,
    },
    carrier::{Carrier, PendingCarrier},
    loss::Loss,
    stream_in::StreamIn,
    stream_out::{OffsetError, StreamOut},
};
use crate::memory::Span;
use std::io::{self, ErrorKind};

/// State of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Phase {
    /// The channel never had a connection.
    Unconnected,
    /// The carrier is in use.
    Running,
    /// The carrier has failed or is to be replaced; nothing is written to it.
    Stopped,
}

/// The responder's answer to an attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Answer {
    /// The connection may be used, from these positions on.
    Accepted(Accepted),
    /// This end is connecting too, and its attempt wins.
    Crossed,
    /// The attempt is void, or the channel has failed.
    Stale,
}

/// The responder's part of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Accepted {
    /// Bytes of the stream that the responder has received.
    pub(in super::super) received: u64,
    /// Number of the responder's own latest attempt. It is void, even if it arrives later: the responder
    /// stops for the initiator's attempt only.
    pub(in super::super) attempt: u32,
}

/// Reason why a channel is of no further use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Failure {
    /// The peer's process has closed its sockets.
    Closed,
    /// The first connection can't be made.
    Unreachable(String),
    /// No path to the peer works.
    Lost(String),
    /// The peer has violated the protocol.
    Protocol(&'static str),
}

/// One stream in each direction between two ranks.
#[derive(Debug)]
pub(in super::super) struct Channel<P: PendingCarrier> {
    out: StreamOut,
    into: StreamIn,
    phase: Phase,
    carrier: Option<P::Carrier>,
    /// A connection that the peer has made, and whose position has not arrived yet.
    pending: Option<P>,
    /// Whether this end's attempt awaits the answer.
    is_attempting: bool,
    /// Numbers of the latest attempts of this end and of the peer.
    our_attempt: u32,
    their_attempt: u32,
    /// Why the latest connection was given up.
    loss: Option<Loss>,
    failure: Option<Failure>,
}

impl<P: PendingCarrier> Channel<P> {
    pub(in super::super) fn new() -> Channel<P> {
        Channel {
            out: StreamOut::default(),
            into: StreamIn::new(),
            phase: Phase::Unconnected,
            carrier: None,
            pending: None,
            is_attempting: false,
            our_attempt: 0,
            their_attempt: 0,
            loss: None,
            failure: None,
        }
    }

    pub(in super::super) fn phase(&self) -> Phase {
        self.phase
    }

    pub(in super::super) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Records why the channel is of no further use; the first reason counts.
    pub(in super::super) fn fail(&mut self, failure: Failure) {
        self.stop();
        self.failure.get_or_insert(failure);
    }

    /// Returns the carrier, if it is in use.
    pub(in super::super) fn running(&self) -> Option<&P::Carrier> {
        self.carrier.as_ref().filter(|_| self.phase == Phase::Running)
    }

    /// Returns the carrier, in use or not.
    pub(in super::super) fn carrier(&self) -> Option<&P::Carrier> {
        self.carrier.as_ref()
    }

    pub(in super::super) fn pending(&self) -> Option<&P> {
        self.pending.as_ref()
    }

    /// Whether a connection is needed and not being made by the peer.
    pub(in super::super) fn needs_connection(&self) -> bool {
        self.phase != Phase::Running && self.pending.is_none() && self.failure.is_none()
    }

    // Messages.

    pub(in super::super) fn begin(&mut self, header: &Header, len: usize) {
        self.out.begin(header, len);
    }

    pub(in super::super) fn has_begun(&self) -> bool {
        self.out.has_begun()
    }

    pub(in super::super) fn take_copied(&mut self) -> u64 {
        self.out.take_copied()
    }

    /// Writes bytes of the part. Returns whether bytes moved, and whether the memory of the part is free. A
    /// carrier that fails stops the channel.
    pub(in super::super) fn write(&mut self, part: Span<'_>, ready: usize) -> (bool, bool) {
        let Channel { out, carrier, phase, .. } = self;
        let carrier = carrier.as_ref().filter(|_| *phase == Phase::Running);
        let written = carrier.map_or(Ok(false), |carrier| out.write(carrier, part, ready));
        let done = written.and_then(|moved| Ok((moved, out.is_complete(carrier, part)?)));
        done.unwrap_or_else(|error| {
            self.stop_for(Loss::Failed(error));
            (false, false)
        })
    }

    /// Receives bytes of the expected part. A carrier that fails or ends stops the channel.
    ///
    /// # Errors
    /// All of [`RecvError`] but the failure and the end of a carrier.
    pub(in super::super) fn receive(
        &mut self,
        expected: &ExpectedPart,
        target: &mut RecvTarget<'_>,
    ) -> Result<Polled, RecvError> {
        let Channel { into, carrier, phase, .. } = self;
        let carrier = carrier.as_ref().filter(|_| *phase == Phase::Running);
        match into.poll(carrier, expected, target) {
            Err(RecvError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                Err(RecvError::Authentication)
            }
            // The peer also closes a connection that it has accepted and given up. If its process has ended,
            // the attempt to replace the connection is refused.
            Err(RecvError::Ended) => {
                self.stop_for(Loss::Ended);
                Ok(Polled::Idle)
            }
            Err(RecvError::Io(error)) => {
                self.stop_for(Loss::Failed(error));
                Ok(Polled::Idle)
            }
            polled => polled,
        }
    }

    pub(in super::super) fn header(&self) -> Option<Header> {
        self.into.header()
    }

    pub(in super::super) fn received_of_part(&self) -> usize {
        self.into.received_of_part()
    }

    pub(in super::super) fn next(&mut self) {
        self.into.next();
    }

    /// Returns the position up to which the peer's system has the stream, and the number of sent bytes behind
    /// it; `None` without a carrier in use.
    pub(in super::super) fn acknowledged(&self) -> Option<(u64, u64)> {
        let carrier = self.running()?;
        Some((self.out.acknowledged(carrier), carrier.unreceived()))
    }

    /// Whether the peer's system has everything, or the channel was never used or has failed.
    pub(in super::super) fn is_received(&self) -> bool {
        match self.phase {
            Phase::Unconnected => true,
            Phase::Running => self.running().is_some_and(|carrier| self.out.is_received(carrier)),
            Phase::Stopped => self.failure.is_some(),
        }
    }

    /// Writes again what the peer has not received. Returns whether nothing is left, or the channel is
    /// stopped.
    pub(in super::super) fn resend(&mut self) -> bool {
        let Channel { out, carrier, phase, .. } = self;
        let Some(carrier) = carrier.as_ref().filter(|_| *phase == Phase::Running) else { return true };
        out.resend(carrier).unwrap_or_else(|error| {
            self.stop_for(Loss::Failed(error));
            true
        })
    }

    // Connections.

    /// Stops using the carrier.
    pub(in super::super) fn stop(&mut self) {
        if self.phase == Phase::Running {
            self.phase = Phase::Stopped;
        }
    }

    /// Stops using the carrier; the first reason counts.
    pub(in super::super) fn stop_for(&mut self, loss: Loss) {
        if self.phase == Phase::Running {
            self.stop();
            self.note_loss(loss);
        }
    }

    /// Records why the carrier is no longer used.
    pub(super) fn note_loss(&mut self, loss: Loss) {
        self.loss.get_or_insert(loss);
    }

    /// Returns why the latest connection was given up, if that is known.
    pub(in super::super) fn loss(&self) -> Option<&Loss> {
        self.loss.as_ref()
    }

    pub(in super::super) fn take_loss(&mut self) -> Option<Loss> {
        self.loss.take()
    }

    /// Returns the number of a new attempt to connect.
    pub(in super::super) fn next_attempt(&mut self) -> u32 {
        self.our_attempt += 1;
        self.our_attempt
    }

    /// Stops using the carrier, before the peer learns of the attempt.
    pub(in super::super) fn start_attempt(&mut self) {
        self.stop();
        self.is_attempting = true;
    }

    /// Ends an attempt that has failed, or that the peer has declined.
    pub(in super::super) fn give_up_attempt(&mut self) {
        self.is_attempting = false;
    }

    /// Decides on an attempt of the peer. `is_ours_first`: this end's attempt wins if they cross.
    pub(in super::super) fn accept(&mut self, attempt: u32, is_ours_first: bool) -> Answer {
        if attempt <= self.their_attempt || self.failure.is_some() {
            return Answer::Stale;
        }
        self.their_attempt = attempt;
        if self.is_attempting && is_ours_first {
            return Answer::Crossed;
        }
        self.is_attempting = false;
        self.drain();
        Answer::Accepted(Accepted { received: self.into.received(), attempt: self.our_attempt })
    }

    /// Waits for the initiator's position on an accepted connection.
    pub(in super::super) fn await_offset(&mut self, pending: P) {
        self.pending = Some(pending);
    }

    /// Takes in the initiator's position, as far as it has arrived. Returns whether the channel runs.
    pub(in super::super) fn poll_pending(&mut self) -> bool {
        let polled = self.pending.as_mut().map_or(Ok(None), PendingCarrier::poll_offset);
        match (polled, self.pending.take()) {
            (Ok(Some(offset)), Some(pending)) => self.run_on(pending.into_carrier(), offset),
            (Ok(None), pending) => self.pending = pending,
            _ => {}
        }
        self.phase == Phase::Running
    }

    /// Completes an attempt that the peer has accepted. `send_offset` sends this end's position.
    ///
    /// # Errors
    /// The connection's, or [`ErrorKind::Interrupted`] if an attempt of the peer has won; the channel stays
    /// as it is then.
    pub(in super::super) fn run_initiated(
        &mut self,
        theirs: Accepted,
        mut connection: P,
        send_offset: impl FnOnce(&mut P, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        if !std::mem::take(&mut self.is_attempting) {
            return Err(ErrorKind::Interrupted.into());
        }
        self.their_attempt = self.their_attempt.max(theirs.attempt);
        self.drain();
        send_offset(&mut connection, self.into.received())?;
        self.run_on(connection.into_carrier(), theirs.received);
        Ok(())
    }

    /// Reads everything that earlier connections still hold, and drops them. The peer must have stopped.
    fn drain(&mut self) {
        self.stop();
        if let Some(carrier) = self.carrier.take() {
            self.into.drain(&carrier);
        }
        // If the initiator has sent its position, data may follow it, of which it knows that it has arrived.
        if self.poll_pending() {
            self.stop();
            if let Some(carrier) = self.carrier.take() {
                self.into.drain(&carrier);
            }
        }
        self.pending = None;
    }

    fn run_on(&mut self, carrier: P::Carrier, theirs: u64) {
        match self.out.rewind(theirs) {
            Ok(()) => {
                self.carrier = Some(carrier);
                self.phase = Phase::Running;
            }
            Err(OffsetError::Released) => {
                let what = "its system has acknowledged data that its process has not received".to_owned();
                self.fail(Failure::Lost(what));
            }
            Err(OffsetError::NotSent) => self.fail(Failure::Protocol("a count of bytes that were not sent")),
        }
    }
}
