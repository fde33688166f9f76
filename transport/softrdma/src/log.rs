//! Warnings on standard error about behavior that real devices do not report.

use std::fmt;

/// Writes one line to standard error.
#[allow(
    clippy::print_stderr,
    reason = "callers of verbs see an errno or nothing at all; this is the one place that can say more"
)]
#[cold]
pub(crate) fn warn(line: fmt::Arguments<'_>) {
    eprintln!("softrdma: {line}");
}
