//! Shared receive queues.
//!
//! # Safety
//! See the module above.

use super::{
    Object,
    acks::EventAcks,
    context::ContextObject,
    errno, input, output,
    pd::{PdObject, UseGuard},
    pointer_of,
    receive_queue::{ReceiveQueue, ReceiveQueueAttr},
    status_of,
};
use crate::nic::Nic;
use rustix::io::Errno;
use std::{
    ffi::c_int,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};
use verbs_sys::{
    Context, Pd, Srq, SrqAttr, SrqAttrMask, SrqInitAttr, SrqInitAttrEx, SrqInitAttrMask, SrqType,
};

/// A shared receive queue.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SrqObject {
    srq: Srq,
    pub(super) nic: Arc<Nic>,
    pub(super) queue: ReceiveQueue,
    /// Queue pairs that use the queue.
    pub(super) users: Arc<AtomicU32>,
    pub(super) event_acks: EventAcks,
    _pd: UseGuard,
}

// SAFETY: `repr(C)`, and the structure is the first member.
unsafe impl Object<Srq> for SrqObject {}

fn create(pd: *mut Pd, context: *mut std::ffi::c_void, attr: &mut SrqAttr) -> Result<*mut Srq, Errno> {
    let domain = PdObject::from_c(pd)?;
    let owner = domain.context()?;
    let profile = owner.profile();
    if profile.max_srq == 0 {
        return Err(errno(profile.errnos.unsupported));
    }
    if attr.max_wr == 0 || attr.max_wr > profile.max_wr || attr.max_sge > profile.max_sge {
        return Err(Errno::INVAL);
    }
    attr.max_sge = attr.max_sge.max(1);
    let rq_attr = ReceiveQueueAttr { pd: domain.number, is_shared: true, async_channel: owner.async_channel };
    let queue = ReceiveQueue::new(&owner.nic, owner.port, attr.max_wr, attr.max_sge, rq_attr)?;
    let mut srq = Srq::zeroed();
    srq.context = owner.as_c();
    srq.srq_context = context;
    srq.pd = pd;
    srq.handle = queue.index;
    let made = SrqObject {
        srq,
        nic: Arc::clone(&owner.nic),
        queue,
        users: Arc::default(),
        event_acks: EventAcks::default(),
        _pd: domain.used(),
    }
    .into_c();
    owner.watch(|watched| watched.srqs.push(made as usize));
    Ok(made)
}

/// `ibv_create_srq`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_srq(pd: *mut Pd, attr: *mut SrqInitAttr) -> *mut Srq {
    pointer_of(|| {
        let attr = output(attr)?;
        create(pd, attr.srq_context, &mut attr.attr)
    })
}

pub(super) unsafe extern "C" fn create_ex(_context: *mut Context, attr: *mut SrqInitAttrEx) -> *mut Srq {
    pointer_of(|| {
        let attr = output(attr)?;
        let is_basic = attr.comp_mask & SrqInitAttrMask::TYPE.0 == 0 || attr.srq_type == SrqType::BASIC;
        if !is_basic || attr.comp_mask & SrqInitAttrMask::PD.0 == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        create(attr.pd, attr.srq_context, &mut attr.attr)
    })
}

pub(super) unsafe extern "C" fn number(srq: *mut Srq, number: *mut u32) -> c_int {
    status_of(|| {
        *output(number)? = SrqObject::from_c(srq)?.queue.index;
        Ok(())
    })
}

/// `ibv_modify_srq`: changes only the limit.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_modify_srq(srq: *mut Srq, attr: *mut SrqAttr, mask: c_int) -> c_int {
    status_of(|| {
        let found = SrqObject::from_c(srq)?;
        let (attr, mask) = (input(attr)?, SrqAttrMask(mask as u32));
        if mask.contains(SrqAttrMask::MAX_WR) {
            return Err(Errno::OPNOTSUPP);
        }
        if mask.contains(SrqAttrMask::LIMIT) {
            if attr.srq_limit >= found.queue.max_wr {
                return Err(Errno::INVAL);
            }
            found.queue.record().ok_or(Errno::INVAL)?.producer.limit.store(attr.srq_limit, Relaxed);
        }
        Ok(())
    })
}

/// `ibv_query_srq`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_srq(srq: *mut Srq, attr: *mut SrqAttr) -> c_int {
    status_of(|| {
        let found = SrqObject::from_c(srq)?;
        let limit = found.queue.record().ok_or(Errno::INVAL)?.producer.limit.load(Relaxed);
        *output(attr)? =
            SrqAttr { max_wr: found.queue.max_wr, max_sge: found.queue.max_sge, srq_limit: limit };
        Ok(())
    })
}

/// `ibv_destroy_srq`: waits until all fetched events are acknowledged.
///
/// # Safety
/// The queue must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut Srq) -> c_int {
    status_of(|| {
        let found = SrqObject::from_c(srq)?;
        let context = ContextObject::from_c(found.srq.context)?;
        if found.users.load(Relaxed) != 0 {
            return Err(Errno::BUSY);
        }
        context.watch(|watched| watched.srqs.retain(|&known| known != srq as usize));
        found.event_acks.wait();
        // SAFETY: made by `create`, and not used again by the caller's promise.
        drop(unsafe { SrqObject::take_back(srq) });
        Ok(())
    })
}
