//! Functions that the C++ side of `libjaccl` calls: joining, the calls of a group, leaving.
//!
//! `ffi/jaccl/cpp/core.h` declares the same for C++. A function that can fail returns null, or a message to
//! free by `tbccl_jaccl_free_message`.
//!
//! # Safety
//! The C++ side passes addresses that are valid while a call lasts, and worlds that one of these functions
//! has returned. Buffers are as large as the program says.

use crate::release::{Release, Released};
use std::{
    ffi::{CStr, c_char, c_void},
    ptr::null,
};

/// A joined job, as the C++ side holds it (`tbccl_jaccl_world`). Never freed: calls may be in progress on
/// other threads when the program drops its group.
pub type World = *const c_void;

/// Bytes of a job's id.
pub const ID_BYTES: usize = 128;

/// A device of one rank that leads to another one (`tbccl_jaccl_cable`).
#[repr(C)]
#[derive(Debug)]
pub struct Cable {
    /// Rank with the device.
    pub from: u32,
    /// Rank that it leads to.
    pub to: u32,
    /// Name of the device.
    pub device: *const c_char,
}

/// Devices between ranks (`tbccl_jaccl_devices`).
#[repr(C)]
#[derive(Debug)]
pub struct Devices {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of cables.
    pub count: usize,
    /// The cables.
    pub cables: *const Cable,
}

impl Devices {
    /// No devices, and nothing to free.
    pub const NONE: Devices = Devices { ranks: 0, count: 0, cables: null() };
}

/// A rank of a job, as its program describes it (`tbccl_jaccl_job`).
#[repr(C)]
#[derive(Debug)]
pub struct Job {
    /// Number of the rank.
    pub rank: u32,
    /// Devices between the ranks.
    pub devices: Devices,
    /// Whether only the devices between neighbors of the ring are used.
    pub ring: bool,
}

/// Passes the list of functions to another macro.
#[macro_export]
macro_rules! jaccl_functions {
    ($macro:ident) => {
        $macro! {
            /// Frees a message.
            fn tbccl_jaccl_free_message(message: *mut ::std::ffi::c_char);
            /// Reads a file with devices.
            fn tbccl_jaccl_read_devices(
                path: *const ::std::ffi::c_char,
                output: *mut $crate::jaccl::Devices,
            ) -> *mut ::std::ffi::c_char;
            /// Frees the devices of a file.
            fn tbccl_jaccl_free_devices(devices: *mut $crate::jaccl::Devices);
            /// Whether `tbccl run` has started this process.
            fn tbccl_jaccl_is_launched() -> bool;
            /// Joins the job of `tbccl run`. Writes no world for a job of one rank.
            fn tbccl_jaccl_join_launched(output: *mut $crate::jaccl::World) -> *mut ::std::ffi::c_char;
            /// Joins the job that the program describes, whose ranks meet at this address of rank 0.
            fn tbccl_jaccl_join_at(
                job: *const $crate::jaccl::Job,
                coordinator: *const ::std::ffi::c_char,
                output: *mut $crate::jaccl::World,
            ) -> *mut ::std::ffi::c_char;
            /// Creates the id of a job.
            fn tbccl_jaccl_create_id(output: *mut [u8; $crate::jaccl::ID_BYTES]) -> *mut ::std::ffi::c_char;
            /// Gives up an id that has been created and not been passed on.
            fn tbccl_jaccl_discard_id(id: *const [u8; $crate::jaccl::ID_BYTES]);
            /// Joins the job that the program describes, by the id that rank 0 has created.
            fn tbccl_jaccl_join_by(
                job: *const $crate::jaccl::Job,
                id: *const [u8; $crate::jaccl::ID_BYTES],
                output: *mut $crate::jaccl::World,
            ) -> *mut ::std::ffi::c_char;
            /// Leaves the job, once no rank waits for a call of this one any more.
            fn tbccl_jaccl_leave(world: $crate::jaccl::World);
            /// Returns this rank.
            fn tbccl_jaccl_rank(world: $crate::jaccl::World) -> ::std::ffi::c_int;
            /// Returns the number of ranks.
            fn tbccl_jaccl_size(world: $crate::jaccl::World) -> ::std::ffi::c_int;
            /// Sums elements.
            fn tbccl_jaccl_all_sum(
                world: $crate::jaccl::World,
                input: *const ::std::ffi::c_void,
                output: *mut ::std::ffi::c_void,
                bytes: usize,
                dtype: ::std::ffi::c_int,
            ) -> *mut ::std::ffi::c_char;
            /// Stores the greatest elements.
            fn tbccl_jaccl_all_max(
                world: $crate::jaccl::World,
                input: *const ::std::ffi::c_void,
                output: *mut ::std::ffi::c_void,
                bytes: usize,
                dtype: ::std::ffi::c_int,
            ) -> *mut ::std::ffi::c_char;
            /// Stores the least elements.
            fn tbccl_jaccl_all_min(
                world: $crate::jaccl::World,
                input: *const ::std::ffi::c_void,
                output: *mut ::std::ffi::c_void,
                bytes: usize,
                dtype: ::std::ffi::c_int,
            ) -> *mut ::std::ffi::c_char;
            /// Sums a block of elements per rank, and stores the block of this rank.
            fn tbccl_jaccl_sum_scatter(
                world: $crate::jaccl::World,
                input: *const ::std::ffi::c_void,
                output: *mut ::std::ffi::c_void,
                bytes: usize,
                dtype: ::std::ffi::c_int,
            ) -> *mut ::std::ffi::c_char;
            /// Gathers the bytes of all ranks.
            fn tbccl_jaccl_all_gather(
                world: $crate::jaccl::World,
                input: *const ::std::ffi::c_void,
                output: *mut ::std::ffi::c_void,
                bytes: usize,
            ) -> *mut ::std::ffi::c_char;
            /// Sends bytes to a rank.
            fn tbccl_jaccl_send(
                world: $crate::jaccl::World,
                input: *const ::std::ffi::c_void,
                bytes: usize,
                to: ::std::ffi::c_int,
            ) -> *mut ::std::ffi::c_char;
            /// Receives bytes from a rank. Waits until they have arrived.
            fn tbccl_jaccl_recv(
                world: $crate::jaccl::World,
                output: *mut ::std::ffi::c_void,
                bytes: usize,
                from: ::std::ffi::c_int,
            ) -> *mut ::std::ffi::c_char;
            /// Waits until all ranks have called it.
            fn tbccl_jaccl_barrier(world: $crate::jaccl::World) -> *mut ::std::ffi::c_char;
        }
    };
}

macro_rules! table {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// Functions behind the names of a `libjaccl`.
        #[repr(C)]
        #[derive(Debug)]
        pub struct Functions {
            /// Release of the table.
            pub release: Release,
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($argument: $type),*) $(-> $result)?,)*
        }
    };
}

jaccl_functions!(table);

// SAFETY: the layout is that of C, the release is first, and `tbccl-ffi` defines the function.
unsafe impl Released for Functions {
    type Given = ();
    const ENTRY: &'static CStr = c"tbccl_jaccl_functions";
}
