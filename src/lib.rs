//! The command `tbccl`: starts the ranks of a job, measures collectives, and shows and verifies plans.
//!
//! | module | purpose |
//! |---|---|
//! | `commands` | one module per subcommand: arguments in, calls of the library out |
//! | [`launch`] | starts ranks on the hosts of a job, supervises them, and ends them |
//! | `processors` | cores, caches and memories of this machine |
//! | [`mod@reference`] | calls with expected results |
//!
//! The package is a library only so that tests reach [`launch`] without a command line, and
//! [`mod@reference`]. Programs link the package `tbccl`.

mod commands;
pub mod launch;
mod processors;
pub mod reference;

pub use commands::main;
