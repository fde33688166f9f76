//! The queue of future events, ordered by time.
//!
//! Events of equal time leave in the order in which they entered, so that a simulation is a function of its
//! arguments. Times are nonnegative seconds; the bits of such numbers have the order of the numbers.

use std::{cmp::Reverse, collections::BinaryHeap};

/// A future event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The last byte of a piece has left, if `prediction` is still the stream's latest prediction.
    Left { stream: u32, prediction: u32 },
    /// A piece has arrived.
    Arrived { stream: u32 },
    /// The sender's processor has finished a piece.
    Sent { stream: u32 },
    /// The receiver's processor has finished a piece.
    Taken { stream: u32 },
    /// The memory of a send is free.
    Released { stream: u32 },
    /// The sender has received a grant or a credit, and may go on.
    Resume { stream: u32 },
    /// A local step is done.
    Done { step: u32 },
    /// A rank has entered the call.
    Entered { rank: u32 },
}

/// The future events.
#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Number of events so far.
    count: u64,
}

impl Events {
    pub(super) fn at(&mut self, time: f64, event: Event) {
        debug_assert!(time >= 0.0 && time.is_finite(), "{event:?} at {time}");
        self.heap.push(Reverse((time.to_bits(), self.count, event)));
        self.count += 1;
    }

    /// Returns the time of the next event.
    pub(super) fn next_time(&self) -> Option<f64> {
        self.heap.peek().map(|Reverse((time, ..))| f64::from_bits(*time))
    }

    pub(super) fn pop(&mut self) -> Option<(f64, Event)> {
        self.heap.pop().map(|Reverse((time, _, event))| (f64::from_bits(time), event))
    }

    /// Returns the number of events so far.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}
