//! Failures as Python exceptions: the classes of `tbccl/_errors.py`, with who and where as attributes.
//!
//! Which class an error becomes is said there, by the name of its kind. Nothing here decides what failed.

use pyo3::{
    exceptions::PyRuntimeError,
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyType},
};
use tbccl::{Error, PeerName, Place};

/// What is known of a failure beside its text.
#[derive(Debug, Default)]
struct About {
    rank: Option<u32>,
    peer: Option<u32>,
    host: Option<String>,
    device: Option<String>,
    call: Option<String>,
    step: Option<String>,
}

impl About {
    fn peer(mut self, peer: &PeerName) -> About {
        self.peer = Some(peer.rank.0);
        self.host = Some(peer.host.clone());
        self
    }

    fn at(mut self, place: &Place) -> About {
        self.rank = Some(place.rank.0);
        self.call = Some(place.call.to_string());
        self.step.clone_from(&place.step);
        self
    }

    fn of(error: &Error) -> About {
        let about = About::default();
        match error {
            Error::PeerDied { peer, place, .. } | Error::PeerLeft { peer, place } => {
                about.peer(peer).at(place)
            }
            Error::Link { peer, place, error } => {
                About { device: error.device(), ..about.peer(peer).at(place) }
            }
            Error::Timeout { place, .. } | Error::Aborted { place } => about.at(place),
            Error::Mismatch { calls } => {
                let [(rank, call), (peer, _)] = &**calls;
                let call = Some(call.to_string());
                About { rank: Some(rank.0), peer: Some(peer.0), call, ..about }
            }
            Error::Truncated { rank, peer, .. } => About { rank: Some(rank.0), ..about.peer(peer) },
            Error::Remote { rank, .. } => About { peer: Some(rank.0), ..about },
            Error::Absent { ranks, .. } => About { peer: ranks.first().map(|rank| rank.0), ..about },
            Error::Start { rank, host, error } => {
                About { rank: Some(rank.0), host: Some(host.clone()), device: error.device(), ..about }
            }
            _ => about,
        }
    }
}

/// What an error is called in Python, and its number in `tbccl.h`.
fn kind(error: &Error) -> (&'static str, i32) {
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

/// The exception of an error.
#[cold]
pub(crate) fn raised(error: &Error) -> PyErr {
    let (class, code) = kind(error);
    exception(class, code, &error.to_string(), About::of(error))
}

/// An argument that no call can have.
#[cold]
pub(crate) fn invalid(text: impl Into<String>) -> PyErr {
    exception("InvalidArgumentError", 4, &text.into(), About::default())
}

/// What can't be done now.
#[cold]
pub(crate) fn usage(text: &str) -> PyErr {
    exception("UsageError", 5, text, About::default())
}

/// What the operating system refused.
#[cold]
pub(crate) fn resource(text: &str) -> PyErr {
    exception("ResourceError", 2, text, About::default())
}

fn exception(class: &'static str, code: i32, text: &str, about: About) -> PyErr {
    Python::attach(|py| made(py, class, code, text, about).unwrap_or_else(|error| error))
}

fn made(py: Python<'_>, class: &str, code: i32, text: &str, about: About) -> PyResult<PyErr> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || PyModule::import(py, "tbccl._errors").map(Bound::unbind))?;
    let class = module.bind(py).getattr(class)?.cast_into::<PyType>().map_err(PyErr::from)?;
    let attributes = PyDict::new(py);
    attributes.set_item("code", code)?;
    attributes.set_item("rank", about.rank)?;
    attributes.set_item("peer", about.peer)?;
    attributes.set_item("host", about.host)?;
    attributes.set_item("device", about.device)?;
    attributes.set_item("call", about.call)?;
    attributes.set_item("step", about.step)?;
    let value = class.call((text,), Some(&attributes))?;
    Ok(PyErr::from_value(value))
}

/// A failure that Python should never see.
#[cold]
pub(crate) fn defect(text: &str) -> PyErr {
    PyRuntimeError::new_err(format!("internal error: {text}; this is a defect of tbccl"))
}
