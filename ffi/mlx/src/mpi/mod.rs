//! The functions of Open MPI that MLX calls, behind the names that `libtbccl_mpi` has.
//!
//! Each function checks its arguments and delegates to this crate, whose module `boundary` wraps every
//! function: it keeps panics in, and reports failures as C++ exceptions, since MLX ignores return values.
//!
//! | module | contents |
//! |---|---|
//! | `functions` | the functions |
//! | `objects` | the 16 objects, whose addresses are handles |
//! | `datatypes`, `operations` | datatypes and operations by handle; kernels equal to user operations |
//! | `reduce` | all-reduces by a kernel or by a user operation |
//! | `process` | the job, from `MPI_Init` to `MPI_Finalize`, and its groups by handle |
//!
//! Invariants: a handle is looked up and never dereferenced. An all-reduce gives the same bits on all ranks.
//!
//! # Safety
//! Callers keep to MPI: buffers are valid until the function returns, and as large as count and datatype say.

mod datatypes;
mod functions;
mod objects;
mod operations;
pub(crate) mod process;
mod reduce;

use mlx_table::{
    Release,
    mpi::{Functions, Objects},
};

macro_rules! table {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {
        static FUNCTIONS: Functions =
            Functions { release: Release::of::<Functions>(), $($name: functions::$name,)* };
    };
}

mlx_table::mpi_functions!(table);

/// Returns the functions for the library with these objects; `None` if another library in this process has
/// them already.
#[must_use]
pub fn functions_for(given: &Objects) -> Option<&'static Functions> {
    objects::set(given).then_some(&FUNCTIONS)
}
