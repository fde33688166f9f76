//! Interface of connections that carry streams.

use super::super::socket::Source;
use crate::memory::Span;
use std::io;

/// A connection that carries a stream in each direction.
pub(in super::super) trait Carrier: Source {
    /// Accepts `header` and then `body`, as far as there is room. Returns the number of accepted bytes.
    fn send(&self, header: &[u8], body: Span<'_>) -> io::Result<usize>;

    /// Passes accepted bytes on to the system. Returns whether none is held back.
    fn flush(&self) -> io::Result<bool>;

    /// Returns an upper bound of the accepted bytes that the peer's system has not acknowledged.
    fn unreceived(&self) -> u64;
}

/// A connection of which this end, the responder, does not know the initiator's position yet.
pub(in super::super) trait PendingCarrier {
    type Carrier: Carrier;

    /// Reads the initiator's position, as far as it has arrived.
    ///
    /// # Errors
    /// The connection's.
    fn poll_offset(&mut self) -> io::Result<Option<u64>>;

    /// Returns the connection; call this after the position has arrived.
    fn into_carrier(self) -> Self::Carrier;
}
