//! Conversion of failures into Python exceptions: the classes of `tbccl/_errors.py`.
//!
//! This module chooses the class by the kind of the error and sets its attributes, among them rank, peer,
//! host and step. It does not decide what failed.

use pyo3::{
    exceptions::PyRuntimeError,
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyType},
};
use tbccl::{Error, PeerName, Place};

/// Attributes of an exception beside its text.
#[derive(Debug, Default)]
struct ErrorDetails {
    rank: Option<u32>,
    peer: Option<u32>,
    host: Option<String>,
    device: Option<String>,
    call: Option<String>,
    step: Option<String>,
}

impl ErrorDetails {
    fn with_peer(mut self, peer: &PeerName) -> ErrorDetails {
        self.peer = Some(peer.rank.0);
        self.host = Some(peer.host.clone());
        self
    }

    fn with_place(mut self, place: &Place) -> ErrorDetails {
        self.rank = Some(place.rank.0);
        self.call = Some(place.call.to_string());
        self.step.clone_from(&place.step);
        self
    }

    fn from_error(error: &Error) -> ErrorDetails {
        let details = ErrorDetails::default();
        match error {
            Error::PeerDied { peer, place, .. } | Error::PeerLeft { peer, place } => {
                details.with_peer(peer).with_place(place)
            }
            Error::Link { peer, place, error } => {
                ErrorDetails { device: error.device(), ..details.with_peer(peer).with_place(place) }
            }
            Error::Timeout { place, .. } | Error::Aborted { place } => details.with_place(place),
            Error::Mismatch { calls } => {
                let [(rank, call), (peer, _)] = &**calls;
                let call = Some(call.to_string());
                ErrorDetails { rank: Some(rank.0), peer: Some(peer.0), call, ..details }
            }
            Error::Truncated { rank, peer, .. } => {
                ErrorDetails { rank: Some(rank.0), ..details.with_peer(peer) }
            }
            Error::Remote { rank, .. } => ErrorDetails { peer: Some(rank.0), ..details },
            Error::Absent { ranks, .. } => ErrorDetails { peer: ranks.first().map(|rank| rank.0), ..details },
            Error::Start { rank, host, error } => ErrorDetails {
                rank: Some(rank.0),
                host: Some(host.clone()),
                device: error.device(),
                ..details
            },
            _ => details,
        }
    }
}

/// Returns the name of an error's Python class, and the error's code in `tbccl.h`.
fn class_and_code(error: &Error) -> (&'static str, i32) {
    match error {
        Error::InvalidArgument(_) => ("InvalidArgumentError", 4),
        Error::IllegalOp(_) => ("IllegalOperationError", 1003),
        Error::UnknownName(_) => ("UnknownNameError", 1004),
        Error::Plan(_) => ("NoPlanError", 1005),
        Error::PeerDied { .. } => ("PeerDiedError", 1000),
        Error::PeerLeft { .. } => ("PeerLeftError", 1001),
        Error::Mismatch { .. } => ("MismatchError", 1002),
        Error::Timeout { .. } => ("TimeoutError", 8),
        Error::Remote { .. } => ("RemoteError", 6),
        Error::Transport(_) | Error::Link { .. } | Error::Start { .. } => ("TransportError", 1006),
        Error::Bootstrap(_) | Error::Absent { .. } => ("BootstrapError", 1007),
        Error::LauncherGone => ("LauncherGoneError", 1008),
        Error::Aborted { .. } => ("AbortedError", 1009),
        Error::Truncated { .. } => ("TruncatedError", 4),
        Error::System { .. } => ("ResourceError", 2),
        _ => ("InternalError", 3),
    }
}

/// Returns the exception for an error of the library.
#[cold]
pub(crate) fn to_exception(error: &Error) -> PyErr {
    let (class, code) = class_and_code(error);
    exception(class, code, &error.to_string(), ErrorDetails::from_error(error))
}

/// Returns an `InvalidArgumentError`: no call accepts the argument.
#[cold]
pub(crate) fn invalid_argument(text: impl Into<String>) -> PyErr {
    exception("InvalidArgumentError", 4, &text.into(), ErrorDetails::default())
}

/// Returns a `UsageError`: the call is not allowed in the present state.
#[cold]
pub(crate) fn usage_error(text: &str) -> PyErr {
    exception("UsageError", 5, text, ErrorDetails::default())
}

/// Returns a `ResourceError`: the operating system refused a resource.
#[cold]
pub(crate) fn resource_error(text: &str) -> PyErr {
    exception("ResourceError", 2, text, ErrorDetails::default())
}

fn exception(class: &'static str, code: i32, text: &str, details: ErrorDetails) -> PyErr {
    Python::attach(|py| instantiate(py, class, code, text, details).unwrap_or_else(|error| error))
}

fn instantiate(py: Python<'_>, class: &str, code: i32, text: &str, details: ErrorDetails) -> PyResult<PyErr> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || PyModule::import(py, "tbccl._errors").map(Bound::unbind))?;
    let class = module.bind(py).getattr(class)?.cast_into::<PyType>().map_err(PyErr::from)?;
    let attributes = PyDict::new(py);
    attributes.set_item("code", code)?;
    attributes.set_item("rank", details.rank)?;
    attributes.set_item("peer", details.peer)?;
    attributes.set_item("host", details.host)?;
    attributes.set_item("device", details.device)?;
    attributes.set_item("call", details.call)?;
    attributes.set_item("step", details.step)?;
    let value = class.call((text,), Some(&attributes))?;
    Ok(PyErr::from_value(value))
}

/// Returns a `RuntimeError` for a failure that only a bug in tbccl can cause.
#[cold]
pub(crate) fn internal_error(text: &str) -> PyErr {
    PyRuntimeError::new_err(format!("internal error: {text}; this is a bug in tbccl"))
}
