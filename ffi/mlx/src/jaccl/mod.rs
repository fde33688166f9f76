//! The functions that the C++ side of `libjaccl` calls (`ffi/jaccl`).
//!
//! | module | contents |
//! |---|---|
//! | `interface` | the functions: joining, calls, leaving |
//! | `devices` | files with devices, and the device matrix of a job |
//!
//! Invariants: no panic leaves a function; a failure is a message that the C++ side throws.
//!
//! # Safety
//! Callers keep to the rules of `mlx-table`.

mod devices;
mod interface;

use mlx_table::{
    Release,
    jaccl::{Functions, ID_BYTES},
};

const _: () = assert!(ID_BYTES == tbccl::UniqueId::BYTES);

macro_rules! table {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// Functions behind the names of a `libjaccl`.
        pub static FUNCTIONS: Functions =
            Functions { release: Release::of::<Functions>(), $($name: interface::$name,)* };
    };
}

mlx_table::jaccl_functions!(table);
