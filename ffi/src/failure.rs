//! Errors as C programs see them: a number, a sentence, and the ranks and places involved.

use crate::codes::ResultCode;
use std::fmt;
use tbccl::{Error, PeerName, Place};

/// The error of a function of the interface.
pub(crate) struct Failure(Box<Cause>);

/// The known parts of an error.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    pub(crate) code: ResultCode,
    pub(crate) text: String,
    /// The rank that reports.
    pub(crate) rank: Option<u32>,
    /// The rank that the error is about.
    pub(crate) peer: Option<u32>,
    /// The host of that rank.
    pub(crate) host: String,
    /// The device or cable.
    pub(crate) device: String,
    /// The call in progress.
    pub(crate) call: String,
    /// The step that the call waited for.
    pub(crate) step: String,
}

impl Failure {
    fn new(code: ResultCode, text: impl Into<String>) -> Failure {
        Failure(Box::new(Cause {
            code,
            text: text.into(),
            rank: None,
            peer: None,
            host: String::new(),
            device: String::new(),
            call: String::new(),
            step: String::new(),
        }))
    }

    /// Makes an error about an invalid argument.
    #[cold]
    pub(crate) fn argument(text: impl Into<String>) -> Failure {
        Failure::new(ResultCode::InvalidArgument, text)
    }

    /// Makes an error about a call that can't be made now.
    #[cold]
    pub(crate) fn usage(text: impl Into<String>) -> Failure {
        Failure::new(ResultCode::InvalidUsage, text)
    }

    /// Makes an error about a defect of the library.
    #[cold]
    pub(crate) fn internal(text: &str) -> Failure {
        Failure::new(ResultCode::InternalError, format!("internal error: {text}; this is a defect of tbccl"))
    }

    /// Makes an error about a refusal of the operating system.
    #[cold]
    pub(crate) fn system(text: impl Into<String>) -> Failure {
        Failure::new(ResultCode::SystemError, text)
    }

    /// Makes the result of a call that is not done yet: neither an error nor success.
    #[cold]
    pub(crate) fn in_progress(text: impl Into<String>) -> Failure {
        Failure::new(ResultCode::InProgress, text)
    }

    pub(crate) fn code(&self) -> ResultCode {
        self.0.code
    }

    pub(crate) fn text(&self) -> &str {
        &self.0.text
    }

    pub(crate) fn cause(&self) -> &Cause {
        &self.0
    }

    fn about(mut self, peer: &PeerName) -> Failure {
        self.0.peer = Some(peer.rank.0);
        self.0.host.clone_from(&peer.host);
        self
    }

    fn at(mut self, place: &Place) -> Failure {
        self.0.rank = Some(place.rank.0);
        self.0.call = place.call.to_string();
        self.0.step = place.step.clone().unwrap_or_default();
        self
    }

    fn on(mut self, device: Option<String>) -> Failure {
        self.0.device = device.unwrap_or_default();
        self
    }
}

impl Clone for Failure {
    fn clone(&self) -> Failure {
        Failure(self.0.clone())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Error> for Failure {
    #[cold]
    fn from(error: Error) -> Failure {
        let failure = Failure::new(ResultCode::from(&error), error.to_string());
        match &error {
            Error::PeerDied { peer, place, .. } | Error::PeerLeft { peer, place } => {
                failure.about(peer).at(place)
            }
            Error::Link { peer, place, error } => failure.about(peer).at(place).on(error.device()),
            Error::Timeout { place, .. } | Error::Aborted { place } => failure.at(place),
            Error::Mismatch { calls } => {
                let [(rank, call), (peer, _)] = &**calls;
                let mut failure = failure;
                (failure.0.rank, failure.0.peer) = (Some(rank.0), Some(peer.0));
                failure.0.call = call.to_string();
                failure
            }
            Error::Remote { rank, .. } => {
                let mut failure = failure;
                failure.0.peer = Some(rank.0);
                failure
            }
            Error::Absent { ranks, .. } => {
                let mut failure = failure;
                failure.0.peer = ranks.first().map(|rank| rank.0);
                failure
            }
            Error::Start { rank, host, error } => {
                let mut failure = failure.on(error.device());
                failure.0.rank = Some(rank.0);
                failure.0.host.clone_from(host);
                failure
            }
            _ => failure,
        }
    }
}
