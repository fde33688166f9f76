//! Calls: each function states its arguments, and `group` issues the call.
//!
//! # Safety
//! The only unsafe act here is to export a name.

use crate::{
    arguments::Arguments, codes::Coded, comm_handle::tbcclComm_t, group::issue, request::tbcclRequest_t,
    tbcclCodec_t, tbcclDataType_t, tbcclRedOp_t, tbcclResult_t,
};
use std::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    ptr::{null, null_mut},
};
use tbccl::{Collective, DType};

/// Reduces count elements of sendbuff by op over all ranks and stores the result in every rank's recvbuff. In
/// place if sendbuff equals recvbuff.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclAllReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: tbcclDataType_t,
    op: tbcclRedOp_t,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(comm, request, Arguments::new(Collective::AllReduce, sendbuff, recvbuff, count, datatype).op(op))
}

/// As tbcclAllReduce of floats by tbcclSum or tbcclAvg, with packed messages: a quarter of the bytes, or
/// half. All ranks get the same bits; docs/collectives.md has the bound on the error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclAllReduceQuantized(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: tbcclDataType_t,
    op: tbcclRedOp_t,
    codec: tbcclCodec_t,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    let arguments = Arguments::new(Collective::AllReduce, sendbuff, recvbuff, count, datatype);
    issue(comm, request, arguments.op(op).codec(codec))
}

/// Reduces count elements of sendbuff by op over all ranks and stores the result in recvbuff of rank root.
/// Other ranks' recvbuff may be NULL. In place if sendbuff equals recvbuff.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: tbcclDataType_t,
    op: tbcclRedOp_t,
    root: c_int,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    let arguments = Arguments::new(Collective::Reduce, sendbuff, recvbuff, count, datatype);
    issue(comm, request, arguments.op(op).root(root))
}

/// Copies count elements of rank root's buff to every other rank's buff.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclBcast(
    buff: *mut c_void,
    count: usize,
    datatype: tbcclDataType_t,
    root: c_int,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    // SAFETY: the caller promises the same.
    unsafe { tbcclBroadcast(buff, buff, count, datatype, root, comm, request) }
}

/// Copies count elements of rank root's sendbuff to every rank's recvbuff. Other ranks' sendbuff may be NULL.
/// In place if sendbuff equals recvbuff.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclBroadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: tbcclDataType_t,
    root: c_int,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(
        comm,
        request,
        Arguments::new(Collective::Broadcast, sendbuff, recvbuff, count, datatype).root(root),
    )
}

/// Gathers sendcount elements of every rank's sendbuff, in rank order, in every rank's recvbuff. In place if
/// sendbuff is the block of this rank in recvbuff.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclAllGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: tbcclDataType_t,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(comm, request, Arguments::new(Collective::AllGather, sendbuff, recvbuff, sendcount, datatype))
}

/// Reduces blocks of recvcount elements, one per rank in sendbuff, by op over all ranks and stores each
/// rank's block in its recvbuff. In place if recvbuff is the block of this rank in sendbuff, whose other
/// blocks are undefined afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclReduceScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: tbcclDataType_t,
    op: tbcclRedOp_t,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(
        comm,
        request,
        Arguments::new(Collective::ReduceScatter, sendbuff, recvbuff, recvcount, datatype).op(op),
    )
}

/// Sends a block of count elements of sendbuff to each rank, and receives a block of each in recvbuff, in
/// rank order. Not in place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclAlltoAll(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: tbcclDataType_t,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(comm, request, Arguments::new(Collective::AllToAll, sendbuff, recvbuff, count, datatype))
}

/// Gathers count elements of every rank's sendbuff, in rank order, in rank root's recvbuff. Other ranks'
/// recvbuff may be NULL. In place if sendbuff is the block of the root in recvbuff.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: tbcclDataType_t,
    root: c_int,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(comm, request, Arguments::new(Collective::Gather, sendbuff, recvbuff, count, datatype).root(root))
}

/// Sends each rank its block of count elements of rank root's sendbuff, in rank order. Other ranks' sendbuff
/// may be NULL. In place if recvbuff is the block of the root in sendbuff.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: tbcclDataType_t,
    root: c_int,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(comm, request, Arguments::new(Collective::Scatter, sendbuff, recvbuff, count, datatype).root(root))
}

/// Sends count elements to rank peer, which receives them by tbcclRecv. Messages in both directions, or to
/// this rank itself, need a group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: tbcclDataType_t,
    peer: c_int,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(comm, request, Arguments::send(sendbuff, count, datatype, peer))
}

/// Receives count elements from rank peer, which sends them by tbcclSend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: tbcclDataType_t,
    peer: c_int,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(comm, request, Arguments::recv(recvbuff, count, datatype, peer))
}

/// Reduces count elements of sendbuff by op over the ranks up to and with this one and stores the result in
/// recvbuff. In place if sendbuff equals recvbuff.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclScan(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: tbcclDataType_t,
    op: tbcclRedOp_t,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(comm, request, Arguments::new(Collective::Scan, sendbuff, recvbuff, count, datatype).op(op))
}

/// As tbcclScan, over the ranks before this one. Rank 0's recvbuff stays as it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclExclusiveScan(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: tbcclDataType_t,
    op: tbcclRedOp_t,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(
        comm,
        request,
        Arguments::new(Collective::ExclusiveScan, sendbuff, recvbuff, count, datatype).op(op),
    )
}

/// Waits until all ranks have called it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclBarrier(
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(comm, request, Arguments::new(Collective::Barrier, null(), null_mut(), 0, DType::U8.code()))
}
