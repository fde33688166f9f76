//! All-reduces: by our kernels, or by a program's function where none of ours does the same.
//!
//! A program's function is applied on every rank to what all ranks have sent, in the order of ranks, piece by piece. That is
//! slow, but all ranks have the same bits, and an operation may be one in which the order matters.
//!
//! # Safety
//! Whoever calls vouches for the memory, as [`all_reduce`] says.

use crate::{
    boundary::{Failure, Outcome},
    datatypes::Datatype,
    group::Group,
    objects::Handle,
    operations::{Foreign, Operation},
};
use std::ffi::c_int;
use tbccl::{CallOptions, DType, RawCall, ReduceOp};

/// Bytes of what all ranks have sent, at a time.
const PIECE_BYTES: usize = 4 << 20;

/// The memory of a call: where a contribution is, where the result goes, and how many elements there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) send: *const u8,
    pub(crate) recv: *mut u8,
    pub(crate) count: usize,
}

/// Combines the elements of all ranks of a group. In place if both addresses are the same.
///
/// # Safety
/// So many elements of the type are readable at `send`, and writable at `recv`, and nobody else uses the latter.
pub(crate) unsafe fn all_reduce(
    group: &Group,
    memory: Memory,
    (datatype, handle): (Datatype, Handle),
    operation: &Operation,
) -> Outcome {
    let meaning = match (operation, datatype) {
        (Operation::Ours(op), Datatype::Known(dtype)) => Some((dtype, *op)),
        (Operation::Ours(op), Datatype::Bytes(bytes)) => {
            return Err(Failure::wrong(format!(
                "{op} is not defined for a type of {bytes} bytes made of others"
            )));
        }
        (Operation::Foreign(foreign), _) => foreign.meaning(datatype, handle),
    };
    // SAFETY: the caller's promise.
    unsafe {
        match (meaning, operation) {
            (Some(meaning), _) => by_kernel(group, memory, meaning),
            (None, Operation::Foreign(foreign)) => by_function(group, memory, (datatype, handle), foreign),
            (None, Operation::Ours(_)) => unreachable!("ours have a meaning"),
        }
    }
}

/// # Safety
/// As for [`all_reduce`].
#[inline]
unsafe fn by_kernel(group: &Group, memory: Memory, (dtype, op): (DType, ReduceOp)) -> Outcome {
    let Memory { send, recv, count } = memory;
    let call = RawCall {
        operation: tbccl::Operation::new(tbccl::Collective::AllReduce).with_op(op),
        dtype,
        count,
        send,
        recv,
    };
    // SAFETY: the caller's promise.
    unsafe { group.calls().call(&call, &CallOptions::default())? };
    Ok(())
}

/// # Safety
/// As for [`all_reduce`].
unsafe fn by_function(
    group: &Group,
    memory: Memory,
    (datatype, handle): (Datatype, Handle),
    foreign: &Foreign,
) -> Outcome {
    let (bytes, ranks) = (datatype.bytes(), group.size() as usize);
    let most = (PIECE_BYTES / (bytes * ranks)).max(1);
    let room = most.min(memory.count) * bytes * ranks;
    // In words, so that any element is aligned.
    let mut all = vec![0u128; room.div_ceil(size_of::<u128>())];
    let all: *mut u8 = all.as_mut_ptr().cast();
    for begin in (0..memory.count).step_by(most) {
        let count = most.min(memory.count - begin);
        let piece = count * bytes;
        // SAFETY: the piece is part of the caller's elements, and `all` has room for as much of each rank.
        unsafe {
            let (send, recv) = (memory.send.add(begin * bytes), memory.recv.add(begin * bytes));
            let call = RawCall {
                operation: tbccl::Operation::new(tbccl::Collective::AllGather),
                dtype: DType::U8,
                count: piece,
                send,
                recv: all,
            };
            group.calls().call(&call, &CallOptions::default())?;
            // The last rank's first, since a function puts what it is given before what is there.
            let block = |rank: usize| all.add(rank * piece).cast_const();
            std::ptr::copy_nonoverlapping(block(ranks - 1), recv, piece);
            for rank in (0..ranks - 1).rev() {
                foreign.apply(block(rank).cast(), recv.cast(), count as c_int, handle);
            }
        }
    }
    Ok(())
}
