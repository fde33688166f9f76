//! The interface between the runtime and the drivers.
//!
//! The runtime polls a link: [`Link::poll_send`] and [`Link::poll_recv`] advance one message as far as
//! possible without waiting and return the progress. The runtime keeps the state of each message
//! ([`SendState`], [`RecvState`]) and passes the memory with every poll. A link therefore holds no borrow and
//! allocates nothing per message.

use crate::{
    Capabilities, Counters, PollCounters, TransportError,
    memory::{Span, SpanMut},
};

/// Way in which a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Copy through the link's own memory.
    ///
    /// A message that fits into the flag's cache line travels there; a larger one travels piece by piece
    /// through the staging area. The source may be any memory and is free once the last piece is staged.
    Copy,
    /// In-place read by the receiver.
    ///
    /// The source must be registered memory (see [`crate::memory::Arena::locate`]) and stays in use until the
    /// receiver is done.
    Direct,
    /// Read by a system call of the receiver.
    ///
    /// The source may be any memory and stays in use until the receiver is done.
    Pull,
    /// [`Protocol::Pull`] where the source is likely to have the bytes of the last message from there, and
    /// [`Protocol::Copy`] elsewhere.
    ///
    /// The lines of an unchanged message are still in the caches of the receiver's core.
    PullUnchanged,
}

/// Progress of a message being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendProgress {
    /// Nothing happened: there is no credit.
    Idle,
    /// A part is staged; poll again. No later message of this link may start.
    Advanced,
    /// The message is on its way and its memory is still in use. Later messages of this link may start.
    Posted,
    /// The message's memory may be overwritten.
    Complete,
}

/// Progress of a message being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvProgress {
    /// Nothing has arrived.
    Idle,
    /// A part was received; poll again.
    Advanced,
    /// The whole message was received.
    Complete,
}

/// State of a message being sent.
#[derive(Clone, Copy, Debug)]
pub struct SendState {
    /// Identifies the operation; the receiver rejects a message of another one.
    pub(crate) digest: u64,
    /// Way in which the message travels.
    pub(crate) protocol: Protocol,
    /// Bytes staged so far.
    pub(crate) staged: usize,
    /// Event after which the source is free, in the driver's own numbering; set once the message is posted.
    pub(crate) awaits: Option<u64>,
    /// Size class of the operation.
    pub(crate) size: SizeClass,
    /// Whether the message is complete only once the receiver has matched it, regardless of where its bytes
    /// are.
    pub(crate) match_ack: bool,
    /// Whether the receiver only waits for this message.
    pub(crate) is_awaited: bool,
}

impl SendState {
    /// Returns the state of a message that has not started.
    #[must_use]
    #[inline]
    pub fn new(digest: u64, protocol: Protocol) -> SendState {
        SendState {
            digest,
            protocol,
            staged: 0,
            awaits: None,
            size: SizeClass::Small,
            match_ack: false,
            is_awaited: false,
        }
    }

    /// Sets the size class of the operation that the message belongs to.
    #[must_use]
    #[inline]
    pub fn with_size(self, size: SizeClass) -> SendState {
        SendState { size, ..self }
    }

    /// Says that the receiver has nothing to do but wait for this message, as it has where it sends none at
    /// the same time.
    ///
    /// A link may send the message in smaller parts then, which the receiver takes while others are sent.
    #[must_use]
    #[inline]
    pub fn awaited(self) -> SendState {
        SendState { is_awaited: true, ..self }
    }

    /// Makes the message complete only once the receiver has asked for it in the same operation.
    ///
    /// This serves a rank that has no other way to learn that its peer is in the same call. Links that have
    /// the peer's board mapped may ignore it.
    #[must_use]
    #[inline]
    pub fn with_match_ack(self) -> SendState {
        SendState { match_ack: true, ..self }
    }
}

/// Size class of an operation: whether it is worth setting up transfers without copies.
///
/// Both ends must use the same class, so the class follows from the operation and never from the location of
/// a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SizeClass {
    /// Latency matters: the message may be copied.
    #[default]
    Small,
    /// Bandwidth matters: the bytes go straight from registered memory into registered memory.
    Bulk,
}

/// State of a message being received.
#[derive(Clone, Copy, Debug)]
pub struct RecvState {
    /// Identifies the operation that the message must belong to.
    pub(crate) digest: u64,
    /// Bytes expected.
    pub(crate) len: usize,
    /// Bytes received so far, counted from the first one; they are in their destination.
    pub(crate) received: usize,
    /// Size class of the operation.
    pub(crate) size: SizeClass,
    /// The message's number in the driver's own count, once the message is announced.
    pub(crate) announced: Option<u64>,
}

impl RecvState {
    /// Returns the state of a message of which nothing has arrived.
    #[must_use]
    #[inline]
    pub fn new(digest: u64, len: usize) -> RecvState {
        RecvState { digest, len, received: 0, size: SizeClass::Small, announced: None }
    }

    /// Sets the size class of the operation that the message belongs to.
    #[must_use]
    #[inline]
    pub fn with_size(self, size: SizeClass) -> RecvState {
        RecvState { size, ..self }
    }

    /// Returns the number of leading bytes received so far.
    ///
    /// These bytes are in their destination, or reduced into it, and the link does not write them again.
    #[must_use]
    #[inline]
    pub fn received(&self) -> usize {
        self.received
    }
}

/// Destination of a received message.
pub trait Sink {
    /// Receives the message's bytes from `offset` on. `data` is valid during the call only.
    ///
    /// `offset` is a multiple of 16: a link cuts no element.
    fn write(&mut self, offset: usize, data: Span<'_>);

    /// Returns the memory that the message is to be copied to, if the message is only to be copied.
    ///
    /// A link that can place bytes there itself does so and does not call [`Sink::write`] for them.
    fn destination(&mut self) -> Option<SpanMut<'_>>;
}

/// The next message to receive, where it is a brief one.
#[derive(Clone, Copy, Debug)]
pub enum BriefMessage<'l> {
    /// Nothing has arrived, or not all of it.
    NotYet,
    /// The bytes of the whole message, in two parts, the second of which may be empty.
    Whole([Span<'l>; 2]),
    /// The next message is no brief one, or not the expected one. [`Link::poll_recv`] tells more.
    Another,
}

/// One end of a FIFO between two ranks on one lane.
///
/// No method blocks or sleeps. An error other than [`TransportError::Mismatch`] or [`TransportError::Length`]
/// means that the link is broken and of no further use.
pub trait Link: Send + std::fmt::Debug {
    /// Returns the link's capabilities and limits.
    fn capabilities(&self) -> &Capabilities;

    /// Returns the totals since the link was opened.
    fn counters(&self) -> Counters;

    /// Returns the polling statistics of the link's completion queue.
    ///
    /// Links that share a queue report it once.
    fn poll_counters(&self) -> PollCounters {
        PollCounters::default()
    }

    /// Starts or continues sending `src`.
    ///
    /// Messages start in the order in which they are to arrive. A message may start only when the one ahead
    /// of it is posted or complete.
    ///
    /// # Errors
    /// Any [`TransportError`] when the link is broken; the link is of no further use then.
    fn poll_send(&mut self, state: &mut SendState, src: Span<'_>) -> Result<SendProgress, TransportError>;

    /// Starts or continues sending a message of which only the first `ready` bytes are valid so far.
    ///
    /// The link reads no other bytes. The valid bytes must not change, and the rest must follow;
    /// [`Link::poll_send`] continues the message once all of it is valid. A link that cannot send a message
    /// in parts waits for the whole message, as the default implementation does.
    ///
    /// # Errors
    /// The same as [`Link::poll_send`].
    fn poll_send_prefix(
        &mut self,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        if ready < src.len() { Ok(SendProgress::Idle) } else { self.poll_send(state, src) }
    }

    /// Starts or continues receiving the next message.
    ///
    /// A message must be complete before the next one starts.
    ///
    /// # Errors
    /// - [`TransportError::Mismatch`] when the next message belongs to another operation, and
    ///   [`TransportError::Length`] when it has another length. The message stays queued.
    /// - Any other [`TransportError`] when the link is broken.
    fn poll_recv(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError>;

    /// Sends a brief message: one so short that it leaves at once, and its source is free then.
    ///
    /// Returns false, and has done nothing, if the message is not brief on this link, or finds no room.
    /// [`Link::poll_send`] sends it then, and reports errors. The message is like any other one of this
    /// digest for the receiver. `is_awaited`: see [`SendState::awaited`].
    fn send_brief(&mut self, _digest: u64, _src: Span<'_>, _is_awaited: bool) -> bool {
        false
    }

    /// Looks for the next message, of which nothing has been received, until it is there, or has been looked
    /// for `polls` times in vain.
    ///
    /// A message that is returned stays the next one until [`Link::end_brief`] is called. The default
    /// implementation knows no brief messages.
    fn poll_brief(&mut self, _digest: u64, _len: usize, _polls: u32) -> BriefMessage<'_> {
        BriefMessage::Another
    }

    /// Ends the message of `len` bytes that [`Link::poll_brief`] has returned. Its bytes are no longer used;
    /// `is_copied` tells whether they were copied rather than combined. `next_sent`: as the argument of
    /// [`Link::prepare_send`], if there is a next message to prepare for.
    fn end_brief(&mut self, _len: usize, _is_copied: bool, _next_sent: Option<usize>) {}

    /// Prepares for the next message to send, which is likely to have `len` bytes and to come soon. The peer
    /// does not wait for it yet.
    ///
    /// A link may fetch the memory that it is going to write. Nothing else changes.
    fn prepare_send(&mut self, _len: usize) {}

    /// Prepares for the reply to what was last sent, of `len` bytes, before a caller that waits for nothing
    /// else polls it for the first time.
    ///
    /// A link may wait as long as replies have taken, up to a microsecond, and prepare for the next message
    /// to send, as [`prepare_send`](Link::prepare_send) does. Nothing else changes.
    fn await_reply(&mut self, _len: usize) {}

    /// Returns the digest of the next message, if one has arrived.
    fn peek_digest(&self) -> Option<u64>;

    /// Announces a receive ahead of time, so that the link can tell the peer about its memory.
    ///
    /// Receives are announced in order. `destination` is memory that the link may write the message to from
    /// now on; `None` means that a sink takes the bytes. A link that writes to `destination` between polls
    /// does so only where it knows that the memory is registered.
    ///
    /// Returns false when the link has no use for the announcement at the moment. The message may then be
    /// announced later or not at all, but no later message may be announced before it.
    ///
    /// # Errors
    /// Any [`TransportError`] when the link is broken.
    fn announce(
        &mut self,
        _state: &mut RecvState,
        _destination: Option<SpanMut<'_>>,
    ) -> Result<bool, TransportError> {
        Ok(false)
    }

    /// Ends all use of the caller's memory at once.
    ///
    /// The link drops everything announced or posted and is of no further use. A peer that reads a posted
    /// message in place gets an error from now on. The runtime calls this method when an operation has
    /// failed, before the memory returns to its owner.
    fn abort(&mut self) {}
}
