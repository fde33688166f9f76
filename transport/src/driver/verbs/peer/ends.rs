//! Streams that are opened, given up and closed.
//!
//! A stream ends when an operation of its communicator fails, or when the communicator is closed. The peer is
//! told, since it may not know yet. Other streams go on: they share the rails, so queue pairs are reset only
//! if a device may still access memory on account of the stream that ends.
//!
//! Invariant: when a stream has ended here, no device accesses a caller's memory on its account.

use super::Peer;
use crate::{
    TransportError,
    driver::verbs::{
        env::Env,
        granted::Granted,
        notice::Notice,
        stream::{Bytes, Stream},
    },
};

/// Cause of the reset of queue pairs, for people.
const CAUSE: &str = "an operation was given up";

impl Peer {
    /// Opens a stream; returns its index.
    ///
    /// # Errors
    /// [`TransportError::Protocol`] if there is a stream of that number.
    pub(in crate::driver::verbs) fn open_stream(
        &mut self,
        number: u32,
        granted: Granted,
    ) -> Result<usize, TransportError> {
        let opened = self.streams.open(Stream::new(number, granted));
        opened.ok_or_else(|| self.protocol("the number of a communicator that exists"))
    }

    /// Whether a stream has not ended at this end.
    pub(in crate::driver::verbs) fn has_open_stream(&self) -> bool {
        self.streams.iter().any(|stream| !stream.has_told_end)
    }

    /// Whether all pieces of a stream have arrived.
    pub(in crate::driver::verbs) fn is_stream_sent(&self, index: usize) -> bool {
        let Some(stream) = self.streams.get(index) else { return true };
        let is_placed_sent =
            self.placed.as_ref().is_none_or(|placed| !placed.send.has_pieces_of(stream.number()));
        is_placed_sent && stream.granted.send.is_idle()
    }

    /// Ends a stream here, and tells the peer. Memory of its messages may be used otherwise afterwards.
    #[cold]
    pub(in crate::driver::verbs) fn end_stream(
        &mut self,
        env: &mut Env<'_>,
        index: usize,
    ) -> Result<(), TransportError> {
        let Some(stream) = self.streams.get_mut(index) else { return Ok(()) };
        stream.is_ended = true;
        let (number, limit, done) = (stream.number(), stream.recv.limit(), stream.done());
        if !std::mem::replace(&mut stream.has_told_end, true) {
            self.notices.push_back(Notice::Ended { stream: number, limit, done });
        }
        for fragment in self.streams[index].recv.drop_fragments() {
            if let Bytes::Slot { rail, queue, slot, .. } = fragment.bytes {
                self.release(env, (rail, queue, slot))?;
            }
        }
        self.forget_granted(env, index)?;
        self.forget_placed(env, index)?;
        self.flush(env)
    }

    /// Drops the granted pieces of a stream. If a device may still read or write their memory, all rails are
    /// made new: any of them may carry such a piece.
    fn forget_granted(&mut self, env: &mut Env<'_>, index: usize) -> Result<(), TransportError> {
        let stream = &mut self.streams[index];
        let (number, is_in_use) = (stream.number(), stream.granted.is_in_use());
        for piece in stream.granted.recv.numbers().filter_map(|number| stream.granted.recv.piece(number)) {
            if !piece.is_here && !piece.is_held {
                self.rails[usize::from(piece.rail)].forget_incoming(piece.len as u64);
            }
        }
        stream.granted.clear();
        self.grants.retain(|grant| grant.stream != number);
        if is_in_use {
            for rail in 0..self.rails.len() {
                self.take_down(env, rail, CAUSE)?;
            }
        }
        Ok(())
    }

    /// Drops the placed pieces of a stream, in both directions. If a device may still read or write their
    /// memory, or the peer's may still send some, the placed queues are made new.
    fn forget_placed(&mut self, env: &mut Env<'_>, index: usize) -> Result<(), TransportError> {
        let number = self.streams[index].number();
        let Some(placed) = &mut self.placed else { return Ok(()) };
        let is_sending = placed.send.forget(number);
        placed.recv.forget(index);
        placed.send_owner.forget(index);
        let was_owner = placed.recv_owner.forget(index);
        if is_sending || was_owner { self.begin_epoch(env, CAUSE) } else { Ok(()) }
    }

    /// Takes in that a stream has ended at the peer's end. What has arrived can still be received.
    pub(super) fn peer_ended(&mut self, env: &mut Env<'_>, index: usize) -> Result<(), TransportError> {
        let stream = &mut self.streams[index];
        stream.is_ended = true;
        stream.granted.send.drop_grants();
        let number = stream.number();
        let Some(placed) = &mut self.placed else { return Ok(()) };
        placed.send_owner.forget(index);
        if placed.send.forget(number) { self.begin_epoch(env, CAUSE) } else { Ok(()) }
    }

    /// Closes a stream whose communicator is closed here.
    pub(in crate::driver::verbs) fn close_stream(
        &mut self,
        env: &mut Env<'_>,
        index: usize,
    ) -> Result<(), TransportError> {
        let ended = self.end_stream(env, index);
        self.streams.close(index);
        ended
    }
}
