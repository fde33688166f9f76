//! The seam between the runtime and what moves bytes.
//!
//! A link is polled: [`Link::poll_send`] and [`Link::poll_recv`] do what can be done without waiting and say how
//! far they came. The runtime keeps the state of each message ([`SendState`], [`RecvState`]) and passes the
//! memory anew with each poll, so that a link holds no borrow and allocates nothing.

use crate::{
    Capabilities, Counters, PollCounters, TransportError,
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
    /// What must come to pass before the source is free, by the driver's own numbering; set once posted.
    pub(crate) awaits: Option<u64>,
    /// See [`Size`].
    pub(crate) size: Size,
    /// Complete only once the receiver has matched it, wherever its bytes are.
    pub(crate) confirmed: bool,
}

impl SendState {
    /// A message not yet started.
    #[must_use]
    #[inline]
    pub fn new(digest: u64, protocol: Protocol) -> SendState {
        SendState { digest, protocol, staged: 0, awaits: None, size: Size::Small, confirmed: false }
    }

    /// The same, as part of an operation of this size.
    #[must_use]
    #[inline]
    pub fn sized(self, size: Size) -> SendState {
        SendState { size, ..self }
    }

    /// The same, but complete only once the receiver has asked for it in the same operation: for a rank that nothing
    /// else would tell that its peer is in the same call. Links whose peers' boards are mapped need not heed it.
    #[must_use]
    #[inline]
    pub fn confirmed(self) -> SendState {
        SendState { confirmed: true, ..self }
    }
}

/// Whether a message is part of an operation that is worth setting up transfers without copies for. Both ends must say
/// the same, so it follows from the operation and not from where anybody's memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// Latency counts: the message may be copied.
    #[default]
    Small,
    /// Bandwidth counts: the message's bytes go straight from registered memory into registered memory.
    Bulk,
}

/// A message being received.
#[derive(Clone, Copy, Debug)]
pub struct RecvState {
    /// Names the operation that the message must belong to.
    pub(crate) digest: u64,
    /// Bytes expected.
    pub(crate) len: usize,
    /// Bytes taken so far, from the first one on: they are where they belong.
    pub(crate) taken: usize,
    /// See [`Size`].
    pub(crate) size: Size,
    /// The message's number by the driver's own count, once it has been announced.
    pub(crate) announced: Option<u64>,
}

impl RecvState {
    /// A message of which nothing has been taken yet.
    #[must_use]
    #[inline]
    pub fn new(digest: u64, len: usize) -> RecvState {
        RecvState { digest, len, taken: 0, size: Size::Small, announced: None }
    }

    /// The same, as part of an operation of this size.
    #[must_use]
    #[inline]
    pub fn sized(self, size: Size) -> RecvState {
        RecvState { size, ..self }
    }

    /// Bytes taken so far: so many of the first ones are where they belong, or combined, and will not be written again.
    #[must_use]
    #[inline]
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

    /// How the link's completions were found. Links that share a queue report it once.
    fn poll_counters(&self) -> PollCounters {
        PollCounters::default()
    }

    /// Starts or continues sending `src`. Messages are started in the order they are to arrive in, and none
    /// before the one ahead of it is posted or complete.
    ///
    /// # Errors
    /// When the link is broken; it is of no further use then.
    fn poll_send(&mut self, state: &mut SendState, src: Span<'_>) -> Result<SendProgress, TransportError>;

    /// The same for a message of which so far only the first `ready` bytes are there: no others are read. They must stay
    /// what they are, and more must come; once all are there, [`Link::poll_send`] goes on with it.
    ///
    /// A link need not begin before all of a message is there, and those that can't send in parts do not.
    ///
    /// # Errors
    /// As for [`Link::poll_send`].
    fn poll_send_prefix(
        &mut self,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        if ready < src.len() { Ok(SendProgress::Idle) } else { self.poll_send(state, src) }
    }

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

    /// Tells of a message that is to be received once those told of before it have been, so that its memory can be
    /// made known to the peer ahead of time. `landing` is memory that the message may be put into from now on, or none
    /// when its bytes are to be handed to a sink; a link that would do so behind the caller's back, between polls, does it
    /// only where it knows that the memory is registered. False when the link has no use for it at the moment;
    /// the message may then be announced later, or not at all, but none behind it before.
    ///
    /// # Errors
    /// When the link is broken.
    fn announce(
        &mut self,
        _state: &mut RecvState,
        _landing: Option<SpanMut<'_>>,
    ) -> Result<bool, TransportError> {
        Ok(false)
    }

    /// Ends all use of the caller's memory, now: what was announced or posted is given up, and the link is of no
    /// further use. Called when an operation has failed, before its memory goes back to its owner.
    fn abort(&mut self) {}
}
