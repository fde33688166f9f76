//! Information about a rank, and the report of its probe: JSON messages, exchanged over the job's rendezvous
//! before ranks connect.
//!
//! Input is untrusted: a message of another version, or one that does not parse, is an error that names the
//! rank.

use super::cables::{MAX_CABLE_ADDRESSES, MAX_CABLES};
use crate::{TransportError, secure::Secret};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

/// Version of these messages, and of the protocol of connections.
const VERSION: u32 = 4;
/// Maximum bytes of a message.
const MAX_BYTES: usize = 64 << 10;
/// Maximum bytes of the report of a probe.
const MAX_REPORT_BYTES: usize = 4 << 20;
/// Maximum number of probes that a process remembers, the newest ones.
pub(super) const MAX_PROBES: usize = 8;
/// Maximum number of addresses of a rank.
const MAX_ADDRESSES: usize = 64;

/// An address of a cable, at which a rank answers probes and accepts connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AnnouncedAddress {
    pub(super) ip: IpAddr,
    pub(super) prefix_bits: u8,
    pub(super) tcp_port: u16,
    pub(super) udp_port: u16,
}

/// A cable of a rank's host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AnnouncedCable {
    /// Name of the interface.
    pub(super) name: String,
    pub(super) addresses: Vec<AnnouncedAddress>,
}

/// A cable of a rank and an address of the cable, as indices into [`PeerInfo::cables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct CableEnd {
    pub(super) cable: u8,
    pub(super) address: u8,
}

/// A path over which a rank has heard another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeardPath {
    pub(super) peer: u32,
    pub(super) ours: CableEnd,
    pub(super) theirs: CableEnd,
}

/// A probe that the process of a rank remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RememberedProbe {
    /// Random number of the probe, equal in all processes that took part in it.
    pub(super) id: u64,
    /// Rank that took part in it.
    pub(super) rank: u32,
}

/// Information about a rank. Its `Debug` output hides the secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PeerInfo {
    tbccl_tcp: u32,
    /// Random number that distinguishes this communicator's connections from those of earlier ones on the
    /// same addresses.
    pub(super) instance: u64,
    /// Equal for ranks of one host.
    pub(super) host: String,
    /// Addresses that the rank listens on.
    #[serde(rename = "places")]
    pub(super) listen_addresses: Vec<SocketAddr>,
    /// Interfaces that lead to one other host each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) cables: Vec<AnnouncedCable>,
    /// Earlier probes whose results still hold for the rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) probes: Vec<RememberedProbe>,
    /// The job's secret, sent by rank 0 if the job has none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

impl PeerInfo {
    pub(super) fn new(
        instance: u64,
        host: String,
        listen_addresses: Vec<SocketAddr>,
        cables: Vec<AnnouncedCable>,
        secret: Option<&Secret>,
    ) -> PeerInfo {
        let secret = secret.map(|secret| secret.to_hex().to_string());
        let probes = Vec::new();
        PeerInfo { tbccl_tcp: VERSION, instance, host, listen_addresses, cables, probes, secret }
    }

    /// Returns the secret that the rank sent, if it is valid.
    pub(super) fn secret(&self) -> Option<Secret> {
        self.secret.as_ref().and_then(|digits| Secret::from_hex(digits).ok())
    }

    /// Encodes the message as JSON.
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and text are valid JSON")
    }
}

impl fmt::Debug for PeerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PeerInfo { host, listen_addresses, cables, .. } = self;
        f.debug_struct("PeerInfo")
            .field("host", host)
            .field("listen_addresses", listen_addresses)
            .field("cables", cables)
            .finish_non_exhaustive()
    }
}

/// Parses the messages of all ranks, by rank.
pub(super) fn decode_all(messages: &[Vec<u8>]) -> Result<Vec<PeerInfo>, TransportError> {
    messages.iter().enumerate().map(|(rank, message)| decode(rank as u32, message)).collect()
}

fn decode(peer: u32, message: &[u8]) -> Result<PeerInfo, TransportError> {
    let broken = |what: String| TransportError::DeviceDescription { peer, what };
    if message.len() > MAX_BYTES {
        return Err(broken(format!("it is {} bytes long", message.len())));
    }
    let parsed =
        serde_json::from_slice::<serde_json::Value>(message).map_err(|error| broken(error.to_string()))?;
    let version = parsed.get("tbccl_tcp").and_then(serde_json::Value::as_u64);
    if version != Some(VERSION.into()) {
        let theirs = version.map_or("none".to_owned(), |version| version.to_string());
        return Err(broken(format!("its protocol version is {theirs}, ours is {VERSION}")));
    }
    let info: PeerInfo = serde_json::from_value(parsed).map_err(|error| broken(error.to_string()))?;
    if info.listen_addresses.is_empty() || info.listen_addresses.len() > MAX_ADDRESSES {
        return Err(broken(format!("it listens on {} addresses", info.listen_addresses.len())));
    }
    let is_cable = |cable: &AnnouncedCable| (1..=MAX_CABLE_ADDRESSES).contains(&cable.addresses.len());
    if info.cables.len() > MAX_CABLES || !info.cables.iter().all(is_cable) {
        return Err(broken(format!("it has {} cables, or one without an address", info.cables.len())));
    }
    if info.probes.len() > MAX_PROBES {
        return Err(broken(format!("it remembers {} probes", info.probes.len())));
    }
    Ok(info)
}

/// Encodes the report of a rank's probe.
pub(super) fn encode_report(heard: &[HeardPath]) -> Vec<u8> {
    serde_json::to_vec(heard).expect("numbers are valid JSON")
}

/// Parses the reports of all ranks, by rank.
pub(super) fn decode_reports(messages: &[Vec<u8>]) -> Result<Vec<Vec<HeardPath>>, TransportError> {
    let parse = |(peer, message): (u32, &Vec<u8>)| {
        let broken = |what: String| TransportError::DeviceDescription { peer, what };
        if message.len() > MAX_REPORT_BYTES {
            return Err(broken(format!("the report of its probe is {} bytes long", message.len())));
        }
        serde_json::from_slice(message)
            .map_err(|error| broken(format!("the report of its probe can't be read: {error}")))
    };
    (0..).zip(messages).map(parse).collect()
}

/// Parses any bytes as the description of a rank, and as the payload of a handshake.
#[cfg(any(test, feature = "fuzzing"))]
pub(in super::super) fn feed_descriptions(bytes: &[u8]) {
    if let Ok(info) = decode(1, bytes) {
        assert!((1..=MAX_ADDRESSES).contains(&info.listen_addresses.len()));
        let _ = (info.secret(), format!("{info:?}"));
        assert_eq!(decode(1, &info.encode()).ok(), Some(info), "a formatted message can be read");
    }
    if let Some(hello) = super::pending::InitiatorHello::decode(bytes) {
        assert_eq!(hello.encode(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_packing_and_others_are_refused() {
        let secret = Secret::from_bytes([5; 32]);
        let address = "[::1]:5".parse().expect("an address");
        let message = PeerInfo::new(7, "h".into(), vec![address], Vec::new(), Some(&secret));
        let encoded = message.encode();
        let decoded = decode_all(std::slice::from_ref(&encoded)).expect("ours");
        assert_eq!(decoded, std::slice::from_ref(&message));
        assert_eq!(message.secret().expect("a secret").to_hex(), secret.to_hex());
        for (broken, says) in [
            (b"GET / HTTP/1.1".to_vec(), "rank 0"),
            (br#"{"tbccl_tcp":99}"#.to_vec(), "version is 99"),
            (br#"{"tbccl_verbs":1}"#.to_vec(), "version is none"),
            (br#"{"tbccl_tcp":4,"instance":1,"host":"h","places":[]}"#.to_vec(), "0 addresses"),
            (br#"{"tbccl_tcp":4,"instance":1,"host":"h","places":["x"]}"#.to_vec(), "rank 0"),
            (
                br#"{"tbccl_tcp":4,"instance":1,"host":"h","places":["[::1]:5"],
                    "cables":[{"name":"c","addresses":[]}]}"#
                    .to_vec(),
                "1 cables",
            ),
            (
                format!(
                    r#"{{"tbccl_tcp":4,"instance":1,"host":"h","places":["[::1]:5"],"probes":[{}]}}"#,
                    [r#"{"id":1,"rank":0}"#; MAX_PROBES + 1].join(",")
                )
                .into_bytes(),
                "9 probes",
            ),
            (vec![b' '; MAX_BYTES + 1], "bytes long"),
        ] {
            let error = decode_all(&[broken]).expect_err("not ours").to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
