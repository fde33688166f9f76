//! The transports, and their names.

use collectives::UnknownName;
use std::{fmt, str::FromStr};

/// The transport between the processes of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// Shared memory, or [`Transport::MixedAuto`] where ranks reach the rendezvous over TCP.
    #[default]
    Auto,
    /// Shared memory, for processes of one host.
    Shm,
    /// TCP, for any network.
    Tcp,
    /// Shared memory between processes of one host, TCP between hosts.
    Mixed,
    /// RDMA.
    Verbs,
    /// Shared memory between processes of one host, RDMA between hosts.
    MixedVerbs,
    /// Shared memory between processes of one host; between hosts RDMA if its devices connect every rank with
    /// those of all other hosts, and TCP if not.
    MixedAuto,
    /// For tests: shared memory, used as if there were none ([`transport::driver::strict`]).
    #[cfg(feature = "test-driver")]
    Strict,
}

/// Name of the transport for tests, which is not offered to users.
const TEST_NAME: &str = "rehearsal";

/// Names of transports.
const NAMES: &[(&str, Transport)] = &[
    ("auto", Transport::Auto),
    ("shm", Transport::Shm),
    ("tcp", Transport::Tcp),
    ("shm+tcp", Transport::Mixed),
    ("verbs", Transport::Verbs),
    ("shm+verbs", Transport::MixedVerbs),
    ("shm+auto", Transport::MixedAuto),
    #[cfg(feature = "test-driver")]
    (TEST_NAME, Transport::Strict),
];

impl Transport {
    /// Returns the names that users may type.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name).filter(|name| *name != TEST_NAME)
    }

    /// Returns the transport's name; for [`Transport::Auto`] the name of its default, shared memory.
    #[must_use]
    pub fn name(self) -> &'static str {
        let own = if self == Transport::Auto { Transport::Shm } else { self };
        NAMES.iter().find(|(_, transport)| *transport == own).map_or("", |(name, _)| name)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transport {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Transport, UnknownName> {
        let text = if text.is_empty() { "auto" } else { text };
        let found = NAMES.iter().find(|(name, _)| *name == text);
        found
            .map(|(_, transport)| *transport)
            .ok_or_else(|| UnknownName::new("transport", text, Transport::names()))
    }
}
