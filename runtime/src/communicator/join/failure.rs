//! Errors of a rank whose transport could not be opened.

use crate::error::Error;
use std::sync::Arc;
use topology::Rank;
use transport::TransportError;

/// Returns the error of a rank whose transport could not be opened. Some errors name their rank themselves.
pub(super) fn not_started(rank: u32, error: TransportError) -> Error {
    match error {
        TransportError::Wiring { .. } | TransportError::DeviceDescription { .. } => error.into(),
        other => Error::Start { rank: Rank(rank), host: host_name(), error: Arc::new(other) },
    }
}

/// Returns the name of this host, as the kernel knows it.
pub(super) fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}
