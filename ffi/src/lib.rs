//! The C face of tbccl: the functions of `tbccl.h`, with names and shapes as in `nccl.h`.
//!
//! A function checks what C passed, and delegates to the crate `tbccl`. Each stands behind the `boundary`, which
//! keeps panics in and errors for whoever asks. What C holds are numbers in tables (`handle`), so whatever a program
//! passes as a handle is looked up and never followed. `README.md` says what C programs may rely on.
//!
//! | module | what of `tbccl.h` |
//! |---|---|
//! | `codes` | the numbers of results, element types, operations and codecs |
//! | `unique_id`, `comm`, `members` | communicators: made, ended, asked; made of others |
//! | `collectives`, `vector`, `redop` | calls, and operations that scale |
//! | `group`, `request` | calls that go together, and those that are waited for later |
//! | `memory` | memory that is moved without copies |
//! | `options`, `params` | options of a communicator, of calls, and of the process |
//! | `errors`, `stats` | what failed, and what was done |
//! | `boundary`, `failure`, `handle`, `cast` | what they stand on |
//!
//! Nothing here knows how a call is carried out.
//!
//! # Safety
//! Every exported function asks of its caller what `tbccl.h` says at its beginning: a pointer is NULL or points to what
//! its type says, for as long as the call lasts, and memory of a call that has a request until that is done. Handles may be
//! any number.
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
pub mod members;
pub mod memory;
mod numbers;
pub mod options;
pub mod params;
pub mod redop;
pub mod request;
pub mod stats;
pub mod unique_id;
pub mod vector;

/// What most functions return: 0, or the number of what is wrong.
pub type tbcclResult_t = i32;

/// The number of an element type.
pub type tbcclDataType_t = i32;

/// The number of an operation.
pub type tbcclRedOp_t = i32;

/// The number of a way to pack elements.
pub type tbcclCodec_t = i32;
