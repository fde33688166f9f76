//! The log of the devices: lines on standard error about what real ones do without a word.

use std::fmt;

/// Says one line.
#[allow(
    clippy::print_stderr,
    reason = "callers of verbs see an errno or nothing at all; this is the one place that can say more"
)]
#[cold]
pub(crate) fn warn(line: fmt::Arguments<'_>) {
    eprintln!("softrdma: {line}");
}
