//! What went wrong with a library or a device: what was being done, where, what the library answered, what that
//! means and what can be done about it, in one line.

use super::{Cause, Completion, Context, Gid, context::PORT, errno::Errno, status::explain};
use std::{fmt, time::Duration};
use verbs_sys::{PortState, QpType, WcStatus};

/// How to get a library.
const NO_LIBRARY: &str = if cfg!(target_os = "macos") {
    "it is part of macOS 26.2 and later; or set TBCCL_VERBS_LIB to the path of another one"
} else {
    "install it (libibverbs1 on Debian and Ubuntu, rdma-core elsewhere), or set TBCCL_VERBS_LIB to the path of another one"
};

/// Why a library or a device could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The library is not there, or can't be loaded.
    #[error("the verbs library {library} can't be loaded ({reason}); {NO_LIBRARY}")]
    Library {
        /// As it was looked for.
        library: String,
        /// What the loader said.
        reason: String,
    },
    /// The library is there, and has not all that it should have.
    #[error(
        "{library} has no function {symbol}: it is no verbs library, or of a version that is too old; see that \
         TBCCL_VERBS_LIB is not set to something else"
    )]
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
    /// The library works, and knows no device.
    #[error("{library} knows no RDMA device: {cause}")]
    NoDevices {
        /// As it was loaded.
        library: String,
        /// Why.
        cause: Cause,
    },
    /// The port has no address to connect from.
    #[error("{device}/{PORT}: no address after {:.1} s: {cause}", waited.as_secs_f64())]
    NoAddress {
        /// The device.
        device: String,
        /// How long one was waited for.
        waited: Duration,
        /// Why.
        cause: Cause,
    },
    /// The library said no.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// Posted work came out wrong.
    #[error("{device}/{PORT}, queue pair {queue_pair}: {status:?}: {}; {}", explain(*status).0, explain(*status).1)]
    Work {
        /// The device.
        device: String,
        /// The queue pair.
        queue_pair: u32,
        /// How it came out.
        status: WcStatus,
    },
}

impl VerbsError {
    /// The error for work that did not go well.
    #[must_use]
    pub fn of_work(context: &Context, completion: &Completion) -> VerbsError {
        let (device, queue_pair) = (context.name().to_owned(), completion.qp);
        VerbsError::Work { device, queue_pair, status: completion.status }
    }

    /// The device, where it is about one.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        match self {
            VerbsError::UnknownDevice { name: device, .. }
            | VerbsError::NoAddress { device, .. }
            | VerbsError::Work { device, .. } => Some(device),
            VerbsError::Refused(refusal) => Some(&refusal.device),
            _ => None,
        }
    }

    /// What is the matter, as far as a device was asked for something.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        match self {
            VerbsError::NoDevices { cause, .. } | VerbsError::NoAddress { cause, .. } => Some(*cause),
            VerbsError::Refused(refusal) => Some(Cause::of(refusal)),
            _ => None,
        }
    }
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

impl Refusal {
    /// Before there was a device to ask.
    pub(super) fn of_library(library: &str, action: Action, errno: Errno) -> VerbsError {
        let (device, gids) = (library.to_owned(), Vec::new());
        let refusal = Refusal { action, device, port: 0, errno, state: None, gids, is_thunderbolt: false };
        VerbsError::Refused(Box::new(refusal))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { action, device, port, errno, .. } = self;
        let cause = Cause::of(self);
        match port {
            0 => write!(f, "{device}: {action} failed with {errno}: {cause}"),
            port => write!(f, "{device}/{port}: {action} failed with {errno}: {cause}"),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_one_line_with_a_remedy() {
        let action = Action::QueuePair { service: QpType::UC };
        let (device, state) = ("rdma_en2".to_owned(), Some(PortState::ACTIVE));
        let refusal = Refusal {
            action,
            device: device.clone(),
            port: 1,
            errno: Errno::EBUSY,
            state,
            gids: Vec::new(),
            is_thunderbolt: true,
        };
        let said = VerbsError::Refused(Box::new(refusal)).to_string();
        assert!(said.starts_with("rdma_en2/1: making a queue pair (UC) failed with EBUSY ("), "{said}");
        assert!(said.contains("all queue pairs of the device are taken; end other programs"), "{said}");
        let library = VerbsError::Library { library: "libx.so".into(), reason: "not there".into() };
        let devices = VerbsError::NoDevices { library: "libx.so".into(), cause: Cause::NotEnabled };
        let work = VerbsError::Work { device, queue_pair: 7, status: WcStatus::RETRY_EXC_ERR };
        for (error, part) in [
            (library, "set TBCCL_VERBS_LIB"),
            (devices, "rdma_ctl enable"),
            (
                work,
                "rdma_en2/1, queue pair 7: RETRY_EXC_ERR: the peer does not answer; its process has ended",
            ),
        ] {
            let said = error.to_string();
            assert!(said.contains(part) && !said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn the_nearest_name_is_offered_before_all() {
        let known = ["rdma_en2".to_owned(), "mlx5_0".to_owned()];
        assert_eq!(advice("rdma_en3", &known), ", did you mean `rdma_en2`?; known: rdma_en2, mlx5_0");
        assert_eq!(advice("xyz", &known), "; known: rdma_en2, mlx5_0");
        assert_eq!(advice("xyz", &[]), "; this library knows no devices");
    }
}
