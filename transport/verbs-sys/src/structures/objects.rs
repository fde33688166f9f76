//! The objects that a library hands out. Their first members belong to the ABI; libraries put their own behind.
//!
//! # Safety
//! See the module above, whose macro defines these structures.

use super::{ContextOps, Device, structures};
use crate::{MwType, QpState, QpType};
use std::{
    ffi::{c_int, c_void},
    fmt,
};

/// `pthread_mutex_t`. Its size differs between systems, and it lies behind what callers read.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Mutex(pub libc::pthread_mutex_t);

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

/// `pthread_cond_t`. Its size differs between systems, and it lies behind what callers read.
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
        /// What is not exported but called through here: posting and polling.
        ops: ContextOps = 8,
        cmd_fd: c_int = 264,
        /// Readable when there is an asynchronous event.
        async_fd: c_int = 268,
        num_comp_vectors: c_int = 272,
        mutex: Mutex = 280,
        /// [`ABI_IS_EXTENDED`](crate::ABI_IS_EXTENDED) when this is the end of a
        /// [`VerbsContext`](crate::VerbsContext).
        abi_compat: *mut c_void = 320,
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

    /// `struct ibv_xrcd`: a domain of extended reliable connections.
    Xrcd = "struct ibv_xrcd", 8 {
        context: *mut Context = 0,
    }

    /// `struct ibv_mr`: registered memory.
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

    /// `struct ibv_ah`: an address that datagrams are sent to.
    Ah = "struct ibv_ah", 24 {
        context: *mut Context = 0,
        pd: *mut Pd = 8,
        handle: u32 = 16,
    }

    /// `struct ibv_comp_channel`: where completion queues announce that they are not empty.
    CompChannel = "struct ibv_comp_channel", 16 {
        context: *mut Context = 0,
        /// Readable when there is an event.
        fd: c_int = 8,
        refcnt: c_int = 12,
    }

    /// `struct ibv_cq`: a completion queue.
    Cq = "struct ibv_cq", 128 {
        context: *mut Context = 0,
        channel: *mut CompChannel = 8,
        cq_context: *mut c_void = 16,
        handle: u32 = 24,
        /// How many completions it has room for.
        cqe: c_int = 28,
        mutex: Mutex = 32,
        cond: Cond = 72,
        comp_events_completed: u32 = 120,
        async_events_completed: u32 = 124,
    }

    /// `struct ibv_srq`: receives that several queue pairs share.
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
        /// As the library last saw it; the device may know better.
        state: QpState = 56,
        qp_type: QpType = 60,
        mutex: Mutex = 64,
        cond: Cond = 104,
        events_completed: u32 = 152,
    }
}
