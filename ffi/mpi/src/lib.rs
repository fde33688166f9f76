//! MPI shim for MLX: the part of Open MPI's binary interface that MLX loads, on tbccl.
//!
//! MLX opens the library that `MLX_MPI_LIBNAME` names, and takes 14 functions and 16 objects from it. This
//! library exports exactly those, so that an unmodified MLX runs its groups on tbccl. Nothing else of MPI is
//! here: other MPI programs can't use it.
//!
//! Each function checks its arguments and delegates to `mlx-core`, whose module `boundary` wraps every
//! function: it keeps panics in, and reports failures as C++ exceptions, since MLX ignores return values.
//!
//! | module | contents |
//! |---|---|
//! | `functions` | the 14 functions |
//! | `objects` | the 16 objects, whose addresses are handles |
//! | `datatypes`, `operations` | datatypes and operations by handle; kernels equal to user operations |
//! | `reduce` | all-reduces by a kernel or by a user operation |
//! | `world` | the job, from `MPI_Init` to `MPI_Finalize`, and its groups by handle |
//!
//! Invariants: a handle is looked up and never dereferenced. An all-reduce gives the same bits on all ranks.
//!
//! # Safety
//! Callers keep to MPI: buffers are valid until the function returns, and as large as count and datatype say.
#![allow(non_snake_case, non_upper_case_globals, non_camel_case_types)] // Names are those of C.

mod datatypes;
pub mod functions;
pub mod objects;
mod operations;
mod reduce;
mod world;
