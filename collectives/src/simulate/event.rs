//! Queue of future events, ordered by time.
//!
//! Events of equal time leave in the order in which they entered, so that a simulation is a function of its
//! arguments. Times are seconds, never negative; the bits of such numbers are ordered as the numbers are.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A piece has left for good, if this is still the stream's latest word about it.
    Left { stream: u32, word: u32 },
    /// A piece has arrived.
    Arrived { stream: u32 },
    /// The sender's processor is done with a piece.
    Sent { stream: u32 },
    /// The receiver's processor is done with a piece.
    Taken { stream: u32 },
    /// A send's memory is free.
    Released { stream: u32 },
    /// The sender has learnt of something, and may go on.
    Word { stream: u32 },
    /// A local step is done.
    Done { step: u32 },
    /// A rank has entered the call.
    Entered { rank: u32 },
}

/// Events to come.
#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// How many there have been.
    count: u64,
}

impl Events {
    pub(super) fn at(&mut self, time: f64, event: Event) {
        debug_assert!(time >= 0.0 && time.is_finite(), "{event:?} at {time}");
        self.heap.push(Reverse((time.to_bits(), self.count, event)));
        self.count += 1;
    }

    /// When the next one is.
    pub(super) fn next_time(&self) -> Option<f64> {
        self.heap.peek().map(|Reverse((time, ..))| f64::from_bits(*time))
    }

    pub(super) fn pop(&mut self) -> Option<(f64, Event)> {
        self.heap.pop().map(|Reverse((time, _, event))| (f64::from_bits(time), event))
    }

    /// How many there have been.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}
