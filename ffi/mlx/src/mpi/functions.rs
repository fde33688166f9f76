//! The functions that MLX takes from an MPI library.
//!
//! # Safety
//! Callers keep to MPI: addresses are null, or valid for their types while a call lasts.
#![allow(non_snake_case)] // Names are those of C.

use super::{
    datatypes::{self, Datatype},
    operations::{self, Operation},
    process,
    reduce::{self, Buffers},
};
use crate::{
    Failure, Outcome,
    boundary::{SUCCESS, or_code, or_throw},
};
use mlx_table::mpi::{Handle, Status, UserFunction};
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr::null_mut,
};
use tbccl::RawCall;

/// `MPI_IN_PLACE`: the contribution is in the receive buffer.
const IN_PLACE: *const c_void = std::ptr::without_provenance(1);

/// `MPI_UNDEFINED`: the color of a rank that joins no group.
const UNDEFINED: c_int = -32766;

/// `MPI_ANY_SOURCE` and `MPI_ANY_TAG`.
const ANY: c_int = -1;

/// Bytes that a caller of `MPI_Get_library_version` has room for.
const MAX_VERSION_BYTES: usize = 256;

/// Writes a value to an output argument.
///
/// # Safety
/// `output` is null, or valid for a write of its type.
unsafe fn write_output<T>(name: &str, output: *mut T, value: T) -> Outcome {
    if output.is_null() {
        return Err(Failure::usage(format!("{name} is NULL")));
    }
    // SAFETY: valid by this function's contract, and not null.
    unsafe { output.write(value) };
    Ok(())
}

fn elements(count: c_int) -> Outcome<usize> {
    usize::try_from(count).map_err(|_| {
        Failure::usage(format!(
            "{count} elements; MPI can't be told of more than 2147483647 at a time: use several arrays"
        ))
    })
}

/// Tells the name and version of this library.
///
/// MLX accepts only libraries whose version names Open MPI, whose binary interface this library has.
pub(super) unsafe extern "C-unwind" fn MPI_Get_library_version(
    version: *mut c_char,
    length: *mut c_int,
) -> c_int {
    or_throw("MPI_Get_library_version", || {
        let text = concat!(
            "tbccl ",
            env!("CARGO_PKG_VERSION"),
            ", with the part of the binary interface of Open MPI that MLX uses\0"
        );
        const { assert!(MAX_VERSION_BYTES > 128) };
        if version.is_null() {
            return Err(Failure::usage("version is NULL"));
        }
        // SAFETY: as MPI says, there is room for 256 characters.
        unsafe { version.copy_from_nonoverlapping(text.as_ptr().cast(), text.len().min(MAX_VERSION_BYTES)) };
        // SAFETY: the caller keeps to MPI, as the module requires.
        unsafe { write_output("resultlen", length, text.len() as c_int - 1) }
    })
}

/// Joins the job of the launcher that started this process, and waits for the other ranks. Ignores its
/// arguments.
pub(super) unsafe extern "C-unwind" fn MPI_Init(_argc: *mut c_int, _argv: *mut *mut *mut c_char) -> c_int {
    or_throw("MPI_Init", process::init)
}

/// Leaves the job, once no rank waits for a call of this one any more. Other threads may still make calls
/// while it waits. Never throws, since programs call it at exit.
pub(super) unsafe extern "C-unwind" fn MPI_Finalize() -> c_int {
    or_code(process::finalize)
}

/// Tells this process's rank in a communicator.
pub(super) unsafe extern "C-unwind" fn MPI_Comm_rank(comm: Handle, rank: *mut c_int) -> c_int {
    // SAFETY: the caller keeps to MPI, as the module requires.
    or_throw("MPI_Comm_rank", || unsafe {
        write_output("rank", rank, process::group(comm)?.rank().0 as c_int)
    })
}

/// Tells the number of ranks of a communicator.
pub(super) unsafe extern "C-unwind" fn MPI_Comm_size(comm: Handle, size: *mut c_int) -> c_int {
    // SAFETY: the caller keeps to MPI, as the module requires.
    or_throw("MPI_Comm_size", || unsafe { write_output("size", size, process::group(comm)?.size() as c_int) })
}

/// Splits a communicator: makes one of the ranks of each color, ordered by key.
///
/// All ranks call it. It may run beside other calls on the same communicator.
pub(super) unsafe extern "C-unwind" fn MPI_Comm_split(
    comm: Handle,
    color: c_int,
    key: c_int,
    output: *mut Handle,
) -> c_int {
    or_throw("MPI_Comm_split", || {
        let color = match color {
            UNDEFINED => None,
            color => Some(
                u32::try_from(color)
                    .map_err(|_| Failure::usage(format!("color {color}: colors are not negative")))?,
            ),
        };
        let group = process::group(comm)?.split(color, key)?;
        let handle = group.map_or(Ok(null_mut()), process::register)?;
        // SAFETY: the caller keeps to MPI, as the module requires.
        unsafe { write_output("newcomm", output, handle) }
    })
}

/// Frees a communicator that a split has made, some frees later: threads may still have calls to make on it,
/// which MLX has queued. Never throws, since destructors call it.
pub(super) unsafe extern "C-unwind" fn MPI_Comm_free(comm: *mut Handle) -> c_int {
    or_code(|| {
        if comm.is_null() {
            return Err(Failure::usage("comm is NULL"));
        }
        // SAFETY: the caller keeps to MPI, as the module requires, and the pointer is not null.
        let handle = unsafe { comm.replace(null_mut()) };
        process::free(handle)
    })
}

/// Reduces the elements of all ranks, and stores the result on every rank.
pub(super) unsafe extern "C-unwind" fn MPI_Allreduce(
    send: *const c_void,
    recv: *mut c_void,
    count: c_int,
    datatype: Handle,
    op: Handle,
    comm: Handle,
) -> c_int {
    or_throw("MPI_Allreduce", || {
        let send = if std::ptr::eq(send, IN_PLACE) { recv.cast_const() } else { send };
        let buffers = Buffers { send: send.cast(), recv: recv.cast(), count: elements(count)? };
        let (group, operation) = (process::group(comm)?, Operation::from_handle(op)?);
        // SAFETY: the caller keeps to MPI, as the module requires.
        unsafe {
            reduce::all_reduce(&group, buffers, (Datatype::from_handle(datatype)?, datatype), &operation)
        }
    })
}

/// Gathers the elements of all ranks, in rank order, on every rank.
pub(super) unsafe extern "C-unwind" fn MPI_Allgather(
    send: *const c_void,
    send_count: c_int,
    send_type: Handle,
    recv: *mut c_void,
    recv_count: c_int,
    recv_type: Handle,
    comm: Handle,
) -> c_int {
    or_throw("MPI_Allgather", || {
        let group = process::group(comm)?;
        let (dtype, count) = Datatype::from_handle(recv_type)?.transfer_type(elements(recv_count)?)?;
        let send = if std::ptr::eq(send, IN_PLACE) {
            let offset = group.rank().index() * count * dtype.size();
            recv.cast::<u8>().wrapping_add(offset).cast_const()
        } else {
            let (send_dtype, send_elements) =
                Datatype::from_handle(send_type)?.transfer_type(elements(send_count)?)?;
            if (send_dtype.size() * send_elements, send_dtype) != (dtype.size() * count, dtype) {
                return Err(Failure::usage(
                    "the send type or count differs from that of a block of the result",
                ));
            }
            send.cast()
        };
        let call = RawCall {
            operation: tbccl::Operation::new(tbccl::Collective::AllGather),
            dtype,
            count,
            send,
            recv: recv.cast(),
        };
        // SAFETY: the caller keeps to MPI, as the module requires.
        unsafe { group.call(&call) }
    })
}

/// Sends elements to a rank, with a tag.
///
/// Returns when the buffer may be reused, which does not mean that the message has arrived.
pub(super) unsafe extern "C-unwind" fn MPI_Send(
    data: *const c_void,
    count: c_int,
    datatype: Handle,
    to: c_int,
    tag: c_int,
    comm: Handle,
) -> c_int {
    or_throw("MPI_Send", || {
        let group = process::group(comm)?;
        let bytes = bytes_of(count, datatype)?;
        if tag < 0 {
            return Err(Failure::usage(format!("tag {tag}: tags are not negative")));
        }
        // SAFETY: the caller keeps to MPI, as the module requires.
        unsafe { process::messages()?.send(&group, group.world_rank(to)?, tag, (data.cast(), bytes)) }
    })
}

/// Receives elements from one rank or any rank, with one tag or any tag. Blocks until they have arrived.
pub(super) unsafe extern "C-unwind" fn MPI_Recv(
    data: *mut c_void,
    count: c_int,
    datatype: Handle,
    from: c_int,
    tag: c_int,
    comm: Handle,
    status: *mut Status,
) -> c_int {
    or_throw("MPI_Recv", || {
        let group = process::group(comm)?;
        let bytes = bytes_of(count, datatype)?;
        let from = if from == ANY { None } else { Some(group.world_rank(from)?) };
        let tag = (tag != ANY).then_some(tag);
        // SAFETY: the caller keeps to MPI, as the module requires.
        let delivery = unsafe { process::messages()?.recv(&group, from, tag, (data.cast(), bytes))? };
        let source = group.rank_of_world(delivery.from).unwrap_or(ANY);
        let value = Status { source, tag: delivery.tag, error: SUCCESS, cancelled: 0, bytes: delivery.bytes };
        // `MPI_STATUS_IGNORE` is a null pointer. SAFETY: the caller keeps to MPI, as the module requires.
        if status.is_null() { Ok(()) } else { unsafe { write_output("status", status, value) } }
    })
}

fn bytes_of(count: c_int, datatype: Handle) -> Outcome<usize> {
    let bytes = Datatype::from_handle(datatype)?.bytes().checked_mul(elements(count)?);
    bytes.ok_or_else(|| Failure::usage("more elements than memory has"))
}

/// Makes a datatype of `count` consecutive elements of another.
pub(super) unsafe extern "C-unwind" fn MPI_Type_contiguous(
    count: c_int,
    of: Handle,
    output: *mut Handle,
) -> c_int {
    // SAFETY: the caller keeps to MPI, as the module requires.
    or_throw("MPI_Type_contiguous", || unsafe {
        write_output("newtype", output, datatypes::contiguous(count, of)?)
    })
}

/// Checks the datatype and does nothing else: datatypes can be used once they are made.
pub(super) unsafe extern "C-unwind" fn MPI_Type_commit(datatype: *mut Handle) -> c_int {
    or_throw("MPI_Type_commit", || {
        if datatype.is_null() {
            return Err(Failure::usage("datatype is NULL"));
        }
        // SAFETY: the caller keeps to MPI, as the module requires, and the pointer is not null.
        Datatype::from_handle(unsafe { datatype.read() }).map(drop)
    })
}

/// Makes an operation of a program's function. Ignores whether the function commutes: it is always applied in
/// rank order.
pub(super) unsafe extern "C-unwind" fn MPI_Op_create(
    function: Option<UserFunction>,
    _commutes: c_int,
    output: *mut Handle,
) -> c_int {
    or_throw("MPI_Op_create", || {
        let function = function.ok_or_else(|| Failure::usage("user_fn is NULL"))?;
        // SAFETY: the caller keeps to MPI, as the module requires.
        unsafe { write_output("op", output, operations::create(function)?) }
    })
}

/// Returns 1 while this library has joined this process to a job, and 0 otherwise.
///
/// Not part of MPI. `tbccl.mlx` calls it to check that MLX has opened this library.
pub(super) extern "C-unwind" fn tbccl_mpi_is_running() -> c_int {
    c_int::from(std::panic::catch_unwind(process::is_running).unwrap_or(false))
}

/// Returns the name of the launcher whose variables this process has, or NULL without a launcher.
///
/// Not part of MPI.
pub(super) extern "C-unwind" fn tbccl_mpi_launcher() -> *const c_char {
    std::panic::catch_unwind(crate::launcher)
        .map_or(std::ptr::null(), |name| name.map_or(std::ptr::null(), CStr::as_ptr))
}

/// Returns the number of ranks that the launcher started, or 0 if it is unknown or invalid.
///
/// Not part of MPI.
pub(super) extern "C-unwind" fn tbccl_mpi_ranks() -> c_int {
    std::panic::catch_unwind(tbccl::ranks_of_env).map_or(0, |ranks| ranks.unwrap_or(0) as c_int)
}
