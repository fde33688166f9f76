//! Refused calls, as they are known at the moment of the refusal.

use super::{Errno, Gid};
use std::fmt;
use verbs_sys::{PortState, QpType};

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
    /// Its port.
    pub port: u8,
    /// What the library answered.
    pub errno: Errno,
    /// The port's state, if it could be asked for.
    pub state: Option<PortState>,
    /// The addresses of the port.
    pub gids: Vec<(u8, Gid)>,
    /// Does Thunderbolt run on the device's wire?
    pub is_thunderbolt: bool,
}
