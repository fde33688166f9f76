//! Changes and queries of the state of queue pairs.
//!
//! # Safety
//! See the module above.

use super::{
    Object, context::ContextObject, errno, input, output, pd, qp::QpObject, qp_create::is_connected,
    status_of,
};
use crate::{
    nic::{QpRef, qp_number},
    qp_state,
};
use rustix::io::Errno;
use std::{
    ffi::c_int,
    sync::atomic::Ordering::{Relaxed, Release, SeqCst},
};
use verbs_sys::{Mtu, Qp, QpAttr, QpAttrMask as Mask, QpInitAttr, QpState};

/// Checks the members that `mask` selects.
fn check(context: &ContextObject, attr: &QpAttr, mask: Mask) -> Result<(), Errno> {
    let most = context.profile().max_rd_atomic;
    let has = |bit, is_wrong: bool| mask.contains(bit) && is_wrong;
    let is_wrong = has(Mask::PORT, attr.port_num != 1)
        || has(Mask::PKEY_INDEX, attr.pkey_index != 0)
        || has(Mask::PATH_MTU, attr.path_mtu.bytes().is_none() || attr.path_mtu > Mtu::B4096)
        || has(Mask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic > most)
        || has(Mask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic > most)
        || has(Mask::TIMEOUT, attr.timeout > 31)
        || has(Mask::RETRY_CNT, attr.retry_cnt > 7)
        || has(Mask::RNR_RETRY, attr.rnr_retry > 7)
        || has(Mask::MIN_RNR_TIMER, attr.min_rnr_timer > 31)
        || has(Mask::AV, attr.ah_attr.port_num != 1);
    if is_wrong { Err(Errno::INVAL) } else { Ok(()) }
}

/// Stores the members that `mask` selects, for queries.
fn store_attr(known: &mut QpAttr, attr: &QpAttr, mask: Mask) {
    macro_rules! keep {
        ($($bit:ident => $($field:ident),+;)*) => {
            $(if mask.contains(Mask::$bit) { $(known.$field = attr.$field;)+ })*
        };
    }
    keep! {
        ACCESS_FLAGS => qp_access_flags;
        PKEY_INDEX => pkey_index;
        PORT => port_num;
        QKEY => qkey;
        AV => ah_attr;
        PATH_MTU => path_mtu;
        TIMEOUT => timeout;
        RETRY_CNT => retry_cnt;
        RNR_RETRY => rnr_retry;
        RQ_PSN => rq_psn;
        MAX_QP_RD_ATOMIC => max_rd_atomic;
        ALT_PATH => alt_ah_attr, alt_pkey_index, alt_port_num, alt_timeout;
        MIN_RNR_TIMER => min_rnr_timer;
        SQ_PSN => sq_psn;
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic;
        PATH_MIG_STATE => path_mig_state;
        DEST_QPN => dest_qp_num;
    }
}

/// Writes the members that `mask` selects to the record, which the NIC reads.
fn apply(
    found: &QpObject,
    qp_ref: QpRef<'_>,
    context: &ContextObject,
    attr: &QpAttr,
    mask: Mask,
) -> Result<(), Errno> {
    let (fixed, signals) = (&qp_ref.record.fixed, &qp_ref.record.signals);
    if mask.contains(Mask::AV) && is_connected(found.kind) {
        let port = pd::resolve(context, &attr.ah_attr)?;
        if port == u32::MAX {
            return Err(errno(found.profile.errnos.unreachable));
        }
        fixed.dest_port.store(port, Relaxed);
    }
    if mask.contains(Mask::DEST_QPN) {
        let qpn = attr.dest_qp_num & 0xff_ffff;
        let peer = found.nic.process().view(qp_number::slot(qpn), 0);
        fixed.dest_qpn.store(qpn, Relaxed);
        fixed.dest_incarnation.store(peer.map_or(0, |view| view.owner.incarnation), Relaxed);
    }
    for (bit, word, value) in [
        (Mask::ACCESS_FLAGS, &fixed.access, attr.qp_access_flags),
        (Mask::QKEY, &fixed.qkey, attr.qkey),
        (Mask::TIMEOUT, &signals.timeout, attr.timeout.into()),
        (Mask::RETRY_CNT, &signals.retry_count, attr.retry_cnt.into()),
        (Mask::RNR_RETRY, &signals.rnr_retry, attr.rnr_retry.into()),
        (Mask::MIN_RNR_TIMER, &signals.min_rnr_timer, attr.min_rnr_timer.into()),
    ] {
        if mask.contains(bit) {
            word.store(value, Relaxed);
        }
    }
    Ok(())
}

impl QpObject {
    fn modify(&self, qp: &mut Qp, attr: &QpAttr, mask: Mask) -> Result<(), Errno> {
        let qp_ref = self.qp_ref()?;
        let context = ContextObject::from_c(self.qp.qp_base.context)?;
        let from = qp_ref.state();
        let to = if mask.contains(Mask::STATE) { attr.qp_state } else { from };
        let is_other = mask.contains(Mask::CUR_STATE) && attr.cur_qp_state != from;
        if is_other || !qp_state::is_allowed(self.kind, from, to, mask) {
            return Err(Errno::INVAL);
        }
        check(context, attr, mask)?;
        {
            let _held = self.post_lock.lock();
            apply(self, qp_ref, context, attr, mask)?;
            // SAFETY: under `post_lock`.
            store_attr(unsafe { &mut *self.attr.get() }, attr, mask);
        }
        if to == QpState::RTR && self.profile.registrations_bound_at_rtr {
            qp_ref.record.fixed.newest_mr.store(self.nic.tables().last_serial(), Relaxed);
        }
        match to {
            QpState::ERR => self.nic.fail(qp_ref, None),
            QpState::RESET => self.reset(qp_ref)?,
            _ => {
                qp_ref.note_use();
                if from != to {
                    let wants_to_know = to == QpState::SQD && attr.en_sqd_async_notify != 0;
                    qp_ref.record.signals.drain.store(wants_to_know.into(), SeqCst);
                }
                qp_ref.record.fixed.state.store(to.0, SeqCst);
                // The peer may have waited for this state, and requests may have been posted already.
                self.nic.resume_peer(qp_ref);
                self.nic.execute(qp_ref);
            }
        }
        qp.state = to;
        Ok(())
    }

    fn reset(&self, qp_ref: QpRef<'_>) -> Result<(), Errno> {
        qp_ref.record.fixed.state.store(QpState::RESET.0, Release);
        qp_ref.record.fixed.newest_mr.store(u32::MAX, Relaxed);
        self.nic.discard(qp_ref, || {});
        for queue in [self.qp.qp_base.send_cq, self.qp.qp_base.recv_cq] {
            QpObject::cq(queue)?.purge(qp_ref.qpn());
        }
        Ok(())
    }
}

/// `ibv_modify_qp`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int {
    status_of(|| {
        let found: &QpObject = Object::<Qp>::from_c(qp)?;
        let attr = *input(attr)?;
        let mut shown = *input(qp)?;
        found.modify(&mut shown, &attr, Mask(mask as u32))?;
        // SAFETY: the caller's queue pair; programs read this number.
        unsafe { (*qp).state = shown.state };
        Ok(())
    })
}

/// `ibv_query_qp`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp(qp: *mut Qp, attr: *mut QpAttr, _mask: c_int, init: *mut QpInitAttr) -> c_int {
    status_of(|| {
        let found: &QpObject = Object::<Qp>::from_c(qp)?;
        let qp_ref = found.qp_ref()?;
        let _held = found.post_lock.lock();
        // SAFETY: under `post_lock`.
        let mut known = unsafe { *found.attr.get() };
        known.qp_state = qp_ref.state();
        known.cur_qp_state = known.qp_state;
        known.cap = found.cap;
        *output(attr)? = known;
        let base = &found.qp.qp_base;
        *output(init)? = QpInitAttr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: found.cap,
            qp_type: found.kind,
            sq_sig_all: found.signals_all.into(),
        };
        // SAFETY: the caller's queue pair; programs read this number.
        unsafe { (*qp).state = known.qp_state };
        Ok(())
    })
}

/// `ibv_query_ece`: not supported.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_ece(_qp: *mut Qp, _ece: *mut verbs_sys::Ece) -> c_int {
    status_of(|| Err(Errno::OPNOTSUPP))
}

/// `ibv_set_ece`: not supported.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_set_ece(_qp: *mut Qp, _ece: *mut verbs_sys::Ece) -> c_int {
    status_of(|| Err(Errno::OPNOTSUPP))
}

/// `ibv_attach_mcast`: not supported.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_attach_mcast(_qp: *mut Qp, _gid: *const verbs_sys::Gid, _lid: u16) -> c_int {
    status_of(|| Err(Errno::OPNOTSUPP))
}

/// `ibv_detach_mcast`: not supported.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_detach_mcast(_qp: *mut Qp, _gid: *const verbs_sys::Gid, _lid: u16) -> c_int {
    status_of(|| Err(Errno::OPNOTSUPP))
}

/// `ibv_query_qp_data_in_order`: the last byte of a message is written last.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(_qp: *mut Qp, _opcode: c_int, _flags: u32) -> c_int {
    0
}
