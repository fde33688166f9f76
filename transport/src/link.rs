//! The seam between the runtime and what moves bytes.
//!
//! A link is polled: [`Link::poll_send`] and [`Link::poll_recv`] do what can be done without waiting and say how
//! far they came. The runtime keeps the state of each message ([`SendState`], [`RecvState`]) and passes the
//! memory anew with each poll, so that a link holds no borrow and allocates nothing.

use crate::{
    Capabilities, Counters, TransportError,
    memory::{Span, SpanMut},
};

/// How a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Through the link's own memory: within the flag's cache line when it fits there, else piece by piece
    /// through the staging area. The source may be any memory and is free as soon as the last piece is staged.
    Copy,
    /// The receiver reads the source in place. The source must be registered memory, see
    /// [`crate::memory::Arena::locate`], and stays in use until the receiver is done.
    Direct,
    /// The receiver pulls the source by a system call. The source may be any memory and stays in use until the
    /// receiver is done.
    Pull,
}

/// How far a message to be sent has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendProgress {
    /// Nothing happened: no credit.
    Idle,
    /// Part of it was staged; poll again. No later message of this link may be started.
    Advanced,
    /// It is on its way; its memory is still in use. Later messages of this link may be started.
    Posted,
    /// Its memory may be overwritten.
    Complete,
}

/// How far a message to be received has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvProgress {
    /// Nothing had arrived.
    Idle,
    /// Part of it was taken; poll again.
    Advanced,
    /// All of it was taken.
    Complete,
}

/// A message being sent.
#[derive(Clone, Copy, Debug)]
pub struct SendState {
    /// Names the operation; the receiver refuses another one.
    pub(crate) digest: u64,
    /// How it travels.
    pub(crate) protocol: Protocol,
    /// Bytes staged so far.
    pub(crate) staged: usize,
    /// The cell that must be consumed before the source is free; set once posted.
    pub(crate) awaits: Option<u64>,
}

impl SendState {
    /// A message not yet started.
    #[must_use]
    pub fn new(digest: u64, protocol: Protocol) -> SendState {
        SendState { digest, protocol, staged: 0, awaits: None }
    }
}

/// A message being received.
#[derive(Clone, Copy, Debug)]
pub struct RecvState {
    /// Names the operation that the message must belong to.
    pub(crate) digest: u64,
    /// Bytes expected.
    pub(crate) len: usize,
    /// Bytes taken so far.
    pub(crate) taken: usize,
}

impl RecvState {
    /// A message of which nothing has been taken yet.
    #[must_use]
    pub fn new(digest: u64, len: usize) -> RecvState {
        RecvState { digest, len, taken: 0 }
    }

    /// Bytes taken so far.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken
    }
}

/// Where a received message goes.
pub trait Sink {
    /// Takes the message's bytes from `offset` on. `data` is valid during the call only.
    fn take(&mut self, offset: usize, data: Span<'_>);

    /// The memory the message is to be copied to, if that is all there is to do: a link that can put bytes there
    /// itself does so and does not call [`Sink::take`] for them.
    fn landing(&mut self) -> Option<SpanMut<'_>>;
}

/// One end of a FIFO between two ranks on one lane.
pub trait Link: Send + std::fmt::Debug {
    /// What the link can do.
    fn capabilities(&self) -> &Capabilities;

    /// What the link has done.
    fn counters(&self) -> Counters;

    /// Starts or continues sending `src`. Messages are started in the order they are to arrive in, and none
    /// before the one ahead of it is posted or complete.
    ///
    /// # Errors
    /// When the link is broken; it is of no further use then.
    fn poll_send(&mut self, state: &mut SendState, src: Span<'_>) -> Result<SendProgress, TransportError>;

    /// Starts or continues receiving the next message. It must be completed before another one is begun.
    ///
    /// # Errors
    /// [`TransportError::Mismatch`] or [`TransportError::Length`] when the next message is not the expected one
    /// (the message stays where it is), others when the link is broken.
    fn poll_recv(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError>;

    /// The digest of the next message, if one has arrived.
    fn peek_digest(&self) -> Option<u64>;
}
