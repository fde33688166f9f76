//! Calls: each says what is called, and leaves the rest to `group`.
//!
//! # Safety
//! Exporting a name is all that is unsafe here.

use crate::{
    boundary::Outcome,
    codes::Coded,
    comm::{At, tbcclComm_t},
    failure::Failure,
    group::{issue, issue_all_reduce},
    redop::{Operation, operation},
    request::tbcclRequest_t,
    tbcclCodec_t, tbcclDataType_t, tbcclRedOp_t, tbcclResult_t,
};
use std::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    ptr::{null, null_mut},
};
use tbccl::{Codec, DType, Rank, RawAllReduce, RawCall, RawWhat, ReduceOp};

/// The element type of a number.
#[inline]
pub(crate) fn datatype(number: tbcclDataType_t) -> Outcome<DType> {
    DType::from_code(number).ok_or_else(|| no_datatype(number))
}

#[cold]
fn no_datatype(number: tbcclDataType_t) -> Failure {
    Failure::argument(format!("datatype is {number}, which no element type has"))
}

/// A rank that may be one of the communicator's.
#[inline]
pub(crate) fn member(what: &str, number: c_int, found: At<'_>) -> Outcome<Rank> {
    match u32::try_from(number) {
        Ok(rank) if rank < found.shared.size() => Ok(Rank(rank)),
        _ => {
            let size = found.shared.size();
            Err(Failure::argument(format!("{what} is {number}; the ranks are 0 to {}", size - 1)))
        }
    }
}

/// The description of a call.
#[inline]
pub(crate) fn raw(
    what: RawWhat,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    dtype: DType,
) -> RawCall {
    RawCall { what, dtype, count, send: sendbuff.cast(), recv: recvbuff.cast() }
}

/// Reduces count elements of sendbuff by op over all ranks; every rank's recvbuff gets the result. In place if sendbuff equals
/// recvbuff.
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
    let plain = || {
        let (dtype, op) = (DType::from_code(datatype)?, ReduceOp::from_code(op)?);
        Some(RawAllReduce { dtype, op, count, send: sendbuff.cast(), recv: recvbuff.cast() })
    };
    issue_all_reduce(comm, request, plain, move |found| {
        let dtype = self::datatype(datatype)?;
        let what = match operation(op, dtype, found)? {
            Operation::Plain(op) => RawWhat::AllReduce(op),
            Operation::Scaled(op, by) => RawWhat::AllReduceScaled(op, by),
        };
        Ok(raw(what, sendbuff, recvbuff, count, dtype))
    })
}

/// As tbcclAllReduce of floats for tbcclSum and tbcclAvg, with messages that travel packed: a quarter of the bytes or half of
/// them. All ranks get the same bits, off by what docs/collectives.md says.
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
    issue(comm, request, |found| {
        let dtype = self::datatype(datatype)?;
        let codec = Codec::from_code(codec)
            .ok_or_else(|| Failure::argument(format!("codec is {codec}, which no codec has")))?;
        let op = operation(op, dtype, found)?.plain("tbcclAllReduceQuantized")?;
        Ok(raw(RawWhat::AllReduceQuantized(op, codec), sendbuff, recvbuff, count, dtype))
    })
}

/// Reduces count elements of sendbuff by op over all ranks; recvbuff of rank root gets the result, and may be NULL on others.
/// In place if sendbuff equals recvbuff.
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
    issue(comm, request, |found| {
        let (dtype, root) = (self::datatype(datatype)?, member("root", root, found)?);
        let what = match operation(op, dtype, found)? {
            Operation::Plain(op) => RawWhat::Reduce(op, root),
            Operation::Scaled(op, by) => RawWhat::ReduceScaled(op, root, by),
        };
        Ok(raw(what, sendbuff, recvbuff, count, dtype))
    })
}

/// Copies count elements of rank root's buff to that of all others.
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

/// Copies count elements of rank root's sendbuff to every rank's recvbuff. Others' sendbuff may be NULL. In place if sendbuff
/// equals recvbuff.
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
    issue(comm, request, |found| {
        let what = RawWhat::Broadcast(member("root", root, found)?);
        Ok(raw(what, sendbuff, recvbuff, count, self::datatype(datatype)?))
    })
}

/// Gathers sendcount elements of every rank's sendbuff, in the order of ranks, in every rank's recvbuff. In place if sendbuff
/// is the block of this rank in recvbuff.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclAllGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: tbcclDataType_t,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(comm, request, |_| {
        Ok(raw(RawWhat::AllGather, sendbuff, recvbuff, sendcount, self::datatype(datatype)?))
    })
}

/// Reduces blocks of recvcount elements, one for each rank in sendbuff, by op over all ranks; recvbuff of each rank gets its
/// own. In place if recvbuff is the block of this rank in sendbuff, whose other blocks are undefined afterwards.
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
    issue(comm, request, |found| {
        let dtype = self::datatype(datatype)?;
        let what = match operation(op, dtype, found)? {
            Operation::Plain(op) => RawWhat::ReduceScatter(op),
            Operation::Scaled(op, by) => RawWhat::ReduceScatterScaled(op, by),
        };
        Ok(raw(what, sendbuff, recvbuff, recvcount, dtype))
    })
}

/// Sends a block of count elements of sendbuff to each rank, and receives one of each in recvbuff, in the order of ranks. Not
/// in place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclAlltoAll(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: tbcclDataType_t,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(comm, request, |_| Ok(raw(RawWhat::AllToAll, sendbuff, recvbuff, count, self::datatype(datatype)?)))
}

/// Gathers count elements of every rank's sendbuff, in the order of ranks, in rank root's recvbuff; others' may be NULL. In
/// place if sendbuff is the block of the root in recvbuff.
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
    issue(comm, request, |found| {
        let what = RawWhat::Gather(member("root", root, found)?);
        Ok(raw(what, sendbuff, recvbuff, count, self::datatype(datatype)?))
    })
}

/// Sends each rank its block of count elements of rank root's sendbuff, in the order of ranks; others' may be NULL. In place
/// if recvbuff is the block of the root in sendbuff.
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
    issue(comm, request, |found| {
        let what = RawWhat::Scatter(member("root", root, found)?);
        Ok(raw(what, sendbuff, recvbuff, count, self::datatype(datatype)?))
    })
}

/// Sends count elements to a rank, which receives them by tbcclRecv. Messages in both directions, or to this rank, go within a
/// group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: tbcclDataType_t,
    peer: c_int,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(comm, request, |found| {
        let what = RawWhat::Send(member("peer", peer, found)?);
        Ok(raw(what, sendbuff, null_mut(), count, self::datatype(datatype)?))
    })
}

/// Receives count elements of a rank, which sends them by tbcclSend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: tbcclDataType_t,
    peer: c_int,
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(comm, request, |found| {
        let what = RawWhat::Recv(member("peer", peer, found)?);
        Ok(raw(what, null(), recvbuff, count, self::datatype(datatype)?))
    })
}

/// Reduces count elements of sendbuff by op over the ranks up to this one; recvbuff gets the result. In place if sendbuff
/// equals recvbuff.
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
    issue(comm, request, |found| {
        let dtype = self::datatype(datatype)?;
        let op = operation(op, dtype, found)?.plain("tbcclScan")?;
        Ok(raw(RawWhat::Scan(op), sendbuff, recvbuff, count, dtype))
    })
}

/// As tbcclScan over the ranks before this one. That of rank 0 stays as it is.
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
    issue(comm, request, |found| {
        let dtype = self::datatype(datatype)?;
        let op = operation(op, dtype, found)?.plain("tbcclExclusiveScan")?;
        Ok(raw(RawWhat::ExclusiveScan(op), sendbuff, recvbuff, count, dtype))
    })
}

/// Waits until all ranks have called it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclBarrier(
    comm: tbcclComm_t,
    request: Option<&mut MaybeUninit<tbcclRequest_t>>,
) -> tbcclResult_t {
    issue(comm, request, |_| Ok(raw(RawWhat::Barrier, null(), null_mut(), 0, DType::U8)))
}
