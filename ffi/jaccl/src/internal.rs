//! Names by which the C++ side calls the functions of `interface`.
//!
//! rustc exports every function that has an unmangled name. These names stay inside: each is a hidden symbol
//! with a single instruction, a jump.
//!
//! # Safety
//! Nothing here is called from Rust, and `cpp/core.h` declares the signatures of `interface`.

use crate::interface;
use std::arch::global_asm;

/// Defines hidden symbols that jump to functions of the same names.
macro_rules! internal {
    ($($name:ident;)*) => {
        $(
            #[cfg(not(target_vendor = "apple"))]
            global_asm!(
                ".text",
                concat!(".globl ", stringify!($name)),
                concat!(".hidden ", stringify!($name)),
                concat!(stringify!($name), ":"),
                jump!(),
                target = sym interface::$name,
            );
            #[cfg(target_vendor = "apple")]
            global_asm!(
                ".text",
                ".p2align 2",
                concat!(".private_extern _", stringify!($name)),
                concat!("_", stringify!($name), ":"),
                jump!(),
                target = sym interface::$name,
            );
        )*
    };
}

internal! {
    tbccl_jaccl_free_message;
    tbccl_jaccl_read_devices;
    tbccl_jaccl_free_devices;
    tbccl_jaccl_is_launched;
    tbccl_jaccl_join_launched;
    tbccl_jaccl_join_at;
    tbccl_jaccl_create_id;
    tbccl_jaccl_discard_id;
    tbccl_jaccl_join_by;
    tbccl_jaccl_leave;
    tbccl_jaccl_rank;
    tbccl_jaccl_size;
    tbccl_jaccl_all_gather;
    tbccl_jaccl_send;
    tbccl_jaccl_recv;
    tbccl_jaccl_barrier;
    tbccl_jaccl_all_sum;
    tbccl_jaccl_all_max;
    tbccl_jaccl_all_min;
    tbccl_jaccl_sum_scatter;
}
