//! The part of Open MPI's binary interface that MLX loads, on tbccl.
//!
//! MLX opens the library that `MLX_MPI_LIBNAME` names and takes 14 functions and 16 objects from it. Here they are, so that an
//! unmodified MLX has its groups from us. Nothing else of MPI is here: this is no MPI library for other programs.
//!
//! A function checks what it was passed and delegates to the crate `tbccl`. Each stands behind the module `boundary`, which keeps
//! panics in and tells failures by a C++ exception, since MLX looks at no return value.
//!
//! | module | idea |
//! |---|---|
//! | `functions` | the 14 functions |
//! | `objects` | the 16 objects, whose addresses are handles |
//! | `datatypes`, `operations` | what handles of types and operations stand for; what a foreign operation turns out to be |
//! | `reduce` | all-reduces, by our kernels or by a foreign operation |
//! | `world` | from `MPI_Init` to `MPI_Finalize` |
//! | `group` | a communicator, and how others are made of it |
//! | `post` | messages |
//! | `boundary`, `throw` | how failures are told |
//!
//! Invariants: a handle is looked up and never followed. Splitting uses links of its own, so it runs beside calls in
//! progress. All ranks of an all-reduce have the same bits.
//!
//! # Safety
//! A caller keeps to MPI: memory that it passes is there until the function returns, and is as large as counts and types say.
#![allow(non_snake_case, non_upper_case_globals, non_camel_case_types)] // Names are those of C.

mod boundary;
mod datatypes;
pub mod functions;
mod group;
pub mod objects;
mod operations;
mod post;
mod reduce;
mod throw;
mod world;
