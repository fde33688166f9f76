//! Attributes that callers pass to create, modify or query objects.
//!
//! # Safety
//! The macro of the parent module defines these structures; see there.

use super::{CompChannel, Cq, Gid, Pd, Srq, Td, Unused, Xrcd, structures};
use crate::{MigState, Mtu, QpState, QpType, SrqType};
use std::ffi::{c_int, c_void};

structures! {
    /// `struct ibv_global_route`: the global routing header of an address.
    GlobalRoute = "struct ibv_global_route", 24 {
        dgid: Gid = 0,
        flow_label: u32 = 16,
        sgid_index: u8 = 20,
        hop_limit: u8 = 21,
        traffic_class: u8 = 22,
    }

    /// `struct ibv_grh`: the global routing header before a received datagram, in network byte order.
    Grh = "struct ibv_grh", 40 {
        version_tclass_flow: u32 = 0,
        paylen: u16 = 4,
        next_hdr: u8 = 6,
        hop_limit: u8 = 7,
        sgid: Gid = 8,
        dgid: Gid = 24,
    }

    /// `struct ibv_ah_attr`: the address of a remote port.
    AhAttr = "struct ibv_ah_attr", 32 {
        grh: GlobalRoute = 0,
        dlid: u16 = 24,
        sl: u8 = 26,
        src_path_bits: u8 = 27,
        static_rate: u8 = 28,
        /// Nonzero when `grh` is valid; required on Ethernet.
        is_global: u8 = 29,
        port_num: u8 = 30,
    }

    /// `struct ibv_srq_attr`.
    SrqAttr = "struct ibv_srq_attr", 12 {
        max_wr: u32 = 0,
        max_sge: u32 = 4,
        srq_limit: u32 = 8,
    }

    /// `struct ibv_srq_init_attr`.
    SrqInitAttr = "struct ibv_srq_init_attr", 24 {
        srq_context: *mut c_void = 0,
        attr: SrqAttr = 8,
    }

    /// `struct ibv_tm_cap`.
    TmCap = "struct ibv_tm_cap", 8 {
        max_num_tags: u32 = 0,
        max_ops: u32 = 4,
    }

    /// `struct ibv_srq_init_attr_ex`.
    SrqInitAttrEx = "struct ibv_srq_init_attr_ex", 64 {
        srq_context: *mut c_void = 0,
        attr: SrqAttr = 8,
        /// [`SrqInitAttrMask`](crate::SrqInitAttrMask).
        comp_mask: u32 = 20,
        srq_type: SrqType = 24,
        pd: *mut Pd = 32,
        xrcd: *mut Xrcd = 40,
        cq: *mut Cq = 48,
        tm_cap: TmCap = 56,
    }

    /// `struct ibv_qp_cap`: the capacities of a queue pair. Devices may grant more than requested.
    QpCap = "struct ibv_qp_cap", 20 {
        max_send_wr: u32 = 0,
        max_recv_wr: u32 = 4,
        max_send_sge: u32 = 8,
        max_recv_sge: u32 = 12,
        max_inline_data: u32 = 16,
    }

    /// `struct ibv_qp_init_attr`.
    QpInitAttr = "struct ibv_qp_init_attr", 64 {
        qp_context: *mut c_void = 0,
        send_cq: *mut Cq = 8,
        recv_cq: *mut Cq = 16,
        srq: *mut Srq = 24,
        cap: QpCap = 32,
        qp_type: QpType = 52,
        sq_sig_all: c_int = 56,
    }

    /// `struct ibv_rx_hash_conf`.
    RxHashConf = "struct ibv_rx_hash_conf", 24 {
        rx_hash_function: u8 = 0,
        rx_hash_key_len: u8 = 1,
        rx_hash_key: *mut u8 = 8,
        rx_hash_fields_mask: u64 = 16,
    }

    /// `struct ibv_qp_init_attr_ex`; begins like [`QpInitAttr`].
    QpInitAttrEx = "struct ibv_qp_init_attr_ex", 136 {
        qp_context: *mut c_void = 0,
        send_cq: *mut Cq = 8,
        recv_cq: *mut Cq = 16,
        srq: *mut Srq = 24,
        cap: QpCap = 32,
        qp_type: QpType = 52,
        sq_sig_all: c_int = 56,
        /// [`QpInitAttrMask`](crate::QpInitAttrMask).
        comp_mask: u32 = 60,
        pd: *mut Pd = 64,
        xrcd: *mut Xrcd = 72,
        /// [`QpCreateFlags`](crate::QpCreateFlags).
        create_flags: u32 = 80,
        max_tso_header: u16 = 84,
        rwq_ind_tbl: *mut c_void = 88,
        rx_hash_conf: RxHashConf = 96,
        source_qpn: u32 = 120,
        /// [`SendOpsFlags`](crate::SendOpsFlags).
        send_ops_flags: u64 = 128,
    }

    /// `struct ibv_qp_attr`. A [`QpAttrMask`](crate::QpAttrMask) names the valid members.
    QpAttr = "struct ibv_qp_attr", 144 {
        qp_state: QpState = 0,
        cur_qp_state: QpState = 4,
        path_mtu: Mtu = 8,
        path_mig_state: MigState = 12,
        qkey: u32 = 16,
        rq_psn: u32 = 20,
        sq_psn: u32 = 24,
        dest_qp_num: u32 = 28,
        /// [`AccessFlags`](crate::AccessFlags).
        qp_access_flags: u32 = 32,
        cap: QpCap = 36,
        ah_attr: AhAttr = 56,
        alt_ah_attr: AhAttr = 88,
        pkey_index: u16 = 120,
        alt_pkey_index: u16 = 122,
        en_sqd_async_notify: u8 = 124,
        sq_draining: u8 = 125,
        max_rd_atomic: u8 = 126,
        max_dest_rd_atomic: u8 = 127,
        min_rnr_timer: u8 = 128,
        port_num: u8 = 129,
        timeout: u8 = 130,
        retry_cnt: u8 = 131,
        rnr_retry: u8 = 132,
        alt_port_num: u8 = 133,
        alt_timeout: u8 = 134,
        rate_limit: u32 = 136,
    }

    /// `struct ibv_qp_rate_limit_attr`.
    QpRateLimitAttr = "struct ibv_qp_rate_limit_attr", 16 {
        rate_limit: u32 = 0,
        max_burst_sz: u32 = 4,
        typical_pkt_sz: u16 = 8,
        comp_mask: u32 = 12,
    }

    /// `struct ibv_cq_init_attr_ex`.
    CqInitAttrEx = "struct ibv_cq_init_attr_ex", 56 {
        cqe: u32 = 0,
        cq_context: *mut c_void = 8,
        channel: *mut CompChannel = 16,
        comp_vector: u32 = 24,
        /// [`CreateCqWcFlags`](crate::CreateCqWcFlags).
        wc_flags: u64 = 32,
        /// [`CqInitAttrMask`](crate::CqInitAttrMask).
        comp_mask: u32 = 40,
        /// [`CreateCqAttrFlags`](crate::CreateCqAttrFlags).
        flags: u32 = 44,
        parent_domain: *mut Pd = 48,
    }

    /// `struct ibv_moderate_cq`.
    ModerateCq = "struct ibv_moderate_cq", 4 {
        cq_count: u16 = 0,
        /// In microseconds.
        cq_period: u16 = 2,
    }

    /// `struct ibv_modify_cq_attr`.
    ModifyCqAttr = "struct ibv_modify_cq_attr", 8 {
        attr_mask: u32 = 0,
        moderate: ModerateCq = 4,
    }

    /// `struct ibv_poll_cq_attr`.
    PollCqAttr = "struct ibv_poll_cq_attr", 4 {
        comp_mask: u32 = 0,
    }

    /// `struct ibv_wc_tm_info`.
    WcTmInfo = "struct ibv_wc_tm_info", 16 {
        tag: u64 = 0,
        r#priv: u32 = 8,
    }

    /// `struct ibv_td_init_attr`.
    TdInitAttr = "struct ibv_td_init_attr", 4 {
        comp_mask: u32 = 0,
    }

    /// `struct ibv_parent_domain_init_attr`.
    ParentDomainInitAttr = "struct ibv_parent_domain_init_attr", 48 {
        pd: *mut Pd = 0,
        td: *mut Td = 8,
        comp_mask: u32 = 16,
        alloc: Unused = 24,
        free: Unused = 32,
        pd_context: *mut c_void = 40,
    }

    /// `struct ibv_ece`: enhanced connection establishment, which vendors negotiate between their devices.
    Ece = "struct ibv_ece", 12 {
        vendor_id: u32 = 0,
        options: u32 = 4,
        comp_mask: u32 = 8,
    }
}
