//! Errors of links, and of the memory under them.

use thiserror::Error;

/// Reason why a link, or the memory under it, failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The next message is not the expected one: the two ranks are not in the same operation.
    #[error(
        "the next message belongs to another operation (digest {found:#018x}, expected {expected:#018x})"
    )]
    Mismatch {
        /// The digest that the receiver expected.
        expected: u64,
        /// The digest that the message carries.
        found: u64,
    },
    /// The next message has the right digest and another length.
    #[error("the next message has {found} bytes where {expected} were expected")]
    Length {
        /// The length that the receiver expected, in bytes.
        expected: u64,
        /// The length that the message has, in bytes.
        found: u64,
    },
    /// A header that no sender of this version writes: other code overwrote the shared memory.
    #[error("a message header is not valid ({0}); something else wrote to the shared memory")]
    Corrupt(&'static str),
    /// The peer's memory could not be read: the process died, or the system forbids it.
    #[error("the memory of process {pid} could not be read: {source}")]
    Unreadable {
        /// Identifier of the peer's process.
        pid: u32,
        /// The system's error.
        source: std::io::Error,
    },
    /// Memory is exhausted, or a limit of the system is too low.
    #[error("{what}: {source}; {remedy}")]
    Memory {
        /// The step that failed.
        what: String,
        /// The system's error.
        source: std::io::Error,
        /// Advice to the user.
        remedy: String,
    },
    /// The library's slab has no free range of this size.
    #[error(
        "no {wanted} contiguous bytes are free in the slab of {total} bytes ({free} are free in all); free \
         buffers, or make the slab larger with TBCCL_SLAB_BYTES"
    )]
    SlabFull {
        /// Bytes requested.
        wanted: u64,
        /// Free bytes in all ranges together.
        free: u64,
        /// Bytes of the slab.
        total: u64,
    },
    /// The memory belongs to the process that this one was forked from.
    #[error("{}", crate::forks::FORKED)]
    Forked,
    /// A verbs library or a device rejected a call.
    #[error(transparent)]
    Verbs(#[from] crate::verbs::VerbsError),
    /// A cable to a peer could not be used.
    #[error("{rail}: {error}")]
    Rail {
        /// The devices and ranks at both ends.
        rail: String,
        /// The device's error.
        error: crate::verbs::VerbsError,
    },
    /// No cable to a peer works anymore.
    #[error(
        "no cable to rank {peer} works any more ({causes}); check the cables and the ports, see `tbccl \
         devices`"
    )]
    NoRail {
        /// The peer.
        peer: u32,
        /// Each cable, and why it is down.
        causes: String,
    },
    /// A connection to a peer can't be made.
    #[error("rank {peer} can't be reached: {what}")]
    Unreachable {
        /// The peer.
        peer: u32,
        /// The reason and the remedy.
        what: String,
    },
    /// An established connection to a peer has failed.
    #[error("the connection to rank {peer} is lost: {what}")]
    Lost {
        /// The peer.
        peer: u32,
        /// The reason.
        what: String,
    },
    /// The peer's process closed the connection. The peer has ended or does not need the connection anymore;
    /// this error does not tell which.
    #[error("the connection to rank {peer} is lost: its process has closed it")]
    Closed {
        /// The peer.
        peer: u32,
    },
    /// The peer's call failed while this rank read the message, or before, so the bytes may be others than
    /// those that were sent.
    #[error("rank {peer} has failed and taken back the memory that it was sending from")]
    Revoked {
        /// The peer.
        peer: u32,
    },
    /// A peer violated the protocol of this version.
    #[error("rank {peer} sent {what}; do all ranks run the same version of tbccl?")]
    Protocol {
        /// The peer.
        peer: u32,
        /// Description of the invalid data, as the object of "sent".
        what: &'static str,
    },
    /// A rank's description of its devices can't be used.
    #[error(
        "rank {peer}'s description of its devices can't be used: {what}; do all ranks run the same version \
         of tbccl?"
    )]
    DeviceDescription {
        /// The rank.
        peer: u32,
        /// The reason.
        what: String,
    },
    /// Part of the memory to be registered is registered already.
    #[error(
        "rank {rank}: some of this memory is registered already; drop its registration before it is \
         registered anew"
    )]
    AlreadyRegistered {
        /// The rank.
        rank: u32,
    },
    /// The rank's devices or addresses can't reach its peers, or can't be used.
    #[error("rank {rank}: {what}")]
    Wiring {
        /// The rank.
        rank: u32,
        /// The reason and the remedy.
        what: String,
    },
}

impl TransportError {
    /// Returns the peer that the error names, if it names one. Polling one link may return an error about
    /// another link's peer.
    #[must_use]
    pub fn peer(&self) -> Option<u32> {
        match self {
            TransportError::NoRail { peer, .. }
            | TransportError::Protocol { peer, .. }
            | TransportError::Unreachable { peer, .. }
            | TransportError::Closed { peer }
            | TransportError::Revoked { peer }
            | TransportError::Lost { peer, .. } => Some(*peer),
            _ => None,
        }
    }

    /// Returns the device, or the cable with the devices at both ends, if the error is about one.
    #[must_use]
    pub fn device(&self) -> Option<String> {
        match self {
            TransportError::Verbs(error) => error.device().map(str::to_owned),
            TransportError::Rail { rail, .. } => Some(rail.clone()),
            _ => None,
        }
    }
}
