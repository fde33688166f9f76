//! The two ends of the rings that a calibration measures.
//!
//! They are the links that ranks of a host have, in arenas of their own, so that what is measured is what a
//! call does, by the same kernels. How long a way takes depends on where the lines of a message are
//! ([`Content`]), and a program's messages may be any of these.

use crate::{
    executor::{Combine, CopySink, ReduceSink, Writes},
    kernels::{Reducer, Threads},
    processors::Caches,
};
use collectives::{DType, ReduceOp};
use std::{hint, thread, time::Instant};
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError,
    driver::shm::{self, PullTarget},
    memory::{Arena, ArenaLayout, Registered, Slab, Span, SpanMut},
};

/// The reason why a measurement did not end.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Stalled(String);

impl Stalled {
    pub(super) fn new(why: &str) -> Stalled {
        Stalled(why.to_owned())
    }
}

impl From<TransportError> for Stalled {
    fn from(error: TransportError) -> Stalled {
        match error {
            // The other end takes its memory back when the time is over.
            TransportError::Revoked { .. } => Stalled::new(TOO_BUSY),
            other => Stalled(other.to_string()),
        }
    }
}

/// A wait for the other thread, up to the end of the time for all measurements.
#[derive(Debug)]
pub(super) struct Patience {
    polls: u32,
    deadline: Instant,
}

impl Patience {
    /// Fruitless polls before the clock is read, and the core yielded to a thread that may have to run here.
    const SPIN_POLLS: u32 = 2000;

    pub(super) fn until(deadline: Instant) -> Patience {
        Patience { polls: 0, deadline }
    }

    /// Waits a moment, after a fruitless poll.
    ///
    /// # Errors
    /// [`Stalled`] when the time is over.
    pub(super) fn turn(&mut self) -> Result<(), Stalled> {
        self.polls += 1;
        if self.polls <= Patience::SPIN_POLLS {
            hint::spin_loop();
            return Ok(());
        }
        if Instant::now() > self.deadline {
            return Err(Stalled::new(TOO_BUSY));
        }
        thread::yield_now();
        Ok(())
    }
}

/// The state of a message before an exchange, by what happened since the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Written by the program, in memory whose last message has left the other core's caches.
    Fresh,
    /// Written by the program, in the memory of the last one. If the peer has read that memory, the lines are
    /// in the other core's caches too, and each store first takes one out of there.
    Rewritten,
    /// Not written: the lines that a peer has read are in its caches still.
    Unchanged,
}

/// Bytes of the messages that are written in turn, at least and at most.
const WRITTEN_BYTES: [usize; 2] = [1 << 20, 8 << 20];

/// The reason of a measurement whose threads did not run at the same time.
pub(super) const TOO_BUSY: &str = "the machine is too busy";

/// One end, with the memory of its messages.
#[derive(Debug)]
pub(super) struct End {
    link: Box<dyn Link>,
    reducer: Reducer,
    /// Memory of the program, in words, which aligns it for the kernels: messages that are written in turn.
    plain: Vec<u64>,
    /// Offset in `plain` of the next message to be written, in bytes.
    next: usize,
    target: Vec<u64>,
    registered: Registered,
    /// Which of two messages it adds up.
    is_first: bool,
    /// Number of the latest exchange.
    number: u64,
    /// Whether the system lets memory be read by system call.
    pub(super) pulls: bool,
    /// End of the time for all measurements.
    pub(super) deadline: Instant,
}

/// Creates both ends, for messages of up to `most` bytes.
///
/// # Errors
/// [`Stalled`] when the system refuses the memory.
pub(super) fn pair(layout: ArenaLayout, most: usize, deadline: Instant) -> Result<[End; 2], Stalled> {
    // Two messages side by side.
    let slab_bytes = (2 * most).next_multiple_of(Slab::BLOCK_BYTES as usize);
    let layout = ArenaLayout { ranks: 2, lanes: 1, slab_bytes, ..layout };
    let ((first, of_first), (second, of_second)) = (Arena::shared(layout)?, Arena::shared(layout)?);
    let pid = std::process::id();
    let word = Box::new(0x7bcc_ca1b_u64);
    let probe_address = std::ptr::from_ref::<u64>(&word) as u64;
    let pulls = shm::probe_pull(&PullTarget { pid, probe_address, probe_value: *word }).is_ok();
    let pull = pulls.then_some(pid);
    let reducer =
        Reducer::new(DType::I32, ReduceOp::Sum).map_err(|error| Stalled::new(&error.to_string()))?;
    let end = |(rank, ours, object), theirs| -> Result<End, Stalled> {
        let (plain, target) = (vec![0; written_bytes(most) / 8], vec![0; most / 8]);
        let registered = Slab::new(ours, Some(object)).allocate(2 * most)?;
        let link = shm::link((rank, ours), (1 - rank, theirs), 0, pull);
        let is_first = rank == 0;
        Ok(End { link, reducer, plain, next: 0, target, registered, is_first, number: 0, pulls, deadline })
    };
    Ok([end((0, &first, of_first), &second)?, end((1, &second, of_second), &first)?])
}

impl End {
    /// Writes all memory of the messages. The first exchange of 2 MiB in new pages took 21 ms.
    pub(super) fn touch(&mut self) {
        self.plain.fill(1);
        self.target.fill(1);
        self.registered.as_mut_slice().fill(1);
    }

    /// Exchanges messages in plain memory, as `all_gather` does, and writes them first as `content` says.
    ///
    /// # Errors
    /// [`Stalled`] when the other end does not come, or the link fails.
    pub(super) fn gather(&mut self, way: Protocol, bytes: usize, content: Content) -> Result<(), Stalled> {
        let plain = bytes_of(&mut self.plain);
        let is_next = content == Content::Fresh && self.next + bytes <= plain.len();
        let at = if is_next { self.next } else { 0 };
        let source = plain.sub(at, bytes);
        if content == Content::Fresh {
            self.next = at + bytes;
        }
        if content != Content::Unchanged {
            addition(&self.reducer).apply(source, source.as_span(), source.as_span());
        }
        let mut sink = CopySink::new(bytes_of(&mut self.target).sub(0, bytes), Writes::Cached);
        self.number += 1;
        exchange((&mut *self.link, self.number, self.deadline), way, source.as_span(), &mut sink)
    }

    /// Exchanges messages in registered memory, and adds what it receives, as `all_reduce` in place does for
    /// small messages: in one stage.
    ///
    /// # Errors
    /// As for [`End::gather`].
    pub(super) fn combine(&mut self, way: Protocol, bytes: usize) -> Result<(), Stalled> {
        let own = self.registered.span_mut().sub(0, bytes);
        let theirs = bytes_of(&mut self.target).sub(0, bytes);
        self.number += 1;
        exchange(
            (&mut *self.link, self.number, self.deadline),
            way,
            own.as_span(),
            &mut CopySink::new(theirs, Writes::Cached),
        )?;
        addition(&self.reducer).apply(own, own.as_span(), theirs.as_span());
        Ok(())
    }

    /// The same in two stages, as for large messages: each end adds up one of two messages, and sends the
    /// result.
    ///
    /// # Errors
    /// As for [`End::gather`].
    pub(super) fn combine_in_stages(&mut self, way: Protocol, bytes: usize) -> Result<(), Stalled> {
        let both = self.registered.span_mut();
        let [first, second] = [both.sub(0, bytes), both.sub(bytes, bytes)];
        let (own, theirs) = if self.is_first { (first, second) } else { (second, first) };
        let mut sink = ReduceSink {
            combine: addition(&self.reducer),
            writes: Writes::Cached,
            local: own.as_span(),
            dst: own,
        };
        self.number += 1;
        exchange((&mut *self.link, self.number, self.deadline), way, theirs.as_span(), &mut sink)?;
        self.number += 1;
        exchange(
            (&mut *self.link, self.number, self.deadline),
            way,
            own.as_span(),
            &mut CopySink::new(theirs, Writes::Cached),
        )
    }
}

/// Returns the bytes of messages of up to `most` bytes that are written in turn: two messages at least. They
/// are twice a core's own caches, so that the other core has lost each message before its memory is written
/// again, and have a bound, since new pages take time.
fn written_bytes(most: usize) -> usize {
    let own = Caches::here().map_or(WRITTEN_BYTES[0], |caches| 2 * caches.own);
    own.clamp(WRITTEN_BYTES[0], WRITTEN_BYTES[1]).max(2 * most).next_multiple_of(most)
}

fn bytes_of(words: &mut [u64]) -> SpanMut<'_> {
    SpanMut::from(bytemuck::cast_slice_mut::<u64, u8>(words))
}

/// Returns the addition of integers, by the kernels of calls.
fn addition(reducer: &Reducer) -> Combine<'_> {
    Combine { reducer, elem_bytes: 4, threads: Threads::ONE, last: None }
}

/// Sends a message and receives one of the same length, both with this number, before the deadline.
fn exchange(
    (link, number, deadline): (&mut dyn Link, u64, Instant),
    way: Protocol,
    source: Span<'_>,
    sink: &mut dyn Sink,
) -> Result<(), Stalled> {
    let (mut send, mut recv) = (SendState::new(number, way), RecvState::new(number, source.len()));
    let (mut sent, mut received) = (false, false);
    let mut patience = Patience::until(deadline);
    while !(sent && received) {
        let mut advanced = false;
        if !sent {
            let progress = link.poll_send(&mut send, source)?;
            sent = progress == SendProgress::Complete;
            advanced |= sent || progress == SendProgress::Advanced;
        }
        if !received {
            let progress = link.poll_recv(&mut recv, sink)?;
            received = progress == RecvProgress::Complete;
            advanced |= progress != RecvProgress::Idle;
        }
        if !advanced {
            patience.turn().inspect_err(|_| link.abort())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use transport::ring::RingLayout;

    #[test]
    fn fresh_messages_are_in_other_memory_than_the_last_one() {
        let layout = ArenaLayout { ranks: 2, lanes: 1, ring: RingLayout::default(), slab_bytes: 0 };
        let deadline = Instant::now() + Duration::from_secs(60);
        let [mut first, mut second] = pair(layout, 64 << 10, deadline).expect("memory for a test");
        let messages = written_bytes(64 << 10) / (64 << 10);
        assert!(messages >= 16);
        let exchange =
            |end: &mut End| end.gather(Protocol::Copy, 64 << 10, Content::Fresh).expect("both are there");
        thread::scope(|scope| {
            scope.spawn(|| (0..=messages).for_each(|_| exchange(&mut second)));
            for number in 0..=messages {
                exchange(&mut first);
                assert_eq!(first.next, (number % messages + 1) * (64 << 10), "after message {number}");
            }
        });
    }

    /// The error said that a rank had failed, where there are no ranks.
    #[test]
    fn an_end_whose_other_end_ran_out_of_time_says_so() {
        let layout = ArenaLayout { ranks: 2, lanes: 1, ring: RingLayout::default(), slab_bytes: 0 };
        let [mut first, mut second] = pair(layout, 4096, Instant::now()).expect("memory for a test");
        let over = first.combine(Protocol::Direct, 4096).expect_err("nobody answers");
        assert_eq!(over.to_string(), TOO_BUSY);
        second.deadline = Instant::now() + Duration::from_secs(60);
        let revoked = second.combine(Protocol::Direct, 4096).expect_err("the memory is gone");
        assert_eq!(revoked.to_string(), TOO_BUSY);
    }
}
