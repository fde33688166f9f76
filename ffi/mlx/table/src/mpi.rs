//! The part of Open MPI's binary interface that MLX uses: 14 functions, three of tbccl, and 16 objects.
//!
//! # Safety
//! Callers keep to MPI, and objects are only compared by their addresses.

use crate::release::{Release, Released};
use std::ffi::{CStr, c_int, c_void};

/// Handle: the address of an object, or a number from `MPI_Comm_split`, `MPI_Type_contiguous` or
/// `MPI_Op_create`.
pub type Handle = *mut c_void;

/// A program's function: `inout[i] = in[i] OP inout[i]`. It receives the datatype that the program passed.
pub type UserFunction = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *mut c_int, *mut Handle);

/// `MPI_Status`.
#[repr(C)]
#[derive(Debug)]
pub struct Status {
    /// Rank that sent the message.
    pub source: c_int,
    /// Tag of the message.
    pub tag: c_int,
    /// Error code.
    pub error: c_int,
    /// Whether the call was cancelled: never.
    pub cancelled: c_int,
    /// Bytes of the message.
    pub bytes: usize,
}

/// Object with an address and no contents. Open MPI's are structures of some hundred bytes, which programs do
/// not read.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Object([u8; 64]);

impl Object {
    /// Returns an object.
    #[must_use]
    #[allow(clippy::new_without_default)] // Objects are statics.
    pub const fn new() -> Object {
        Object([0; 64])
    }
}

/// Passes the list of functions to another macro. The last three are not part of MPI; `tbccl.mlx` calls them.
#[macro_export]
macro_rules! mpi_functions {
    ($macro:ident) => {
        $macro! {
            /// Tells the name and version of this library.
            fn MPI_Get_library_version(
                version: *mut ::std::ffi::c_char,
                length: *mut ::std::ffi::c_int,
            ) -> ::std::ffi::c_int;
            /// Joins the job of the launcher that started this process.
            fn MPI_Init(
                argc: *mut ::std::ffi::c_int,
                argv: *mut *mut *mut ::std::ffi::c_char,
            ) -> ::std::ffi::c_int;
            /// Leaves the job.
            fn MPI_Finalize() -> ::std::ffi::c_int;
            /// Tells this process's rank in a communicator.
            fn MPI_Comm_rank(
                comm: $crate::mpi::Handle,
                rank: *mut ::std::ffi::c_int,
            ) -> ::std::ffi::c_int;
            /// Tells the number of ranks of a communicator.
            fn MPI_Comm_size(
                comm: $crate::mpi::Handle,
                size: *mut ::std::ffi::c_int,
            ) -> ::std::ffi::c_int;
            /// Splits a communicator.
            fn MPI_Comm_split(
                comm: $crate::mpi::Handle,
                color: ::std::ffi::c_int,
                key: ::std::ffi::c_int,
                output: *mut $crate::mpi::Handle,
            ) -> ::std::ffi::c_int;
            /// Frees a communicator that a split has made.
            fn MPI_Comm_free(comm: *mut $crate::mpi::Handle) -> ::std::ffi::c_int;
            /// Reduces the elements of all ranks, and stores the result on every rank.
            fn MPI_Allreduce(
                send: *const ::std::ffi::c_void,
                recv: *mut ::std::ffi::c_void,
                count: ::std::ffi::c_int,
                datatype: $crate::mpi::Handle,
                op: $crate::mpi::Handle,
                comm: $crate::mpi::Handle,
            ) -> ::std::ffi::c_int;
            /// Gathers the elements of all ranks, in rank order, on every rank.
            fn MPI_Allgather(
                send: *const ::std::ffi::c_void,
                send_count: ::std::ffi::c_int,
                send_type: $crate::mpi::Handle,
                recv: *mut ::std::ffi::c_void,
                recv_count: ::std::ffi::c_int,
                recv_type: $crate::mpi::Handle,
                comm: $crate::mpi::Handle,
            ) -> ::std::ffi::c_int;
            /// Sends elements to a rank, with a tag.
            fn MPI_Send(
                data: *const ::std::ffi::c_void,
                count: ::std::ffi::c_int,
                datatype: $crate::mpi::Handle,
                to: ::std::ffi::c_int,
                tag: ::std::ffi::c_int,
                comm: $crate::mpi::Handle,
            ) -> ::std::ffi::c_int;
            /// Receives elements from one rank or any rank, with one tag or any tag.
            fn MPI_Recv(
                data: *mut ::std::ffi::c_void,
                count: ::std::ffi::c_int,
                datatype: $crate::mpi::Handle,
                from: ::std::ffi::c_int,
                tag: ::std::ffi::c_int,
                comm: $crate::mpi::Handle,
                status: *mut $crate::mpi::Status,
            ) -> ::std::ffi::c_int;
            /// Makes a datatype of `count` consecutive elements of another.
            fn MPI_Type_contiguous(
                count: ::std::ffi::c_int,
                of: $crate::mpi::Handle,
                output: *mut $crate::mpi::Handle,
            ) -> ::std::ffi::c_int;
            /// Checks a datatype.
            fn MPI_Type_commit(datatype: *mut $crate::mpi::Handle) -> ::std::ffi::c_int;
            /// Makes an operation of a program's function.
            fn MPI_Op_create(
                function: Option<$crate::mpi::UserFunction>,
                commutes: ::std::ffi::c_int,
                output: *mut $crate::mpi::Handle,
            ) -> ::std::ffi::c_int;
            /// Returns 1 while this library has joined this process to a job, and 0 otherwise.
            fn tbccl_mpi_is_running() -> ::std::ffi::c_int;
            /// Returns the name of the launcher whose variables this process has, or NULL without a launcher.
            fn tbccl_mpi_launcher() -> *const ::std::ffi::c_char;
            /// Returns the number of ranks that the launcher started, or 0 if it is unknown or invalid.
            fn tbccl_mpi_ranks() -> ::std::ffi::c_int;
        }
    };
}

/// Passes the list of objects to another macro.
#[macro_export]
macro_rules! mpi_objects {
    ($macro:ident) => {
        $macro! {
            /// Communicator of all ranks.
            ompi_mpi_comm_world;
            /// Sum.
            ompi_mpi_op_sum;
            /// Maximum.
            ompi_mpi_op_max;
            /// Minimum.
            ompi_mpi_op_min;
            /// IEEE 754 binary32.
            ompi_mpi_float;
            /// Boolean of one byte, 0 or 1.
            ompi_mpi_c_bool;
            /// Signed integer of 8 bits.
            ompi_mpi_int8_t;
            /// Unsigned integer of 8 bits.
            ompi_mpi_uint8_t;
            /// Signed integer of 16 bits.
            ompi_mpi_int16_t;
            /// Unsigned integer of 16 bits.
            ompi_mpi_uint16_t;
            /// Signed integer of 32 bits.
            ompi_mpi_int32_t;
            /// Unsigned integer of 32 bits.
            ompi_mpi_uint32_t;
            /// Signed integer of 64 bits.
            ompi_mpi_int64_t;
            /// Unsigned integer of 64 bits.
            ompi_mpi_uint64_t;
            /// IEEE 754 binary64.
            ompi_mpi_double;
            /// Complex number of two binary32.
            ompi_mpi_c_complex;
        }
    };
}

macro_rules! table {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {
        /// Functions behind the names of a `libtbccl_mpi`.
        #[repr(C)]
        #[derive(Debug)]
        pub struct Functions {
            /// Release of the table.
            pub release: Release,
            $($(#[$doc])* pub $name: unsafe extern "C-unwind" fn($($argument: $type),*) -> $result,)*
        }
    };
}

macro_rules! addresses {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// Addresses of a `libtbccl_mpi`'s objects, which are handles.
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct Objects {
            $($(#[$doc])* pub $name: &'static Object,)*
        }
    };
}

mpi_functions!(table);
mpi_objects!(addresses);

// SAFETY: the layout is that of C, the release is first, and `tbccl-ffi` defines the function.
unsafe impl Released for Functions {
    type Given = Objects;
    const ENTRY: &'static CStr = c"tbccl_mpi_functions";
}
