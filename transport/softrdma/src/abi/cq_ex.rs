//! Extended polling: `ibv_start_poll`, a call for each member of a completion, `ibv_next_poll`,
//! `ibv_end_poll`.
//!
//! # Safety
//! See the module above. The lock that `start_poll` takes when it returns 0 is held until `end_poll`. Between
//! them, the calls come from the thread that holds it.

use super::{
    Object,
    cq::{self, CqObject, Polling},
};
use crate::{clock::now, shm::Completion};
use rustix::io::Errno;
use std::{ffi::c_int, sync::atomic::Ordering::Relaxed};
use verbs_sys::{
    Context, CqEx, CqInitAttrEx, CqInitAttrMask, CreateCqWcFlags, PollCqAttr, WcOpcode, WcStatus,
};

/// Members of completions that can be read.
const SUPPORTED: u64 = (CreateCqWcFlags::BYTE_LEN.0
    | CreateCqWcFlags::IMM.0
    | CreateCqWcFlags::QP_NUM.0
    | CreateCqWcFlags::SRC_QP.0
    | CreateCqWcFlags::SLID.0
    | CreateCqWcFlags::SL.0
    | CreateCqWcFlags::DLID_PATH_BITS.0
    | CreateCqWcFlags::COMPLETION_TIMESTAMP.0
    | CreateCqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK.0) as u64;

/// Members that are times.
const TIMES: u64 =
    (CreateCqWcFlags::COMPLETION_TIMESTAMP.0 | CreateCqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK.0) as u64;

pub(super) unsafe extern "C" fn create(context: *mut Context, attr: *mut CqInitAttrEx) -> *mut CqEx {
    super::pointer_of(|| {
        let attr = super::input(attr)?;
        if attr.wc_flags & !SUPPORTED != 0 || attr.comp_mask & !CqInitAttrMask::FLAGS.0 != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let mut queue =
            cq::create(context, attr.cqe.into(), attr.cq_context, attr.channel, attr.comp_vector.into())?;
        set_calls(&mut queue.cq);
        let wants_times = attr.wc_flags & TIMES != 0;
        queue.record()?.fixed.wants_times.store(wants_times.into(), Relaxed);
        cq::publish(queue).map(<*mut _>::cast)
    })
}

/// Sets the table of calls.
fn set_calls(cq: &mut CqEx) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_zero);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_zero);
    cq.read_sl = Some(read_zero_byte);
    cq.read_dlid_path_bits = Some(read_zero_byte);
    cq.read_completion_ts = Some(read_completion_ts);
    cq.read_completion_wallclock_ns = Some(read_wallclock);
}

/// Moves on to the next completion.
fn advance(cq: *mut CqEx, found: &CqObject) -> Result<(), Errno> {
    // SAFETY: the caller holds the polling lock.
    let polling: &mut Polling = unsafe { &mut *found.polling.get() };
    let is_overrun = || found.record().is_ok_and(|record| record.fixed.overrun.load(Relaxed) != 0);
    let none = || if is_overrun() { Errno::IO } else { Errno::NOENT };
    let completion = found.next_completion(polling).ok_or_else(none)?;
    polling.current = completion;
    // SAFETY: the caller's queue; programs read these members of the current completion.
    unsafe {
        (*cq).wr_id = completion.wr_id;
        (*cq).status = WcStatus(completion.status.into());
    }
    Ok(())
}

unsafe extern "C" fn start_poll(cq: *mut CqEx, attr: *mut PollCqAttr) -> c_int {
    super::value_of(libc::EIO, || {
        let Ok(found) = <CqObject as Object<CqEx>>::from_c(cq) else { return libc::EINVAL };
        if super::input(attr).is_ok_and(|attr| attr.comp_mask != 0) || found.nic.process().is_inherited() {
            return libc::EINVAL;
        }
        found.poll_lock.acquire();
        match advance(cq, found) {
            Ok(()) => 0,
            Err(error) => {
                found.poll_lock.release();
                error.raw_os_error()
            }
        }
    })
}

unsafe extern "C" fn next_poll(cq: *mut CqEx) -> c_int {
    super::value_of(libc::EIO, || match <CqObject as Object<CqEx>>::from_c(cq) {
        Ok(found) => advance(cq, found).map_or_else(Errno::raw_os_error, |()| 0),
        Err(error) => error.raw_os_error(),
    })
}

unsafe extern "C" fn end_poll(cq: *mut CqEx) {
    super::value_of((), || {
        if let Ok(found) = <CqObject as Object<CqEx>>::from_c(cq) {
            found.poll_lock.release();
        }
    });
}

/// Reads from the current completion.
fn current<T: Default>(cq: *mut CqEx, member: impl FnOnce(&Completion) -> T) -> T {
    super::value_of(T::default(), || {
        let Ok(found) = <CqObject as Object<CqEx>>::from_c(cq) else { return T::default() };
        // SAFETY: between `start_poll` and `end_poll` the caller holds the polling lock.
        let polling = unsafe { &*found.polling.get() };
        member(&polling.current)
    })
}

/// Reads a member of the current completion.
fn read<T: Default>(cq: *mut CqEx, member: impl FnOnce(&verbs_sys::Wc) -> T) -> T {
    current(cq, |completion| member(&cq::work_completion(completion)))
}

unsafe extern "C" fn read_opcode(cq: *mut CqEx) -> WcOpcode {
    WcOpcode(read(cq, |wc| wc.opcode.0))
}

unsafe extern "C" fn read_byte_len(cq: *mut CqEx) -> u32 {
    read(cq, |wc| wc.byte_len)
}

unsafe extern "C" fn read_imm_data(cq: *mut CqEx) -> u32 {
    read(cq, |wc| wc.imm_data)
}

unsafe extern "C" fn read_qp_num(cq: *mut CqEx) -> u32 {
    read(cq, |wc| wc.qp_num)
}

unsafe extern "C" fn read_src_qp(cq: *mut CqEx) -> u32 {
    read(cq, |wc| wc.src_qp)
}

unsafe extern "C" fn read_wc_flags(cq: *mut CqEx) -> u32 {
    read(cq, |wc| wc.wc_flags)
}

unsafe extern "C" fn read_zero(_cq: *mut CqEx) -> u32 {
    0
}

unsafe extern "C" fn read_zero_byte(_cq: *mut CqEx) -> u8 {
    0
}

/// Returns the time of the completion, by the clock of `ibv_query_rt_values_ex`.
unsafe extern "C" fn read_completion_ts(cq: *mut CqEx) -> u64 {
    current(cq, |completion| completion.at)
}

/// Returns the time of the completion by the wall clock, computed from the clock's present value.
unsafe extern "C" fn read_wallclock(cq: *mut CqEx) -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let wall = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    current(cq, |completion| wall.wrapping_sub(now().wrapping_sub(completion.at)))
}
