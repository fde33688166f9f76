//! Requests in their rings, and their outcomes.
//!
//! # Safety
//! A request's slot lies in the mapped ring of its queue, whose lock is held, and was written before the tail
//! that covers it. Nobody writes to a slot between its posting and its completion.

use super::{qp::QpRef, region::Access, sge_list::SgeList};
use crate::shm::{SEND_SGES, SendSlot};
use std::sync::atomic::Ordering::Relaxed;
use verbs_sys::{AccessFlags, SendFlags, WcOpcode, WcStatus, WrOpcode};

/// A request in its ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request(*mut SendSlot);

impl Request {
    /// Returns request `number` of a send queue. The caller holds the queue's lock.
    pub(super) fn at(qp: QpRef<'_>, number: u64) -> Option<Request> {
        let index = number & qp.record.send.mask.load(Relaxed);
        let offset = index.checked_mul(size_of::<SendSlot>() as u64)?;
        let offset = qp.record.fixed.ring.load(Relaxed).checked_add(offset)?;
        qp.view.range().at::<SendSlot>(offset).map(Request)
    }

    /// Returns the request without copying it.
    #[inline]
    pub(super) fn get(&self) -> &SendSlot {
        // SAFETY: see the module.
        unsafe { &*self.0 }
    }

    pub(super) fn is_signaled(&self) -> bool {
        SendFlags(self.get().flags).contains(SendFlags::SIGNALED)
    }

    pub(super) fn completion_opcode(&self) -> u8 {
        let opcode = match WrOpcode(self.get().opcode) {
            WrOpcode::RDMA_WRITE | WrOpcode::RDMA_WRITE_WITH_IMM => WcOpcode::RDMA_WRITE,
            WrOpcode::RDMA_READ => WcOpcode::RDMA_READ,
            WrOpcode::ATOMIC_CMP_AND_SWP => WcOpcode::COMP_SWAP,
            WrOpcode::ATOMIC_FETCH_AND_ADD => WcOpcode::FETCH_ADD,
            _ => WcOpcode::SEND,
        };
        opcode.0 as u8
    }

    /// Returns the local memory of the request: the source of a send or write, the destination of a read.
    pub(super) fn list<'a>(&self, qp: QpRef<'a>) -> SgeList<'a> {
        let slot = self.get();
        let first = slot.pieces.as_ptr();
        if SendFlags(slot.flags).contains(SendFlags::INLINE) {
            return SgeList::Local { start: first.cast::<u8>().cast_mut(), len: slot.bytes as usize };
        }
        let writes = slot.opcode >= WrOpcode::RDMA_READ.0;
        let flags = if writes { AccessFlags::LOCAL_WRITE } else { AccessFlags::NONE };
        let access = Access::of_qp(qp.view, &qp.record.fixed, flags);
        SgeList::Registered { access, first, count: slot.sges.min(SEND_SGES as u32) }
    }
}

/// The result of an executed request, for its completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestResult {
    pub(super) status: WcStatus,
    pub(super) bytes: u32,
    pub(super) due: u64,
}

impl RequestResult {
    pub(super) fn with_status(status: WcStatus) -> RequestResult {
        RequestResult { status, bytes: 0, due: 0 }
    }
}

/// The outcome of an attempt to execute a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    Completed(RequestResult),
    /// The request stays at the head of its queue until the next attempt.
    Waiting,
}

impl Outcome {
    pub(super) fn success(bytes: u32, due: u64) -> Outcome {
        Outcome::Completed(RequestResult { status: WcStatus::SUCCESS, bytes, due })
    }

    pub(super) fn failure(status: WcStatus) -> Outcome {
        Outcome::Completed(RequestResult::with_status(status))
    }
}
