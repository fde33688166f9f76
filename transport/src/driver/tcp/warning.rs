//! The callback that receives warnings of the TCP driver.

use std::{fmt, sync::Arc};

/// A callback that receives warnings, such as refused connections.
#[derive(Clone)]
pub struct WarningHandler(Arc<dyn Fn(&str) + Send + Sync>);

impl WarningHandler {
    /// Creates a handler that calls `handle` with the text of each warning.
    pub fn new(handle: impl Fn(&str) + Send + Sync + 'static) -> WarningHandler {
        WarningHandler(Arc::new(handle))
    }

    pub(super) fn warn(&self, text: &str) {
        (self.0)(text);
    }
}

impl fmt::Debug for WarningHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WarningHandler")
    }
}
