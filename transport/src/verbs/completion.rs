//! Completion queues and completion channels.
//!
//! # Safety
//! A queue lives until its last owner is dropped; queue pairs own it, and it owns its channel. Verbs allow
//! several threads to poll a queue at the same time. A poll writes as many completions as it returns, and no
//! others are read. Every completion event is acknowledged once, before its queue can be destroyed: the
//! library waits for the acknowledgement.

use super::{
    Action, Context, VerbsError,
    context::set_nonblocking,
    errno::{Errno, check},
};
use std::{
    ffi::c_int,
    mem::MaybeUninit,
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
    sync::Arc,
};
use verbs_sys::{CompChannel, Cq, Wc, WcFlags, WcOpcode, WcStatus};

/// Maximum completions that one poll returns.
pub const POLL_BATCH: usize = 16;

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The work request's identifier.
    pub id: u64,
    /// Status of the work request.
    pub status: WcStatus,
    /// Operation of the work request; valid only on success.
    pub opcode: WcOpcode,
    /// Bytes received.
    pub bytes: u32,
    /// Immediate data, in host byte order.
    pub imm: Option<u32>,
    /// Number of this end's queue pair.
    pub qp: u32,
}

impl Default for Completion {
    fn default() -> Completion {
        Completion { id: 0, status: WcStatus::SUCCESS, opcode: WcOpcode::SEND, bytes: 0, imm: None, qp: 0 }
    }
}

impl From<&Wc> for Completion {
    #[inline]
    fn from(wc: &Wc) -> Completion {
        let has_imm = wc.status == WcStatus::SUCCESS && WcFlags(wc.wc_flags).contains(WcFlags::WITH_IMM);
        Completion {
            id: wc.wr_id,
            status: wc.status,
            opcode: wc.opcode,
            bytes: wc.byte_len,
            imm: has_imm.then(|| u32::from_be(wc.imm_data)),
            qp: wc.qp_num,
        }
    }
}

impl VerbsError {
    /// Returns the error of a work request that completed with a failure status.
    #[must_use]
    pub fn of_work(context: &Context, completion: &Completion) -> VerbsError {
        let (device, queue_pair) = (context.name().to_owned(), completion.qp);
        VerbsError::Work { device, queue_pair, status: completion.status }
    }
}

/// Completions of one poll, as the device has written them.
#[derive(Debug)]
pub struct CompletionBatch {
    found: [MaybeUninit<Wc>; POLL_BATCH],
    /// Number of completions, of which each is initialized.
    count: usize,
}

impl Default for CompletionBatch {
    #[inline]
    fn default() -> CompletionBatch {
        CompletionBatch { found: [const { MaybeUninit::uninit() }; POLL_BATCH], count: 0 }
    }
}

impl CompletionBatch {
    /// Returns the number of completions.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no completions.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the completions in order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Completion> {
        // SAFETY: a poll has written the first `count`.
        self.found[..self.count].iter().map(|found| Completion::from(unsafe { found.assume_init_ref() }))
    }
}

/// A completion queue. Clones share it.
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    raw: NonNull<Cq>,
    depth: u32,
    context: Context,
    /// Destroyed after the queue.
    _channel: Option<Channel>,
}

// SAFETY: verbs allow any thread to use a completion queue, several at a time.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Context {
    /// Creates a completion channel with a non-blocking descriptor.
    ///
    /// # Errors
    /// [`VerbsError::Refused`], with `EOPNOTSUPP` where the device has no completion events.
    pub fn channel(&self) -> Result<Channel, VerbsError> {
        Channel::of(self)
    }

    /// Creates a completion queue for `depth` completions. An armed queue sends its events to `channel`.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when the device does not grant the queue.
    pub fn completion_queue(
        &self,
        depth: u32,
        channel: Option<&Channel>,
    ) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::of(self, depth, channel)
    }
}

impl CompletionQueue {
    pub(super) fn of(
        context: &Context,
        depth: u32,
        channel: Option<&Channel>,
    ) -> Result<CompletionQueue, VerbsError> {
        let refused = |errno| context.refused(Action::CompletionQueue { depth }, errno);
        let cqe = c_int::try_from(depth).map_err(|_| refused(Errno::EINVAL))?;
        let raw_channel = channel.map_or(ptr::null_mut(), Channel::raw);
        Errno::clear();
        // SAFETY: device and channel are alive; every device has completion vector 0.
        let raw = unsafe {
            (context.functions().ibv_create_cq)(context.raw(), cqe, ptr::null_mut(), raw_channel, 0)
        };
        let raw = NonNull::new(raw).ok_or_else(|| refused(Errno::last()))?;
        // SAFETY: the queue was created above.
        let granted = unsafe { (&raw const (*raw.as_ptr()).cqe).read() };
        // A device that does not say what it grants is taken at its word.
        let depth = u32::try_from(granted).ok().filter(|granted| *granted > 0).unwrap_or(depth);
        Ok(CompletionQueue(Arc::new(Inner {
            raw,
            depth,
            context: context.clone(),
            _channel: channel.cloned(),
        })))
    }

    /// Returns the number of completions that the queue has room for.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.0.depth
    }

    /// Removes up to [`POLL_BATCH`] completions from the queue and returns them.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when the queue has failed.
    #[inline]
    pub fn poll<'a>(&self, out: &'a mut [Completion; POLL_BATCH]) -> Result<&'a [Completion], VerbsError> {
        self.poll_up_to(POLL_BATCH, out)
    }

    /// Removes up to `max` completions from the queue and returns them.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when the queue has failed.
    #[inline]
    pub fn poll_up_to<'a>(
        &self,
        max: usize,
        out: &'a mut [Completion; POLL_BATCH],
    ) -> Result<&'a [Completion], VerbsError> {
        let mut batch = CompletionBatch::default();
        self.poll_batch(max, &mut batch)?;
        for (to, from) in out.iter_mut().zip(batch.iter()) {
            *to = from;
        }
        Ok(&out[..batch.len()])
    }

    /// Removes up to `max` completions from the queue into a batch, whose former completions are lost.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when the queue has failed; the batch is empty then.
    #[inline]
    pub fn poll_batch(&self, max: usize, batch: &mut CompletionBatch) -> Result<(), VerbsError> {
        batch.count = 0;
        let max = max.min(POLL_BATCH);
        let raw = self.0.raw.as_ptr();
        // SAFETY: the queue is alive and with it its device; `Context::open` checked that the device's table
        // has the operation.
        let poll = unsafe { (*(*raw).context).ops.poll_cq };
        let Some(poll) = poll else { return Err(self.refused(Action::Poll, Errno::ENOSYS)) };
        // SAFETY: the queue is alive, and there is room for `max` completions.
        let count = unsafe { poll(raw, max as c_int, batch.found.as_mut_ptr().cast()) };
        let Ok(count) = usize::try_from(count) else {
            return Err(self.refused(Action::Poll, Errno::of_result(count)));
        };
        batch.count = count.min(max);
        Ok(())
    }

    /// Requests an event for the next completion.
    ///
    /// Completions that are in the queue already cause no event, so poll once more before sleeping.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] where the device has no completion events, or the queue no channel.
    pub fn arm(&self) -> Result<(), VerbsError> {
        let raw = self.0.raw.as_ptr();
        // SAFETY: the queue is alive, and with it its device.
        let arm = unsafe { (*(*raw).context).ops.req_notify_cq };
        let Some(arm) = arm else { return Err(self.refused(Action::Arm, Errno::EOPNOTSUPP)) };
        // SAFETY: the queue is alive.
        check(unsafe { arm(raw, 0) }).map_err(|errno| self.refused(Action::Arm, errno))
    }

    pub(super) fn raw(&self) -> *mut Cq {
        self.0.raw.as_ptr()
    }

    #[cold]
    fn refused(&self, action: Action, errno: Errno) -> VerbsError {
        self.0.context.refused(action, errno)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        // SAFETY: the last owner is dropped, so no queue pair uses the queue.
        let _ = check(unsafe { (self.context.functions().ibv_destroy_cq)(self.raw.as_ptr()) });
    }
}

/// A completion channel. Clones share it.
#[derive(Clone, Debug)]
pub struct Channel(Arc<ChannelInner>);

#[derive(Debug)]
struct ChannelInner {
    raw: NonNull<CompChannel>,
    context: Context,
}

// SAFETY: verbs allow any thread to use a channel, several at a time.
unsafe impl Send for ChannelInner {}
// SAFETY: as above.
unsafe impl Sync for ChannelInner {}

impl Channel {
    pub(super) fn of(context: &Context) -> Result<Channel, VerbsError> {
        let functions = context.functions();
        let refused = |errno| context.refused(Action::Channel, errno);
        let has_events = functions.ibv_destroy_comp_channel.is_some()
            && functions.ibv_get_cq_event.is_some()
            && functions.ibv_ack_cq_events.is_some();
        let Some(create) = functions.ibv_create_comp_channel.filter(|_| has_events) else {
            return Err(refused(Errno::EOPNOTSUPP));
        };
        Errno::clear();
        // SAFETY: the device is open.
        let raw = NonNull::new(unsafe { create(context.raw()) }).ok_or_else(|| refused(Errno::last()))?;
        let channel = Channel(Arc::new(ChannelInner { raw, context: context.clone() }));
        set_nonblocking(channel.fd()).map_err(refused)?;
        Ok(channel)
    }

    /// Returns the descriptor, which is readable when a queue has sent an event.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as the borrow, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw((&raw const (*self.raw()).fd).read()) }
    }

    /// Takes and acknowledges all pending events without waiting, and returns their number.
    pub fn drain(&self) -> u32 {
        let functions = self.0.context.functions();
        let (Some(get), Some(acknowledge)) = (functions.ibv_get_cq_event, functions.ibv_ack_cq_events) else {
            return 0;
        };
        let mut taken = 0;
        loop {
            let (mut cq, mut about) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel is alive and does not block, and there is room for the answer.
            if unsafe { get(self.raw(), &raw mut cq, &raw mut about) } != 0 {
                return taken;
            }
            // SAFETY: the event was fetched above and is acknowledged once; the queue can't be destroyed
            // before.
            unsafe { acknowledge(cq, 1) };
            taken += 1;
        }
    }

    fn raw(&self) -> *mut CompChannel {
        self.0.raw.as_ptr()
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        let Some(destroy) = self.context.functions().ibv_destroy_comp_channel else { return };
        // SAFETY: the last owner is dropped, so no completion queue uses the channel.
        let _ = check(unsafe { destroy(self.raw.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_sent_along_come_in_our_byte_order() {
        let mut wc = Wc::zeroed();
        wc.imm_data = 0x0102_0304_u32.to_be();
        assert_eq!(Completion::from(&wc).imm, None);
        wc.wc_flags = WcFlags::WITH_IMM.0;
        assert_eq!(Completion::from(&wc).imm, Some(0x0102_0304));
        wc.status = WcStatus::WR_FLUSH_ERR;
        assert_eq!(Completion::from(&wc).imm, None);
    }
}
