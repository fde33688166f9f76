//! Core of the libraries for MLX: the job that a process is a rank of, its groups and messages, and failures
//! as C++ exceptions.
//!
//! MLX reaches tbccl through several libraries, each with the interface of another one that MLX knows: Open
//! MPI's (`ffi/mpi`) and JACCL's (`ffi/jaccl`); or through groups of MLX's own kind that are compiled on the
//! user's machine (`python/tbccl/mlx/native`). They only translate arguments. What a group is, in which
//! order calls of several threads run, and how a rank leaves is decided here. `libtbccl` contains this crate;
//! the two libraries call it by tables of functions (`mlx-table`).
//!
//! | module | contents |
//! |---|---|
//! | `world` | the job, from joining to leaving |
//! | `job` | jobs that a program describes, without a launcher |
//! | `group` | ranks that make calls together, and their splits |
//! | `messages` | point-to-point messages of all groups |
//! | `activity`, `leave` | calls in progress, and leaving a job that has some |
//! | `turn` | turns of a rank's threads on a core that they share |
//! | `boundary` | failures and panics at exported functions |
//! | `throw` | failures as C++ exceptions |
//! | `mpi` | Open MPI's functions |
//! | `jaccl` | functions that the C++ side of `libjaccl` calls |
//! | `native` | functions that groups compiled against MLX call |
//! | `dtypes` | element types by number |
//!
//! Invariants: a split uses links of its own, so it runs beside calls in progress. No panic and no Rust error
//! crosses an exported function.

mod activity;
pub mod boundary;
mod dtypes;
mod group;
pub mod jaccl;
mod job;
mod leave;
mod messages;
pub mod mpi;
pub mod native;
mod throw;
mod turn;
mod world;

pub use boundary::{Failure, Outcome};
pub use group::Group;
pub use job::{JobSpec, Rendezvous};
pub use messages::Messages;
pub use world::{World, launcher};
