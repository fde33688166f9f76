//! Purposes of connections, which the handshake binds.

/// Purpose of a connection; both ends must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Rendezvous and liveness of the ranks.
    Bootstrap = 1,
    /// Messages between two ranks.
    Data = 2,
}
