//! Messages outside of groups: one message, polled on its link without a program.
//!
//! A program, its binding and the bookkeeping of its steps take longer than a small message itself. Traced
//! runs and messages in groups have programs.

use super::{At, Executor, Stop, Waiting, Watch};
use crate::executor::sink::CopySink;
use std::sync::atomic::Ordering::Relaxed;
use topology::Rank;
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, SizeClass, TransportError, Waiter,
    memory::{Span, SpanMut},
};

/// A message to or from another rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'m> {
    pub(crate) peer: Rank,
    /// Index of the link to the peer.
    pub(crate) link: usize,
    /// Digest of the call, which the message carries.
    pub(crate) digest: u64,
    pub(crate) memory: MessageMemory<'m>,
}

/// The bytes of a message, and its direction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MessageMemory<'m> {
    Send(Span<'m>),
    Recv(SpanMut<'m>),
}

impl<'m> Message<'m> {
    /// Returns the memory of the message.
    #[inline]
    pub(crate) fn span(&self) -> Span<'m> {
        match self.memory {
            MessageMemory::Send(src) => src,
            MessageMemory::Recv(dst) => dst.as_span(),
        }
    }

    fn sends(&self) -> bool {
        matches!(self.memory, MessageMemory::Send(_))
    }

    #[cold]
    fn failed(&self, error: TransportError) -> Stop {
        let mut step = String::new();
        At::Single { peer: self.peer, sends: self.sends() }.write(&mut step);
        Stop::Link { step, peer: self.peer, error }
    }
}

/// The progress of a message.
#[derive(Clone, Copy, PartialEq)]
enum Progress {
    Idle,
    Advanced,
    Complete,
}

impl Executor {
    /// Whether runs are recorded in a trace.
    #[inline]
    pub(crate) fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    /// Returns the state of a message outside of programs, by its length and the place of its bytes.
    #[inline]
    pub(crate) fn message_to_send(&mut self, index: usize, digest: u64, src: Span<'_>) -> SendState {
        let (size, protocol) = self.protocol_of_message(index, src);
        SendState::new(digest, protocol).with_size(size).awaited()
    }

    /// Returns the size class of a message outside of programs, and the way in which it travels.
    #[inline(always)]
    pub(super) fn protocol_of_message(&mut self, index: usize, src: Span<'_>) -> (SizeClass, Protocol) {
        let size = self.protocols.size_class(src.len() as u64);
        let registered = || self.slab.locate(src.as_ptr(), src.len()).is_some();
        let link = self.links.at(index);
        let message = (size, src.len());
        (size, self.protocols.choose(|| link.capabilities(), message, None, || false, registered))
    }

    /// Returns the state of a receive outside of programs.
    #[inline]
    pub(crate) fn message_to_receive(&self, digest: u64, len: usize) -> RecvState {
        RecvState::new(digest, len).with_size(self.protocols.size_class(len as u64))
    }

    /// Sends or receives a message. After an error no link uses its memory.
    #[inline]
    pub(crate) fn run_message(&mut self, message: &Message<'_>, watch: &mut dyn Watch) -> Result<(), Stop> {
        let ran = match message.memory {
            MessageMemory::Send(src) => {
                let mut state = self.message_to_send(message.link, message.digest, src);
                let mut is_posted = false;
                self.poll_message(message, watch, |link| {
                    Ok(match link.poll_send(&mut state, src)? {
                        SendProgress::Complete => Progress::Complete,
                        SendProgress::Advanced => Progress::Advanced,
                        // The end of the message is waited for.
                        SendProgress::Posted if !is_posted => {
                            is_posted = true;
                            Progress::Advanced
                        }
                        SendProgress::Posted | SendProgress::Idle => Progress::Idle,
                    })
                })
            }
            MessageMemory::Recv(dst) => {
                let mut state = self.message_to_receive(message.digest, dst.len());
                let mut sink = CopySink::new(dst, self.protocols.writes_of(dst.len()));
                self.poll_message(message, watch, |link| {
                    Ok(match link.poll_recv(&mut state, &mut sink)? {
                        RecvProgress::Complete => Progress::Complete,
                        RecvProgress::Advanced => Progress::Advanced,
                        RecvProgress::Idle => Progress::Idle,
                    })
                })
            }
        };
        ran.map_err(|stop| self.abort(stop))
    }

    /// Polls a message until it is complete, and asks the watch when the wait gets long.
    #[inline(always)]
    fn poll_message(
        &mut self,
        message: &Message<'_>,
        watch: &mut dyn Watch,
        mut poll: impl FnMut(&mut dyn Link) -> Result<Progress, TransportError>,
    ) -> Result<(), Stop> {
        // Most sends are complete at once, and need no wait.
        let first = poll(&mut **self.links.at(message.link)).map_err(|error| message.failed(error))?;
        if first == Progress::Complete {
            return Ok(());
        }
        let mut waiter = Waiter::new(self.wait, self.sleeper.as_deref());
        let at = At::Single { peer: message.peer, sends: message.sends() };
        let mut progress = first;
        loop {
            let look = match progress {
                Progress::Complete => return Ok(()),
                Progress::Advanced => {
                    waiter.reset();
                    self.wanted.load(Relaxed) != 0
                }
                Progress::Idle => waiter.idle(),
            };
            if look
                && let Err(error) = watch.look(&Waiting { at, links: &self.links, waited: waiter.waited() })
            {
                // The message may have arrived since the last poll, before its sender left.
                let link = &mut **self.links.at(message.link);
                match poll(link).map_err(|error| message.failed(error))? {
                    Progress::Complete => return Ok(()),
                    Progress::Advanced if progress == Progress::Idle => {}
                    _ => return Err(Stop::Watch(error)),
                }
            }
            progress = poll(&mut **self.links.at(message.link)).map_err(|error| message.failed(error))?;
        }
    }
}
