//! Tables of functions that `libtbccl` gives to the libraries for MLX, and how these find it.
//!
//! `libtbccl` alone contains the code of tbccl. The libraries for MLX (`libtbccl_mpi`, `libjaccl`) only have
//! the names that MLX looks for. Each of their functions calls one of a table:
//!
//! ```text
//! MLX -> MPI_Send of libtbccl_mpi           -> mpi::Functions   -> mlx-core, in libtbccl
//! MLX -> jaccl::Group::send of libjaccl     -> jaccl::Functions -> mlx-core, in libtbccl
//! MLX -> GroupImpl::send, compiled at need  -> native::Functions -> mlx-core, in libtbccl
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `mpi` | functions and objects of Open MPI that MLX uses, and their table |
//! | `jaccl` | functions that the C++ side of `libjaccl` calls, and their table |
//! | `native` | functions that groups compiled against MLX call, and their table |
//! | `find` | the `libtbccl` beside the calling library, opened |
//! | `release` | the version and size of a table, which both sides compare |
//!
//! Invariants: a signature is written once, in a list of this crate, from which both sides derive their
//! parts. A table is used only if it has the same version and size as the one that the library was built
//! with. Nothing of tbccl's code is here, so that libraries that depend on this crate stay small.
//!
//! # Safety
//! The types of functions are unsafe: callers keep to the interface that the names are of. `find` opens a
//! library and asks the loader where the calling code lies.
#![allow(non_snake_case, non_camel_case_types)] // Names are those of C.

mod find;
pub mod jaccl;
pub mod mpi;
pub mod native;
mod release;

pub use find::table;
pub use release::{Release, Released};
