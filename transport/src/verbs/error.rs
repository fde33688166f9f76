//! Errors of verbs libraries and devices.
//!
//! Each message is one line with the action, the device, the library's answer, the cause and the remedy.

use super::{Action, Cause, Refusal, errno::Errno, port::PORT, status::explain};
use std::time::Duration;
use verbs_sys::WcStatus;

/// Advice on installing the library.
const NO_LIBRARY: &str = if cfg!(target_os = "macos") {
    "it is part of macOS 26.2 and later; or set TBCCL_VERBS_LIB to the path of another one"
} else {
    "install it (libibverbs1 on Debian and Ubuntu, rdma-core elsewhere), or set TBCCL_VERBS_LIB to the \
     path of another one"
};

/// Why a library or a device could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The library is missing or can't be loaded.
    #[error("the verbs library {library} can't be loaded ({reason}); {NO_LIBRARY}")]
    Library {
        /// The library's name or path.
        library: String,
        /// The loader's message.
        reason: String,
    },
    /// The library lacks a required function.
    #[error(
        "{library} has no function {symbol}: it is no verbs library, or of a version that is too old; see \
         that TBCCL_VERBS_LIB is not set to something else"
    )]
    Symbol {
        /// The library's name or path.
        library: String,
        /// The function.
        symbol: &'static str,
    },
    /// No device has that name.
    #[error("unknown RDMA device `{name}`{advice}")]
    UnknownDevice {
        /// The name.
        name: String,
        /// The most similar name, and all names.
        advice: String,
    },
    /// The library works and lists no device.
    #[error("{library} knows no RDMA device: {cause}")]
    NoDevices {
        /// The library's name or path.
        library: String,
        /// The reason.
        cause: Cause,
    },
    /// The port has no address to connect from.
    #[error("{device}/{PORT}: no address after {:.1} s: {cause}", waited.as_secs_f64())]
    NoAddress {
        /// The device.
        device: String,
        /// Time spent waiting for one.
        waited: Duration,
        /// The reason.
        cause: Cause,
    },
    /// The port has no address at the index that the user has named.
    #[error(
        "{device}/{PORT}: there is no address at GID index {index} (TBCCL_GID_INDEX); those there are: {}",
        gids.join(", ")
    )]
    NoSuchGid {
        /// The device.
        device: String,
        /// The index.
        index: u8,
        /// The addresses, each with its index.
        gids: Vec<String>,
    },
    /// A call to the library has not returned.
    #[error(
        "{device}: {action} has not returned for {:.1} s: the driver hangs in the kernel, as it may after a \
         process was killed that used RDMA; end such processes, and restart this machine if that does not \
         help",
        waited.as_secs_f64()
    )]
    Hangs {
        /// The device; the library where no device is open.
        device: String,
        /// The action.
        action: Action,
        /// Time spent waiting.
        waited: Duration,
    },
    /// A call to the library could not be made on a thread.
    #[error("{action} is not possible: there is no thread for it ({reason}); see `ulimit -u`")]
    NoThread {
        /// The action.
        action: Action,
        /// The system's message.
        reason: String,
    },
    /// A call to the library failed.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// A work request completed with a failure status.
    #[error(
        "{device}/{PORT}, queue pair {queue_pair}: {status:?}: {}; {}",
        explain(*status).0,
        explain(*status).1
    )]
    Work {
        /// The device.
        device: String,
        /// The queue pair.
        queue_pair: u32,
        /// The completion's status.
        status: WcStatus,
    },
}

impl VerbsError {
    /// Returns the error of a call that failed before a device could be queried.
    pub(super) fn of_library(library: &str, action: Action, errno: Errno) -> VerbsError {
        let (device, gids) = (library.to_owned(), Vec::new());
        let refusal = Refusal { action, device, port: 0, errno, state: None, gids, is_thunderbolt: false };
        VerbsError::Refused(Box::new(refusal))
    }

    /// Returns the device that the error names, if it names one.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        match self {
            VerbsError::UnknownDevice { name: device, .. }
            | VerbsError::NoAddress { device, .. }
            | VerbsError::NoSuchGid { device, .. }
            | VerbsError::Hangs { device, .. }
            | VerbsError::Work { device, .. } => Some(device),
            VerbsError::Refused(refusal) => Some(&refusal.device),
            _ => None,
        }
    }

    /// Returns the cause of a failed device operation, if the error has one.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        match self {
            VerbsError::NoDevices { cause, .. } | VerbsError::NoAddress { cause, .. } => Some(*cause),
            VerbsError::Refused(refusal) => Some(Cause::of(refusal)),
            _ => None,
        }
    }
}

/// Returns "did you mean `x`?" if a valid name is similar, followed by all names.
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
    use verbs_sys::{PortState, QpType};

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
