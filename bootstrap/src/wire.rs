//! What travels between a rank and the rendezvous: frames of a length and a JSON text. Bytes that ranks exchange follow
//! their frame as they are, and so does a byte for each descriptor.
//!
//! Lengths are checked before anything is taken for them; what a frame says is checked by those who act on it.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{collections::BTreeMap, io};

/// The first word of every greeting: a program that is not ours is turned away.
pub const MAGIC: &str = "tbccl";

/// The version of this protocol and of the shared memory's layout. Equal on all ranks.
pub const PROTOCOL: u32 = 5;

/// Bytes of the length before a frame.
const PREFIX: usize = 4;

/// No frame to a rank is longer: everyone's names, or what is new on all boards of the largest job.
pub(super) const MAX_TO_RANK_BYTES: usize = 64 << 20;

/// No frame from a rank is longer: what is new on one board.
pub(super) const MAX_FROM_RANK_BYTES: usize = 1 << 20;

/// No greeting is longer: it comes from someone who has not said who they are.
pub(super) const MAX_HELLO_BYTES: usize = 64 << 10;

/// The most bytes that a rank gives to an exchange.
pub(crate) const MAX_EXCHANGE_BYTES: u32 = 1 << 20;

/// A word of a rank's board: its index and its value. What it means is not known here.
pub type Word = (u16, u64);

/// A rank introduces itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: String,
    /// Protocol version of the rank: [`PROTOCOL`].
    pub protocol: u32,
    /// Number of ranks of the job.
    pub size: u32,
    /// Which job, where several meet at the same place one after the other; empty where there is one.
    #[serde(default)]
    pub job: String,
    /// Description of the rank, passed on to all other ranks.
    pub member: Member,
    /// Options that must be equal on all ranks.
    pub options: BTreeMap<String, String>,
    /// Does the descriptor of the rank's arena follow? Equal on all ranks, since it follows from the options.
    pub arena: bool,
    /// How long the rank is ready to wait for the others, in milliseconds.
    #[serde(rename = "patience_ms")]
    pub timeout_ms: u64,
    /// After how long without an answer a host is taken for gone, in milliseconds.
    #[serde(rename = "silence_ms")]
    pub peer_timeout_ms: u64,
}

/// What ranks know of each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Rank in the job.
    pub rank: u32,
    /// Process id.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// A word in the rank's memory, to try whether it can be read.
    pub probe_address: u64,
    /// Value of the word at `probe_address`.
    pub probe_value: u64,
    /// Where it can be met later on, as [`super::Address::parse_list`] reads it; empty if nowhere.
    #[serde(default, rename = "muster")]
    pub reconnect_addresses: String,
    /// Is the rendezvous in its process?
    #[serde(default, rename = "keeps")]
    pub hosts_rendezvous: bool,
}

/// From a rank to the server, after its Hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum FromRank {
    /// Whether the rank can read every other rank's memory, and if not why not.
    Probed { obstacle: Option<String> },
    /// So many bytes for everyone; they follow.
    Exchange { bytes: u32 },
    /// The rank can't go on with starting.
    #[serde(rename = "given_up")]
    Abort { why: String },
    /// What is new on the rank's board. It knows of the others' up to a version, and is to be told of what is newer: at
    /// once, or when there is something.
    #[serde(rename = "look")]
    SyncBoard { seen: u64, words: Vec<Word> },
    /// The job has failed, as the rank sees it.
    #[serde(rename = "raise")]
    ReportFailure { words: Vec<Word> },
    /// The rank waits, and lives. Not answered.
    #[serde(rename = "beat")]
    Heartbeat,
    /// The rank has closed its communicator; what was last new on its board.
    Goodbye { words: Vec<Word> },
}

/// From the server to a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum FromServer {
    /// Everyone is here, in rank order; their descriptors follow if the ranks have sent any.
    Welcome { members: Vec<Member> },
    /// The job cannot start, or not with this rank.
    Refused {
        why: String,
        /// For want of these ranks, if it is for that.
        #[serde(default)]
        absent: Vec<u32>,
    },
    /// Another job meets here for now, and this is what it is called.
    Busy { job: String },
    /// A rank that shares memory is to come over the socket of our host.
    #[serde(rename = "elsewhere")]
    Redirect { address: String },
    /// Everyone has reported; the first obstacle to pulling, if any.
    Go { obstacle: Option<String> },
    /// How many bytes each rank has given, in rank order; they follow.
    Exchanged { bytes: Vec<u32> },
    /// What is new on the boards of these ranks, up to a version. The rank's own may be among them.
    #[serde(rename = "news")]
    BoardUpdate { version: u64, boards: Vec<(u32, Vec<Word>)> },
    /// The first failure of the job, which is the one that holds.
    Failed { words: Vec<Word> },
    /// A rank's process ended.
    Died { rank: u32, how: String },
}

/// A frame as it travels.
pub(crate) fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut frame = vec![0; PREFIX];
    // Writing to memory doesn't fail, and all our words can be written as JSON.
    let written = serde_json::to_writer(&mut frame, message);
    debug_assert!(written.is_ok(), "{written:?}");
    let len = (frame.len() - PREFIX) as u32;
    frame[..PREFIX].copy_from_slice(&len.to_le_bytes());
    frame
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// The text of the frame at the start of `bytes`, once it is there, and where the next one starts.
///
/// # Errors
/// When it is longer than `most`.
pub(super) fn split_frame(bytes: &[u8], limit: usize) -> io::Result<Option<(&[u8], usize)>> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let len = u32::from_le_bytes(*prefix) as usize;
    if len > limit {
        return Err(invalid(format!("a frame of {len} bytes, where {limit} are the most")));
    }
    Ok(rest.get(..len).map(|text| (text, PREFIX + len)))
}

/// What a frame says.
///
/// # Errors
/// When it is not what it should be.
pub(super) fn decode<T: DeserializeOwned>(text: &[u8]) -> io::Result<T> {
    serde_json::from_slice(text).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_back_one_by_one() {
        let mut bytes = encode(&FromServer::Died { rank: 3, how: "killed".into() });
        bytes.extend(encode(&FromRank::Goodbye { words: vec![(3, u64::MAX)] }));
        let (text, next) = split_frame(&bytes, 100).expect("short").expect("whole");
        assert!(matches!(decode(text).expect("ours"), FromServer::Died { rank: 3, .. }));
        let (text, end) = split_frame(&bytes[next..], 100).expect("short").expect("whole");
        assert_eq!(decode::<FromRank>(text).expect("ours"), FromRank::Goodbye { words: vec![(3, u64::MAX)] });
        assert_eq!(next + end, bytes.len());
        for part in 0..next {
            assert!(split_frame(&bytes[..part], 100).expect("short").is_none(), "{part}");
        }
    }

    #[test]
    fn a_foreign_greeting_is_an_error_and_takes_no_memory() {
        let error = split_frame(b"GET / HTTP/1.1\r\n\r\n", MAX_HELLO_BYTES).expect_err("long");
        assert!(error.to_string().contains("a frame of 542393671 bytes"), "{error}");
        assert!(decode::<Hello>(b"{}").is_err());
    }
}
