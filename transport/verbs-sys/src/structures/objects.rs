//! Objects that a library hands out, their work requests and their events.
//!
//! The first members of an object belong to the ABI; a library appends its own. The structures point to each
//! other, so they share this module.
//!
//! # Safety
//! The macro of the parent module defines these structures; see there.

use super::{Device, Unused, structures};
use crate::{EventType, MwType, QpState, QpType, WcOpcode, WcStatus, WrOpcode};
use std::{
    ffi::{c_int, c_void},
    fmt,
};

/// `pthread_mutex_t`. Its size differs between systems; it lies behind the members that callers read.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Mutex(pub libc::pthread_mutex_t);

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

/// `pthread_cond_t`. Its size differs between systems; it lies behind the members that callers read.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Cond(pub libc::pthread_cond_t);

impl fmt::Debug for Cond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cond")
    }
}

structures! {
    /// `struct ibv_context`: an open device.
    Context = "struct ibv_context", 328 {
        device: *mut Device = 0,
        /// Functions that are called through the context, not exported: posting and polling.
        ops: ContextOps = 8,
        cmd_fd: c_int = 264,
        /// Readable when an asynchronous event is pending.
        async_fd: c_int = 268,
        num_comp_vectors: c_int = 272,
        mutex: Mutex = 280,
        /// [`ABI_IS_EXTENDED`](crate::ABI_IS_EXTENDED) when the context is the last member of a
        /// [`VerbsContext`](crate::VerbsContext).
        abi_compat: *mut c_void = 320,
    }

    /// `struct ibv_context_ops`: the functions behind the inline functions of the C header.
    ContextOps = "struct ibv_context_ops", 256 {
        _compat_query_device: Unused = 0,
        _compat_query_port: Unused = 8,
        _compat_alloc_pd: Unused = 16,
        _compat_dealloc_pd: Unused = 24,
        _compat_reg_mr: Unused = 32,
        _compat_rereg_mr: Unused = 40,
        _compat_dereg_mr: Unused = 48,
        alloc_mw: Option<unsafe extern "C" fn(*mut Pd, MwType) -> *mut Mw> = 56,
        bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int> = 64,
        dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int> = 72,
        _compat_create_cq: Unused = 80,
        poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int> = 88,
        req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int> = 96,
        _compat_cq_event: Unused = 104,
        _compat_resize_cq: Unused = 112,
        _compat_destroy_cq: Unused = 120,
        _compat_create_srq: Unused = 128,
        _compat_modify_srq: Unused = 136,
        _compat_query_srq: Unused = 144,
        _compat_destroy_srq: Unused = 152,
        post_srq_recv: Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int> = 160,
        _compat_create_qp: Unused = 168,
        _compat_query_qp: Unused = 176,
        _compat_modify_qp: Unused = 184,
        _compat_destroy_qp: Unused = 192,
        post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int> = 200,
        post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int> = 208,
        _compat_create_ah: Unused = 216,
        _compat_destroy_ah: Unused = 224,
        _compat_attach_mcast: Unused = 232,
        _compat_detach_mcast: Unused = 240,
        _compat_async_event: Unused = 248,
    }

    /// `struct ibv_pd`: a protection domain.
    Pd = "struct ibv_pd", 16 {
        context: *mut Context = 0,
        handle: u32 = 8,
    }

    /// `struct ibv_td`: a thread domain.
    Td = "struct ibv_td", 8 {
        context: *mut Context = 0,
    }

    /// `struct ibv_xrcd`: an XRC domain.
    Xrcd = "struct ibv_xrcd", 8 {
        context: *mut Context = 0,
    }

    /// `struct ibv_mr`: a memory region.
    Mr = "struct ibv_mr", 48 {
        context: *mut Context = 0,
        pd: *mut Pd = 8,
        addr: *mut c_void = 16,
        length: usize = 24,
        handle: u32 = 32,
        lkey: u32 = 36,
        rkey: u32 = 40,
    }

    /// `struct ibv_mw`: a memory window.
    Mw = "struct ibv_mw", 32 {
        context: *mut Context = 0,
        pd: *mut Pd = 8,
        rkey: u32 = 16,
        handle: u32 = 20,
        r#type: MwType = 24,
    }

    /// `struct ibv_ah`: an address handle, the destination of datagrams.
    Ah = "struct ibv_ah", 24 {
        context: *mut Context = 0,
        pd: *mut Pd = 8,
        handle: u32 = 16,
    }

    /// `struct ibv_comp_channel`: a completion channel, which delivers completion events.
    CompChannel = "struct ibv_comp_channel", 16 {
        context: *mut Context = 0,
        /// Readable when an event is pending.
        fd: c_int = 8,
        refcnt: c_int = 12,
    }

    /// `struct ibv_cq`: a completion queue.
    Cq = "struct ibv_cq", 128 {
        context: *mut Context = 0,
        channel: *mut CompChannel = 8,
        cq_context: *mut c_void = 16,
        handle: u32 = 24,
        /// Capacity in completions.
        cqe: c_int = 28,
        mutex: Mutex = 32,
        cond: Cond = 72,
        comp_events_completed: u32 = 120,
        async_events_completed: u32 = 124,
    }

    /// `struct ibv_srq`: a shared receive queue.
    Srq = "struct ibv_srq", 128 {
        context: *mut Context = 0,
        srq_context: *mut c_void = 8,
        pd: *mut Pd = 16,
        handle: u32 = 24,
        mutex: Mutex = 32,
        cond: Cond = 72,
        events_completed: u32 = 120,
    }

    /// `struct ibv_qp`: a queue pair.
    Qp = "struct ibv_qp", 160 {
        context: *mut Context = 0,
        qp_context: *mut c_void = 8,
        pd: *mut Pd = 16,
        send_cq: *mut Cq = 24,
        recv_cq: *mut Cq = 32,
        srq: *mut Srq = 40,
        handle: u32 = 48,
        qp_num: u32 = 52,
        /// State that the library last saw; the device may have changed it since.
        state: QpState = 56,
        qp_type: QpType = 60,
        mutex: Mutex = 64,
        cond: Cond = 104,
        events_completed: u32 = 152,
    }

    /// `struct ibv_mw_bind_info`: the memory that a window is bound to.
    MwBindInfo = "struct ibv_mw_bind_info", 32 {
        mr: *mut Mr = 0,
        addr: u64 = 8,
        length: u64 = 16,
        mw_access_flags: u32 = 24,
    }

    /// `struct ibv_mw_bind`.
    MwBind = "struct ibv_mw_bind", 48 {
        wr_id: u64 = 0,
        send_flags: u32 = 8,
        bind_info: MwBindInfo = 16,
    }

    /// `struct ibv_wc`: a work completion.
    Wc = "struct ibv_wc", 48 {
        wr_id: u64 = 0,
        status: WcStatus = 8,
        /// Valid only on success, like all members below except `vendor_err` and `qp_num`.
        opcode: WcOpcode = 12,
        vendor_err: u32 = 16,
        byte_len: u32 = 20,
        /// Immediate data in network byte order with [`WcFlags::WITH_IMM`](crate::WcFlags::WITH_IMM), or the
        /// invalidated key with [`WcFlags::WITH_INV`](crate::WcFlags::WITH_INV).
        imm_data: u32 = 24,
        qp_num: u32 = 28,
        src_qp: u32 = 32,
        /// [`WcFlags`](crate::WcFlags).
        wc_flags: u32 = 36,
        pkey_index: u16 = 40,
        slid: u16 = 42,
        sl: u8 = 44,
        dlid_path_bits: u8 = 45,
    }

    /// `struct ibv_sge`: a scatter/gather element, a range of registered memory that a work request uses.
    Sge = "struct ibv_sge", 16 {
        /// Address in this process.
        addr: u64 = 0,
        /// Length in bytes.
        length: u32 = 8,
        /// Key of the memory region that covers the range.
        lkey: u32 = 12,
    }

    /// `struct ibv_data_buf`: a range of memory whose bytes are copied when the work request is posted.
    DataBuf = "struct ibv_data_buf", 16 {
        addr: *mut c_void = 0,
        length: usize = 8,
    }

    /// `struct ibv_recv_wr`: a receive work request, an element of a linked list.
    RecvWr = "struct ibv_recv_wr", 32 {
        wr_id: u64 = 0,
        next: *mut RecvWr = 8,
        sg_list: *mut Sge = 16,
        num_sge: c_int = 24,
    }

    /// `struct ibv_send_wr`: a send work request of any opcode, an element of a linked list.
    SendWr = "struct ibv_send_wr", 128 {
        wr_id: u64 = 0,
        next: *mut SendWr = 8,
        sg_list: *mut Sge = 16,
        num_sge: c_int = 24,
        opcode: WrOpcode = 28,
        /// [`SendFlags`](crate::SendFlags).
        send_flags: u32 = 32,
        /// Immediate data in network byte order, or the key to invalidate.
        imm_data: u32 = 36,
        /// The opcode and the service of the queue pair select the member.
        wr: SendTarget = 40,
        qp_type: SendXrc = 72,
        bind_mw: SendExtra = 80,
    }

    /// `struct ibv_async_event`: an asynchronous event of an object or a port.
    AsyncEvent = "struct ibv_async_event", 16 {
        element: AsyncElement = 0,
        event_type: EventType = 8,
    }
}

/// Remote memory of an RDMA operation.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RdmaTarget {
    /// Remote address.
    pub remote_addr: u64,
    /// Key of the memory region that covers the range.
    pub rkey: u32,
}

/// Remote memory of an atomic operation, 8 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AtomicTarget {
    /// Remote address.
    pub remote_addr: u64,
    /// Value to compare with, or to add.
    pub compare_add: u64,
    /// Value to store if the comparison succeeds.
    pub swap: u64,
    /// Key of the memory region that covers the 8 bytes.
    pub rkey: u32,
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DatagramTarget {
    /// Address handle of the remote port.
    pub ah: *mut Ah,
    /// Number of the remote queue pair.
    pub remote_qpn: u32,
    /// Q_Key of the remote queue pair.
    pub remote_qkey: u32,
}

/// Binding of a memory window.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BindTarget {
    /// Memory window to bind.
    pub mw: *mut Mw,
    /// New key of the window.
    pub rkey: u32,
    /// Memory that the window exposes.
    pub bind_info: MwBindInfo,
}

/// Header of a TSO send.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SegmentedHeader {
    /// Address of the header.
    pub hdr: *mut c_void,
    /// Header size in bytes.
    pub hdr_sz: u16,
    /// Maximum segment size in bytes: the payload that follows each copy of the header.
    pub mss: u16,
}

/// The member `wr` of a [`SendWr`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union SendTarget {
    /// For RDMA reads and writes.
    pub rdma: RdmaTarget,
    /// For atomic operations.
    pub atomic: AtomicTarget,
    /// For datagrams.
    pub ud: DatagramTarget,
}

/// The member `qp_type` of a [`SendWr`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SendXrc {
    /// Remote shared receive queue number of an extended reliable connection.
    pub remote_srqn: u32,
}

/// The last member of a [`SendWr`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union SendExtra {
    /// For [`WrOpcode::BIND_MW`].
    pub bind_mw: BindTarget,
    /// For [`WrOpcode::TSO`].
    pub tso: SegmentedHeader,
}

impl fmt::Debug for SendTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SendTarget")
    }
}

impl fmt::Debug for SendExtra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SendExtra")
    }
}

impl Default for Sge {
    fn default() -> Sge {
        Sge::zeroed()
    }
}

impl PartialEq for Sge {
    fn eq(&self, other: &Sge) -> bool {
        (self.addr, self.length, self.lkey) == (other.addr, other.length, other.lkey)
    }
}

impl Eq for Sge {}

/// The object of an event; the event type selects the member.
#[derive(Clone, Copy)]
#[repr(C)]
pub union AsyncElement {
    /// A completion queue.
    pub cq: *mut Cq,
    /// A queue pair.
    pub qp: *mut Qp,
    /// A shared receive queue.
    pub srq: *mut Srq,
    /// A work queue.
    pub wq: *mut c_void,
    /// A port number.
    pub port_num: c_int,
}

impl fmt::Debug for AsyncElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AsyncElement")
    }
}
