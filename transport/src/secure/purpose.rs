//! Purposes of connections.

/// What a connection is for. Both ends must mean the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Ranks come together, and know of each other's lives.
    Bootstrap = 1,
    /// Messages between two ranks.
    Data = 2,
}
