//! Both ends of a connection in one process, through the C ABI.
//!
//! # Safety
//! The library creates the objects; `Drop` destroys them once, in the order that verbs require. Buffers live
//! as long as their registrations. Structures passed to a call live during the call.

#![allow(dead_code, reason = "each test uses its part of it")]

use softrdma::Config;
use std::{
    ffi::{c_int, c_void},
    path::Path,
    ptr,
    time::{Duration, Instant},
};
use verbs_sys::{
    AccessFlags, AhAttr, Context, Cq, Device, Gid, Mr, Mtu, Pd, Qp, QpAttr, QpAttrMask, QpInitAttr, QpState,
    QpType, RdmaTarget, RecvWr, SendFlags, SendWr, Sge, Wc, WcStatus, WrOpcode,
};

unsafe extern "C" {
    fn ibv_free_device_list(list: *mut *mut Device);
    fn ibv_open_device(device: *mut Device) -> *mut Context;
    fn ibv_close_device(context: *mut Context) -> c_int;
    fn ibv_query_gid(context: *mut Context, port: u8, index: c_int, gid: *mut Gid) -> c_int;
    pub(crate) fn ibv_alloc_pd(context: *mut Context) -> *mut Pd;
    pub(crate) fn ibv_dealloc_pd(pd: *mut Pd) -> c_int;
    pub(crate) fn ibv_reg_mr(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr;
    pub(crate) fn ibv_dereg_mr(mr: *mut Mr) -> c_int;
    fn ibv_create_cq(
        c: *mut Context,
        cqe: c_int,
        p: *mut c_void,
        channel: *mut c_void,
        vector: c_int,
    ) -> *mut Cq;
    fn ibv_destroy_cq(cq: *mut Cq) -> c_int;
    pub(crate) fn ibv_create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp;
    pub(crate) fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int;
    pub(crate) fn ibv_destroy_qp(qp: *mut Qp) -> c_int;
}

/// Size of an end's buffer in bytes.
pub(crate) const BYTES: usize = 64 * 1024;

/// Properties of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) kind: QpType,
    pub(crate) depth: u32,
    pub(crate) cqe: c_int,
    pub(crate) access: AccessFlags,
    pub(crate) rnr_retry: u8,
}

impl Options {
    pub(crate) fn for_service(kind: QpType) -> Options {
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        Options { kind, depth: 16, cqe: 64, access, rnr_retry: 7 }
    }
}

/// Returns a temporary folder for a fabric.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) cq: *mut Cq,
    pub(crate) qp: *mut Qp,
    pub(crate) mr: *mut Mr,
    pub(crate) buffer: Vec<u8>,
}

impl End {
    /// Opens the first device of a node, with a queue pair in state RESET.
    pub(crate) fn new(fabric: &str, node: usize, folder: &Path, options: Options) -> End {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/fabrics").join(fabric);
        let config = Config {
            fabric: Some(file),
            node: Some(node.to_string()),
            folder: Some(folder.to_owned()),
            remap: false,
        };
        let list = softrdma::device_list(&config).expect("devices");
        let mut buffer = vec![0u8; BYTES];
        // SAFETY: see the module.
        unsafe {
            let context = ibv_open_device(*list);
            ibv_free_device_list(list);
            assert!(!context.is_null());
            let pd = ibv_alloc_pd(context);
            let cq = ibv_create_cq(context, options.cqe, ptr::null_mut(), ptr::null_mut(), 0);
            let access = if options.kind == QpType::UC {
                AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE
            } else {
                options.access
            };
            let mr = ibv_reg_mr(pd, buffer.as_mut_ptr().cast(), BYTES, access.0 as c_int);
            assert!(!pd.is_null() && !cq.is_null() && !mr.is_null());
            let mut attr = QpInitAttr::zeroed();
            (attr.send_cq, attr.recv_cq, attr.qp_type) = (cq, cq, options.kind);
            attr.cap.max_send_wr = options.depth;
            attr.cap.max_recv_wr = options.depth;
            (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (1, 1);
            let qp = ibv_create_qp(pd, &raw mut attr);
            assert!(!qp.is_null());
            End { context, pd, cq, qp, mr, buffer }
        }
    }

    pub(crate) fn qpn(&self) -> u32 {
        // SAFETY: the queue pair exists until `self` is dropped.
        unsafe { (*self.qp).qp_num }
    }

    fn gid(&self) -> Gid {
        let mut gid = Gid::default();
        // SAFETY: see the module.
        assert_eq!(unsafe { ibv_query_gid(self.context, 1, 1, &raw mut gid) }, 0);
        gid
    }

    pub(crate) fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> c_int {
        let mut attr = *attr;
        // SAFETY: see the module.
        unsafe { ibv_modify_qp(self.qp, &raw mut attr, mask.0 as c_int) }
    }

    pub(crate) fn to(&self, state: QpState) -> c_int {
        let mut attr = QpAttr::zeroed();
        attr.qp_state = state;
        self.modify(&attr, QpAttrMask::STATE)
    }

    /// Takes the queue pair from RESET to RTS.
    pub(crate) fn connect(&self, peer: &End, options: Options) {
        use QpAttrMask as M;
        let mut attr = QpAttr::zeroed();
        attr.qp_state = QpState::INIT;
        attr.port_num = 1;
        attr.qp_access_flags = options.access.0;
        assert_eq!(self.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS), 0);
        attr.qp_state = QpState::RTR;
        attr.path_mtu = Mtu::B1024;
        attr.dest_qp_num = peer.qpn();
        attr.ah_attr = AhAttr::zeroed();
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid = peer.gid();
        attr.ah_attr.grh.sgid_index = 1;
        let reliable =
            if options.kind == QpType::RC { M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER } else { M::NONE };
        attr.min_rnr_timer = 1;
        let rtr = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | reliable;
        assert_eq!(self.modify(&attr, rtr), 0);
        attr.qp_state = QpState::RTS;
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (8, 3, options.rnr_retry);
        let timers = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        let reliable = if options.kind == QpType::RC { timers } else { M::NONE };
        assert_eq!(self.modify(&attr, M::STATE | M::SQ_PSN | reliable), 0);
    }

    /// Returns the local and the remote key of the buffer.
    fn keys(&self) -> (u32, u32) {
        // SAFETY: the registration exists until `self` is dropped.
        unsafe { ((*self.mr).lkey, (*self.mr).rkey) }
    }

    /// Returns a scatter/gather element of the buffer.
    pub(crate) fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.buffer.as_ptr() as u64 + offset as u64, length: len as u32, lkey: self.keys().0 }
    }

    pub(crate) fn receive(&self, wr_id: u64, mut sge: Sge) -> c_int {
        let mut wr = RecvWr { wr_id, next: ptr::null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let mut bad = ptr::null_mut();
        // SAFETY: see the module.
        unsafe { ((*self.context).ops.post_recv.expect("a call"))(self.qp, &raw mut wr, &raw mut bad) }
    }

    /// Posts a signaled work request.
    pub(crate) fn post(&self, wr_id: u64, opcode: WrOpcode, mut sge: Sge, to: Option<RdmaTarget>) -> c_int {
        let mut wr = SendWr::zeroed();
        (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, opcode, SendFlags::SIGNALED.0);
        (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
        wr.imm_data = 0x0102_0304;
        if let Some(target) = to {
            wr.wr.rdma = target;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: see the module.
        unsafe { ((*self.context).ops.post_send.expect("a call"))(self.qp, &raw mut wr, &raw mut bad) }
    }

    pub(crate) fn send(&self, wr_id: u64, len: usize) -> c_int {
        self.post(wr_id, WrOpcode::SEND, self.sge(0, len), None)
    }

    /// Returns the remote address and key of this end's buffer.
    pub(crate) fn target(&self, offset: usize) -> RdmaTarget {
        RdmaTarget { remote_addr: self.buffer.as_ptr() as u64 + offset as u64, rkey: self.keys().1 }
    }

    /// Polls for one completion.
    pub(crate) fn poll(&self) -> Option<Wc> {
        let mut wc = Wc::zeroed();
        // SAFETY: see the module.
        let polled = unsafe { ((*self.context).ops.poll_cq.expect("a call"))(self.cq, 1, &raw mut wc) };
        (polled == 1).then_some(wc)
    }

    /// Waits for a completion and asserts its `wr_id` and status.
    pub(crate) fn expect(&self, wr_id: u64, status: WcStatus) -> Wc {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(wc) = self.poll() {
                assert_eq!((wc.wr_id, wc.status), (wr_id, status), "{wc:?}");
                return wc;
            }
            assert!(Instant::now() < deadline, "no completion of {wr_id}");
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: see the module.
        unsafe {
            if !self.qp.is_null() {
                assert_eq!(ibv_destroy_qp(self.qp), 0);
            }
            if !self.mr.is_null() {
                assert_eq!(ibv_dereg_mr(self.mr), 0);
            }
            assert_eq!(ibv_destroy_cq(self.cq), 0);
            assert_eq!(ibv_dealloc_pd(self.pd), 0);
            assert_eq!(ibv_close_device(self.context), 0);
        }
    }
}

/// Returns two connected ends, on the two nodes of a fabric.
pub(crate) fn pair(fabric: &str, folder: &Path, options: Options) -> [End; 2] {
    let ends = [0, 1].map(|node| End::new(fabric, node, folder, options));
    ends[0].connect(&ends[1], options);
    ends[1].connect(&ends[0], options);
    ends
}
