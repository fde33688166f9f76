//! The C interface of tbccl: the functions of `tbccl.h`, with names and shapes as in `nccl.h`.
//!
//! A function checks the arguments that C passed, and delegates to the crate `tbccl`. Every function runs
//! inside `boundary`, which catches panics and keeps errors for the thread. Handles are numbers in tables
//! (`handle`), so a handle is looked up and never dereferenced. `README.md` says what C programs may rely on.
//!
//! | module | part of `tbccl.h` |
//! |---|---|
//! | `codes`, `numbers` | numbers of results, element types, operations and codecs |
//! | `unique_id`, `comm`, `members` | creation and end of communicators, also from other communicators |
//! | `collectives`, `vector`, `redop` | calls, and operations that scale |
//! | `group`, `request` | groups of calls, and calls that are waited for later |
//! | `memory` | memory that is moved without copies |
//! | `options`, `params` | options of a communicator, of calls, and of the process |
//! | `errors`, `stats`, `log` | errors, counters and events |
//! | `mlx` | the table for `libtbccl_mpi`; not part of `tbccl.h` |
//! | `boundary`, `failure`, `handle`, `comm_handle`, `cast`, `arguments` | shared by the functions above |
//!
//! Nothing here knows how a call is carried out.
//!
//! # Safety
//! Every exported function asks of its caller what `tbccl.h` says at its beginning: a pointer is NULL or
//! points to a value of its type while the call lasts, and memory of a call with a request until the request
//! is done. Handles may be any number.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)] // Names are those of C.
#![allow(clippy::missing_safety_doc)] // It is the same for all of them, and said above.

mod arguments;
mod boundary;
mod cast;
pub mod codes;
pub mod collectives;
pub mod comm;
pub mod comm_handle;
pub mod errors;
mod failure;
pub mod group;
mod handle;
pub mod log;
pub mod members;
pub mod memory;
pub mod mlx;
mod numbers;
pub mod options;
pub mod params;
pub mod redop;
pub mod request;
pub mod stats;
pub mod unique_id;
pub mod vector;

/// Result of most functions: 0, or the number of an error.
pub type tbcclResult_t = i32;

/// The number of an element type.
pub type tbcclDataType_t = i32;

/// The number of an operation.
pub type tbcclRedOp_t = i32;

/// The number of a codec.
pub type tbcclCodec_t = i32;
