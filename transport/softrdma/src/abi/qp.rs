//! Queue pairs, and posting of sends.
//!
//! # Safety
//! See the module above. Slots are written while `post_lock` is held and before the tail covers them. A slot
//! is written only once the room of its earlier request is free again.

use super::{
    Object, SpinLock,
    acks::EventAcks,
    cq::CqObject,
    errno,
    pd::{AhObject, UseGuard},
    receive_queue::ReceiveQueue,
    status_of,
};
use crate::{
    clock::now,
    nic::{Nic, QpRef},
    profile::{Profile, UnplugBehavior},
    shm::{INLINE_BYTES, SEND_SGES, SendSlot, Sge},
};
use rustix::io::Errno;
use std::{
    cell::UnsafeCell,
    ffi::c_int,
    ptr,
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, Release},
    },
};
use verbs_sys::{Cq, Qp, QpAttr, QpCap, QpEx, QpState, QpType, SendFlags, SendWr, WrOpcode};

/// A queue pair.
#[derive(Debug)]
#[repr(C)]
pub(super) struct QpObject {
    pub(super) qp: QpEx,
    pub(super) nic: Arc<Nic>,
    pub(super) profile: &'static Profile,
    pub(super) index: u32,
    pub(super) kind: QpType,
    pub(super) cap: QpCap,
    /// Usable depth of the send queue, in requests or frames.
    pub(super) send_depth: u32,
    pub(super) signals_all: bool,
    /// Whether the cable takes time.
    pub(super) is_timed: bool,
    pub(super) ring: (u64, u64),
    /// The queue pair's own receives; none if it uses a shared queue.
    pub(super) receives: Option<ReceiveQueue>,
    pub(super) post_lock: SpinLock,
    /// Protected by `post_lock`.
    pub(super) posting: UnsafeCell<Posting>,
    /// The attributes that were set last; protected by `post_lock`.
    pub(super) attr: UnsafeCell<QpAttr>,
    pub(super) event_acks: EventAcks,
    pub(super) _uses: Vec<UseGuard>,
}

/// State of the posting thread.
#[derive(Debug, Default)]
pub(super) struct Posting {
    /// Requests written so far. The shared tail may be behind.
    pub(super) tail: u64,
    /// The error that keeps the present batch from being posted.
    pub(super) error: Option<Errno>,
    /// On devices that count frames: the depth used by all requests up to and including each, by slot.
    frames: Vec<u64>,
}

// SAFETY: `repr(C)`, and the structure begins as `Qp` does and is the first member.
unsafe impl Object<Qp> for QpObject {}
// SAFETY: as above.
unsafe impl Object<QpEx> for QpObject {}

impl QpObject {
    /// Returns the queue pair's record. Refuses queue pairs from before a fork.
    #[inline]
    pub(super) fn qp_ref(&self) -> Result<QpRef<'_>, Errno> {
        if self.nic.process().is_inherited() {
            return Err(Errno::INVAL);
        }
        self.nic.own_qp(self.index).ok_or(Errno::INVAL)
    }

    pub(super) fn cq<'a>(queue: *mut Cq) -> Result<&'a CqObject, Errno> {
        Object::<Cq>::from_c(queue)
    }

    /// Returns the state of the posting thread.
    ///
    /// # Safety
    /// `post_lock` must be held by this thread for as long as the result is used.
    #[allow(clippy::mut_from_ref, reason = "the lock makes it exclusive")]
    pub(super) unsafe fn posting(&self) -> &mut Posting {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.posting.get() }
    }

    /// Returns the slot of the next request. Fails if the queue is full.
    #[inline]
    pub(super) fn next_slot(&self, qp_ref: QpRef<'_>, posting: &Posting) -> Result<*mut SendSlot, Errno> {
        let freed = self.nic.credits().freed_sends(self.index);
        if posting.tail.wrapping_sub(freed) >= u64::from(self.send_depth) {
            return Err(errno(self.profile.errnos.queue_full));
        }
        let slot = posting.tail & qp_ref.record.send.mask.load(Relaxed);
        let offset = self.ring.0 + slot * size_of::<SendSlot>() as u64;
        qp_ref.view.range().at::<SendSlot>(offset).ok_or(Errno::INVAL)
    }

    /// On devices that count frames: checks and takes the depth of a message of `bytes` bytes.
    #[inline]
    pub(super) fn count_frames(&self, posting: &mut Posting, bytes: u32) -> Result<(), Errno> {
        if self.profile.frame_bytes.is_none() {
            return Ok(());
        }
        let slots = (self.cap.max_send_wr as usize).next_power_of_two();
        posting.frames.resize(slots, 0);
        let freed = self.nic.credits().freed_sends(self.index);
        let up_to = |frames: &[u64], number: u64| match number {
            0 => 0,
            number => frames[(number - 1) as usize & (slots - 1)],
        };
        let before = up_to(&posting.frames, posting.tail);
        let after = before + self.profile.depth_units(bytes.into());
        if after - up_to(&posting.frames, freed) > u64::from(self.send_depth) {
            return Err(errno(self.profile.errnos.queue_full));
        }
        posting.frames[posting.tail as usize & (slots - 1)] = after;
        Ok(())
    }

    /// Returns the time for a posted request; zero where no cable takes time.
    #[inline]
    pub(super) fn post_time(&self) -> u64 {
        if self.is_timed { now() } else { 0 }
    }

    /// On devices that crash programs that post without a cable: checks the cable.
    #[inline]
    pub(super) fn check_cable(&self) {
        if self.profile.unplug_behavior == UnplugBehavior::Crashes
            && let Ok(qp_ref) = self.qp_ref()
        {
            self.nic.check_cable(qp_ref.record.fixed.port.load(Relaxed));
        }
    }

    /// Checks that the device supports an operation on this queue pair.
    #[inline]
    pub(super) fn check_opcode(&self, opcode: WrOpcode) -> Result<(), Errno> {
        if self.profile.supports_opcode(self.kind, opcode) {
            return Ok(());
        }
        let is_known = WrOpcode::ALL.contains(&opcode);
        Err(if is_known { errno(self.profile.errnos.unsupported) } else { Errno::INVAL })
    }

    /// Publishes requests up to the tail, and executes them.
    #[inline]
    pub(super) fn ring_doorbell(&self, qp_ref: QpRef<'_>, tail: u64) {
        qp_ref.record.producer.tail.store(tail, Release);
        self.nic.execute(qp_ref);
    }

    /// Checks that work may be posted in the present state.
    pub(super) fn check_state(qp_ref: QpRef<'_>) -> Result<(), Errno> {
        match qp_ref.state() {
            QpState::RESET | QpState::INIT | QpState::RTR => Err(Errno::INVAL),
            _ => Ok(()),
        }
    }

    /// Writes a request into a slot. Returns its bytes.
    #[inline]
    fn write_request(&self, slot: *mut SendSlot, request: &SendWr) -> Result<u32, Errno> {
        self.check_opcode(request.opcode)?;
        let count = u32::try_from(request.num_sge).map_err(|_| Errno::INVAL)?;
        let flags = SendFlags(request.send_flags);
        if count > self.cap.max_send_sge.max(1)
            || count as usize > SEND_SGES
            || count > 0 && request.sg_list.is_null()
        {
            return Err(Errno::INVAL);
        }
        // SAFETY: a free slot of our ring, see the module.
        let slot = unsafe { &mut *slot };
        slot.wr_id = request.wr_id;
        slot.opcode = request.opcode.0;
        slot.flags = request.send_flags | if self.signals_all { SendFlags::SIGNALED.0 } else { 0 };
        slot.imm = request.imm_data;
        slot.posted_at = self.post_time();
        slot.sges = count;
        // SAFETY: all members of the union are plain numbers and pointers; the opcode and the kind say which
        // one counts.
        unsafe {
            match request.opcode {
                _ if self.kind == QpType::UD => {
                    let ud = request.wr.ud;
                    self.address(slot, AhObject::from_c(ud.ah)?, ud.remote_qpn, ud.remote_qkey)?;
                }
                WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD => {
                    let atomic = request.wr.atomic;
                    slot.remote_addr = atomic.remote_addr;
                    slot.compare_add = atomic.compare_add;
                    slot.swap = atomic.swap;
                    slot.rkey = atomic.rkey;
                }
                WrOpcode::SEND | WrOpcode::SEND_WITH_IMM => {}
                _ => {
                    slot.remote_addr = request.wr.rdma.remote_addr;
                    slot.rkey = request.wr.rdma.rkey;
                }
            }
        }
        let first = request.sg_list.cast::<Sge>().cast_const();
        if flags.contains(SendFlags::INLINE) {
            if request.opcode >= WrOpcode::RDMA_READ {
                return Err(Errno::INVAL);
            }
            return self.copy_inline(slot, first, count);
        }
        let mut bytes = 0u32;
        for index in 0..count as usize {
            // SAFETY: the caller's list has `count` pieces, and a slot has room for as many.
            let piece = unsafe { first.add(index).read() };
            bytes = bytes.checked_add(piece.len).ok_or(Errno::INVAL)?;
            slot.pieces[index] = piece;
        }
        slot.bytes = bytes;
        Ok(bytes)
    }

    /// Copies the bytes of the pieces into the slot (inline data). Returns their number.
    fn copy_inline(&self, slot: &mut SendSlot, first: *const Sge, count: u32) -> Result<u32, Errno> {
        let room = slot.pieces.as_mut_ptr().cast::<u8>();
        let mut filled = 0;
        for index in 0..count as usize {
            // SAFETY: the caller's list has `count` pieces.
            let piece = unsafe { first.add(index).read() };
            let len = piece.len as usize;
            if len > (self.cap.max_inline_data as usize).min(INLINE_BYTES) - filled {
                return Err(Errno::INVAL);
            }
            // SAFETY: there is room, checked; the caller's piece is readable.
            unsafe { ptr::copy_nonoverlapping(piece.addr as *const u8, room.add(filled), len) };
            filled += len;
        }
        slot.bytes = filled as u32;
        Ok(slot.bytes)
    }

    /// Sets the destination of a datagram.
    pub(super) fn address(
        &self,
        slot: &mut SendSlot,
        ah: &AhObject,
        qpn: u32,
        qkey: u32,
    ) -> Result<(), Errno> {
        let qp_ref = self.qp_ref()?;
        slot.dest_qpn = qpn & 0xff_ffff;
        // The highest bit asks for the sender's own queue key.
        let own = qp_ref.record.fixed.qkey.load(Relaxed);
        slot.dest_qkey = if qkey >> 31 == 0 { qkey } else { own };
        slot.dest_port = ah.port;
        slot.source_gid = ah.source_gid;
        slot.dest_gid = ah.dest_gid;
        Ok(())
    }

    #[inline]
    fn post(&self, mut wr: *mut SendWr, bad: *mut *mut SendWr) -> Result<(), Errno> {
        self.nic.poll_commands();
        self.check_cable();
        let _held = self.post_lock.lock();
        let checked = self.qp_ref().and_then(|qp_ref| Self::check_state(qp_ref).map(|()| qp_ref));
        // SAFETY: under `post_lock`.
        let posting = unsafe { self.posting() };
        let before = posting.tail;
        let mut result = checked.map(|_| ());
        // SAFETY: null, or a request of the caller's list.
        while let (Ok(qp_ref), Some(request)) = (checked, unsafe { wr.as_ref() }) {
            let posted = self
                .next_slot(qp_ref, posting)
                .and_then(|slot| self.write_request(slot, request))
                .and_then(|bytes| self.count_frames(posting, bytes));
            if let Err(error) = posted {
                result = Err(error);
                break;
            }
            posting.tail += 1;
            wr = request.next;
        }
        if let Ok(qp_ref) = checked
            && posting.tail != before
        {
            self.ring_doorbell(qp_ref, posting.tail);
        }
        if result.is_err() && !bad.is_null() {
            // SAFETY: a place for the address.
            unsafe { *bad = wr };
        }
        result
    }
}

pub(super) unsafe extern "C" fn post_send(qp: *mut Qp, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    status_of(|| <QpObject as Object<Qp>>::from_c(qp)?.post(wr, bad))
}
