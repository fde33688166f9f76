//! Enumerations that describe work requests and completions.

use super::enums;

enums! {
    /// `enum ibv_wr_opcode`: the operation of a send work request.
    plain WrOpcode(u32) = "IBV_WR_" {
        /// Writes into remote memory.
        RDMA_WRITE = 0,
        /// RDMA write that consumes a receive and delivers immediate data.
        RDMA_WRITE_WITH_IMM = 1,
        /// Sends into a posted receive.
        SEND = 2,
        /// Send with immediate data.
        SEND_WITH_IMM = 3,
        /// Reads remote memory.
        RDMA_READ = 4,
        /// Compares and swaps 8 bytes of remote memory.
        ATOMIC_CMP_AND_SWP = 5,
        /// Adds to 8 bytes of remote memory.
        ATOMIC_FETCH_AND_ADD = 6,
        /// Invalidates a local key.
        LOCAL_INV = 7,
        /// Binds a memory window.
        BIND_MW = 8,
        /// Sends, and invalidates a remote key.
        SEND_WITH_INV = 9,
        /// TCP segmentation offload.
        TSO = 10,
        /// A vendor's own operation.
        DRIVER1 = 11,
        /// Makes earlier writes visible or persistent.
        FLUSH = 14,
        /// Writes 8 bytes of remote memory atomically.
        ATOMIC_WRITE = 15,
    }

    /// `enum ibv_wc_opcode`: the operation that a completion reports.
    plain WcOpcode(u32) = "IBV_WC_" {
        /// Send.
        SEND = 0,
        /// RDMA write.
        RDMA_WRITE = 1,
        /// RDMA read.
        RDMA_READ = 2,
        /// Compare and swap.
        COMP_SWAP = 3,
        /// Fetch and add.
        FETCH_ADD = 4,
        /// Binding of a memory window.
        BIND_MW = 5,
        /// Invalidation of a local key.
        LOCAL_INV = 6,
        /// TCP segmentation offload.
        TSO = 7,
        /// Atomic write.
        ATOMIC_WRITE = 9,
        /// Receive. Every opcode that completes a receive has this bit.
        RECV = 1 << 7,
        /// Receive that an RDMA write with immediate data consumed.
        RECV_RDMA_WITH_IMM = (1 << 7) + 1,
    }

    /// `enum ibv_wc_status`: the status of a completed work request.
    plain WcStatus(u32) = "IBV_WC_" {
        /// Success.
        SUCCESS = 0,
        /// Local length error.
        LOC_LEN_ERR = 1,
        /// Local queue pair operation error.
        LOC_QP_OP_ERR = 2,
        /// Local end-to-end context operation error.
        LOC_EEC_OP_ERR = 3,
        /// Local protection error: no registration covers the buffer.
        LOC_PROT_ERR = 4,
        /// Flushed: the queue pair was in the error state.
        WR_FLUSH_ERR = 5,
        /// Memory window binding error.
        MW_BIND_ERR = 6,
        /// Malformed response.
        BAD_RESP_ERR = 7,
        /// Local access error: a remote write violated access rights here.
        LOC_ACCESS_ERR = 8,
        /// The remote side rejected the request as invalid.
        REM_INV_REQ_ERR = 9,
        /// Remote access error: the key does not permit the access.
        REM_ACCESS_ERR = 10,
        /// The remote side could not complete the request.
        REM_OP_ERR = 11,
        /// Retries exceeded: no acknowledgement arrived.
        RETRY_EXC_ERR = 12,
        /// RNR retries exceeded: the remote side had no receive posted.
        RNR_RETRY_EXC_ERR = 13,
        /// Reliable datagram domain violation.
        LOC_RDD_VIOL_ERR = 14,
        /// The remote side rejected a read request as invalid.
        REM_INV_RD_REQ_ERR = 15,
        /// The remote side aborted the operation.
        REM_ABORT_ERR = 16,
        /// Invalid end-to-end context number.
        INV_EECN_ERR = 17,
        /// End-to-end context in a wrong state.
        INV_EEC_STATE_ERR = 18,
        /// Fatal device error.
        FATAL_ERR = 19,
        /// Response timeout.
        RESP_TIMEOUT_ERR = 20,
        /// Any other error.
        GENERAL_ERR = 21,
        /// Tag matching error.
        TM_ERR = 22,
        /// Tag matching left a rendezvous to software.
        TM_RNDV_INCOMPLETE = 23,
    }

    /// `enum ibv_send_flags`: options of a send work request.
    flags SendFlags(u32) = "IBV_SEND_" {
        /// Starts after all earlier reads and atomic operations have completed.
        FENCE = 1,
        /// Completes with a work completion even on success.
        SIGNALED = 1 << 1,
        /// Raises a solicited event at the receiver.
        SOLICITED = 1 << 2,
        /// Copies the data when the request is posted.
        INLINE = 1 << 3,
        /// Offloads checksums to the device.
        IP_CSUM = 1 << 4,
    }

    /// `enum ibv_wc_flags`: the valid parts of a completion.
    flags WcFlags(u32) = "IBV_WC_" {
        /// The buffer begins with a `Grh`.
        GRH = 1,
        /// `imm_data` holds immediate data.
        WITH_IMM = 1 << 1,
        /// The checksums were correct.
        IP_CSUM_OK = 1 << 2,
        /// `imm_data` holds the invalidated key.
        WITH_INV = 1 << 3,
        /// Tag matching needs synchronization.
        TM_SYNC_REQ = 1 << 4,
        /// A tag matched.
        TM_MATCH = 1 << 5,
        /// The data of a matched tag arrived.
        TM_DATA_VALID = 1 << 6,
    }
}

impl WcOpcode {
    /// Whether the opcode completes a receive.
    #[must_use]
    pub const fn is_receive(self) -> bool {
        self.0 & WcOpcode::RECV.0 != 0
    }
}
