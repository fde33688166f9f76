//! Errors of the runtime: the failure, its place, and the remedy.
//!
//! An error is cheap to clone, because a communicator that failed gives the same error to every later call.

use crate::call::CallRecord;
use collectives::{IllegalOp, UnknownName};
use std::{fmt, io, sync::Arc, time::Duration};
use thiserror::Error;
use topology::Rank;

/// The result of a fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The place at which an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The reporting rank.
    pub rank: Rank,
    /// The call in progress.
    pub call: CallRecord,
    /// The step that it waited for, as in `tbccl plan show`, e.g. `step 3 of ring: recv from rank 1`.
    pub step: Option<String>,
    /// Time spent waiting.
    pub waited: Duration,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} in {}", self.rank, self.call)?;
        if let Some(step) = &self.step {
            write!(f, ", {step}")?;
        }
        write!(f, ", after {:.3} s", self.waited.as_secs_f64())
    }
}

/// Number, process and host of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerName {
    /// Its rank.
    pub rank: Rank,
    /// Its process id.
    pub pid: u32,
    /// The name of its host.
    pub host: String,
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (process {} on {})", self.rank, self.pid, self.host)
    }
}

/// An error of the library.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid argument.
    #[error("{0}")]
    InvalidArgument(String),
    /// An operation that the element type does not have.
    #[error(transparent)]
    IllegalOp(#[from] IllegalOp),
    /// An unknown name.
    #[error(transparent)]
    UnknownName(#[from] UnknownName),
    /// No plan fits the call.
    #[error(transparent)]
    Plan(#[from] collectives::PlanError),
    /// A peer's process ended.
    #[error("{peer} {how} [{place}]")]
    PeerDied {
        /// The dead process.
        peer: PeerName,
        /// How it ended, as the rest of a sentence: `was killed by SIGKILL`.
        how: String,
        /// The place of this rank.
        place: Box<Place>,
    },
    /// A peer closed its communicator while this rank waited for it.
    #[error("{peer} closed its communicator without taking part [{place}]")]
    PeerLeft {
        /// The process that left.
        peer: PeerName,
        /// The place of this rank.
        place: Box<Place>,
    },
    /// The program aborted the communicator, on this rank.
    #[error("the program aborted the communicator [{place}]")]
    Aborted {
        /// The place of this rank.
        place: Box<Place>,
    },
    /// Two ranks are not in the same call.
    #[error(
        "the ranks disagree on call {}: rank {} called {}, rank {} called {}",
        .calls[0].1.seq, .calls[0].0, .calls[0].1, .calls[1].0, .calls[1].1
    )]
    Mismatch {
        /// Two ranks and the call of each.
        calls: Box<[(Rank, CallRecord); 2]>,
    },
    /// A message longer than the memory of its receive. The message is lost; other messages are not affected.
    #[error(
        "rank {rank}: a message of {bytes} bytes with tag {tag} in context {context} from {peer} is longer \
         than the {capacity} bytes it was to be received in"
    )]
    Truncated {
        /// The rank that receives.
        rank: Rank,
        /// The sending rank.
        peer: PeerName,
        /// Its context.
        context: u32,
        /// Its tag.
        tag: i32,
        /// Its length.
        bytes: usize,
        /// The length of the memory.
        capacity: usize,
    },
    /// The timeout passed without progress.
    #[error(
        "no progress within the time limit [{place}]; {peers}; raise the limit with TBCCL_TIMEOUT if this \
         can be slow"
    )]
    Timeout {
        /// The reporting rank's place.
        place: Box<Place>,
        /// The latest known activity of the other ranks.
        peers: String,
    },
    /// Another rank failed first.
    #[error("rank {rank} failed: {message}")]
    Remote {
        /// The rank that failed.
        rank: Rank,
        /// Its error.
        message: String,
    },
    /// The library's memory could not be allocated.
    #[error("{0}")]
    Transport(Arc<transport::TransportError>),
    /// The transport could not be opened.
    #[error("rank {rank} on {host}: {error}")]
    Start {
        /// The rank.
        rank: Rank,
        /// The name of its host.
        host: String,
        /// The reason.
        error: Arc<transport::TransportError>,
    },
    /// A link failed.
    #[error("the link to {peer} failed: {error} [{place}]")]
    Link {
        /// The process at the other end.
        peer: PeerName,
        /// The link's error.
        error: Arc<transport::TransportError>,
        /// The place of this rank.
        place: Box<Place>,
    },
    /// The ranks could not be brought together.
    #[error("{0}")]
    Bootstrap(String),
    /// Some ranks did not come to a call that makes another communicator.
    #[error("{why}")]
    Absent {
        /// The missing ranks, as numbered in the parent communicator.
        ranks: Vec<Rank>,
        /// A sentence about the missing ranks.
        why: String,
    },
    /// A defect of this library.
    #[error("{0}")]
    Defect(String),
    /// The launcher has ended, so that deaths of other ranks are not reported any more.
    #[error("the launcher that started this job is gone, or the connection to it has broken")]
    LauncherGone,
    /// A failed system call.
    #[error("{what}: {source}{}", remedy.as_ref().map(|r| format!("; {r}")).unwrap_or_default())]
    System {
        /// The operation that failed.
        what: String,
        /// The system's error.
        source: Arc<io::Error>,
        /// Advice for the user, if any.
        remedy: Option<&'static str>,
    },
}

impl Error {
    /// Returns the name of the variant, such as `PeerDied`.
    #[must_use]
    pub fn variant(&self) -> &'static str {
        match self {
            Error::InvalidArgument(_) => "InvalidArgument",
            Error::IllegalOp(_) => "IllegalOp",
            Error::UnknownName(_) => "UnknownName",
            Error::Plan(_) => "Plan",
            Error::PeerDied { .. } => "PeerDied",
            Error::PeerLeft { .. } => "PeerLeft",
            Error::Aborted { .. } => "Aborted",
            Error::Mismatch { .. } => "Mismatch",
            Error::Truncated { .. } => "Truncated",
            Error::Timeout { .. } => "Timeout",
            Error::Remote { .. } => "Remote",
            Error::Transport(_) => "Transport",
            Error::Start { .. } => "Start",
            Error::Link { .. } => "Link",
            Error::Bootstrap(_) => "Bootstrap",
            Error::Absent { .. } => "Absent",
            Error::Defect(_) => "Defect",
            Error::LauncherGone => "LauncherGone",
            Error::System { .. } => "System",
        }
    }

    /// Wraps a system error, with the remedy that its number suggests.
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        bootstrap::Error::system(what, source).into()
    }
}

impl From<transport::TransportError> for Error {
    fn from(error: transport::TransportError) -> Error {
        Error::Transport(Arc::new(error))
    }
}

impl From<bootstrap::Error> for Error {
    fn from(error: bootstrap::Error) -> Error {
        use bootstrap::Error as Bootstrap;
        match error {
            Bootstrap::InvalidArgument(why) => Error::InvalidArgument(why),
            Bootstrap::Absent { ranks, why } => Error::Absent { ranks, why },
            Bootstrap::System { what, source, remedy } => Error::System { what, source, remedy },
            other => Error::Bootstrap(other.to_string()),
        }
    }
}
