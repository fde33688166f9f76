//! Capabilities of a link.

/// Capabilities and limits of a link, fixed when the link is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Name of the driver, for example `local` or `shm`.
    pub driver: &'static str,
    /// Maximum payload that travels in the same cache line as its flag, in bytes.
    pub inline_bytes: usize,
    /// Maximum bytes that staging moves at a time.
    pub piece_bytes: usize,
    /// Whether the peer's registered memory is mapped here and can be read in place.
    pub direct: bool,
    /// Whether any memory of the peer can be read by a system call of the receiver.
    pub pull: bool,
    /// Bytes from which announcements of messages are of use to the link; none are if `None`. See
    /// [`crate::Link::announce`].
    pub announced_bytes: Option<usize>,
    /// Bytes up to which a message arrives sooner if it is sent at once and copied at the receiver than if
    /// the receiver asks for it.
    pub eager_bytes: usize,
    /// Bytes up to which one message costs less than two of as many bytes in all, though it takes a copy at
    /// each end to make it. 0 unless a receive that finds another message
    /// ([`crate::TransportError::Mismatch`]) leaves that message to a later receive.
    pub packed_bytes: usize,
    /// Whether each beginning of a message that is sent by itself costs much, such as a system call.
    pub coarse_prefixes: bool,
}
