//! What went wrong with a library or a device.

use super::{Gid, errno::Errno};
use std::fmt;
use verbs_sys::{PortState, QpType};

/// Why a library or a device could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The library is not there, or can't be loaded.
    #[error("the verbs library {library} can't be loaded: {reason}")]
    Library {
        /// As it was looked for.
        library: String,
        /// What the loader said.
        reason: String,
    },
    /// The library is there, and has not all that it should have.
    #[error("{library} has no function {symbol}: it is not a verbs library, or of a version that is too old")]
    Symbol {
        /// As it was loaded.
        library: String,
        /// The function.
        symbol: &'static str,
    },
    /// There is no device of that name.
    #[error("unknown RDMA device `{name}`{advice}")]
    UnknownDevice {
        /// The name.
        name: String,
        /// The nearest one, and all.
        advice: String,
    },
    /// The library said no.
    #[error(transparent)]
    Refused(Box<Refusal>),
}

/// What was being done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Listing the devices of a library.
    ListDevices,
    /// Opening a device.
    Open,
    /// Asking for the state of the port.
    QueryPort,
    /// Making a protection domain.
    Domain,
    /// Registering memory.
    Register {
        /// Its bytes.
        bytes: u64,
    },
    /// Making a completion channel.
    Channel,
    /// Making a completion queue.
    CompletionQueue {
        /// Its depth.
        depth: u32,
    },
    /// Reading completions.
    Poll,
    /// Asking to be told of the next completion.
    Arm,
    /// Making a queue pair.
    QueuePair {
        /// Its service.
        service: QpType,
    },
    /// Taking a queue pair to its first state.
    Reset,
    /// Letting a queue pair take receives.
    Initialise,
    /// Connecting a queue pair to its peer.
    Connect {
        /// The peer's address.
        peer: Gid,
        /// Where our own stands in the port's table.
        gid_index: u8,
    },
    /// Letting a connected queue pair send.
    Send,
    /// Making a queue pair flush what was posted to it.
    Fail,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::ListDevices => f.write_str("listing devices"),
            Action::Open => f.write_str("opening the device"),
            Action::QueryPort => f.write_str("asking for the port's state"),
            Action::Domain => f.write_str("making a protection domain"),
            Action::Register { bytes } => write!(f, "registering {bytes} bytes"),
            Action::Channel => f.write_str("making a completion channel"),
            Action::CompletionQueue { depth } => write!(f, "making a completion queue of {depth}"),
            Action::Poll => f.write_str("polling for completions"),
            Action::Arm => f.write_str("arming a completion queue"),
            Action::QueuePair { service } => write!(f, "making a queue pair ({service:?})"),
            Action::Reset => f.write_str("resetting a queue pair"),
            Action::Initialise => f.write_str("initialising a queue pair"),
            Action::Connect { peer, gid_index } => {
                write!(f, "connecting a queue pair to {peer} from GID {gid_index}")
            }
            Action::Send => f.write_str("making a queue pair ready to send"),
            Action::Fail => f.write_str("failing a queue pair"),
        }
    }
}

/// A call that was refused, with what was known at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was being done.
    pub action: Action,
    /// The device; the library, when there was no device yet.
    pub device: String,
    /// What the library answered.
    pub errno: Errno,
    /// The port's state, if it could be asked for.
    pub state: Option<PortState>,
    /// The addresses of the port.
    pub gids: Vec<(u8, Gid)>,
}

impl Refusal {
    /// Before there was a device.
    pub(super) fn of_library(library: &str, action: Action, errno: Errno) -> VerbsError {
        let device = library.to_owned();
        VerbsError::Refused(Box::new(Refusal { action, device, errno, state: None, gids: Vec::new() }))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} failed: {}", self.device, self.action, self.errno)
    }
}

impl std::error::Error for Refusal {}

/// `, did you mean `x`?` when a valid name is near, and all of them.
pub(super) fn advice(given: &str, valid: &[String]) -> String {
    let nearest = valid
        .iter()
        .map(|name| (strsim::jaro_winkler(given, name), name))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let suggestion = nearest.map(|(_, name)| format!(", did you mean `{name}`?")).unwrap_or_default();
    match valid {
        [] => "; this library knows no devices".to_owned(),
        valid => format!("{suggestion}; known: {}", valid.join(", ")),
    }
}
