//! Completion queues: creation, polling, arming.
//!
//! Completions that are due later, by the model of their cable, wait in a list of this process. So a later
//! one of another queue pair can overtake them.
//!
//! # Safety
//! See the module above. `poll_lock` protects the members that only the polling thread may touch.

use super::{
    Object, SpinLock, acks::EventAcks, channel::ChannelObject, context::ContextObject, errno, output,
    pointer_of, status_of,
};
use crate::{
    clock::now,
    nic::{Nic, qp_number},
    shm::{CQS, Completion, CqRecord, QueueKind},
};
use rustix::io::Errno;
use std::{
    cell::UnsafeCell,
    collections::VecDeque,
    ffi::{c_int, c_void},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
};
use verbs_sys::{CompChannel, Context, Cq, CqEx, Wc, WcOpcode, WcStatus};

/// A completion queue.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CqObject {
    pub(super) cq: CqEx,
    pub(super) nic: Arc<Nic>,
    pub(super) index: u32,
    port: u32,
    ring: (u64, u64),
    /// Queue pairs that report completions to this queue.
    pub(super) users: Arc<AtomicU32>,
    /// Notifications on the queue's channel.
    pub(super) notification_acks: EventAcks,
    pub(super) event_acks: EventAcks,
    pub(super) poll_lock: SpinLock,
    /// Protected by `poll_lock`.
    pub(super) polling: UnsafeCell<Polling>,
}

/// State of the polling thread.
#[derive(Debug, Default)]
pub(super) struct Polling {
    /// Completions taken off the ring so far.
    head: u64,
    /// Completions of these that are not due yet, the earliest first.
    delayed: VecDeque<Completion>,
    /// Polls without a completion since the last completion.
    empty: u32,
    /// The completion whose members a program reads with extended calls.
    pub(super) current: Completion,
}

// SAFETY: `repr(C)`, and the structure begins as `Cq` does and is the first member.
unsafe impl Object<Cq> for CqObject {}
// SAFETY: as above.
unsafe impl Object<CqEx> for CqObject {}

/// Polls without a completion after which the program counts as one that only polls.
const STEADY_POLLS: u32 = 4;

/// Bytes of a completion's slot: a cache line.
const SLOT_BYTES: u64 = 64;

impl CqObject {
    #[inline]
    pub(super) fn record(&self) -> Result<&CqRecord, Errno> {
        self.nic.process().own().cq(self.index).ok_or(Errno::INVAL)
    }

    /// Returns the next completion that may be seen.
    #[inline]
    pub(super) fn next_completion(&self, polling: &mut Polling) -> Option<Completion> {
        let record = self.record().ok()?;
        if self.nic.is_stalled(self.port) {
            self.note_empty_poll(polling);
            return None;
        }
        loop {
            let completion = if polling.delayed.is_empty() {
                match self.take_from_ring(record, polling) {
                    Some(completion) if completion.due != 0 && completion.due > now() => {
                        insert_by_due(&mut polling.delayed, completion);
                        self.next_delayed(record, polling)
                    }
                    other => other,
                }
            } else {
                self.next_delayed(record, polling)
            };
            match completion {
                Some(completion) if !self.return_credit(&completion) => {}
                Some(completion) => {
                    polling.empty = 0;
                    return Some(completion);
                }
                None => {
                    self.note_empty_poll(polling);
                    return None;
                }
            }
        }
    }

    #[inline]
    fn take_from_ring(&self, record: &CqRecord, polling: &mut Polling) -> Option<Completion> {
        let completion = record.peek(self.nic.process().own(), polling.head)?;
        polling.head += 1;
        record.consume(polling.head);
        Some(completion)
    }

    #[cold]
    fn next_delayed(&self, record: &CqRecord, polling: &mut Polling) -> Option<Completion> {
        while let Some(completion) = self.take_from_ring(record, polling) {
            insert_by_due(&mut polling.delayed, completion);
        }
        let first = polling.delayed.front()?;
        let now = now();
        if first.due <= now {
            return polling.delayed.pop_front();
        }
        if polling.empty > STEADY_POLLS {
            self.nic.note_poll(now);
        }
        if record.fixed.armed.load(Relaxed) != 0 {
            // The queue was armed after these completions had been written.
            polling.delayed.iter().for_each(|completion| record.defer_notification(completion));
            self.nic.schedule_cq(self.index, first.due);
        }
        None
    }

    /// Drops the completions of a queue pair that is destroyed or reset.
    pub(super) fn purge(&self, qpn: u32) {
        let _held = self.poll_lock.lock();
        // SAFETY: under `poll_lock`.
        let polling = unsafe { &mut *self.polling.get() };
        let Ok(record) = self.record() else { return };
        while let Some(completion) = self.take_from_ring(record, polling) {
            insert_by_due(&mut polling.delayed, completion);
        }
        polling.delayed.retain(|completion| completion.qpn != qpn);
    }

    /// Frees the slot of a completed request. Returns false for completions of queue pairs that no longer
    /// exist.
    #[inline]
    fn return_credit(&self, completion: &Completion) -> bool {
        let index = qp_number::index(completion.qpn);
        let Some(qp_ref) = self.nic.own_qp(index) else { return false };
        match completion.kind {
            QueueKind::Send => self.nic.credits().set_freed_sends(index, completion.number + 1),
            QueueKind::Receive | QueueKind::SharedReceive => {
                self.nic.credits().free_receive(qp_ref.record.fixed.rq.load(Relaxed));
            }
        }
        qp_ref.qpn() == completion.qpn
    }

    /// Notes a poll without a completion: runs timers and maintenance, and lets other processes run.
    fn note_empty_poll(&self, polling: &mut Polling) {
        polling.empty = polling.empty.wrapping_add(1);
        self.nic.poll_timers(polling.empty > STEADY_POLLS);
        if polling.empty.is_multiple_of(32) {
            self.nic.maintain();
        }
        if polling.empty.is_multiple_of(256) {
            thread::yield_now();
        }
    }
}

/// Inserts a completion, and keeps the list in the order of due times.
fn insert_by_due(delayed: &mut VecDeque<Completion>, completion: Completion) {
    let at = delayed.partition_point(|other| other.due <= completion.due);
    delayed.insert(at, completion);
}

/// Returns the C structure of a completion.
pub(super) fn work_completion(completion: &Completion) -> Wc {
    let mut wc = Wc::zeroed();
    wc.wr_id = completion.wr_id;
    wc.status = WcStatus(completion.status.into());
    wc.opcode = WcOpcode(completion.opcode.into());
    wc.byte_len = completion.bytes;
    wc.imm_data = completion.imm;
    wc.qp_num = completion.qpn;
    wc.src_qp = completion.source_qpn;
    wc.wc_flags = completion.flags.into();
    wc
}

pub(super) unsafe extern "C" fn poll(cq: *mut Cq, count: c_int, wc: *mut Wc) -> c_int {
    super::value_of(-1, || {
        let Ok(found) = CqObject::from_c(cq) else { return -1 };
        if found.nic.process().is_inherited() {
            return -1;
        }
        let _held = found.poll_lock.lock();
        // SAFETY: under `poll_lock`.
        let polling = unsafe { &mut *found.polling.get() };
        let mut polled = 0;
        while polled < count {
            let Some(completion) = found.next_completion(polling) else { break };
            // SAFETY: the caller has room for `count` completions.
            unsafe { wc.add(polled as usize).write(work_completion(&completion)) };
            polled += 1;
        }
        if polled == 0 && found.record().is_ok_and(|record| record.fixed.overrun.load(Relaxed) != 0) {
            return -1;
        }
        polled
    })
}

pub(super) unsafe extern "C" fn request_notification(cq: *mut Cq, solicited_only: c_int) -> c_int {
    status_of(|| {
        let found = CqObject::from_c(cq)?;
        if found.cq.channel.is_null() {
            return Err(Errno::INVAL);
        }
        found.nic.expect_sleep();
        found.record()?.arm(solicited_only != 0);
        Ok(())
    })
}

/// Creates a completion queue.
pub(super) fn create(
    context: *mut Context,
    cqe: u64,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    vector: u64,
) -> Result<CqObject, Errno> {
    let found = ContextObject::from_c(context)?;
    let (nic, profile) = (&found.nic, found.profile());
    if cqe == 0 || cqe > u64::from(profile.max_cqe) || vector != 0 {
        return Err(Errno::INVAL);
    }
    if !channel.is_null() && !profile.completion_events {
        return Err(errno(profile.errnos.unsupported));
    }
    let number = if channel.is_null() { 0 } else { ChannelObject::from_c(channel)?.event_channel.number };
    let slots = cqe.next_power_of_two();
    let ring = nic.process().allocate(slots * SLOT_BYTES)?;
    let guard = nic.tables().lock();
    let own = nic.process().own();
    // Index 0 stands for none.
    let free = (1..CQS.min(profile.max_cq + 1))
        .find(|&index| own.cq(index).is_some_and(|record| record.fixed.capacity.load(Relaxed) == 0));
    let Some((index, record)) = free.and_then(|index| Some((index, own.cq(index)?))) else {
        drop(guard);
        nic.process().free(ring);
        return Err(Errno::NOMEM);
    };
    record.init(ring.0, slots, cqe, number, found.async_channel);
    drop(guard);
    let mut cq = CqEx::zeroed();
    cq.context = context;
    cq.channel = channel;
    cq.cq_context = cq_context;
    cq.handle = index;
    cq.cqe = cqe as c_int;
    Ok(CqObject {
        cq,
        nic: Arc::clone(nic),
        index,
        port: found.port,
        ring,
        users: Arc::default(),
        notification_acks: EventAcks::default(),
        event_acks: EventAcks::default(),
        poll_lock: SpinLock::default(),
        polling: UnsafeCell::default(),
    })
}

/// Passes a new queue to the C program, after adding it to its channel and its context.
pub(super) fn publish(queue: CqObject) -> Result<*mut Cq, Errno> {
    let (context, channel) = (queue.cq.context, queue.cq.channel);
    let handed: *mut Cq = Object::<Cq>::into_c(queue);
    if let Ok(channel) = ChannelObject::from_c(channel) {
        channel.add(handed);
    }
    ContextObject::from_c(context)?.watch(|watched| watched.cqs.push(handed as usize));
    Ok(handed)
}

/// `ibv_create_cq`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_cq(
    context: *mut Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    vector: c_int,
) -> *mut Cq {
    pointer_of(|| {
        let cqe = u64::try_from(cqe).map_err(|_| Errno::INVAL)?;
        publish(create(context, cqe, cq_context, channel, vector as u64)?)
    })
}

/// `ibv_resize_cq`: not supported, as by many drivers.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_resize_cq(_cq: *mut Cq, _cqe: c_int) -> c_int {
    status_of(|| Err(Errno::OPNOTSUPP))
}

/// `ibv_destroy_cq`: waits until all fetched notifications and events are acknowledged.
///
/// # Safety
/// The queue must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    status_of(|| {
        let found: &CqObject = Object::<Cq>::from_c(cq)?;
        if found.nic.process().is_inherited() {
            return Err(Errno::INVAL);
        }
        if found.users.load(Relaxed) != 0 {
            return Err(Errno::BUSY);
        }
        if let Ok(channel) = ChannelObject::from_c(found.cq.channel) {
            channel.remove(cq);
        }
        if let Ok(context) = ContextObject::from_c(found.cq.context) {
            context.watch(|watched| watched.cqs.retain(|&known| known != cq as usize));
        }
        found.notification_acks.wait();
        found.event_acks.wait();
        let record = found.record()?;
        record.fixed.capacity.store(0, Relaxed);
        found.nic.process().free(found.ring);
        // SAFETY: made by `publish`, and not used again by the caller's promise.
        drop(unsafe { <CqObject as Object<Cq>>::take_back(cq) });
        Ok(())
    })
}

/// Returns the queue that a C program passes to create a queue pair.
pub(super) fn named<'a>(cq: *mut Cq) -> Result<&'a CqObject, Errno> {
    output(cq)?;
    Object::<Cq>::from_c(cq)
}
