//! Of queue pairs, shared receive queues and completion queues.

use super::enums;

enums! {
    /// `enum ibv_qp_type`: the service of a queue pair.
    plain QpType(u32) = "IBV_QPT_" {
        /// Reliable connection.
        RC = 2,
        /// Unreliable connection; the only one of Apple's Thunderbolt device.
        UC = 3,
        /// Unreliable datagram.
        UD = 4,
        /// Ethernet frames.
        RAW_PACKET = 8,
        /// Extended reliable connection, sending side.
        XRC_SEND = 9,
        /// Extended reliable connection, receiving side.
        XRC_RECV = 10,
        /// A kind of the device's own.
        DRIVER = 0xff,
    }

    /// `enum ibv_qp_state`: where a queue pair is in its life.
    plain QpState(u32) = "IBV_QPS_" {
        /// New; nothing can be posted.
        RESET = 0,
        /// Receives can be posted.
        INIT = 1,
        /// Ready to receive.
        RTR = 2,
        /// Ready to send.
        RTS = 3,
        /// The send queue is drained.
        SQD = 4,
        /// The send queue has failed.
        SQE = 5,
        /// Failed; everything posted is flushed.
        ERR = 6,
        /// Unknown to the library.
        UNKNOWN = 7,
    }

    /// `enum ibv_mig_state`: which of two paths a connection uses.
    plain MigState(u32) = "IBV_MIG_" {
        /// The other one.
        MIGRATED = 0,
        /// About to be armed.
        REARM = 1,
        /// Ready to change.
        ARMED = 2,
    }

    /// `enum ibv_srq_type`: the kind of a shared receive queue.
    plain SrqType(u32) = "IBV_SRQT_" {
        /// The usual one.
        BASIC = 0,
        /// Of extended reliable connections.
        XRC = 1,
        /// With tag matching.
        TM = 2,
    }

    /// `enum ibv_qp_attr_mask`: which members of a `QpAttr` count.
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

    /// `enum ibv_qp_init_attr_mask`: which members of a `QpInitAttrEx` count.
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

    /// `enum ibv_qp_create_flags`: how a queue pair is made.
    flags QpCreateFlags(u32) = "IBV_QP_CREATE_" {
        /// Its own multicasts do not come back.
        BLOCK_SELF_MCAST_LB = 1 << 1,
        /// Checksums of frames are delivered.
        SCATTER_FCS = 1 << 8,
        /// Tags of virtual networks are taken off.
        CVLAN_STRIPPING = 1 << 9,
        /// It sends under another number.
        SOURCE_QPN = 1 << 10,
        /// Writes are padded.
        PCI_WRITE_END_PADDING = 1 << 11,
    }

    /// `enum ibv_qp_create_send_ops_flags`: which calls of a `QpEx` will be used.
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

    /// `enum ibv_srq_attr_mask`: which members of a `SrqAttr` count.
    flags SrqAttrMask(u32) = "IBV_SRQ_" {
        /// `max_wr`.
        MAX_WR = 1,
        /// `srq_limit`.
        LIMIT = 1 << 1,
    }

    /// `enum ibv_srq_init_attr_mask`: which members of a `SrqInitAttrEx` count.
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

    /// `enum ibv_cq_init_attr_mask`: which members of a `CqInitAttrEx` count.
    flags CqInitAttrMask(u32) = "IBV_CQ_INIT_ATTR_MASK_" {
        /// `flags`.
        FLAGS = 1,
        /// `parent_domain`.
        PD = 1 << 1,
    }

    /// `enum ibv_create_cq_attr_flags`: how a completion queue is made.
    flags CreateCqAttrFlags(u32) = "IBV_CREATE_CQ_ATTR_" {
        /// Only one thread will use it.
        SINGLE_THREADED = 1,
        /// Its overflow is not noticed.
        IGNORE_OVERRUN = 1 << 1,
    }

    /// `enum ibv_create_cq_wc_flags`: what will be read of the completions of a `CqEx`.
    flags CreateCqWcFlags(u32) = "IBV_WC_EX_WITH_" {
        /// The length.
        BYTE_LEN = 1,
        /// The number that was sent along.
        IMM = 1 << 1,
        /// The queue pair.
        QP_NUM = 1 << 2,
        /// The sender's queue pair.
        SRC_QP = 1 << 3,
        /// The sender's local address.
        SLID = 1 << 4,
        /// The service level.
        SL = 1 << 5,
        /// The path.
        DLID_PATH_BITS = 1 << 6,
        /// The time by the device's clock.
        COMPLETION_TIMESTAMP = 1 << 7,
        /// The virtual network.
        CVLAN = 1 << 8,
        /// The tag of the flow.
        FLOW_TAG = 1 << 9,
        /// The matched tag.
        TM_INFO = 1 << 10,
        /// The time of day.
        COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11,
    }
}
