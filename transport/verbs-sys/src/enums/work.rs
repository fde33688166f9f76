//! Of work requests and completions.

use super::enums;

enums! {
    /// `enum ibv_wr_opcode`: what a posted send does.
    plain WrOpcode(u32) = "IBV_WR_" {
        /// Writes into the peer's memory.
        RDMA_WRITE = 0,
        /// Writes, and consumes a receive that learns a number.
        RDMA_WRITE_WITH_IMM = 1,
        /// Sends into a posted receive.
        SEND = 2,
        /// Sends, with a number.
        SEND_WITH_IMM = 3,
        /// Reads the peer's memory.
        RDMA_READ = 4,
        /// Compares and swaps 8 bytes of the peer's memory.
        ATOMIC_CMP_AND_SWP = 5,
        /// Adds to 8 bytes of the peer's memory.
        ATOMIC_FETCH_AND_ADD = 6,
        /// Invalidates a local key.
        LOCAL_INV = 7,
        /// Binds a memory window.
        BIND_MW = 8,
        /// Sends, and invalidates a key of the peer's.
        SEND_WITH_INV = 9,
        /// Segmentation by the device.
        TSO = 10,
        /// The device's own.
        DRIVER1 = 11,
        /// Makes earlier writes visible or persistent.
        FLUSH = 14,
        /// Writes 8 bytes at once.
        ATOMIC_WRITE = 15,
    }

    /// `enum ibv_wc_opcode`: what a completion is the completion of.
    plain WcOpcode(u32) = "IBV_WC_" {
        /// A send.
        SEND = 0,
        /// An RDMA write.
        RDMA_WRITE = 1,
        /// An RDMA read.
        RDMA_READ = 2,
        /// A compare and swap.
        COMP_SWAP = 3,
        /// A fetch and add.
        FETCH_ADD = 4,
        /// The binding of a window.
        BIND_MW = 5,
        /// The invalidation of a local key.
        LOCAL_INV = 6,
        /// A segmented send.
        TSO = 7,
        /// A write of 8 bytes at once.
        ATOMIC_WRITE = 9,
        /// A receive. All that complete a receive have this bit.
        RECV = 1 << 7,
        /// A receive consumed by an RDMA write with a number.
        RECV_RDMA_WITH_IMM = (1 << 7) + 1,
    }

    /// `enum ibv_wc_status`: how a work request came out.
    plain WcStatus(u32) = "IBV_WC_" {
        /// Well.
        SUCCESS = 0,
        /// A local buffer has the wrong length.
        LOC_LEN_ERR = 1,
        /// The queue pair can't carry it out.
        LOC_QP_OP_ERR = 2,
        /// The end-to-end context can't carry it out.
        LOC_EEC_OP_ERR = 3,
        /// A local key does not cover the memory.
        LOC_PROT_ERR = 4,
        /// The queue pair had failed before.
        WR_FLUSH_ERR = 5,
        /// A window could not be bound.
        MW_BIND_ERR = 6,
        /// The response was malformed.
        BAD_RESP_ERR = 7,
        /// The peer's write did not fit here.
        LOC_ACCESS_ERR = 8,
        /// The peer found the request invalid.
        REM_INV_REQ_ERR = 9,
        /// The peer's key does not allow it.
        REM_ACCESS_ERR = 10,
        /// The peer could not carry it out.
        REM_OP_ERR = 11,
        /// The peer did not answer.
        RETRY_EXC_ERR = 12,
        /// The peer had no receive posted.
        RNR_RETRY_EXC_ERR = 13,
        /// Reliable datagram domain violated.
        LOC_RDD_VIOL_ERR = 14,
        /// The peer found a read request invalid.
        REM_INV_RD_REQ_ERR = 15,
        /// The peer gave up.
        REM_ABORT_ERR = 16,
        /// Invalid end-to-end context number.
        INV_EECN_ERR = 17,
        /// End-to-end context in a wrong state.
        INV_EEC_STATE_ERR = 18,
        /// The device has failed.
        FATAL_ERR = 19,
        /// No response in time.
        RESP_TIMEOUT_ERR = 20,
        /// Anything else.
        GENERAL_ERR = 21,
        /// Tag matching failed.
        TM_ERR = 22,
        /// Tag matching handed a rendezvous to software.
        TM_RNDV_INCOMPLETE = 23,
    }

    /// `enum ibv_send_flags`: how a posted send is treated.
    flags SendFlags(u32) = "IBV_SEND_" {
        /// After all earlier reads and atomics.
        FENCE = 1,
        /// It gets a completion even if it goes well.
        SIGNALED = 1 << 1,
        /// The receiver gets an event.
        SOLICITED = 1 << 2,
        /// Its bytes are taken when it is posted.
        INLINE = 1 << 3,
        /// The device computes checksums.
        IP_CSUM = 1 << 4,
    }

    /// `enum ibv_wc_flags`: what a completion says beyond its members.
    flags WcFlags(u32) = "IBV_WC_" {
        /// The buffer begins with a `Grh`.
        GRH = 1,
        /// `imm_data` is the number that was sent along.
        WITH_IMM = 1 << 1,
        /// Checksums were right.
        IP_CSUM_OK = 1 << 2,
        /// `imm_data` is the key that was invalidated.
        WITH_INV = 1 << 3,
        /// Tag matching needs to be synchronised.
        TM_SYNC_REQ = 1 << 4,
        /// A tag has matched.
        TM_MATCH = 1 << 5,
        /// The data of a matched tag has come.
        TM_DATA_VALID = 1 << 6,
    }
}

impl WcOpcode {
    /// Does it complete a receive?
    #[must_use]
    pub const fn is_receive(self) -> bool {
        self.0 & WcOpcode::RECV.0 != 0
    }
}
