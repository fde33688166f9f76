//! Posting receives, to a queue pair or to a shared queue.
//!
//! # Safety
//! See the module above.

use super::{Object, qp::QpObject, srq::SrqObject, status_of};
use crate::shm::RqRecord;
use rustix::io::Errno;
use std::ffi::c_int;
use verbs_sys::{Qp, QpState, RecvWr, Srq};

pub(super) unsafe extern "C" fn post(qp: *mut Qp, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    status_of(|| {
        let found: &QpObject = Object::<Qp>::from_c(qp)?;
        let refuse = |error| {
            if !bad.is_null() {
                // SAFETY: a place for the address.
                unsafe { *bad = wr };
            }
            Err(error)
        };
        let qp_ref = match found.qp_ref() {
            Ok(qp_ref) => qp_ref,
            Err(error) => return refuse(error),
        };
        found.check_cable();
        let Some(queue) = &found.receives else { return refuse(Errno::INVAL) };
        if qp_ref.state() == QpState::RESET {
            return refuse(Errno::INVAL);
        }
        let result = queue.post(wr, bad);
        if qp_ref.state() == QpState::ERR {
            found.nic.flush(qp_ref);
        } else {
            found.nic.resume_peer(qp_ref);
        }
        result
    })
}

pub(super) unsafe extern "C" fn post_shared(srq: *mut Srq, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    status_of(|| {
        let found = SrqObject::from_c(srq)?;
        if found.nic.process().is_inherited() {
            return Err(Errno::INVAL);
        }
        let result = found.queue.post(wr, bad);
        if found.queue.record().is_some_and(RqRecord::take_waiting) {
            found.nic.resume_peers_of(found.queue.index);
        }
        result
    })
}
