//! Handshake messages: exchanged before queue pairs are connected, over the connections of the job's
//! rendezvous.
//!
//! In each round every rank sends a message to all ranks:
//!
//! 1. [`Offers`]: the networks that the rank's process has. If all ranks have one in common, they use that,
//!    and the other rounds are left out.
//! 2. [`Devices`]: the devices of the rank. While a rank waits for the address of one, all ranks repeat this
//!    round.
//! 3. [`Reach`]: the pairs of its own and other ranks' devices that reach each other.
//! 4. [`Rails`]: the numbers of the queue pairs that the rank has created.
//!
//! Messages are JSON, because they are few, and people read them when something is wrong.
//!
//! Input is untrusted: a message of another version, of another round, or one that does not parse, is an
//! error that names the rank.

use crate::{TransportError, verbs::Gid};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Version of these messages, and of the protocol that follows them. Equal on all ranks.
const VERSION: u32 = super::wire::VERSION as u32;
/// Maximum bytes of a message.
const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Message of the first round: the networks that the process of the rank has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Offers {
    /// Random number. That of rank 0 names a new network.
    pub(super) name: u64,
    pub(super) networks: Vec<Offer>,
}

/// A network that a process has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Offer {
    pub(super) name: u64,
    /// Number of this process in the network.
    pub(super) member: u32,
    /// Number that no communicator of the network has in which this process is rank 0.
    pub(super) serial: u32,
    /// Members that this one can't reach any more.
    pub(super) unreachable: Vec<u32>,
}

/// Usable device of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Device {
    pub(super) name: String,
    /// GID of the port, as 32 hexadecimal digits.
    pub(super) gid: String,
    pub(super) lid: u16,
    /// MTU of the port, as the value of the verbs enumeration `ibv_mtu`.
    pub(super) mtu: u32,
    /// Whether the device supports reliable connections (RC).
    pub(super) reliable: bool,
    /// Whether peers can write to the device's memory, with immediate data.
    pub(super) one_sided: bool,
    pub(super) max_message_bytes: u64,
    /// Queue depth in frames, on devices that count depths in frames.
    pub(super) frame_depth: Option<u32>,
    /// Queue pairs that all processes together may use.
    pub(super) queue_pairs: u32,
}

/// Message of the second round: the host name of the rank and its devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Devices {
    pub(super) host: String,
    pub(super) devices: Vec<Device>,
    /// Whether the rank waits for the address of a device, and repeats the round.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) awaits_address: bool,
}

impl Devices {
    /// Returns the message of a rank that has these devices.
    pub(super) fn new(devices: Vec<Device>) -> Devices {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Devices { host, devices, awaits_address: false }
    }

    /// Returns the message of a rank that waits for the address of a device.
    pub(super) fn awaiting_address() -> Devices {
        Devices { awaits_address: true, ..Devices::new(Vec::new()) }
    }
}

/// Message of the third round: the pairs of devices that reach each other, or the digest of the device
/// matrix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reach {
    /// Peer, index of the sender's device, index of the peer's device.
    pub(super) pairs: Vec<(u32, usize, usize)>,
    /// Digest of the sender's device matrix. With a matrix, `pairs` is empty.
    pub(super) matrix: Option<u32>,
    /// Indices of the sender's devices that are far from its cores; see [`super::locality`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) far: Vec<usize>,
}

/// Message of the fourth round: the sender's ends of all rails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rails {
    pub(super) rails: Vec<End>,
}

/// The sender's end of a rail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct End {
    /// Rank at the other end.
    pub(super) peer: u32,
    /// Index of the rail among the rails between the two ranks.
    pub(super) rail: usize,
    /// First packet sequence number.
    pub(super) psn: u32,
    /// Numbers of the queue pairs of messages with headers.
    pub(super) slots: Vec<u32>,
    /// Number of the placed queue pair, if the rail has one.
    pub(super) placed: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<T> {
    tbccl_verbs: u32,
    round: String,
    #[serde(rename = "word")]
    message: T,
}

/// Encodes a message as JSON.
pub(super) fn encode<T: Serialize>(round: &str, message: T) -> Vec<u8> {
    let envelope = Envelope { tbccl_verbs: VERSION, round: round.to_owned(), message };
    serde_json::to_vec(&envelope).expect("numbers and text are valid JSON")
}

/// Decodes the messages of a round, by rank.
pub(super) fn decode_all<T: DeserializeOwned>(
    round: &str,
    messages: &[Vec<u8>],
) -> Result<Vec<T>, TransportError> {
    messages.iter().enumerate().map(|(rank, message)| decode(round, rank as u32, message)).collect()
}

fn decode<T: DeserializeOwned>(round: &str, peer: u32, message: &[u8]) -> Result<T, TransportError> {
    let invalid = |what: String| TransportError::DeviceDescription { peer, what };
    if message.len() > MAX_MESSAGE_BYTES {
        return Err(invalid(format!("it is {} bytes long", message.len())));
    }
    let parsed =
        serde_json::from_slice::<serde_json::Value>(message).map_err(|error| invalid(error.to_string()))?;
    let version = parsed.get("tbccl_verbs").and_then(serde_json::Value::as_u64);
    if version != Some(VERSION.into()) {
        let theirs = version.map_or("none".to_owned(), |version| version.to_string());
        return Err(invalid(format!("its protocol version is {theirs}, ours is {VERSION}")));
    }
    let actual = parsed.get("round").and_then(serde_json::Value::as_str).unwrap_or_default();
    if actual != round {
        return Err(invalid(format!("it is of round `{actual}` instead of `{round}`")));
    }
    let envelope: Envelope<T> = serde_json::from_value(parsed).map_err(|error| invalid(error.to_string()))?;
    Ok(envelope.message)
}

/// Formats a GID as 32 hexadecimal digits.
pub(super) fn gid_text(gid: Gid) -> String {
    use std::fmt::Write;
    gid.0.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Parses a GID of 32 hexadecimal digits.
pub(super) fn parse_gid(text: &str) -> Option<Gid> {
    if text.len() != 32 {
        return None;
    }
    u128::from_str_radix(text, 16).ok().map(|number| Gid(number.to_be_bytes()))
}

/// Parses any bytes as a message of each round.
#[cfg(any(test, feature = "fuzzing"))]
pub(in super::super) fn feed_descriptions(bytes: &[u8]) {
    fn feed_as<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
        round: &str,
        bytes: &[u8],
    ) -> Option<T> {
        let message = decode::<T>(round, 1, bytes).ok()?;
        let again = decode::<T>(round, 1, &encode(round, &message)).expect("a formatted message can be read");
        assert_eq!(again, message);
        Some(message)
    }
    feed_as::<Offers>("networks", bytes);
    feed_as::<Rails>("rails", bytes);
    feed_as::<Reach>("reach", bytes);
    let devices = feed_as::<Devices>("devices", bytes);
    for device in devices.iter().flat_map(|devices| &devices.devices) {
        assert!(parse_gid(&device.gid).is_none_or(|gid| parse_gid(&gid_text(gid)) == Some(gid)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_packing_and_others_are_refused() {
        let message = Reach { pairs: vec![(1, 0, 2)], matrix: Some(7), far: vec![1] };
        let packed = encode("reach", &message);
        assert_eq!(decode_all::<Reach>("reach", std::slice::from_ref(&packed)).expect("ours"), [message]);
        let unknown = format!(r#"{{"tbccl_verbs":{VERSION},"round":"rails","word":{{"rails":[],"x":1}}}}"#);
        for (invalid, expected_text) in [
            (packed.clone(), "round"),
            (b"GET / HTTP/1.1".to_vec(), "rank 0"),
            (br#"{"tbccl_verbs":99,"round":"x","word":{}}"#.to_vec(), "version is 99"),
            (br#"{"round":"rails"}"#.to_vec(), "version is none"),
            (unknown.into_bytes(), "unknown field"),
        ] {
            let error = decode_all::<Rails>("rails", &[invalid]).expect_err("not ours").to_string();
            assert!(error.contains(expected_text), "{error}");
        }
    }

    #[test]
    fn gids_survive_as_text() {
        let gid = Gid(std::array::from_fn(|i| (i * 17) as u8));
        assert_eq!(parse_gid(&gid_text(gid)), Some(gid));
        assert_eq!((parse_gid("12"), parse_gid(&"g".repeat(32))), (None, None));
    }
}
