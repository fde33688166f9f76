//! Capabilities of a link.

/// Capabilities and limits of a link, fixed when the link is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The name of the driver: `local`, `shm`.
    pub driver: &'static str,
    /// The largest payload that travels in the same cache line as its flag, in bytes.
    pub inline_bytes: usize,
    /// The largest piece that staging moves at a time, in bytes.
    pub piece_bytes: usize,
    /// The peer's registered memory is mapped here and can be read in place.
    pub direct: bool,
    /// Any memory of the peer can be read by a system call of the receiver.
    pub pull: bool,
    /// The link has a use for announcements, see [`crate::Link::announce`].
    pub announced: bool,
}
