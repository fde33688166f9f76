//! Functions that MLX's groups of `tbccl.mlx` call, which a user's C++ compiler has compiled against MLX.
//!
//! `python/tbccl/mlx/native/core.h` declares the same for C++. A function that can fail returns null, or a
//! message to free by `free_message`.
//!
//! # Safety
//! The C++ side passes addresses that are valid while a call lasts. Buffers are as large as counts and types
//! say. Groups are numbers that are looked up.

use crate::release::{Release, Released};
use std::ffi::CStr;

/// Number of a group in this process; the group of all ranks has [`WORLD`].
pub type Group = u64;

/// The group of all ranks.
pub const WORLD: Group = 1;

/// Passes the list of functions to another macro.
#[macro_export]
macro_rules! native_functions {
    ($macro:ident) => {
        $macro! {
            /// Frees a message.
            fn free_message(message: *mut ::std::ffi::c_char);
            /// Tells whether the option `TBCCL_MLX_NATIVE` wants these groups, as 1 or 0.
            fn is_wanted(output: *mut ::std::ffi::c_int) -> *mut ::std::ffi::c_char;
            /// Joins the job of the launcher that started this process, unless it has joined it already.
            fn join() -> *mut ::std::ffi::c_char;
            /// Tells the lowest rank that cannot make these groups; -1 if all can. All ranks call it.
            fn first_unable(
                is_able: ::std::ffi::c_int,
                output: *mut ::std::ffi::c_int,
            ) -> *mut ::std::ffi::c_char;
            /// Leaves the job, once no rank waits for a call of this one any more.
            fn leave();
            /// Returns this process's rank in a group; -1 for an unknown group.
            fn rank(group: $crate::native::Group) -> ::std::ffi::c_int;
            /// Returns the number of ranks of a group; -1 for an unknown group.
            fn size(group: $crate::native::Group) -> ::std::ffi::c_int;
            /// Makes a group of the ranks that give the same color, ordered by key.
            fn split(
                group: $crate::native::Group,
                color: ::std::ffi::c_int,
                key: ::std::ffi::c_int,
                output: *mut $crate::native::Group,
            ) -> *mut ::std::ffi::c_char;
            /// Releases a group. Calls that have begun go on.
            fn release_group(group: $crate::native::Group);
            /// Reduces elements of all ranks: 0 sums them, 1 takes the greatest, 2 the least.
            fn all_reduce(
                group: $crate::native::Group,
                input: *const ::std::ffi::c_void,
                output: *mut ::std::ffi::c_void,
                count: usize,
                dtype: ::std::ffi::c_int,
                op: ::std::ffi::c_int,
            ) -> *mut ::std::ffi::c_char;
            /// Sums blocks of `count` elements, one per rank, and stores the block of this rank.
            fn sum_scatter(
                group: $crate::native::Group,
                input: *const ::std::ffi::c_void,
                output: *mut ::std::ffi::c_void,
                count: usize,
                dtype: ::std::ffi::c_int,
            ) -> *mut ::std::ffi::c_char;
            /// Gathers `count` elements of each rank, in rank order.
            fn all_gather(
                group: $crate::native::Group,
                input: *const ::std::ffi::c_void,
                output: *mut ::std::ffi::c_void,
                count: usize,
                dtype: ::std::ffi::c_int,
            ) -> *mut ::std::ffi::c_char;
            /// Sends bytes to a rank of the group. Returns when the buffer may be reused.
            fn send(
                group: $crate::native::Group,
                input: *const ::std::ffi::c_void,
                bytes: usize,
                to: ::std::ffi::c_int,
            ) -> *mut ::std::ffi::c_char;
            /// Receives bytes from a rank of the group. Waits until they have arrived.
            fn recv(
                group: $crate::native::Group,
                output: *mut ::std::ffi::c_void,
                bytes: usize,
                from: ::std::ffi::c_int,
            ) -> *mut ::std::ffi::c_char;
        }
    };
}

macro_rules! table {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// Functions for the groups that are compiled against MLX.
        #[repr(C)]
        #[derive(Debug)]
        pub struct Functions {
            /// Release of the table.
            pub release: Release,
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($argument: $type),*) $(-> $result)?,)*
        }
    };
}

native_functions!(table);

// SAFETY: the layout is that of C, the release is first, and `tbccl-ffi` defines the function.
unsafe impl Released for Functions {
    type Given = ();
    const ENTRY: &'static CStr = c"tbccl_native_functions";
}
