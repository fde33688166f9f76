//! Counters of a link's traffic and of the polls of its completion queue.

use std::ops::{AddAssign, Sub};

/// Totals since the link was opened. A transfer is zero-copy if `copied_bytes` stays 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages whose sending was posted or completed.
    pub sent_messages: u64,
    /// Messages received completely.
    pub received_messages: u64,
    /// Payload bytes received, over any path.
    pub moved_bytes: u64,
    /// Payload bytes that this end copied in addition to moving them: into a cell or a staging area when
    /// sending, out of one when receiving without a reduction.
    pub copied_bytes: u64,
    /// Messages, and pieces of messages, that were sent again after a loss or damage.
    pub retransmissions: u64,
    /// Connections that were made anew after a loss or a failure.
    pub reconnections: u64,
    /// Times at which a device accepted less work than it had reported; it gets less work from then on.
    pub refused: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.sent_messages += other.sent_messages;
        self.received_messages += other.received_messages;
        self.moved_bytes += other.moved_bytes;
        self.copied_bytes += other.copied_bytes;
        self.retransmissions += other.retransmissions;
        self.reconnections += other.reconnections;
        self.refused += other.refused;
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
            retransmissions: self.retransmissions - earlier.retransmissions,
            reconnections: self.reconnections - earlier.reconnections,
            refused: self.refused - earlier.refused,
        }
    }
}

/// Statistics of completion queue polls; zero for drivers that poll memory and no queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollCounters {
    /// Polls of completion queues.
    pub polls: u64,
    /// Polls that found nothing.
    pub empty_polls: u64,
    /// Histogram of the polls that found completions. Entry `i` counts the polls that found `i + 1`
    /// completions; the last entry also counts those that found more.
    pub batches: [u64; PollCounters::BATCHES],
    /// Maximum number of completions known to be due at a time.
    pub depth_high_water: u64,
    /// Asynchronous events of the device: port state changes, queue failures.
    pub async_events: u64,
    /// Times at which the device woke a sleeping rank.
    pub wake_ups: u64,
}

impl PollCounters {
    /// Entries of the histogram of batches.
    pub const BATCHES: usize = 16;

    /// Counts a poll that found `found` completions.
    #[inline]
    pub fn polled(&mut self, found: usize) {
        self.polls += 1;
        match found {
            0 => self.empty_polls += 1,
            _ => self.batches[found.min(Self::BATCHES) - 1] += 1,
        }
    }
}

impl AddAssign for PollCounters {
    /// Adds all counters except the high-water mark, which becomes the maximum of both.
    fn add_assign(&mut self, other: PollCounters) {
        self.polls += other.polls;
        self.empty_polls += other.empty_polls;
        self.batches.iter_mut().zip(other.batches).for_each(|(sum, more)| *sum += more);
        self.depth_high_water = self.depth_high_water.max(other.depth_high_water);
        self.async_events += other.async_events;
        self.wake_ups += other.wake_ups;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_counted_by_what_they_found() {
        let mut counters = PollCounters { depth_high_water: 7, ..PollCounters::default() };
        [0, 1, 0, 16, 40, 2].into_iter().for_each(|found| counters.polled(found));
        assert_eq!((counters.polls, counters.empty_polls), (6, 2));
        assert_eq!((counters.batches[0], counters.batches[1], counters.batches[15]), (1, 1, 2));
        counters += PollCounters { depth_high_water: 3, wake_ups: 2, ..counters };
        assert_eq!((counters.polls, counters.batches[15], counters.wake_ups), (12, 4, 2));
        assert_eq!(counters.depth_high_water, 7);
    }
}
