//! Location of a rank (host, namespace, user), as announced to the other ranks.

use crate::{TransportError, host};
use serde::{Deserialize, Serialize};
use std::io;

/// Location of a rank, and the socket over which ranks of its host send it a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Location {
    /// Identity of the running system: the boot ID, or a substitute.
    boot: String,
    /// Network namespace of the process; abstract sockets belong to one namespace.
    network: String,
    user: u32,
    /// Host name given by the user.
    host: String,
    /// Name of the socket of the descriptor exchange.
    pub(super) socket: String,
    /// Secret of the descriptor exchange. Only ranks of the job know it, from the job's side channel.
    pub(super) token: [u8; 16],
}

impl Location {
    pub(super) fn of_this_process(socket: &str, token: &[u8; 16], host_id: &str) -> Location {
        Location {
            boot: host::boot_id(),
            network: host::network_namespace(),
            user: rustix::process::geteuid().as_raw(),
            host: host_id.to_owned(),
            socket: socket.to_owned(),
            token: *token,
        }
    }

    /// Encodes the announcement as JSON.
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Parses the announcement of a rank.
    pub(super) fn decode(rank: u32, message: &[u8]) -> Result<Location, TransportError> {
        serde_json::from_slice(message).map_err(|error| TransportError::DeviceDescription {
            peer: rank,
            what: format!(
                "its location message is invalid ({error}); use the same version of tbccl on all hosts"
            ),
        })
    }

    /// Whether both ranks can map one object. A rank on an unidentifiable host shares memory only with
    /// itself.
    pub(super) fn shares_memory_with(&self, other: &Location) -> bool {
        self == other
            || !self.boot.is_empty()
                && (&self.boot, &self.network, self.user, &self.host)
                    == (&other.boot, &other.network, other.user, &other.host)
    }
}

/// Returns the host number of each rank: the lowest rank that it shares memory with.
pub(super) fn hosts(locations: &[Location]) -> Vec<u32> {
    let first = |location: &Location| locations.iter().position(|other| other.shares_memory_with(location));
    locations.iter().map(|location| first(location).expect("itself at least") as u32).collect()
}

/// Parses any bytes as the location of a rank, beside the location of this process.
#[cfg(any(test, feature = "fuzzing"))]
pub(in super::super) fn feed_locations(bytes: &[u8]) {
    let Ok(theirs) = Location::decode(1, bytes) else { return };
    assert_eq!(Location::decode(1, &theirs.encode()).ok().as_ref(), Some(&theirs));
    let ours = Location { boot: "a".into(), network: "b".into(), ..theirs.clone() };
    let hosts = hosts(&[ours.clone(), theirs.clone(), ours.clone()]);
    assert_eq!((hosts[0], hosts[2]), (0, 0), "a rank shares memory with itself");
    assert_eq!(hosts[1] == 0, ours.shares_memory_with(&theirs));
}

/// Returns the error of a rank that can't exchange descriptors with its local peers.
pub(super) fn sharing_failed(rank: u32, error: &io::Error) -> TransportError {
    TransportError::Wiring {
        rank,
        what: format!(
            "it can't share memory with the other ranks of its host: {error}; \
             TBCCL_TRANSPORT=tcp works without"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(boot: &str, network: &str, user: u32, token: u8) -> Location {
        let (boot, network) = (boot.to_owned(), network.to_owned());
        Location { boot, network, user, host: String::new(), socket: "x".into(), token: [token; 16] }
    }

    #[test]
    fn memory_is_shared_within_one_start_of_one_host_one_namespace_and_one_user() {
        let ours = location("b", "n", 1, 1);
        assert!(ours.shares_memory_with(&location("b", "n", 1, 2)));
        for other in [location("c", "n", 1, 2), location("b", "m", 1, 2), location("b", "n", 2, 2)] {
            assert!(!ours.shares_memory_with(&other), "{other:?}");
        }
        let unknown = location("", "n", 1, 1);
        assert!(
            unknown.shares_memory_with(&unknown) && !unknown.shares_memory_with(&location("", "n", 1, 2))
        );
    }

    #[test]
    fn ranks_of_one_host_have_a_number_in_common_and_different_names_divide_it() {
        let named = |host: &str, token| Location { host: host.into(), ..location("b", "n", 1, token) };
        let locations =
            [named("x", 0), named("y", 1), location("c", "n", 1, 2), named("x", 3), named("y", 4)];
        assert_eq!(hosts(&locations), [0, 1, 2, 0, 1]);
        assert_eq!(hosts(&[location("", "n", 1, 0), location("", "n", 1, 1)]), [0, 1]);
    }

    #[test]
    fn what_is_told_is_heard() {
        let ours = location("b", "n", 1, 7);
        assert_eq!(Location::decode(3, &ours.encode()).expect("ours"), ours);
        for message in [b"".as_slice(), b"{}", b"\xff", &vec![b'['; 1 << 16]] {
            assert!(matches!(
                Location::decode(3, message),
                Err(TransportError::DeviceDescription { peer: 3, .. })
            ));
        }
    }
}
