//! The functions that MLX takes from an MPI library.
//!
//! # Safety
//! A caller keeps to MPI: addresses are null or lead to what the types say, for as long as a call lasts. Names are
//! exported as they are.
#![allow(clippy::missing_safety_doc)] // It is the same for all of them, and said above.

use crate::{
    boundary::{Failure, Outcome, SUCCESS, or_code, or_throw},
    datatypes::{self, Datatype},
    objects::Handle,
    operations::{self, Operation, UserFunction},
    reduce::{self, Memory},
    world,
};
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr::null_mut,
};
use tbccl::{CallOptions, RawCall};

/// `MPI_IN_PLACE`: the contribution is where the result goes.
const IN_PLACE: *const c_void = std::ptr::without_provenance(1);

/// `MPI_UNDEFINED`, as the colour of a rank that is to be in no group.
const UNDEFINED: c_int = -32766;

/// `MPI_ANY_SOURCE`, and `MPI_ANY_TAG`.
const ANY: c_int = -1;

/// The length of the text that a caller of `MPI_Get_library_version` has room for.
const VERSION_ROOM: usize = 256;

/// `MPI_Status`.
#[repr(C)]
#[derive(Debug)]
pub struct Status {
    source: c_int,
    tag: c_int,
    error: c_int,
    cancelled: c_int,
    bytes: usize,
}

/// A place that something is written to.
///
/// # Safety
/// It is null, or what its type says.
unsafe fn write<T>(name: &str, place: *mut T, value: T) -> Outcome {
    if place.is_null() {
        return Err(Failure::wrong(format!("{name} is NULL")));
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

fn elements(count: c_int) -> Outcome<usize> {
    usize::try_from(count).map_err(|_| {
        Failure::wrong(format!(
            "{count} elements; MPI can't be told of more than 2147483647 at a time: use several arrays"
        ))
    })
}

/// Says which library this is. MLX takes none that does not name Open MPI, whose binary interface this has.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Get_library_version(version: *mut c_char, length: *mut c_int) -> c_int {
    or_throw("MPI_Get_library_version", || {
        let text = concat!(
            "tbccl ",
            env!("CARGO_PKG_VERSION"),
            ", with the part of the binary interface of Open MPI that MLX uses\0"
        );
        const { assert!(VERSION_ROOM > 128) };
        if version.is_null() {
            return Err(Failure::wrong("version is NULL"));
        }
        // SAFETY: as MPI says, there is room for 256 characters.
        unsafe { version.copy_from_nonoverlapping(text.as_ptr().cast(), text.len().min(VERSION_ROOM)) };
        // SAFETY: the caller's promise.
        unsafe { write("resultlen", length, text.len() as c_int - 1) }
    })
}

/// Joins the job that a launcher has started this process for; waits for the other ranks. The arguments are not looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Init(_argc: *mut c_int, _argv: *mut *mut *mut c_char) -> c_int {
    or_throw("MPI_Init", world::begin)
}

/// Leaves the job. Never throws: it is called while a program ends.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Finalize() -> c_int {
    or_code(world::end)
}

/// Tells which rank of a communicator this is.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Comm_rank(comm: Handle, rank: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    or_throw("MPI_Comm_rank", || unsafe { write("rank", rank, world::group(comm)?.rank().0 as c_int) })
}

/// Tells how many ranks a communicator has.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Comm_size(comm: Handle, size: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    or_throw("MPI_Comm_size", || unsafe { write("size", size, world::group(comm)?.size() as c_int) })
}

/// Makes communicators of those ranks that give the same colour, in the order of their keys. All ranks call it. May run beside
/// other calls on the same communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Comm_split(
    comm: Handle,
    color: c_int,
    key: c_int,
    made: *mut Handle,
) -> c_int {
    or_throw("MPI_Comm_split", || {
        let color = match color {
            UNDEFINED => None,
            color => Some(
                u32::try_from(color)
                    .map_err(|_| Failure::wrong(format!("colour {color}: colours are not negative")))?,
            ),
        };
        let group = world::group(comm)?.split(color, key)?;
        let handle = group.map_or(Ok(null_mut()), world::admit)?;
        // SAFETY: the caller's promise.
        unsafe { write("newcomm", made, handle) }
    })
}

/// Ends a communicator that was made of another, once no call is under way. Never throws: it is called by destructors.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Comm_free(comm: *mut Handle) -> c_int {
    or_code(|| {
        if comm.is_null() {
            return Err(Failure::wrong("comm is NULL"));
        }
        // SAFETY: the caller's promise.
        let handle = unsafe { comm.replace(null_mut()) };
        world::dismiss(handle)
    })
}

/// Combines the elements of all ranks; every rank gets the result.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Allreduce(
    send: *const c_void,
    recv: *mut c_void,
    count: c_int,
    datatype: Handle,
    op: Handle,
    comm: Handle,
) -> c_int {
    or_throw("MPI_Allreduce", || {
        let send = if std::ptr::eq(send, IN_PLACE) { recv.cast_const() } else { send };
        let memory = Memory { send: send.cast(), recv: recv.cast(), count: elements(count)? };
        let (group, operation) = (world::group(comm)?, Operation::of(op)?);
        // SAFETY: the caller's promise.
        unsafe { reduce::all_reduce(&group, memory, (Datatype::of(datatype)?, datatype), &operation) }
    })
}

/// Puts the elements of all ranks one after the other; every rank gets them.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Allgather(
    send: *const c_void,
    send_count: c_int,
    send_type: Handle,
    recv: *mut c_void,
    recv_count: c_int,
    recv_type: Handle,
    comm: Handle,
) -> c_int {
    or_throw("MPI_Allgather", || {
        let group = world::group(comm)?;
        let (dtype, count) = Datatype::of(recv_type)?.carried(elements(recv_count)?)?;
        let send = if std::ptr::eq(send, IN_PLACE) {
            let before = group.rank().index() * count * dtype.size();
            recv.cast::<u8>().wrapping_add(before).cast_const()
        } else {
            let (sent_as, sent) = Datatype::of(send_type)?.carried(elements(send_count)?)?;
            if (sent_as.size() * sent, sent_as) != (dtype.size() * count, dtype) {
                return Err(Failure::wrong("what is sent differs from what each block of the result has"));
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
        // SAFETY: the caller's promise.
        unsafe { group.calls().call(&call, &CallOptions::default())? };
        Ok(())
    })
}

/// Sends elements to a rank, with a tag. Returns when they may be changed, which does not mean that they have arrived.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Send(
    data: *const c_void,
    count: c_int,
    datatype: Handle,
    to: c_int,
    tag: c_int,
    comm: Handle,
) -> c_int {
    or_throw("MPI_Send", || {
        let group = world::group(comm)?;
        let bytes = bytes_of(count, datatype)?;
        if tag < 0 {
            return Err(Failure::wrong(format!("tag {tag}: tags are not negative")));
        }
        // SAFETY: the caller's promise.
        unsafe { world::post()?.send(&group, group.in_world(to)?, tag, (data.cast(), bytes)) }
    })
}

/// Receives elements from a rank, or any, with a tag, or any. Waits for them.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Recv(
    data: *mut c_void,
    count: c_int,
    datatype: Handle,
    from: c_int,
    tag: c_int,
    comm: Handle,
    status: *mut Status,
) -> c_int {
    or_throw("MPI_Recv", || {
        let group = world::group(comm)?;
        let bytes = bytes_of(count, datatype)?;
        let from = if from == ANY { None } else { Some(group.in_world(from)?) };
        let tag = (tag != ANY).then_some(tag);
        // SAFETY: the caller's promise.
        let delivery = unsafe { world::post()?.recv(&group, from, tag, (data.cast(), bytes))? };
        let source = group.of_world(delivery.from).unwrap_or(ANY);
        let told = Status { source, tag: delivery.tag, error: SUCCESS, cancelled: 0, bytes: delivery.bytes };
        // `MPI_STATUS_IGNORE` is a null pointer.
        // SAFETY: the caller's promise.
        if status.is_null() { Ok(()) } else { unsafe { write("status", status, told) } }
    })
}

fn bytes_of(count: c_int, datatype: Handle) -> Outcome<usize> {
    let bytes = Datatype::of(datatype)?.bytes().checked_mul(elements(count)?);
    bytes.ok_or_else(|| Failure::wrong("more elements than memory has"))
}

/// Makes a type of several elements of another.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Type_contiguous(count: c_int, of: Handle, made: *mut Handle) -> c_int {
    // SAFETY: the caller's promise.
    or_throw("MPI_Type_contiguous", || unsafe { write("newtype", made, datatypes::contiguous(count, of)?) })
}

/// Does nothing: types can be used once they are made.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Type_commit(datatype: *mut Handle) -> c_int {
    or_throw("MPI_Type_commit", || {
        if datatype.is_null() {
            return Err(Failure::wrong("datatype is NULL"));
        }
        // SAFETY: the caller's promise.
        Datatype::of(unsafe { datatype.read() }).map(drop)
    })
}

/// Makes an operation of a program's function. Whether it commutes is not looked at: the order is that of ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Op_create(
    function: Option<UserFunction>,
    _commutes: c_int,
    made: *mut Handle,
) -> c_int {
    or_throw("MPI_Op_create", || {
        let function = function.ok_or_else(|| Failure::wrong("user_fn is NULL"))?;
        // SAFETY: the caller's promise.
        unsafe { write("op", made, operations::create(function)?) }
    })
}

/// Not of MPI: 1 while this process is a rank of a job by this library, and 0 otherwise. `tbccl.mlx` asks it whether it is
/// this library that MLX has opened.
#[unsafe(no_mangle)]
pub extern "C" fn tbccl_mpi_is_running() -> c_int {
    c_int::from(std::panic::catch_unwind(world::is_running).unwrap_or(false))
}

/// Not of MPI: the launcher whose variables this process finds, as text; NULL if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn tbccl_mpi_launcher() -> *const c_char {
    std::panic::catch_unwind(world::launcher)
        .map_or(std::ptr::null(), |name| name.map_or(std::ptr::null(), CStr::as_ptr))
}

/// Not of MPI: how many ranks the launcher has started; 0 if that is not said, or senseless.
#[unsafe(no_mangle)]
pub extern "C" fn tbccl_mpi_ranks() -> c_int {
    std::panic::catch_unwind(tbccl::ranks_of_env).map_or(0, |ranks| ranks.unwrap_or(0) as c_int)
}
