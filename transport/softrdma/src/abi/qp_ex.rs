//! Extended posting: `ibv_wr_start`, a call for each request and its members, `ibv_wr_complete`.
//!
//! # Safety
//! See the module above. The lock that `start` takes is held until `complete` or `abort`, one of which
//! programs must call. Between them, the calls come from the thread that holds it.

use super::{Object, pd::AhObject, qp::QpObject};
use crate::{
    profile::Profile,
    shm::{INLINE_BYTES, SEND_SGES, SendSlot, Sge},
};
use rustix::io::Errno;
use std::{
    ffi::{c_int, c_void},
    ptr, slice,
    sync::atomic::Ordering::Relaxed,
};
use verbs_sys::{Ah, DataBuf, QpEx, QpType, SendFlags, SendOpsFlags, Sge as GivenSge, WrOpcode};

/// The opcode that each call needs.
const NEEDS: [(SendOpsFlags, WrOpcode); 7] = [
    (SendOpsFlags::RDMA_WRITE, WrOpcode::RDMA_WRITE),
    (SendOpsFlags::RDMA_WRITE_WITH_IMM, WrOpcode::RDMA_WRITE_WITH_IMM),
    (SendOpsFlags::SEND, WrOpcode::SEND),
    (SendOpsFlags::SEND_WITH_IMM, WrOpcode::SEND_WITH_IMM),
    (SendOpsFlags::RDMA_READ, WrOpcode::RDMA_READ),
    (SendOpsFlags::ATOMIC_CMP_AND_SWP, WrOpcode::ATOMIC_CMP_AND_SWP),
    (SendOpsFlags::ATOMIC_FETCH_AND_ADD, WrOpcode::ATOMIC_FETCH_AND_ADD),
];

/// Whether all of these calls are supported.
pub(super) fn supports(profile: &Profile, kind: QpType, wanted: SendOpsFlags) -> bool {
    let known = NEEDS.iter().fold(SendOpsFlags::NONE, |sum, (flag, _)| sum | *flag);
    let is_there =
        |flag: SendOpsFlags, opcode| !wanted.contains(flag) || profile.supports_opcode(kind, opcode);
    wanted.without(known) == SendOpsFlags::NONE && NEEDS.iter().all(|&(flag, opcode)| is_there(flag, opcode))
}

/// Sets the table of calls.
pub(super) fn set_calls(qp: &mut QpEx) {
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp.wr_send = Some(send);
    qp.wr_send_imm = Some(send_imm);
    qp.wr_rdma_write = Some(rdma_write);
    qp.wr_rdma_write_imm = Some(rdma_write_imm);
    qp.wr_rdma_read = Some(rdma_read);
    qp.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(atomic_fetch_add);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
    qp.wr_set_ud_addr = Some(set_ud_addr);
}

/// Runs a call on the queue pair. `complete` reports its error.
#[inline]
fn with(qp: *mut QpEx, body: impl FnOnce(&QpObject) -> Result<(), Errno>) {
    super::value_of((), || {
        let Ok(found) = <QpObject as Object<QpEx>>::from_c(qp) else { return };
        if let Err(error) = body(found) {
            // SAFETY: `start` took the lock.
            unsafe { found.posting() }.error.get_or_insert(error);
        }
    });
}

unsafe extern "C" fn start(qp: *mut QpEx) {
    with(qp, |found| {
        found.nic.poll_commands();
        found.post_lock.acquire();
        let qp_ref = found.qp_ref()?;
        // SAFETY: the lock was just taken.
        let posting = unsafe { found.posting() };
        posting.tail = qp_ref.record.producer.tail.load(Relaxed);
        posting.error = QpObject::check_state(qp_ref).err();
        Ok(())
    });
}

unsafe extern "C" fn complete(qp: *mut QpEx) -> c_int {
    super::status_of(|| {
        let found = <QpObject as Object<QpEx>>::from_c(qp)?;
        // SAFETY: `start` took the lock.
        let posting = unsafe { found.posting() };
        let result = match posting.error.take() {
            None => found.qp_ref().map(|qp_ref| found.ring_doorbell(qp_ref, posting.tail)),
            Some(error) => {
                posting.tail = found.qp_ref().map_or(0, |qp_ref| qp_ref.record.producer.tail.load(Relaxed));
                Err(error)
            }
        };
        found.post_lock.release();
        result
    })
}

unsafe extern "C" fn abort(qp: *mut QpEx) {
    with(qp, |found| {
        // SAFETY: `start` took the lock.
        let posting = unsafe { found.posting() };
        posting.error = None;
        posting.tail = found.qp_ref().map_or(0, |qp_ref| qp_ref.record.producer.tail.load(Relaxed));
        found.post_lock.release();
        Ok(())
    });
}

/// Begins a request.
fn begin(qp: *mut QpEx, opcode: WrOpcode, set: impl FnOnce(&mut SendSlot)) {
    with(qp, |found| {
        let qp_ref = found.qp_ref()?;
        // SAFETY: `start` took the lock.
        let posting = unsafe { found.posting() };
        if posting.error.is_some() {
            return Ok(());
        }
        found.check_opcode(opcode)?;
        let slot = found.next_slot(qp_ref, posting)?;
        // SAFETY: a free slot of our ring.
        let slot = unsafe { &mut *slot };
        // SAFETY: the caller's queue pair; the program has set these members before.
        let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
        slot.wr_id = wr_id;
        slot.opcode = opcode.0;
        slot.posted_at = found.post_time();
        slot.flags = flags & !SendFlags::INLINE.0;
        if found.signals_all {
            slot.flags |= SendFlags::SIGNALED.0;
        }
        slot.sges = 0;
        slot.bytes = 0;
        set(slot);
        found.count_frames(posting, 0)?;
        posting.tail += 1;
        Ok(())
    });
}

/// Sets members of the last request.
fn set(qp: *mut QpEx, change: impl FnOnce(&QpObject, &mut SendSlot) -> Result<(), Errno>) {
    with(qp, |found| {
        let qp_ref = found.qp_ref()?;
        // SAFETY: `start` took the lock.
        let posting = unsafe { found.posting() };
        if posting.error.is_some() || posting.tail == qp_ref.record.producer.tail.load(Relaxed) {
            return Ok(());
        }
        let index = (posting.tail - 1) & qp_ref.record.send.mask.load(Relaxed);
        let offset = found.ring.0 + index * size_of::<SendSlot>() as u64;
        let slot = qp_ref.view.range().at::<SendSlot>(offset).ok_or(Errno::INVAL)?;
        // SAFETY: the slot of a request that the tail does not cover yet.
        change(found, unsafe { &mut *slot })
    });
}

unsafe extern "C" fn send(qp: *mut QpEx) {
    begin(qp, WrOpcode::SEND, |_| {});
}

unsafe extern "C" fn send_imm(qp: *mut QpEx, imm: u32) {
    begin(qp, WrOpcode::SEND_WITH_IMM, |slot| slot.imm = imm);
}

unsafe extern "C" fn rdma_write(qp: *mut QpEx, rkey: u32, remote_addr: u64) {
    begin(qp, WrOpcode::RDMA_WRITE, |slot| (slot.rkey, slot.remote_addr) = (rkey, remote_addr));
}

unsafe extern "C" fn rdma_write_imm(qp: *mut QpEx, rkey: u32, remote_addr: u64, imm: u32) {
    begin(qp, WrOpcode::RDMA_WRITE_WITH_IMM, |slot| {
        (slot.rkey, slot.remote_addr, slot.imm) = (rkey, remote_addr, imm);
    });
}

unsafe extern "C" fn rdma_read(qp: *mut QpEx, rkey: u32, remote_addr: u64) {
    begin(qp, WrOpcode::RDMA_READ, |slot| (slot.rkey, slot.remote_addr) = (rkey, remote_addr));
}

unsafe extern "C" fn atomic_cmp_swp(qp: *mut QpEx, rkey: u32, remote_addr: u64, compare: u64, swap: u64) {
    begin(qp, WrOpcode::ATOMIC_CMP_AND_SWP, |slot| {
        (slot.rkey, slot.remote_addr, slot.compare_add, slot.swap) = (rkey, remote_addr, compare, swap);
    });
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut QpEx, rkey: u32, remote_addr: u64, add: u64) {
    begin(qp, WrOpcode::ATOMIC_FETCH_AND_ADD, |slot| {
        (slot.rkey, slot.remote_addr, slot.compare_add) = (rkey, remote_addr, add);
    });
}

unsafe extern "C" fn set_sge(qp: *mut QpEx, lkey: u32, addr: u64, len: u32) {
    set(qp, |_, slot| {
        slot.pieces[0] = Sge { addr, len, lkey };
        (slot.sges, slot.bytes) = (1, len);
        Ok(())
    });
}

unsafe extern "C" fn set_sge_list(qp: *mut QpEx, count: usize, list: *const GivenSge) {
    set(qp, |found, slot| {
        if count > (found.cap.max_send_sge as usize).min(SEND_SGES) || count > 0 && list.is_null() {
            return Err(Errno::INVAL);
        }
        let mut bytes = 0u32;
        for index in 0..count {
            // SAFETY: the caller's list has `count` pieces.
            let given = unsafe { list.add(index).read() };
            bytes = bytes.checked_add(given.length).ok_or(Errno::INVAL)?;
            slot.pieces[index] = Sge { addr: given.addr, len: given.length, lkey: given.lkey };
        }
        (slot.sges, slot.bytes) = (count as u32, bytes);
        Ok(())
    });
}

/// Copies bytes into the slot (inline data).
fn copy_inline(found: &QpObject, slot: &mut SendSlot, buffers: &[DataBuf]) -> Result<(), Errno> {
    let room = slot.pieces.as_mut_ptr().cast::<u8>();
    let most = (found.cap.max_inline_data as usize).min(INLINE_BYTES);
    let mut filled = 0;
    for buffer in buffers {
        if buffer.length > most - filled {
            return Err(Errno::NOMEM);
        }
        // SAFETY: there is room, checked; the caller's buffer is readable.
        unsafe { ptr::copy_nonoverlapping(buffer.addr.cast::<u8>(), room.add(filled), buffer.length) };
        filled += buffer.length;
    }
    slot.flags |= SendFlags::INLINE.0;
    (slot.sges, slot.bytes) = (0, filled as u32);
    Ok(())
}

unsafe extern "C" fn set_inline_data(qp: *mut QpEx, addr: *mut c_void, length: usize) {
    set(qp, |found, slot| copy_inline(found, slot, &[DataBuf { addr, length }]));
}

unsafe extern "C" fn set_inline_data_list(qp: *mut QpEx, count: usize, list: *const DataBuf) {
    set(qp, |found, slot| {
        if count == 0 || list.is_null() {
            return copy_inline(found, slot, &[]);
        }
        // SAFETY: the caller's list has `count` buffers.
        copy_inline(found, slot, unsafe { slice::from_raw_parts(list, count) })
    });
}

unsafe extern "C" fn set_ud_addr(qp: *mut QpEx, ah: *mut Ah, qpn: u32, qkey: u32) {
    set(qp, |found, slot| found.address(slot, AhObject::from_c(ah)?, qpn, qkey));
}
