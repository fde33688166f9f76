//! Support of tests that start processes: ranks, launchers, software devices.
//!
//! | module | content |
//! |---|---|
//! | `process` | a process under test: its output, its end, and nothing left behind |
//! | `corpus` | inputs that fuzzing has found |
//! | `fabric`, `wiring` | jobs on software fabrics |
//! | `instructions` | instructions of a function |
//! | `message` | lines that ranks print for tests |
//! | `programs` | the programs of the build under test |
//! | `requirement` | tests that need something which a machine may lack |
//! | `stranger` | acts of another user |
//!
//! Every wait is bounded by [`TIMEOUT`]. Processes get default signal handlers, so that tests pass in any
//! environment, in the background of a shell as well, where SIGINT is ignored.

mod corpus;
mod fabric;
mod instructions;
mod message;
mod process;
mod programs;
mod requirement;
mod stranger;
mod wiring;

pub use corpus::replay;
pub use fabric::FabricJob;
pub use instructions::fewest_instructions;
pub use message::{Message, messages_of, milliseconds};
pub use process::{Finished, Mark, Process, children_of, eventually, with_default_signals};
pub use programs::{
    host_wrapper, rank_arguments, rank_arguments_of, rank_command_of, tbccl, tbccl_path,
    tbccl_with_software_device,
};
pub use requirement::missing;
pub use stranger::as_another_user;
pub use wiring::{KINDS, Shape, Wiring};

use std::time::Duration;

/// Time limit of any wait, generous for a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(100);
