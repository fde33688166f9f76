//! The choice of the protocol of a message, by its size, its memory and its link.

use super::sink::Writes;
use transport::{Capabilities, Protocol, SizeClass};

/// Size thresholds of protocols. A message that its plan cuts into pieces counts as a whole: what the caches
/// of a core hold depends on the call, and pieces are as long in calls of any size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocols {
    /// Messages of at least this many bytes from unregistered memory are pulled where possible.
    pub(crate) pull_min_bytes: usize,
    /// The same for calls that combine nothing, and in which ranks send before they wait; `pull_min_bytes`
    /// at most. Calibration measures those. Where data moves one way, a receiver reads one piece while the
    /// sender stages the next one, which makes up for the further copy.
    pub(crate) gather_pull_min_bytes: usize,
    /// The same for messages of the program that it has not changed since it sent them last;
    /// `gather_pull_min_bytes` at most.
    pub(crate) unchanged_pull_min_bytes: usize,
    /// Operations of at least this many bytes move registered memory without copying it.
    pub(crate) direct_min_bytes: u64,
    /// Smallest message of such an operation from memory into which the operation combines.
    pub(crate) combined_direct_min_bytes: usize,
    /// Whether the messages of calls that combine count by their pieces.
    pub(crate) counts_combined_pieces: bool,
    /// Smallest result that is written past the caches.
    pub(crate) stream_min_bytes: usize,
}

/// Owner of the memory that a message comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The program's input, which nobody but the program writes.
    Program,
    /// Memory that the call writes.
    Call,
}

impl Protocols {
    /// Returns thresholds that are the same for all memory and all calls. Results stay in the caches.
    pub(crate) const fn with_minima(pull_min_bytes: usize, direct_min_bytes: u64) -> Protocols {
        let (gather_pull_min_bytes, combined_direct_min_bytes) = (pull_min_bytes, 0);
        let unchanged_pull_min_bytes = pull_min_bytes;
        let stream_min_bytes = usize::MAX;
        Protocols {
            pull_min_bytes,
            gather_pull_min_bytes,
            unchanged_pull_min_bytes,
            direct_min_bytes,
            combined_direct_min_bytes,
            counts_combined_pieces: false,
            stream_min_bytes,
        }
    }

    /// Returns how many of its segments a message counts as, in a call that combines nothing (`gathers`) or
    /// in any other.
    pub(crate) fn counted_segments(&self, segments: u32, gathers: bool) -> usize {
        if self.counts_combined_pieces && !gathers { 1 } else { segments as usize }
    }

    /// Returns how a result of `len` bytes is written that no step of its call reads.
    #[inline]
    pub(crate) fn writes_of(&self, len: usize) -> Writes {
        Writes::of_result(len, self.stream_min_bytes)
    }

    /// Returns the size class of an operation: `Bulk` if it is worth the set-up of transfers without copies.
    #[inline]
    pub(crate) fn size_class(&self, operation_bytes: u64) -> SizeClass {
        if operation_bytes >= self.direct_min_bytes { SizeClass::Bulk } else { SizeClass::Small }
    }

    /// Whether a message is copied wherever its bytes are.
    #[inline]
    pub(super) fn always_copies(&self, size: SizeClass, message_bytes: usize) -> bool {
        size == SizeClass::Small && message_bytes < self.unchanged_pull_min_bytes
    }

    /// Returns the protocol of a message, by the link's capabilities, the operation's size, and the
    /// message's memory: whose it is if its ranks exchange and combine nothing (`gathered`), whether its call
    /// combines messages into this memory (`combined`), and whether it is registered.
    #[inline]
    pub(super) fn choose<'c>(
        &self,
        capabilities: impl FnOnce() -> &'c Capabilities,
        (size, message_bytes): (SizeClass, usize),
        gathered: Option<Owner>,
        combined: impl FnOnce() -> bool,
        registered: impl FnOnce() -> bool,
    ) -> Protocol {
        // Most messages are of this kind; nothing else need be known about them.
        if self.always_copies(size, message_bytes) {
            return Protocol::Copy;
        }
        // The lines of a combined message are in the caches of this rank's core alone.
        let capabilities = capabilities();
        let may_be_direct = || message_bytes >= self.combined_direct_min_bytes || !combined();
        if capabilities.direct && size == SizeClass::Bulk && may_be_direct() && registered() {
            return Protocol::Direct;
        }
        let pull_min_bytes = gathered.map_or(self.pull_min_bytes, |_| self.gather_pull_min_bytes);
        match gathered {
            _ if !capabilities.pull => Protocol::Copy,
            _ if message_bytes >= pull_min_bytes => Protocol::Pull,
            Some(Owner::Program) if message_bytes >= self.unchanged_pull_min_bytes => Protocol::PullUnchanged,
            _ => Protocol::Copy,
        }
    }
}
