//! Function that describes this process, as text for the other ranks.

use std::sync::OnceLock;

/// The function, once it is known.
static DESCRIBE: OnceLock<fn() -> String> = OnceLock::new();

/// Sets the function that describes this process, for snapshots of its jobs. The first one stays.
///
/// It is called from other threads than those that make calls, at any time; it takes a few milliseconds at
/// most and does not use connections.
pub fn provide_status(describe: fn() -> String) {
    let _ = DESCRIBE.set(describe);
}

/// Returns the description of this process; empty if there is none.
pub(super) fn own() -> String {
    DESCRIBE.get().map(|describe| describe()).unwrap_or_default()
}
