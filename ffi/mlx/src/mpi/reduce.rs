//! All-reduces by a kernel of tbccl, or by a program's function without an equivalent kernel.
//!
//! Every rank applies a program's function to the elements of all ranks, in rank order, chunk by chunk. That
//! is slow, but all ranks get the same bits, and the operation need not commute.
//!
//! # Safety
//! Callers vouch for the buffers, as [`all_reduce`] says.

use super::{
    datatypes::Datatype,
    operations::{Operation, UserOp},
};
use crate::{Failure, Group, Outcome};
use mlx_table::mpi::Handle;
use std::ffi::c_int;
use tbccl::{DType, RawCall, ReduceOp};

/// Bytes gathered from all ranks at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// Buffers of an all-reduce, and their number of elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    pub(crate) send: *const u8,
    pub(crate) recv: *mut u8,
    pub(crate) count: usize,
}

/// Reduces the elements of all ranks of a group. In place if `send` equals `recv`.
///
/// # Safety
/// `count` elements of the datatype are readable at `send` and writable at `recv`, and nothing else uses the
/// latter.
pub(crate) unsafe fn all_reduce(
    group: &Group,
    buffers: Buffers,
    (datatype, handle): (Datatype, Handle),
    operation: &Operation,
) -> Outcome {
    let kernel = match (operation, datatype) {
        (Operation::Builtin(op), Datatype::Builtin(dtype)) => Some((dtype, *op)),
        (Operation::Builtin(op), Datatype::Derived(bytes)) => {
            return Err(Failure::usage(format!("{op} is not defined for a derived type of {bytes} bytes")));
        }
        (Operation::User(user_op), _) => user_op.kernel(datatype, handle),
    };
    // SAFETY: the caller's promise is that of both functions.
    unsafe {
        match (kernel, operation) {
            (Some(kernel), _) => reduce_with_kernel(group, buffers, kernel),
            (None, Operation::User(user_op)) => {
                reduce_with_function(group, buffers, (datatype, handle), user_op)
            }
            (None, Operation::Builtin(_)) => unreachable!("built-in operations have a kernel"),
        }
    }
}

/// # Safety
/// As for [`all_reduce`].
#[inline]
unsafe fn reduce_with_kernel(group: &Group, buffers: Buffers, (dtype, op): (DType, ReduceOp)) -> Outcome {
    let Buffers { send, recv, count } = buffers;
    let call = RawCall {
        operation: tbccl::Operation::new(tbccl::Collective::AllReduce).with_op(op),
        dtype,
        count,
        send,
        recv,
    };
    // SAFETY: the buffers are valid by the caller's promise.
    unsafe { group.call(&call) }
}

/// # Safety
/// As for [`all_reduce`].
unsafe fn reduce_with_function(
    group: &Group,
    buffers: Buffers,
    (datatype, handle): (Datatype, Handle),
    user_op: &UserOp,
) -> Outcome {
    let (bytes, ranks) = (datatype.bytes(), group.size() as usize);
    let max_count = (CHUNK_BYTES / (bytes * ranks)).max(1);
    let capacity = max_count.min(buffers.count) * bytes * ranks;
    // Words are aligned for any element type.
    let mut words = vec![0u128; capacity.div_ceil(size_of::<u128>())];
    let gathered: *mut u8 = words.as_mut_ptr().cast();
    for begin in (0..buffers.count).step_by(max_count) {
        let count = max_count.min(buffers.count - begin);
        let chunk = count * bytes;
        // SAFETY: the chunk is part of the caller's elements, and `gathered` has room for a chunk of each
        // rank.
        unsafe {
            let (send, recv) = (buffers.send.add(begin * bytes), buffers.recv.add(begin * bytes));
            let call = RawCall {
                operation: tbccl::Operation::new(tbccl::Collective::AllGather),
                dtype: DType::U8,
                count: chunk,
                send,
                recv: gathered,
            };
            group.call(&call)?;
            // The last rank comes first, since a function puts its first argument before its second.
            let block = |rank: usize| gathered.add(rank * chunk).cast_const();
            std::ptr::copy_nonoverlapping(block(ranks - 1), recv, chunk);
            for rank in (0..ranks - 1).rev() {
                user_op.apply(block(rank).cast(), recv.cast(), count as c_int, handle);
            }
        }
    }
    Ok(())
}
