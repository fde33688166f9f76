//! Work requests, as plain values.
//!
//! # Safety
//! Addresses are passed to the device and never dereferenced here.

use super::errno::Errno;
use std::ptr;
use verbs_sys::{RdmaTarget, RecvWr, SendFlags, SendTarget, SendWr, Sge, WrOpcode};

/// A range of this process's memory, inside one registered region.
#[derive(Clone, Copy, Debug)]
pub struct LocalRun {
    /// Address of the first byte.
    pub start: *mut u8,
    /// Length in bytes.
    pub len: u32,
    /// Local key of the region; ignored for inline requests.
    pub lkey: u32,
}

// SAFETY: the value is an address and numbers; the poster promises that the address is valid when it is
// posted.
unsafe impl Send for LocalRun {}
// SAFETY: as above.
unsafe impl Sync for LocalRun {}

impl LocalRun {
    /// The empty range, for writes that carry only immediate data and for the receives that they complete.
    pub const EMPTY: LocalRun = LocalRun { start: ptr::null_mut(), len: 0, lkey: 0 };

    #[inline]
    fn sge(self) -> Sge {
        // The device turns the address back into a pointer, so its provenance is exposed.
        Sge { addr: self.start.expose_provenance() as u64, length: self.len, lkey: self.lkey }
    }
}

/// An address in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRun {
    /// Address in the peer's process.
    pub address: u64,
    /// Remote key of the peer's region.
    pub rkey: u32,
}

/// Operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Send, which consumes the peer's next receive.
    Send,
    /// RDMA write, of which the peer gets no notification.
    Write(RemoteRun),
    /// RDMA write with immediate data, which also completes the peer's next receive.
    WriteImm(RemoteRun, u32),
}

/// A work request for a send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest {
    /// Identifier that the completion returns.
    pub id: u64,
    /// Memory to send or write.
    pub run: LocalRun,
    /// Operation.
    pub operation: Operation,
    /// Whether success produces a completion. Otherwise the queue entry is free once a later request has
    /// completed.
    pub signaled: bool,
    /// Whether the bytes are copied when the request is posted. The memory may be reused at once and need not
    /// be registered.
    pub inline: bool,
}

impl SendRequest {
    /// Calls `post` with the C form of the request, which lives as long as the call.
    #[inline]
    pub(super) fn with_c<T>(&self, post: impl FnOnce(*mut SendWr) -> T) -> T {
        let mut sge = self.run.sge();
        let mut wr = SendWr::zeroed();
        wr.wr_id = self.id;
        if self.run.len > 0 {
            wr.sg_list = &raw mut sge;
            wr.num_sge = 1;
        }
        let to =
            |run: RemoteRun| SendTarget { rdma: RdmaTarget { remote_addr: run.address, rkey: run.rkey } };
        match self.operation {
            Operation::Send => wr.opcode = WrOpcode::SEND,
            Operation::Write(run) => (wr.opcode, wr.wr) = (WrOpcode::RDMA_WRITE, to(run)),
            Operation::WriteImm(run, imm) => {
                (wr.opcode, wr.wr) = (WrOpcode::RDMA_WRITE_WITH_IMM, to(run));
                wr.imm_data = imm.to_be();
            }
        }
        let signaled = if self.signaled { SendFlags::SIGNALED } else { SendFlags::NONE };
        let inline = if self.inline { SendFlags::INLINE } else { SendFlags::NONE };
        wr.send_flags = (signaled | inline).0;
        post(&raw mut wr)
    }
}

/// Calls `post` with the C form of a receive request, which lives as long as the call.
#[inline]
pub(super) fn with_receive<T>(id: u64, run: LocalRun, post: impl FnOnce(*mut RecvWr) -> T) -> T {
    let mut sge = run.sge();
    let (sg_list, num_sge) = if run.len > 0 { (&raw mut sge, 1) } else { (ptr::null_mut(), 0) };
    let mut wr = RecvWr { wr_id: id, next: ptr::null_mut(), sg_list, num_sge };
    post(&raw mut wr)
}

/// Reason why a request was not posted. Nothing of it was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full: poll completions and try again.
    #[error("the queue is full")]
    Full,
    /// The library rejected the request.
    #[error("posting failed: {0}")]
    Failed(Errno),
}

impl PostError {
    #[cold]
    pub(super) fn of_result(result: i32) -> PostError {
        match Errno::of_result(result) {
            Errno::ENOMEM => PostError::Full,
            errno => PostError::Failed(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: Operation, len: u32) -> SendRequest {
        let run = LocalRun { start: ptr::without_provenance_mut(4096), len, lkey: 7 };
        SendRequest { id: 9, run, operation, signaled: true, inline: false }
    }

    #[test]
    fn requests_become_those_of_c() {
        let remote = RemoteRun { address: 0x1000, rkey: 5 };
        request(Operation::WriteImm(remote, 0x0102_0304), 3).with_c(|wr| {
            // SAFETY: the request and its scatter/gather entry live during this call.
            let (wr, sge, target) = unsafe { (*wr, *(*wr).sg_list, (*wr).wr.rdma) };
            assert_eq!((wr.wr_id, wr.opcode, wr.num_sge), (9, WrOpcode::RDMA_WRITE_WITH_IMM, 1));
            assert_eq!(wr.imm_data, 0x0102_0304_u32.to_be());
            assert_eq!((sge.addr, sge.length, sge.lkey), (4096, 3, 7));
            assert_eq!((target.remote_addr, target.rkey), (0x1000, 5));
            assert_eq!(wr.send_flags, SendFlags::SIGNALED.0);
        });
        let inline = SendRequest { inline: true, signaled: false, ..request(Operation::Send, 0) };
        inline.with_c(|wr| {
            // SAFETY: the request lives during this call.
            let wr = unsafe { *wr };
            assert_eq!((wr.opcode, wr.num_sge, wr.sg_list.is_null()), (WrOpcode::SEND, 0, true));
            assert_eq!(wr.send_flags, SendFlags::INLINE.0);
        });
    }

    #[test]
    fn a_full_queue_is_not_a_failure() {
        assert_eq!(PostError::of_result(libc::ENOMEM), PostError::Full);
        assert_eq!(PostError::of_result(-libc::ENOMEM), PostError::Full);
        assert_eq!(PostError::of_result(libc::EINVAL), PostError::Failed(Errno::EINVAL));
    }
}
