//! Enumerations that describe queue pairs, shared receive queues and completion queues.

use super::enums;

enums! {
    /// `enum ibv_qp_type`: the transport service of a queue pair.
    plain QpType(u32) = "IBV_QPT_" {
        /// Reliable connection.
        RC = 2,
        /// Unreliable connection; the only service of Apple's Thunderbolt device.
        UC = 3,
        /// Unreliable datagram.
        UD = 4,
        /// Raw Ethernet frames.
        RAW_PACKET = 8,
        /// Extended reliable connection, initiator.
        XRC_SEND = 9,
        /// Extended reliable connection, target.
        XRC_RECV = 10,
        /// A vendor's own service.
        DRIVER = 0xff,
    }

    /// `enum ibv_qp_state`: the state of a queue pair.
    plain QpState(u32) = "IBV_QPS_" {
        /// Reset: nothing can be posted.
        RESET = 0,
        /// Initialized: receives can be posted.
        INIT = 1,
        /// Ready to receive.
        RTR = 2,
        /// Ready to send.
        RTS = 3,
        /// Send queue drain: posted sends wait.
        SQD = 4,
        /// Send queue error: sends are flushed, receives continue.
        SQE = 5,
        /// Error: everything posted is flushed.
        ERR = 6,
        /// The library does not know the state.
        UNKNOWN = 7,
    }

    /// `enum ibv_mig_state`: the state of path migration.
    plain MigState(u32) = "IBV_MIG_" {
        /// The connection uses the alternate path.
        MIGRATED = 0,
        /// The alternate path is to be armed.
        REARM = 1,
        /// The connection can migrate.
        ARMED = 2,
    }

    /// `enum ibv_srq_type`: the type of a shared receive queue.
    plain SrqType(u32) = "IBV_SRQT_" {
        /// Basic.
        BASIC = 0,
        /// For extended reliable connections.
        XRC = 1,
        /// With tag matching.
        TM = 2,
    }

    /// `enum ibv_qp_attr_mask`: the valid members of a `QpAttr`.
    flags QpAttrMask(u32) = "IBV_QP_" {
        /// `qp_state`.
        STATE = 1,
        /// `cur_qp_state`.
        CUR_STATE = 1 << 1,
        /// `en_sqd_async_notify`.
        EN_SQD_ASYNC_NOTIFY = 1 << 2,
        /// `qp_access_flags`.
        ACCESS_FLAGS = 1 << 3,
        /// `pkey_index`.
        PKEY_INDEX = 1 << 4,
        /// `port_num`.
        PORT = 1 << 5,
        /// `qkey`.
        QKEY = 1 << 6,
        /// `ah_attr`.
        AV = 1 << 7,
        /// `path_mtu`.
        PATH_MTU = 1 << 8,
        /// `timeout`.
        TIMEOUT = 1 << 9,
        /// `retry_cnt`.
        RETRY_CNT = 1 << 10,
        /// `rnr_retry`.
        RNR_RETRY = 1 << 11,
        /// `rq_psn`.
        RQ_PSN = 1 << 12,
        /// `max_rd_atomic`.
        MAX_QP_RD_ATOMIC = 1 << 13,
        /// `alt_ah_attr`, `alt_pkey_index`, `alt_port_num` and `alt_timeout`.
        ALT_PATH = 1 << 14,
        /// `min_rnr_timer`.
        MIN_RNR_TIMER = 1 << 15,
        /// `sq_psn`.
        SQ_PSN = 1 << 16,
        /// `max_dest_rd_atomic`.
        MAX_DEST_RD_ATOMIC = 1 << 17,
        /// `path_mig_state`.
        PATH_MIG_STATE = 1 << 18,
        /// `cap`.
        CAP = 1 << 19,
        /// `dest_qp_num`.
        DEST_QPN = 1 << 20,
        /// `rate_limit`.
        RATE_LIMIT = 1 << 25,
    }

    /// `enum ibv_qp_init_attr_mask`: the valid members of a `QpInitAttrEx`.
    flags QpInitAttrMask(u32) = "IBV_QP_INIT_ATTR_" {
        /// `pd`.
        PD = 1,
        /// `xrcd`.
        XRCD = 1 << 1,
        /// `create_flags`.
        CREATE_FLAGS = 1 << 2,
        /// `max_tso_header`.
        MAX_TSO_HEADER = 1 << 3,
        /// `rwq_ind_tbl`.
        IND_TABLE = 1 << 4,
        /// `rx_hash_conf`.
        RX_HASH = 1 << 5,
        /// `send_ops_flags`.
        SEND_OPS_FLAGS = 1 << 6,
    }

    /// `enum ibv_qp_create_flags`: creation flags of a queue pair.
    flags QpCreateFlags(u32) = "IBV_QP_CREATE_" {
        /// Blocks loopback of the queue pair's own multicasts.
        BLOCK_SELF_MCAST_LB = 1 << 1,
        /// Delivers the frame check sequence with the data.
        SCATTER_FCS = 1 << 8,
        /// Strips VLAN tags.
        CVLAN_STRIPPING = 1 << 9,
        /// Sends under the queue pair number in `source_qpn`.
        SOURCE_QPN = 1 << 10,
        /// Pads PCI writes to a cache line.
        PCI_WRITE_END_PADDING = 1 << 11,
    }

    /// `enum ibv_qp_create_send_ops_flags`: the posting calls that a `QpEx` must offer.
    flags SendOpsFlags(u32) = "IBV_QP_EX_WITH_" {
        /// `wr_rdma_write`.
        RDMA_WRITE = 1,
        /// `wr_rdma_write_imm`.
        RDMA_WRITE_WITH_IMM = 1 << 1,
        /// `wr_send`.
        SEND = 1 << 2,
        /// `wr_send_imm`.
        SEND_WITH_IMM = 1 << 3,
        /// `wr_rdma_read`.
        RDMA_READ = 1 << 4,
        /// `wr_atomic_cmp_swp`.
        ATOMIC_CMP_AND_SWP = 1 << 5,
        /// `wr_atomic_fetch_add`.
        ATOMIC_FETCH_AND_ADD = 1 << 6,
        /// `wr_local_inv`.
        LOCAL_INV = 1 << 7,
        /// `wr_bind_mw`.
        BIND_MW = 1 << 8,
        /// `wr_send_inv`.
        SEND_WITH_INV = 1 << 9,
        /// `wr_send_tso`.
        TSO = 1 << 10,
        /// `wr_atomic_write`.
        ATOMIC_WRITE = 1 << 12,
    }

    /// `enum ibv_srq_attr_mask`: the valid members of a `SrqAttr`.
    flags SrqAttrMask(u32) = "IBV_SRQ_" {
        /// `max_wr`.
        MAX_WR = 1,
        /// `srq_limit`.
        LIMIT = 1 << 1,
    }

    /// `enum ibv_srq_init_attr_mask`: the valid members of a `SrqInitAttrEx`.
    flags SrqInitAttrMask(u32) = "IBV_SRQ_INIT_ATTR_" {
        /// `srq_type`.
        TYPE = 1,
        /// `pd`.
        PD = 1 << 1,
        /// `xrcd`.
        XRCD = 1 << 2,
        /// `cq`.
        CQ = 1 << 3,
        /// `tm_cap`.
        TM = 1 << 4,
    }

    /// `enum ibv_cq_init_attr_mask`: the valid members of a `CqInitAttrEx`.
    flags CqInitAttrMask(u32) = "IBV_CQ_INIT_ATTR_MASK_" {
        /// `flags`.
        FLAGS = 1,
        /// `parent_domain`.
        PD = 1 << 1,
    }

    /// `enum ibv_create_cq_attr_flags`: creation flags of a completion queue.
    flags CreateCqAttrFlags(u32) = "IBV_CREATE_CQ_ATTR_" {
        /// A single thread uses the queue.
        SINGLE_THREADED = 1,
        /// An overrun is not reported.
        IGNORE_OVERRUN = 1 << 1,
    }

    /// `enum ibv_create_cq_wc_flags`: the fields of a completion that a `CqEx` must offer.
    flags CreateCqWcFlags(u32) = "IBV_WC_EX_WITH_" {
        /// `byte_len`.
        BYTE_LEN = 1,
        /// `imm_data`.
        IMM = 1 << 1,
        /// `qp_num`.
        QP_NUM = 1 << 2,
        /// `src_qp`.
        SRC_QP = 1 << 3,
        /// `slid`.
        SLID = 1 << 4,
        /// `sl`, the service level.
        SL = 1 << 5,
        /// `dlid_path_bits`.
        DLID_PATH_BITS = 1 << 6,
        /// Completion timestamp by the device's clock.
        COMPLETION_TIMESTAMP = 1 << 7,
        /// VLAN.
        CVLAN = 1 << 8,
        /// Flow tag.
        FLOW_TAG = 1 << 9,
        /// Tag matching information.
        TM_INFO = 1 << 10,
        /// Completion timestamp by the wall clock.
        COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11,
    }
}
