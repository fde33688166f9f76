//! Messages between a rank and the rendezvous.
//!
//! A frame is a length and a JSON text. The bytes of an exchange follow their frame unchanged; each
//! descriptor travels with one byte after its frame. Lengths are checked before memory is allocated for them.
//! The receiver validates the content of messages.
//!
//! The names in JSON differ from those in the code where the fuzzing corpus already holds them.

use super::snapshot::{JobMembers, ProcessState, Snapshot};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{collections::BTreeMap, io};

/// First field of every hello, by which other programs are recognized and rejected.
pub(crate) const MAGIC: &str = "tbccl";

/// Version of this protocol and of the shared memory layout. Equal on all ranks.
pub const PROTOCOL: u32 = 15;

/// Bytes of the length before a frame.
const PREFIX: usize = 4;

/// Maximum size of a frame to a rank: all members, or all changed words of the largest job.
pub(super) const MAX_TO_RANK_BYTES: usize = 64 << 20;

/// Maximum size of a frame from a rank: the changed words of one board.
pub(super) const MAX_FROM_RANK_BYTES: usize = 1 << 20;

/// Maximum size of a hello, whose sender is not known to be a rank yet.
pub(super) const MAX_HELLO_BYTES: usize = 64 << 10;

/// Maximum number of bytes that a rank contributes to an exchange.
pub(crate) const MAX_EXCHANGE_BYTES: u32 = 1 << 20;

/// Maximum size of the status of a rank's process: those of the largest job fit into a frame.
pub(crate) const MAX_STATUS_BYTES: usize = 32 << 10;

/// Index and value of a word of a rank's board. This crate does not interpret the value.
pub type Word = (u16, u64);

/// First message of a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`MAGIC`].
    pub(crate) magic: String,
    /// Protocol version of the rank: [`PROTOCOL`].
    pub(crate) protocol: u32,
    /// Number of ranks of the job.
    pub size: u32,
    /// Name of the job, where several jobs meet at the same address one after the other; otherwise empty.
    #[serde(default)]
    pub job: String,
    /// Description of the rank, passed on to all other ranks.
    pub member: Member,
    /// Options that must be equal on all ranks.
    pub options: BTreeMap<String, String>,
    /// Whether the descriptor of the rank's arena follows. Equal on all ranks, since it depends on the
    /// options only.
    pub arena: bool,
    /// How long the rank waits for the other ranks, in milliseconds.
    #[serde(rename = "patience_ms")]
    pub timeout_ms: u64,
    /// How long the rank has waited already, in milliseconds: for the rank that serves the rendezvous.
    #[serde(default)]
    pub waited_ms: u64,
    /// Time without an answer after which a host counts as gone, in milliseconds.
    #[serde(rename = "silence_ms")]
    pub peer_timeout_ms: u64,
}

impl Hello {
    /// Returns the hello of a rank of a job of `size` ranks, without a name, options, arena and timeouts.
    #[must_use]
    pub fn new(size: u32, member: Member) -> Hello {
        Hello {
            magic: MAGIC.into(),
            protocol: PROTOCOL,
            size,
            job: String::new(),
            member,
            options: BTreeMap::new(),
            arena: false,
            timeout_ms: 0,
            waited_ms: 0,
            peer_timeout_ms: 0,
        }
    }
}

/// Description of a rank, known to all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Rank in the job.
    pub rank: u32,
    /// Process id.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// Address of a word in the rank's memory. Other ranks try to read it.
    pub probe_address: u64,
    /// Value of the word at `probe_address`.
    pub probe_value: u64,
    /// Addresses of its reconnect listener, separated by commas; empty if it has none.
    #[serde(default, rename = "muster")]
    pub reconnect_addresses: String,
    /// Whether the rendezvous runs in its process.
    #[serde(default, rename = "keeps")]
    pub hosts_rendezvous: bool,
}

/// Returns the number of a communicator: equal for its ranks and its rendezvous, and different for others.
pub(crate) fn communicator_id<'m>(job: &str, members: impl IntoIterator<Item = &'m Member>) -> u64 {
    let mut text = job.to_owned();
    for Member { rank, pid, host, probe_address, probe_value, reconnect_addresses, .. } in members {
        text.push_str(&format!("\n{rank} {pid} {host} {probe_address} {probe_value} {reconnect_addresses}"));
    }
    xxhash_rust::xxh3::xxh3_64(text.as_bytes()).max(1)
}

/// Messages from a rank to the server, after its hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum FromRank {
    /// Obstacle to reading the other ranks' memory, if any.
    Probed { obstacle: Option<String> },
    /// Contribution to an exchange, of this many bytes, which follow.
    Exchange { bytes: u32 },
    /// The rank cannot start, because of itself or, if `absent` names any, of these ranks.
    #[serde(rename = "given_up")]
    Abort { why: String, absent: Vec<u32> },
    /// Changed words of the rank's board, and a request for words of other boards newer than version `seen`.
    /// The server answers once there are any.
    #[serde(rename = "look")]
    SyncBoard { seen: u64, words: Vec<Word> },
    /// The rank reports a failure of the job.
    #[serde(rename = "raise")]
    ReportFailure { words: Vec<Word> },
    /// The rank is alive. Not answered.
    #[serde(rename = "beat")]
    Heartbeat,
    /// The rank has closed its communicator. Holds the last changed words of its board.
    Goodbye { words: Vec<Word> },
    /// The rank asks for a snapshot of the job. With `claim` it gets one only if no other rank has asked so
    /// within the last seconds.
    RequestSnapshot { claim: bool },
    /// The status of the rank's process, as the server requested under this number.
    Status { number: u64, text: String },
    /// States of processes on the rank's host, in the order of the request of this number.
    ProcessStates { number: u64, states: Vec<ProcessState> },
    /// The rank asks for the time on the server's clock.
    RequestTime { number: u64 },
}

/// Questions of a process of this user that is no rank, such as `tbccl why`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Question {
    /// The ranks of the job.
    Members,
    /// A snapshot of the job.
    Snapshot,
}

/// Answers to questions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Answer {
    Members(JobMembers),
    Snapshot(Snapshot),
}

/// Messages from the server to a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum FromServer {
    /// All ranks have joined: their descriptions, in rank order. Their descriptors follow, if ranks sent any.
    Welcome { members: Vec<Member> },
    /// The job cannot start, or not with this rank.
    Refused {
        why: String,
        /// Missing ranks, if they are the reason.
        #[serde(default)]
        absent: Vec<u32>,
    },
    /// Another job, of this name, uses the rendezvous.
    Busy { job: String },
    /// Address of the server's Unix socket, for a rank that shares memory and came over TCP.
    #[serde(rename = "elsewhere")]
    Redirect { address: String },
    /// All ranks have reported: the first obstacle to reading memory, if any.
    Go { obstacle: Option<String> },
    /// Sizes of all contributions in bytes, in rank order. The contributions follow.
    Exchanged { bytes: Vec<u32> },
    /// Changed words of these ranks' boards, up to a version. May include words of the receiver.
    #[serde(rename = "news")]
    BoardUpdate { version: u64, boards: Vec<(u32, Vec<Word>)> },
    /// The first failure of the job.
    Failed { words: Vec<Word> },
    /// A rank's process ended.
    Died { rank: u32, how: String },
    /// The server asks for the status of the rank's process.
    RequestStatus { number: u64 },
    /// The server asks for the states of processes on the rank's host.
    RequestProcessStates { number: u64, pids: Vec<u32> },
    /// The snapshot that the rank has asked for, or the rank that has asked before it.
    Snapshot { claimed_by: Option<u32>, snapshot: Option<Snapshot> },
    /// Nanoseconds on the server's monotonic clock, read after the request of this number.
    Time { number: u64, nanos: u64 },
}

/// Encodes a message as a frame.
pub(crate) fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut frame = vec![0; PREFIX];
    // Writing to memory cannot fail, and all messages can be written as JSON.
    let written = serde_json::to_writer(&mut frame, message);
    debug_assert!(written.is_ok(), "{written:?}");
    let len = (frame.len() - PREFIX) as u32;
    frame[..PREFIX].copy_from_slice(&len.to_le_bytes());
    frame
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Returns the text of the first frame in `bytes` once it is complete, and the offset of the next frame.
///
/// # Errors
/// If the frame is longer than `limit`.
pub(super) fn split_frame(bytes: &[u8], limit: usize) -> io::Result<Option<(&[u8], usize)>> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let len = u32::from_le_bytes(*prefix) as usize;
    if len > limit {
        return Err(invalid(format!("a frame of {len} bytes exceeds the limit of {limit}")));
    }
    Ok(rest.get(..len).map(|text| (text, PREFIX + len)))
}

/// Decodes the text of a frame.
///
/// # Errors
/// If the text is not a valid `T`.
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
