//! Failed calls, with the state of the device at the time of the failure.

use super::{Errno, Gid};
use std::fmt;
use verbs_sys::{PortState, QpType};

/// Action that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Listing the devices of a library.
    ListDevices,
    /// Opening a device.
    Open,
    /// Querying the port.
    QueryPort,
    /// Allocating a protection domain.
    Domain,
    /// Registering memory.
    Register {
        /// Length in bytes.
        bytes: u64,
    },
    /// Creating a completion channel.
    Channel,
    /// Creating a completion queue.
    CompletionQueue {
        /// Its depth.
        depth: u32,
    },
    /// Polling a completion queue.
    Poll,
    /// Arming a completion queue.
    Arm,
    /// Creating a queue pair.
    QueuePair {
        /// Service type.
        service: QpType,
    },
    /// Moving a queue pair to RESET.
    Reset,
    /// Moving a queue pair to INIT.
    Initialize,
    /// Moving a queue pair to RTR.
    Connect {
        /// The peer's address.
        peer: Gid,
        /// Index of the source GID.
        gid_index: u8,
    },
    /// Moving a queue pair to RTS.
    Send,
    /// Moving a queue pair to ERR.
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
            Action::Initialize => f.write_str("initializing a queue pair"),
            Action::Connect { peer, gid_index } => {
                write!(f, "connecting a queue pair to {peer} from GID {gid_index}")
            }
            Action::Send => f.write_str("making a queue pair ready to send"),
            Action::Fail => f.write_str("failing a queue pair"),
        }
    }
}

/// A failed call, with the state of the device at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The action.
    pub action: Action,
    /// The device; the library where no device is open.
    pub device: String,
    /// The port; 0 where no device is open.
    pub port: u8,
    /// The library's error number.
    pub errno: Errno,
    /// The port's state, if it could be queried.
    pub state: Option<PortState>,
    /// The port's GIDs, with their indices.
    pub gids: Vec<(u8, Gid)>,
    /// Whether the device's transport is Thunderbolt.
    pub is_thunderbolt: bool,
}
