//! How a process ended.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The way a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// The process exited with this status.
    Exited(u8),
    /// A signal with this number killed the process.
    Signaled(i32),
    /// Unknown: the connection to the host was lost. The agent there ends the process.
    Lost,
}

impl Ended {
    /// Whether the process exited with status 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Ended::Exited(0)
    }

    /// Returns the status that a shell reports: 128 + the number for a signal; 255, as from ssh, for a lost
    /// process.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Ended::Exited(code) => code,
            Ended::Signaled(signal) => u8::try_from(signal.saturating_add(128)).unwrap_or(u8::MAX),
            Ended::Lost => 255,
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Ended::Exited(code) => write!(f, "exited with status {code}"),
            Ended::Signaled(signal) => match signal_hook::low_level::signal_name(signal) {
                Some(name) => write!(f, "was killed by {name}"),
                None => write!(f, "was killed by signal {signal}"),
            },
            Ended::Lost => write!(f, "was lost with its host"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_counts_from_128() {
        assert_eq!(Ended::Signaled(9).exit_code(), 137);
        assert_eq!(Ended::Signaled(9).to_string(), "was killed by SIGKILL");
        assert_eq!(Ended::Exited(7).exit_code(), 7);
        assert_eq!(Ended::Signaled(i32::MAX).exit_code(), u8::MAX, "an agent may send any number");
        assert!(Ended::Exited(0).is_success() && !Ended::Exited(7).is_success());
    }
}
