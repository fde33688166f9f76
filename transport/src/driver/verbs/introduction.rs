//! What ranks tell each other before their queue pairs are connected, over the connections of the job's rendezvous.
//!
//! Three rounds, each an exchange of everyone's words with everyone: who has which devices ([`Devices`]); which devices
//! of ours reach which of theirs ([`Reach`]); and the numbers of the queue pairs that were made ([`Rails`]). Words are
//! JSON, since they are few and people read them when something is wrong.
//!
//! Nothing is believed: a word of another version, of another round, or that does not parse is an error that names the
//! rank.

use crate::{TransportError, verbs::Gid};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The version of these words, and of what follows them. Equal on all ranks.
const VERSION: u32 = super::wire::VERSION as u32;
/// No word is longer.
const MAX_BYTES: usize = 4 << 20;

/// One device that can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Device {
    pub(super) name: String,
    /// 32 hexadecimal digits.
    pub(super) gid: String,
    pub(super) lid: u16,
    /// Bytes of a packet, as verbs number them.
    pub(super) mtu: u32,
    /// Reliable connections.
    pub(super) reliable: bool,
    /// Its memory can be written to from afar.
    pub(super) one_sided: bool,
    pub(super) max_message_bytes: u64,
    /// Where depths are counted in frames: how many to have in a queue.
    pub(super) frame_depth: Option<u32>,
}

/// The first word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Devices {
    pub(super) host: String,
    pub(super) devices: Vec<Device>,
}

/// The second word: which devices of ours (by index) reach which of whom; or what we have been given instead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reach {
    /// Peer, our device, theirs.
    pub(super) pairs: Vec<(u32, usize, usize)>,
    /// A digest of the device matrix that we have been given.
    pub(super) matrix: Option<u32>,
}

/// The third word: our ends of all rails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rails {
    pub(super) rails: Vec<End>,
}

/// Our end of a rail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct End {
    pub(super) peer: u32,
    /// The rail's number between the two.
    pub(super) rail: usize,
    pub(super) psn: u32,
    pub(super) control: u32,
    /// By lane, where pieces have queues of their own.
    pub(super) data: Vec<u32>,
    /// Addresses and keys of the landing places, by lane and number, where pieces are written.
    pub(super) landings: Vec<(u64, u32)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<T> {
    tbccl_verbs: u32,
    round: String,
    word: T,
}

/// Packs a word.
pub(super) fn pack<T: Serialize>(round: &str, word: T) -> Vec<u8> {
    let envelope = Envelope { tbccl_verbs: VERSION, round: round.to_owned(), word };
    serde_json::to_vec(&envelope).expect("numbers and text become JSON")
}

/// Everyone's words of a round, by rank.
pub(super) fn unpack<T: DeserializeOwned>(round: &str, words: &[Vec<u8>]) -> Result<Vec<T>, TransportError> {
    words.iter().enumerate().map(|(rank, word)| unpack_one(round, rank as u32, word)).collect()
}

fn unpack_one<T: DeserializeOwned>(round: &str, peer: u32, word: &[u8]) -> Result<T, TransportError> {
    let broken = |what: String| TransportError::DeviceDescription { peer, what };
    if word.len() > MAX_BYTES {
        return Err(broken(format!("it is {} bytes long", word.len())));
    }
    let parsed =
        serde_json::from_slice::<serde_json::Value>(word).map_err(|error| broken(error.to_string()))?;
    let version = parsed.get("tbccl_verbs").and_then(serde_json::Value::as_u64);
    if version != Some(VERSION.into()) {
        let theirs = version.map_or("none".to_owned(), |version| version.to_string());
        return Err(broken(format!("its protocol version is {theirs}, ours is {VERSION}")));
    }
    let said = parsed.get("round").and_then(serde_json::Value::as_str).unwrap_or_default();
    if said != round {
        return Err(broken(format!("it is of round `{said}` instead of `{round}`")));
    }
    let envelope: Envelope<T> = serde_json::from_value(parsed).map_err(|error| broken(error.to_string()))?;
    Ok(envelope.word)
}

/// A GID as 32 hexadecimal digits.
pub(super) fn gid_text(gid: Gid) -> String {
    use std::fmt::Write;
    gid.0.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The GID of 32 hexadecimal digits.
pub(super) fn gid_of(text: &str) -> Option<Gid> {
    if text.len() != 32 {
        return None;
    }
    u128::from_str_radix(text, 16).ok().map(|number| Gid(number.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_packing_and_others_are_refused() {
        let word = Reach { pairs: vec![(1, 0, 2)], matrix: Some(7) };
        let packed = pack("reach", &word);
        assert_eq!(unpack::<Reach>("reach", std::slice::from_ref(&packed)).expect("ours"), [word]);
        let unknown = format!(r#"{{"tbccl_verbs":{VERSION},"round":"rails","word":{{"rails":[],"x":1}}}}"#);
        for (broken, says) in [
            (packed.clone(), "round"),
            (b"GET / HTTP/1.1".to_vec(), "rank 0"),
            (br#"{"tbccl_verbs":99,"round":"x","word":{}}"#.to_vec(), "version is 99"),
            (br#"{"round":"rails"}"#.to_vec(), "version is none"),
            (unknown.into_bytes(), "unknown field"),
        ] {
            let error = unpack::<Rails>("rails", &[broken]).expect_err("not ours").to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn gids_survive_as_text() {
        let gid = Gid(std::array::from_fn(|i| (i * 17) as u8));
        assert_eq!(gid_of(&gid_text(gid)), Some(gid));
        assert_eq!((gid_of("12"), gid_of(&"g".repeat(32))), (None, None));
    }
}
