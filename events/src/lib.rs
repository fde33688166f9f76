//! Events: messages about a job for people and programs, from all layers of the library.
//!
//! Events are those of the crate `tracing`, raised at the edges and on slow paths only: set-up, connections,
//! rails, retries, selection, failures. No call whose plan is known raises one.
//!
//! ```text
//! tracing::info!(target: target::VERBS, ..)  ->  the program's subscriber, if it has one
//!                                                or the receiver of this crate  ->  log, handler
//! warning!(target::VERBS, rank, ..)          ->  the same; stderr if neither exists
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | `target` | names of the sources of events |
//! | `filter` | which events are logged |
//! | `record` | an event as a value, as text and as JSON |
//! | `output` | the log: stderr or a file per rank |
//! | `receiver` | the subscriber for processes that have none, with log and handler |
//! | `audit` | who joined a job, and who was refused |
//! | `own_file` | files of this user, opened for appending or created |
//!
//! Invariants: the receiver is installed only by [`log`] and [`set_handler`], and never in the place of a
//! subscriber of the program. A message of [`warning!`], [`notice!`] or [`failure!`] is never lost: without a
//! receiver of any kind it is printed on stderr.
//!
//! This crate reads no environment: `runtime` passes it the options.

mod audit;
mod filter;
mod output;
mod own_file;
mod receiver;
mod record;
pub mod target;

pub use audit::{Occurrence, audit, flush_audit, open_audit};
pub use filter::{Filter, FilterError};
pub use output::{Format, LogOptions};
pub use own_file::{create_own, open_own};
pub use receiver::{Handler, log, print_if_unheard, set_handler, set_rank};
pub use record::{Record, Value};
pub use tracing;
pub use tracing::level_filters::LevelFilter;

/// Raises a warning: a rank (`Option<u32>`) and a message, which is printed if nothing receives events.
#[macro_export]
macro_rules! warning {
    ($target:expr, $rank:expr, $($message:tt)+) => {
        $crate::raise!(WARN, $target, $rank, $($message)+)
    };
}

/// Raises a message of level `info` that users see by default, with the arguments of [`warning!`].
#[macro_export]
macro_rules! notice {
    ($target:expr, $rank:expr, $($message:tt)+) => {
        $crate::raise!(INFO, $target, $rank, $($message)+)
    };
}

/// Raises a message of level `error` that users see by default, with the arguments of [`warning!`].
#[macro_export]
macro_rules! failure {
    ($target:expr, $rank:expr, $($message:tt)+) => {
        $crate::raise!(ERROR, $target, $rank, $($message)+)
    };
}

/// Raises an event, and prints its message if nothing receives events.
#[doc(hidden)]
#[macro_export]
macro_rules! raise {
    ($level:ident, $target:expr, $rank:expr, $($message:tt)+) => {{
        let rank: Option<u32> = $rank;
        let message = format!($($message)+);
        $crate::tracing::event!(target: $target, $crate::tracing::Level::$level, rank, "{message}");
        $crate::print_if_unheard($crate::tracing::Level::$level, rank, &message);
    }};
}
