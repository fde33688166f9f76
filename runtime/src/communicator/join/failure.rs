//! Errors of a rank whose transport could not be opened.

use super::super::machine::host_name;
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
