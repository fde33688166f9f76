//! Receive queues of this process, of one queue pair or shared.
//!
//! # Safety
//! See the module above. Slots are written while `lock` is held and before the tail covers them. A slot is
//! written only once the completion of its earlier receive was polled.

use super::{SpinLock, errno};
use crate::{
    nic::Nic,
    profile::Profile,
    shm::{RQS, RecvSlot, RqRecord, Sge},
};
use rustix::io::Errno;
use std::{
    cell::UnsafeCell,
    collections::VecDeque,
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, Release},
    },
};
use verbs_sys::RecvWr;

/// A receive queue of this process.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    nic: Arc<Nic>,
    profile: &'static Profile,
    pub(super) index: u32,
    ring: (u64, u64),
    pub(super) max_wr: u32,
    /// Usable depth of the queue, in receives or frames.
    depth: u32,
    pub(super) max_sge: u32,
    lock: SpinLock,
    /// Protected by `lock`.
    frames: UnsafeCell<Frames>,
}

/// On devices that count frames: the frames of each receive, and their sum.
#[derive(Debug, Default)]
struct Frames {
    each: VecDeque<u64>,
    sum: u64,
    /// Freed receives that are subtracted already.
    seen: u64,
}

/// Attributes of a receive queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveQueueAttr {
    pub(super) pd: u32,
    pub(super) is_shared: bool,
    pub(super) async_channel: u32,
}

impl ReceiveQueue {
    pub(super) fn new(
        nic: &Arc<Nic>,
        port: u32,
        max_wr: u32,
        max_sge: u32,
        attr: ReceiveQueueAttr,
    ) -> Result<ReceiveQueue, Errno> {
        let device = nic.fabric().device(port);
        let profile = device.profile;
        let slots = u64::from(max_wr.max(1)).next_power_of_two();
        let pieces = size_of::<Sge>() as u64 * u64::from(max_sge.max(1));
        let stride = (size_of::<RecvSlot>() as u64 + pieces).next_power_of_two().max(64);
        let ring = nic.process().allocate(slots * stride)?;
        let guard = nic.tables().lock();
        let own = nic.process().own();
        let free = (0..RQS).find_map(|index| {
            let record = own.rq(index)?;
            (record.producer.stride.load(Relaxed) == 0).then_some((index, record))
        });
        let Some((index, record)) = free else {
            nic.process().free(ring);
            return Err(Errno::NOMEM);
        };
        let (consumer, producer) = (&record.consumer, &record.producer);
        consumer.lock.reset();
        for word in
            [&consumer.head, &consumer.intent, &consumer.seen_tail, &consumer.last_due, &producer.tail]
        {
            word.store(0, Relaxed);
        }
        producer.ring.store(ring.0, Relaxed);
        producer.mask.store(slots - 1, Relaxed);
        producer.pd.store(attr.pd, Relaxed);
        producer.is_shared.store(attr.is_shared.into(), Relaxed);
        producer.async_channel.store(attr.async_channel, Relaxed);
        for word in [&producer.limit, &producer.events, &producer.peers_wait] {
            word.store(0, Relaxed);
        }
        producer.stride.store(stride, Release);
        nic.credits().set_freed_receives(index, 0);
        drop(guard);
        Ok(ReceiveQueue {
            nic: Arc::clone(nic),
            profile,
            index,
            ring,
            max_wr,
            depth: profile.usable_depth(max_wr).min(device.usable_depth),
            max_sge,
            lock: SpinLock::default(),
            frames: UnsafeCell::default(),
        })
    }

    pub(super) fn record(&self) -> Option<&RqRecord> {
        self.nic.process().own().rq(self.index)
    }

    /// Posts a list of receives. On error, `bad` becomes the address of the refused one.
    pub(super) fn post(&self, mut wr: *mut RecvWr, bad: *mut *mut RecvWr) -> Result<(), Errno> {
        let record = self.record().ok_or(Errno::INVAL)?;
        let _held = self.lock.lock();
        let before = record.producer.tail.load(Relaxed);
        let mut tail = before;
        let mut result = Ok(());
        // SAFETY: null, or a request of the caller's list.
        while let Some(request) = unsafe { wr.as_ref() } {
            if let Err(error) = self.write(record, tail, request) {
                if !bad.is_null() {
                    // SAFETY: a place for the address.
                    unsafe { *bad = wr };
                }
                result = Err(error);
                break;
            }
            tail += 1;
            wr = request.next;
        }
        if tail != before {
            record.publish(tail);
        }
        result
    }

    #[inline]
    fn write(&self, record: &RqRecord, number: u64, request: &RecvWr) -> Result<(), Errno> {
        let count = u32::try_from(request.num_sge).map_err(|_| Errno::INVAL)?;
        if count > self.max_sge || count > 0 && request.sg_list.is_null() {
            return Err(Errno::INVAL);
        }
        let freed = self.nic.credits().freed_receives(self.index);
        if number.wrapping_sub(freed) >= u64::from(self.depth) {
            return Err(Errno::NOMEM);
        }
        if self.profile.frame_bytes.is_some() {
            self.count_frames(freed, request)?;
        }
        let (slot, pieces) = record.slot(self.nic.process().own(), number).ok_or(Errno::INVAL)?;
        // SAFETY: the slot is free, and has room for `max_sge` pieces; the caller's list has `count`.
        unsafe {
            slot.write(RecvSlot { wr_id: request.wr_id, sges: u64::from(count) });
            pieces.copy_from_nonoverlapping(request.sg_list.cast(), count as usize);
        }
        Ok(())
    }

    #[cold]
    fn count_frames(&self, freed: u64, request: &RecvWr) -> Result<(), Errno> {
        // SAFETY: under `lock`.
        let frames = unsafe { &mut *self.frames.get() };
        while frames.seen < freed {
            frames.sum -= frames.each.pop_front().unwrap_or(0);
            frames.seen += 1;
        }
        let pieces = (0..request.num_sge as usize).map(|index| {
            // SAFETY: the caller's list has `num_sge` elements.
            u64::from(unsafe { (*request.sg_list.add(index)).length })
        });
        let units = self.profile.depth_units(pieces.sum());
        if frames.sum + units > u64::from(self.depth) {
            return Err(errno(self.profile.errnos.queue_full));
        }
        frames.each.push_back(units);
        frames.sum += units;
        Ok(())
    }
}

impl Drop for ReceiveQueue {
    fn drop(&mut self) {
        if let Some(record) = self.record().filter(|_| !self.nic.process().is_inherited()) {
            record.producer.stride.store(0, Release);
            self.nic.process().free(self.ring);
        }
    }
}
