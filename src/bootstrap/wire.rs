//! What travels between a rank and the rendezvous: frames of a length and a JSON text. Bytes that ranks exchange follow
//! their frame as they are.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
};

/// The first word of every greeting: a program that is not ours is turned away.
pub(crate) const MAGIC: &str = "tbccl";

/// The version of this protocol and of the shared memory's layout. Equal on all ranks.
pub(crate) const PROTOCOL: u32 = 2;

/// No frame is longer; a length beyond it is not ours.
const MAX_FRAME_BYTES: u32 = 4 << 20;

/// The most bytes that a rank gives to an exchange.
pub(crate) const MAX_EXCHANGE_BYTES: u32 = 1 << 20;

/// A word of a rank's board: its index and its value. What it means is not known here.
pub(crate) type Word = (u16, u64);

/// A rank introduces itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hello {
    pub magic: String,
    pub protocol: u32,
    pub size: u32,
    pub member: Member,
    /// Options that must be equal on all ranks.
    pub options: BTreeMap<String, String>,
    /// Does the descriptor of the rank's arena follow? Equal on all ranks, since it follows from the options.
    pub arena: bool,
    /// How long the rank is ready to wait for the others, in milliseconds.
    pub patience_ms: u64,
}

/// What ranks know of each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Member {
    pub rank: u32,
    pub pid: u32,
    pub host: String,
    /// A word in the rank's memory, to try whether it can be read.
    pub probe_address: u64,
    pub probe_value: u64,
}

/// From a rank to the server, after its Hello.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum FromRank {
    /// Whether the rank can read every other rank's memory, and if not why not.
    Probed { obstacle: Option<String> },
    /// So many bytes for everyone; they follow.
    Exchange { bytes: u32 },
    /// The rank can't go on with starting.
    GivenUp { why: String },
    /// What is new on the rank's board. It knows of the others' up to a version, and is to be told of what is newer: at
    /// once, or when there is something.
    Look { seen: u64, words: Vec<Word> },
    /// The job has failed, as the rank sees it.
    Raise { words: Vec<Word> },
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
    Refused { why: String },
    /// Everyone has reported; the first obstacle to pulling, if any.
    Go { obstacle: Option<String> },
    /// How many bytes each rank has given, in rank order; they follow.
    Exchanged { bytes: Vec<u32> },
    /// What is new on the boards of these ranks, up to a version.
    News { version: u64, boards: Vec<(u32, Vec<Word>)> },
    /// The first failure of the job, which is the one that holds.
    Failed { words: Vec<Word> },
    /// A rank's process ended.
    Died { rank: u32, how: String },
}

/// Writes one frame.
pub(crate) fn write_frame(to: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(what)?;
    let mut frame = (text.len() as u32).to_le_bytes().to_vec();
    frame.extend(text);
    to.write_all(&frame)
}

/// Reads one frame, and not a byte more: a descriptor may follow.
pub(crate) fn read_frame<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > MAX_FRAME_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {len} bytes")));
    }
    let mut text = vec![0; len as usize];
    from.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_back_one_by_one() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &FromServer::Died { rank: 3, how: "killed".into() }).expect("memory");
        write_frame(&mut bytes, &FromRank::Goodbye { words: vec![(3, u64::MAX)] }).expect("memory");
        let mut from = bytes.as_slice();
        let first: FromServer = read_frame(&mut from).expect("first");
        assert!(matches!(first, FromServer::Died { rank: 3, .. }));
        let second = read_frame(&mut from).expect("second");
        assert!(matches!(second, FromRank::Goodbye { words } if words == [(3, u64::MAX)]));
        assert!(read_frame::<FromRank>(&mut from).is_err());
    }

    #[test]
    fn a_foreign_greeting_is_an_error_and_takes_no_memory() {
        assert!(read_frame::<Hello>(&mut b"GET / HTTP/1.1\r\n\r\n".as_slice()).is_err());
        assert!(read_frame::<Hello>(&mut b"\x02\0\0\0{}".as_slice()).is_err());
    }
}
