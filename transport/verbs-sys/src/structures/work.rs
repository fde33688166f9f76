//! What is posted, and what comes back.
//!
//! # Safety
//! See the module above, whose macro defines these structures.

use super::{Ah, Mw, MwBindInfo, structures};
use crate::{WcOpcode, WcStatus, WrOpcode};
use std::{
    ffi::{c_int, c_void},
    fmt,
};

structures! {
    /// `struct ibv_wc`: a completion.
    Wc = "struct ibv_wc", 48 {
        wr_id: u64 = 0,
        status: WcStatus = 8,
        /// Only valid, as are all below but `vendor_err` and `qp_num`, when the status is success.
        opcode: WcOpcode = 12,
        vendor_err: u32 = 16,
        byte_len: u32 = 20,
        /// In network byte order, with [`WcFlags::WITH_IMM`](crate::WcFlags::WITH_IMM); the key that was
        /// invalidated, with [`WcFlags::WITH_INV`](crate::WcFlags::WITH_INV).
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

    /// `struct ibv_sge`: a run of registered memory that a work request reads or writes.
    Sge = "struct ibv_sge", 16 {
        /// Its address in this process.
        addr: u64 = 0,
        /// Its bytes.
        length: u32 = 8,
        /// The key of the registration that covers it.
        lkey: u32 = 12,
    }

    /// `struct ibv_data_buf`: a run of memory whose bytes are taken at once.
    DataBuf = "struct ibv_data_buf", 16 {
        addr: *mut c_void = 0,
        length: usize = 8,
    }

    /// `struct ibv_recv_wr`: a receive, in a list.
    RecvWr = "struct ibv_recv_wr", 32 {
        wr_id: u64 = 0,
        next: *mut RecvWr = 8,
        sg_list: *mut Sge = 16,
        num_sge: c_int = 24,
    }

    /// `struct ibv_send_wr`: anything posted to a send queue, in a list.
    SendWr = "struct ibv_send_wr", 128 {
        wr_id: u64 = 0,
        next: *mut SendWr = 8,
        sg_list: *mut Sge = 16,
        num_sge: c_int = 24,
        opcode: WrOpcode = 28,
        /// [`SendFlags`](crate::SendFlags).
        send_flags: u32 = 32,
        /// In network byte order; or the key to invalidate.
        imm_data: u32 = 36,
        /// The opcode and the queue pair's type say which member.
        wr: SendTarget = 40,
        qp_type: SendXrc = 72,
        bind_mw: SendExtra = 80,
    }
}

/// The peer's memory that an RDMA operation works on.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RdmaTarget {
    /// Its address over there.
    pub remote_addr: u64,
    /// The key of the registration that covers it.
    pub rkey: u32,
}

/// The 8 bytes of the peer's memory that an atomic operation works on.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AtomicTarget {
    /// Their address over there.
    pub remote_addr: u64,
    /// What they are compared with, or what is added.
    pub compare_add: u64,
    /// What replaces them.
    pub swap: u64,
    /// The key of the registration that covers them.
    pub rkey: u32,
}

/// Whom a datagram is for.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DatagramTarget {
    /// The port.
    pub ah: *mut Ah,
    /// The queue pair.
    pub remote_qpn: u32,
    /// Its key.
    pub remote_qkey: u32,
}

/// The binding of a memory window.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BindTarget {
    /// The window.
    pub mw: *mut Mw,
    /// Its new key.
    pub rkey: u32,
    /// What it shows.
    pub bind_info: MwBindInfo,
}

/// The header of a segmented send.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SegmentedHeader {
    /// Its bytes.
    pub hdr: *mut c_void,
    /// How many they are.
    pub hdr_sz: u16,
    /// How many bytes follow each copy of it.
    pub mss: u16,
}

/// The member `wr` of a [`SendWr`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union SendTarget {
    /// Of RDMA reads and writes.
    pub rdma: RdmaTarget,
    /// Of atomic operations.
    pub atomic: AtomicTarget,
    /// Of datagrams.
    pub ud: DatagramTarget,
}

/// The member `qp_type` of a [`SendWr`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SendXrc {
    /// The shared receive queue of an extended reliable connection.
    pub remote_srqn: u32,
}

/// The last member of a [`SendWr`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union SendExtra {
    /// Of [`WrOpcode::BIND_MW`].
    pub bind_mw: BindTarget,
    /// Of [`WrOpcode::TSO`].
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
