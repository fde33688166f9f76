//! Queue pairs and send work requests.
//!
//! # Safety
//! See the module above.

use super::{
    AddressHandle, Domain, Errno, Queues, check_pointer, destroy, ibv_destroy_qp, ibv_modify_qp,
    ibv_query_qp, receive,
};
use std::{
    ffi::c_int,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicPtr, Ordering::Acquire},
    },
};
use verbs_sys::{Qp, QpAttr, QpAttrMask, QpInitAttr, QpState, SendFlags, SendTarget, SendWr, Sge, WrOpcode};

/// A send work request.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    id: u64,
    opcode: WrOpcode,
    flags: SendFlags,
    imm: u32,
    sges: Vec<Sge>,
    remote: (u64, u32),
    operands: (u64, u64),
    datagram: Option<(Arc<AddressHandle>, u32, u32)>,
}

impl Work {
    /// Creates a signaled request with `wr_id` 0.
    pub(crate) fn new(opcode: WrOpcode, sges: &[Sge]) -> Work {
        Work {
            id: 0,
            opcode,
            flags: SendFlags::SIGNALED,
            imm: 0,
            sges: sges.to_vec(),
            remote: (0, 0),
            operands: (0, 0),
            datagram: None,
        }
    }

    pub(crate) fn send(sges: &[Sge]) -> Work {
        Work::new(WrOpcode::SEND, sges)
    }

    pub(crate) fn id(self, id: u64) -> Work {
        Work { id, ..self }
    }

    pub(crate) fn flags(self, flags: SendFlags) -> Work {
        Work { flags, ..self }
    }

    pub(crate) fn imm(self, imm: u32) -> Work {
        Work { imm, ..self }
    }

    /// Sets the remote address and key.
    pub(crate) fn at(self, address: u64, rkey: u32) -> Work {
        Work { remote: (address, rkey), ..self }
    }

    /// Sets the operands of an atomic operation: the addend or comparand, and the value to swap in.
    pub(crate) fn operands(self, first: u64, second: u64) -> Work {
        Work { operands: (first, second), ..self }
    }

    pub(crate) fn to(self, address: &Arc<AddressHandle>, qpn: u32, qkey: u32) -> Work {
        Work { datagram: Some((Arc::clone(address), qpn, qkey)), ..self }
    }

    fn target(&self) -> SendTarget {
        let (remote_addr, rkey) = self.remote;
        match (&self.datagram, self.opcode) {
            (Some((address, remote_qpn, remote_qkey)), _) => SendTarget {
                ud: verbs_sys::DatagramTarget {
                    ah: address.ah.load(Acquire),
                    remote_qpn: *remote_qpn,
                    remote_qkey: *remote_qkey,
                },
            },
            (None, WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD) => {
                let (compare_add, swap) = self.operands;
                SendTarget { atomic: verbs_sys::AtomicTarget { remote_addr, compare_add, swap, rkey } }
            }
            _ => SendTarget { rdma: verbs_sys::RdmaTarget { remote_addr, rkey } },
        }
    }

    fn request(&mut self) -> SendWr {
        let mut wr = SendWr::zeroed();
        wr.wr_id = self.id;
        wr.opcode = self.opcode;
        wr.send_flags = self.flags.0;
        wr.imm_data = self.imm;
        wr.wr = self.target();
        wr.num_sge = self.sges.len() as c_int;
        wr.sg_list = if self.sges.is_empty() { ptr::null_mut() } else { self.sges.as_mut_ptr() };
        wr
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(super) qp: AtomicPtr<Qp>,
    /// The granted capacities.
    pub(crate) cap: verbs_sys::QpCap,
    pub(super) _queues: Queues,
    pub(super) domain: Arc<Domain>,
}

impl QueuePair {
    pub(crate) fn raw(&self) -> *mut Qp {
        self.qp.load(Acquire)
    }

    /// Wraps a queue pair that was created by another function.
    pub(crate) fn adopt(
        qp: *mut Qp,
        cap: verbs_sys::QpCap,
        queues: Queues,
        domain: &Arc<Domain>,
    ) -> Result<QueuePair, Errno> {
        Ok(QueuePair { qp: check_pointer(qp)?, cap, _queues: queues, domain: Arc::clone(domain) })
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair exists until it is destroyed.
        unsafe { (*self.raw()).qp_num }
    }

    pub(crate) fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Errno {
        let mut attr = *attr;
        ibv_modify_qp(self.raw(), &raw mut attr, mask.0 as c_int)
    }

    pub(crate) fn become_state(&self, state: QpState) -> Errno {
        let mut attr = QpAttr::zeroed();
        attr.qp_state = state;
        self.modify(&attr, QpAttrMask::STATE)
    }

    pub(crate) fn query(&self) -> (QpAttr, QpInitAttr) {
        let (mut attr, mut init) = (QpAttr::zeroed(), QpInitAttr::zeroed());
        assert_eq!(ibv_query_qp(self.raw(), &raw mut attr, !0, &raw mut init), 0);
        (attr, init)
    }

    pub(crate) fn state(&self) -> QpState {
        self.query().0.qp_state
    }

    pub(crate) fn receive(&self, id: u64, sges: &[Sge]) -> Errno {
        let post = self.domain.node.context().ops.post_recv.expect("every device receives");
        let mut sges = sges.to_vec();
        let (mut wr, mut bad) = (receive(id, &mut sges), ptr::null_mut());
        // SAFETY: the queue pair exists; the list has one request.
        let result = unsafe { post(self.raw(), &raw mut wr, &raw mut bad) };
        assert_eq!(bad.is_null(), result == 0, "the bad request is named exactly if there is one");
        result
    }

    pub(crate) fn post(&self, work: &Work) -> Errno {
        self.post_list(std::slice::from_ref(work)).0
    }

    /// Posts a list; returns the error and the number of accepted requests.
    pub(crate) fn post_list(&self, list: &[Work]) -> (Errno, usize) {
        let post = self.domain.node.context().ops.post_send.expect("every device sends");
        let mut list = list.to_vec();
        let mut requests: Vec<SendWr> = list.iter_mut().map(Work::request).collect();
        let first = requests.as_mut_ptr();
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair exists; the links stay within the vector, which is not moved until the call
        // returns.
        unsafe {
            for index in 1..list.len() {
                (*first.add(index - 1)).next = first.add(index);
            }
            let result = post(self.raw(), first, &raw mut bad);
            assert_eq!(bad.is_null(), result == 0, "the bad request is named exactly if there is one");
            (result, if bad.is_null() { list.len() } else { bad.offset_from_unsigned(first) })
        }
    }

    pub(crate) fn destroy(&self) -> Errno {
        destroy(&self.qp, ibv_destroy_qp)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy();
    }
}
