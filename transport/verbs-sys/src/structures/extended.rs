//! Extended objects, which hold the functions that a library does not export.
//!
//! # Safety
//! Nothing is called here. The function types are `unsafe` because callers must meet the rules of the verbs
//! man pages: valid pointers, to objects of the same library.

use super::{
    Ah, CompChannel, Cond, Context, Cq, CqInitAttrEx, DataBuf, DeviceAttrEx, ModifyCqAttr, Mutex, Mw,
    MwBindInfo, ParentDomainInitAttr, Pd, PollCqAttr, PortAttr, Qp, QpInitAttrEx, QpRateLimitAttr,
    QueryDeviceExInput, Sge, Srq, SrqInitAttrEx, Td, TdInitAttr, Unused, ValuesEx, WcTmInfo, structures,
};
use crate::{WcOpcode, WcStatus};
use std::ffi::{c_int, c_void};

/// `__VERBS_ABI_IS_EXTENDED`: the value of [`Context::abi_compat`] in a [`VerbsContext`].
pub const ABI_IS_EXTENDED: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);

structures! {
    /// `struct verbs_context`: members that newer libraries put before a [`Context`].
    ///
    /// The structure grows at its front, so a caller finds a slot by its distance from the context. `sz`
    /// tells whether the slot exists.
    VerbsContext = "struct verbs_context", 648 {
        query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int> = 0,
        advise_mr: Option<unsafe extern "C" fn(*mut Pd, u32, u32, *mut Sge, u32) -> c_int> = 8,
        alloc_null_mr: Unused = 16,
        read_counters: Unused = 24,
        attach_counters_point_flow: Unused = 32,
        create_counters: Unused = 40,
        destroy_counters: Unused = 48,
        reg_dm_mr: Unused = 56,
        alloc_dm: Unused = 64,
        free_dm: Unused = 72,
        modify_flow_action_esp: Unused = 80,
        destroy_flow_action: Unused = 88,
        create_flow_action_esp: Unused = 96,
        modify_qp_rate_limit: Option<unsafe extern "C" fn(*mut Qp, *mut QpRateLimitAttr) -> c_int> = 104,
        alloc_parent_domain: Option<
            unsafe extern "C" fn(*mut Context, *mut ParentDomainInitAttr) -> *mut Pd,
        > = 112,
        dealloc_td: Option<unsafe extern "C" fn(*mut Td) -> c_int> = 120,
        alloc_td: Option<unsafe extern "C" fn(*mut Context, *mut TdInitAttr) -> *mut Td> = 128,
        modify_cq: Option<unsafe extern "C" fn(*mut Cq, *mut ModifyCqAttr) -> c_int> = 136,
        post_srq_ops: Unused = 144,
        destroy_rwq_ind_table: Unused = 152,
        create_rwq_ind_table: Unused = 160,
        destroy_wq: Unused = 168,
        modify_wq: Unused = 176,
        create_wq: Unused = 184,
        query_rt_values: Option<unsafe extern "C" fn(*mut Context, *mut ValuesEx) -> c_int> = 192,
        create_cq_ex: Option<unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx> = 200,
        r#priv: *mut c_void = 208,
        query_device_ex: Option<
            unsafe extern "C" fn(*mut Context, *const QueryDeviceExInput, *mut DeviceAttrEx, usize) -> c_int,
        > = 216,
        ibv_destroy_flow: Unused = 224,
        ABI_placeholder2: Unused = 232,
        ibv_create_flow: Unused = 240,
        ABI_placeholder1: Unused = 248,
        open_qp: Unused = 256,
        create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp> = 264,
        get_srq_num: Option<unsafe extern "C" fn(*mut Srq, *mut u32) -> c_int> = 272,
        create_srq_ex: Option<unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq> = 280,
        open_xrcd: Unused = 288,
        close_xrcd: Unused = 296,
        _ABI_placeholder3: u64 = 304,
        /// Size of the whole structure in the library's version, in bytes.
        sz: usize = 312,
        context: Context = 320,
    }

    /// `struct ibv_qp_ex`: a queue pair to which work is posted by function calls instead of lists.
    QpEx = "struct ibv_qp_ex", 352 {
        qp_base: Qp = 0,
        comp_mask: u64 = 160,
        wr_id: u64 = 168,
        /// [`SendFlags`](crate::SendFlags).
        wr_flags: u32 = 176,
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64)> = 184,
        wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)> = 192,
        wr_bind_mw: Option<unsafe extern "C" fn(*mut QpEx, *mut Mw, u32, *const MwBindInfo)> = 200,
        wr_local_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)> = 208,
        wr_rdma_read: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)> = 216,
        wr_rdma_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)> = 224,
        wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)> = 232,
        wr_send: Option<unsafe extern "C" fn(*mut QpEx)> = 240,
        wr_send_imm: Option<unsafe extern "C" fn(*mut QpEx, u32)> = 248,
        wr_send_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)> = 256,
        wr_send_tso: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, u16, u16)> = 264,
        wr_set_ud_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32)> = 272,
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut QpEx, u32)> = 280,
        wr_set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, usize)> = 288,
        wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf)> = 296,
        wr_set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)> = 304,
        wr_set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)> = 312,
        wr_start: Option<unsafe extern "C" fn(*mut QpEx)> = 320,
        wr_complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int> = 328,
        wr_abort: Option<unsafe extern "C" fn(*mut QpEx)> = 336,
        wr_atomic_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, *const c_void)> = 344,
    }

    /// `struct ibv_cq_ex`: a completion queue that is read by function calls. Begins like [`Cq`].
    CqEx = "struct ibv_cq_ex", 288 {
        context: *mut Context = 0,
        channel: *mut CompChannel = 8,
        cq_context: *mut c_void = 16,
        handle: u32 = 24,
        cqe: c_int = 28,
        mutex: Mutex = 32,
        cond: Cond = 72,
        comp_events_completed: u32 = 120,
        async_events_completed: u32 = 124,
        comp_mask: u32 = 128,
        /// Status of the current completion.
        status: WcStatus = 132,
        /// `wr_id` of the current completion.
        wr_id: u64 = 136,
        start_poll: Option<unsafe extern "C" fn(*mut CqEx, *mut PollCqAttr) -> c_int> = 144,
        next_poll: Option<unsafe extern "C" fn(*mut CqEx) -> c_int> = 152,
        end_poll: Option<unsafe extern "C" fn(*mut CqEx)> = 160,
        read_opcode: Option<unsafe extern "C" fn(*mut CqEx) -> WcOpcode> = 168,
        read_vendor_err: Option<unsafe extern "C" fn(*mut CqEx) -> u32> = 176,
        read_byte_len: Option<unsafe extern "C" fn(*mut CqEx) -> u32> = 184,
        read_imm_data: Option<unsafe extern "C" fn(*mut CqEx) -> u32> = 192,
        read_qp_num: Option<unsafe extern "C" fn(*mut CqEx) -> u32> = 200,
        read_src_qp: Option<unsafe extern "C" fn(*mut CqEx) -> u32> = 208,
        read_wc_flags: Option<unsafe extern "C" fn(*mut CqEx) -> u32> = 216,
        read_slid: Option<unsafe extern "C" fn(*mut CqEx) -> u32> = 224,
        read_sl: Option<unsafe extern "C" fn(*mut CqEx) -> u8> = 232,
        read_dlid_path_bits: Option<unsafe extern "C" fn(*mut CqEx) -> u8> = 240,
        read_completion_ts: Option<unsafe extern "C" fn(*mut CqEx) -> u64> = 248,
        read_cvlan: Option<unsafe extern "C" fn(*mut CqEx) -> u16> = 256,
        read_flow_tag: Option<unsafe extern "C" fn(*mut CqEx) -> u32> = 264,
        read_tm_info: Option<unsafe extern "C" fn(*mut CqEx, *mut WcTmInfo)> = 272,
        read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut CqEx) -> u64> = 280,
    }
}
