//! Reasons why a connection was given up.

use std::{fmt, io, time::Duration};

/// Why a connection was given up.
#[derive(Debug)]
pub(in super::super) enum Loss {
    /// The interface is down, or its cable is pulled.
    InterfaceDown,
    /// The peer's system has not answered for this time.
    Silent(Duration),
    /// The system has reported an error.
    Failed(io::Error),
    /// The peer has closed the connection.
    Ended,
    /// The peer has made another connection in its place.
    Replaced,
}

impl Loss {
    /// Whether nothing came over the path, so that others are tried before it.
    pub(super) fn is_of_path(&self) -> bool {
        matches!(self, Loss::InterfaceDown | Loss::Silent(_))
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::InterfaceDown => f.write_str("its interface is down"),
            Loss::Silent(time) => write!(f, "no answer for {:.1} s", time.as_secs_f64()),
            Loss::Failed(error) => write!(f, "the connection broke: {error}"),
            Loss::Ended => f.write_str("the peer has closed the connection"),
            Loss::Replaced => f.write_str("the peer has given it up"),
        }
    }
}
