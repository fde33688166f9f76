//! Results of probes, and their errors.

use super::check::Check;
use transport::verbs::{Cause, PostError, VerbsError};

/// Advice about a property that tbccl relies on and that a device lacks.
pub(super) const REPORT: &str = "tbccl relies on this over RDMA: please report it with this file, and use \
                                 `--transport shm+tcp` until it is resolved";

/// The observation of a probe.
#[derive(Clone, Debug, Default)]
pub(super) struct Finding {
    pub(super) text: String,
    /// Further lines for the file.
    pub(super) details: Vec<String>,
}

impl From<String> for Finding {
    fn from(text: String) -> Finding {
        Finding { text, details: Vec::new() }
    }
}

/// Reason why a probe has no observation to its satisfaction.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// The device does not do what tbccl relies on.
    Fail(String, String),
    /// The probe could not be made.
    Unknown(String, String),
    /// Another rank has failed; its own report says why.
    Peer(String),
}

/// Result of a probe.
pub(super) type Probed = Result<Finding, Trouble>;

/// Returns a failure whose remedy is a report.
pub(super) fn broken(text: impl Into<String>) -> Trouble {
    Trouble::Fail(text.into(), REPORT.to_owned())
}

impl From<VerbsError> for Trouble {
    fn from(error: VerbsError) -> Trouble {
        let text = error.to_string();
        if matches!(error, VerbsError::Library { .. } | VerbsError::NoDevices { .. }) {
            return Trouble::Unknown(text, "without a device there is no RDMA".to_owned());
        }
        let Some(cause) = error.cause() else { return broken(text) };
        let text = text.trim_end_matches(cause.remedy()).trim_end_matches("; ").to_owned();
        let remedy = cause.remedy().to_owned();
        match cause {
            Cause::PortDown | Cause::NotEnabled | Cause::Thunderbolt4 | Cause::NoDriver => {
                Trouble::Unknown(text, remedy)
            }
            Cause::Unknown => Trouble::Fail(text, format!("{remedy}; {REPORT}")),
            _ => Trouble::Fail(text, remedy),
        }
    }
}

impl From<PostError> for Trouble {
    fn from(error: PostError) -> Trouble {
        broken(format!("the device refuses a request: {error}"))
    }
}

impl From<tbccl::Error> for Trouble {
    fn from(error: tbccl::Error) -> Trouble {
        Trouble::Peer(error.to_string())
    }
}

/// Returns the line of a probe's result.
pub(super) fn check_of(name: &str, relies: &str, probed: Probed) -> Check {
    let check = match probed {
        Ok(Finding { text, details }) => Check::pass(name, text).with_details(details),
        Err(Trouble::Fail(text, remedy)) => Check::fail(name, text, remedy),
        Err(Trouble::Unknown(text, remedy)) => Check::unknown(name, text, remedy),
        Err(Trouble::Peer(text)) => {
            Check::fail(name, text, "the report of the other rank says more, if it could write one")
        }
    };
    check.relying_on(relies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::selftest::check::Verdict;
    use std::time::Duration;

    #[test]
    fn the_remedy_of_an_error_stands_apart() {
        let error = |cause| VerbsError::NoAddress { device: "en2".into(), waited: Duration::ZERO, cause };
        let line = check_of("gid", "", Err(error(Cause::NoIpv4).into()));
        assert_eq!((line.verdict, line.remedy.as_str()), (Verdict::Fail, Cause::NoIpv4.remedy()));
        assert!(!line.text.contains("ifconfig"), "{}", line.text);
        assert_eq!(check_of("gid", "", Err(error(Cause::PortDown).into())).verdict, Verdict::Unknown);
    }
}
