//! Functions that the C++ side calls: joining, the calls of a group, leaving.
//!
//! `python/tbccl/mlx/native/core.h` declares them.
//!
//! # Safety
//! The C++ side passes addresses that are valid while a call lasts. Buffers are as large as counts and types
//! say.
#![allow(clippy::missing_safety_doc)] // It is the same for all of them, and said above.

use super::groups;
use crate::{
    Failure, Outcome,
    boundary::{message_of, or_code},
    dtypes,
    mpi::process,
};
use mlx_table::native::{Group as Number, WORLD};
use std::ffi::{CString, c_char, c_int, c_void};
use tbccl::{Collective, Config, MlxNative, Operation, RawCall, ReduceOp};

/// Operations by their numbers.
const OPS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min];

/// Tag of all messages.
const TAG: i32 = 0;

/// Rank and size of an unknown group.
const UNKNOWN: c_int = -1;

/// Frees a message.
pub(super) unsafe extern "C" fn free_message(message: *mut c_char) {
    // SAFETY: `message_of` has made it, and the C++ side frees it once.
    drop(unsafe { CString::from_raw(message) });
}

/// Tells whether the option `TBCCL_MLX_NATIVE` wants these groups.
pub(super) unsafe extern "C" fn is_wanted(output: *mut c_int) -> *mut c_char {
    message_of("init", || {
        let is_wanted = Config::from_env()?.mlx_native != MlxNative::Off;
        // SAFETY: the C++ side keeps to the module's rules.
        unsafe { output.write(c_int::from(is_wanted)) };
        Ok(())
    })
}

/// Joins the job of the launcher, unless this process has joined it already.
pub(super) extern "C" fn join() -> *mut c_char {
    message_of("init", || {
        groups::set_world(process::world_or_join()?.group().clone());
        Ok(())
    })
}

/// Tells the lowest rank that cannot make these groups.
pub(super) unsafe extern "C" fn first_unable(is_able: c_int, output: *mut c_int) -> *mut c_char {
    message_of("init", || {
        let world = groups::get(WORLD)?;
        // Ranks that can give a number that no rank has.
        let none = world.size() as i32;
        let (own, mut first) = (if is_able != 0 { none } else { world.rank().0 as i32 }, none);
        let call = RawCall {
            operation: Operation::new(Collective::AllReduce).with_op(ReduceOp::Min),
            dtype: tbccl::DType::I32,
            count: 1,
            send: (&raw const own).cast(),
            recv: (&raw mut first).cast(),
        };
        // SAFETY: both are numbers on this stack, which live until the call returns.
        unsafe { world.call(&call)? };
        // SAFETY: the C++ side keeps to the module's rules.
        unsafe { output.write(if first == none { -1 } else { first }) };
        Ok(())
    })
}

/// Leaves the job, once no rank waits for a call of this one any more.
pub(super) extern "C" fn leave() {
    or_code(|| {
        process::prepare_to_leave(&groups::all());
        groups::release_all();
        process::leave();
        Ok(())
    });
}

/// Returns this process's rank in a group.
pub(super) extern "C" fn rank(group: Number) -> c_int {
    groups::get(group).map_or(UNKNOWN, |group| group.rank().0 as c_int)
}

/// Returns the number of ranks of a group.
pub(super) extern "C" fn size(group: Number) -> c_int {
    groups::get(group).map_or(UNKNOWN, |group| group.size() as c_int)
}

/// Makes a group of the ranks that give the same color.
pub(super) unsafe extern "C" fn split(
    group: Number,
    color: c_int,
    key: c_int,
    output: *mut Number,
) -> *mut c_char {
    message_of("split", || {
        let color = u32::try_from(color)
            .map_err(|_| Failure::usage(format!("color {color}: colors are not negative")))?;
        let made = groups::get(group)?.split(Some(color), key)?;
        let made = made.ok_or_else(|| Failure::usage("a split with a color made no group"))?;
        // SAFETY: the C++ side keeps to the module's rules.
        unsafe { output.write(groups::add(made)) };
        Ok(())
    })
}

/// Releases a group.
pub(super) extern "C" fn release_group(group: Number) {
    or_code(|| {
        groups::release(group);
        Ok(())
    });
}

/// Buffers of a call, with the number and the type of the elements that the operation counts.
struct Elements {
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: c_int,
}

/// Makes a call of all ranks of a group.
///
/// # Safety
/// The buffers are as large as the operation says.
unsafe fn call(group: Number, operation: Operation<'static>, of: &Elements) -> Outcome {
    let (group, dtype) = (groups::get(group)?, dtypes::from_number(of.dtype)?);
    let (send, recv) = (of.input.cast(), of.output.cast());
    let call = RawCall { operation, dtype, count: of.count, send, recv };
    // SAFETY: by this function's contract.
    unsafe { group.call(&call) }
}

/// Reduces elements of all ranks.
pub(super) unsafe extern "C" fn all_reduce(
    group: Number,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
) -> *mut c_char {
    message_of("all_reduce", || {
        let op = usize::try_from(op).ok().and_then(|op| OPS.get(op)).copied();
        let op = op.ok_or_else(|| Failure::usage("unknown operation"))?;
        let operation = Operation::new(Collective::AllReduce).with_op(op);
        // SAFETY: the C++ side keeps to the module's rules.
        unsafe { call(group, operation, &Elements { input, output, count, dtype }) }
    })
}

/// Sums a block of elements per rank, and stores the block of this rank.
pub(super) unsafe extern "C" fn sum_scatter(
    group: Number,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: c_int,
) -> *mut c_char {
    message_of("sum_scatter", || {
        let operation = Operation::new(Collective::ReduceScatter).with_op(ReduceOp::Sum);
        // SAFETY: the C++ side keeps to the module's rules.
        unsafe { call(group, operation, &Elements { input, output, count, dtype }) }
    })
}

/// Gathers elements of all ranks.
pub(super) unsafe extern "C" fn all_gather(
    group: Number,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: c_int,
) -> *mut c_char {
    message_of("all_gather", || {
        let operation = Operation::new(Collective::AllGather);
        // SAFETY: the C++ side keeps to the module's rules.
        unsafe { call(group, operation, &Elements { input, output, count, dtype }) }
    })
}

/// Sends bytes to a rank of the group.
pub(super) unsafe extern "C" fn send(
    group: Number,
    input: *const c_void,
    bytes: usize,
    to: c_int,
) -> *mut c_char {
    message_of("send", || {
        let (group, messages) = (groups::get(group)?, process::messages()?);
        // SAFETY: the C++ side keeps to the module's rules.
        unsafe { messages.send(&group, group.world_rank(to)?, TAG, (input.cast(), bytes)) }
    })
}

/// Receives bytes from a rank of the group. Waits until they have arrived.
pub(super) unsafe extern "C" fn recv(
    group: Number,
    output: *mut c_void,
    bytes: usize,
    from: c_int,
) -> *mut c_char {
    message_of("recv", || {
        let (group, messages) = (groups::get(group)?, process::messages()?);
        let source = group.world_rank(from)?;
        // SAFETY: the C++ side keeps to the module's rules.
        let got = unsafe { messages.recv(&group, Some(source), Some(TAG), (output.cast(), bytes))? }.bytes;
        if got == bytes {
            return Ok(());
        }
        let rank = group.rank();
        Err(Failure::usage(format!(
            "rank {from} sent {got} bytes, and rank {rank} receives {bytes}: both must name the same number"
        )))
    })
}
