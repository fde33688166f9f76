//! Vector forms of calls: each rank has a block of its own length. Lists have one length per rank, and are
//! read before the function returns.
//!
//! # Safety
//! Arguments are converted by `cast`, which says what that rests on. The only other unsafe act is to export a
//! name.

use crate::{
    arguments::Arguments, comm_handle::tbcclComm_t, group::issue, request::tbcclRequest_t, tbcclDataType_t,
    tbcclRedOp_t, tbcclResult_t,
};
use std::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
};
use tbccl::Collective;

/// As tbcclAllGather, with `counts[r]` elements of rank r. All ranks pass the same counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclAllGatherV(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    counts: *const usize,
    datatype: tbcclDataType_t,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(
        comm,
        request,
        Arguments::new(Collective::AllGather, sendbuff, recvbuff, 0, datatype).counts(counts),
    )
}

/// As tbcclReduceScatter, with `counts[r]` elements for rank r. All ranks pass the same counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclReduceScatterV(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    counts: *const usize,
    datatype: tbcclDataType_t,
    op: tbcclRedOp_t,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    let arguments = Arguments::new(Collective::ReduceScatter, sendbuff, recvbuff, 0, datatype);
    issue(comm, request, arguments.op(op).counts(counts))
}

/// As tbcclGather, with `counts[r]` elements of rank r. All ranks pass the same counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclGatherV(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    counts: *const usize,
    datatype: tbcclDataType_t,
    root: c_int,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    let arguments = Arguments::new(Collective::Gather, sendbuff, recvbuff, 0, datatype);
    issue(comm, request, arguments.root(root).counts(counts))
}

/// As tbcclScatter, with `counts[r]` elements for rank r. All ranks pass the same counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclScatterV(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    counts: *const usize,
    datatype: tbcclDataType_t,
    root: c_int,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    let arguments = Arguments::new(Collective::Scatter, sendbuff, recvbuff, 0, datatype);
    issue(comm, request, arguments.root(root).counts(counts))
}

/// As tbcclAlltoAll, with `sendcounts[r]` elements to rank r and `recvcounts[r]` elements from it, which must
/// equal the sendcounts that rank r has for this one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclAlltoAllV(
    sendbuff: *const c_void,
    sendcounts: *const usize,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    datatype: tbcclDataType_t,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    let arguments = Arguments::new(Collective::AllToAll, sendbuff, recvbuff, 0, datatype);
    issue(comm, request, arguments.own_counts(sendcounts, recvcounts))
}
