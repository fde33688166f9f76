//! What a link has done.

use std::ops::{AddAssign, Sub};

/// Totals since the link was made. `copied_bytes` of 0 is what "zero-copy" means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages handed over for sending.
    pub sent_messages: u64,
    /// Messages received completely.
    pub received_messages: u64,
    /// Payload bytes that arrived here, by whatever way.
    pub moved_bytes: u64,
    /// Payload bytes that this side copied on top of moving them: into a cell or a staging area when sending,
    /// out of one when receiving without reducing.
    pub copied_bytes: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.sent_messages += other.sent_messages;
        self.received_messages += other.received_messages;
        self.moved_bytes += other.moved_bytes;
        self.copied_bytes += other.copied_bytes;
    }
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            sent_messages: self.sent_messages - earlier.sent_messages,
            received_messages: self.received_messages - earlier.received_messages,
            moved_bytes: self.moved_bytes - earlier.moved_bytes,
            copied_bytes: self.copied_bytes - earlier.copied_bytes,
        }
    }
}
