//! The functions that MLX's groups of `tbccl.mlx` call (`python/tbccl/mlx/native`).
//!
//! | module | contents |
//! |---|---|
//! | `interface` | the functions: joining, calls, leaving |
//! | `groups` | groups by number |
//!
//! The job is that of the MPI interface, so groups of both kinds work in one process.
//!
//! Invariants: no panic leaves a function; a failure is a message that the C++ side throws. A group is looked
//! up by its number and never dereferenced.
//!
//! # Safety
//! Callers keep to the rules of `mlx-table`.

mod groups;
mod interface;

use mlx_table::{Release, native::Functions};

macro_rules! table {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// Functions for the groups that are compiled against MLX.
        pub static FUNCTIONS: Functions =
            Functions { release: Release::of::<Functions>(), $($name: interface::$name,)* };
    };
}

mlx_table::native_functions!(table);
