//! The vector forms of calls: each rank has a block of its own length. Lists of lengths have one for each rank, and are read
//! before the function returns.
//!
//! # Safety
//! What C passes is seen by way of `cast`, which says what that rests on. Beside that a name is exported.

use crate::{
    boundary::Outcome,
    cast::list,
    collectives::{datatype, member, raw},
    comm::{At, tbcclComm_t},
    group::issue,
    redop::operation,
    request::tbcclRequest_t,
    tbcclDataType_t, tbcclRedOp_t, tbcclResult_t,
};
use std::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    sync::Arc,
};
use tbccl::RawWhat;

/// The lengths of all ranks' blocks.
fn lengths(what: &str, counts: *const usize, found: At<'_>) -> Outcome<Arc<[usize]>> {
    // SAFETY: as `tbccl.h` says, it is null or has a length for each rank.
    unsafe { list(what, counts, found.shared.size() as usize) }
}

/// As tbcclAllGather, with `counts[r]` elements of rank r. All ranks give the same counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclAllGatherV(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    counts: *const usize,
    datatype: tbcclDataType_t,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(comm, request, |found| {
        let what = RawWhat::AllGatherV(lengths("counts", counts, found)?);
        Ok(raw(what, sendbuff, recvbuff, 0, self::datatype(datatype)?))
    })
}

/// As tbcclReduceScatter, with `counts[r]` elements for rank r. All ranks give the same counts.
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
    issue(comm, request, |found| {
        let dtype = self::datatype(datatype)?;
        let op = operation(op, dtype, found)?.plain("tbcclReduceScatterV")?;
        let what = RawWhat::ReduceScatterV(op, lengths("counts", counts, found)?);
        Ok(raw(what, sendbuff, recvbuff, 0, dtype))
    })
}

/// As tbcclGather, with `counts[r]` elements of rank r. All ranks give the same counts.
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
    issue(comm, request, |found| {
        let what = RawWhat::GatherV(member("root", root, found)?, lengths("counts", counts, found)?);
        let recvbuff = if is_root(root, found) { recvbuff } else { std::ptr::null_mut() };
        Ok(raw(what, sendbuff, recvbuff, 0, self::datatype(datatype)?))
    })
}

/// As tbcclScatter, with `counts[r]` elements for rank r. All ranks give the same counts.
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
    issue(comm, request, |found| {
        let what = RawWhat::ScatterV(member("root", root, found)?, lengths("counts", counts, found)?);
        let sendbuff = if is_root(root, found) { sendbuff } else { std::ptr::null() };
        Ok(raw(what, sendbuff, recvbuff, 0, self::datatype(datatype)?))
    })
}

/// Only the root's buffer of all blocks is looked at.
fn is_root(root: c_int, found: At<'_>) -> bool {
    i64::from(root) == i64::from(found.shared.rank().0)
}

/// As tbcclAlltoAll, with `sendcounts[r]` elements to rank r and `recvcounts[r]` elements of it: as many as it sends here.
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
    issue(comm, request, |found| {
        let what = RawWhat::AllToAllV {
            send: lengths("sendcounts", sendcounts, found)?,
            recv: lengths("recvcounts", recvcounts, found)?,
        };
        Ok(raw(what, sendbuff, recvbuff, 0, self::datatype(datatype)?))
    })
}
