//! Frames between the launcher and its agent on a host, over the agent's stdin and stdout.
//!
//! ```text
//! agent -> launcher   the line GREETING, then Hello (version, address by which ssh came from the launcher)
//! launcher -> agent   Prepare (program, arguments, environment, folder, ranks)
//! agent -> launcher   Ready                                          | Refused (why)
//! launcher -> agent   Go
//! agent -> launcher   Started (process ids)                          | Refused (why)
//! ...                 Stdin + bytes, Signal, Alive                   Output + bytes, StdinTaken, Ended, Alive
//! launcher -> agent   Finish
//! agent -> launcher   Finished
//! ```
//!
//! A frame is the length of a JSON text and of the bytes that follow it, as two little-endian u32, then both.
//! Output of a login shell before the greeting is ignored.

use super::Ended;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{ffi::OsString, path::PathBuf};
use topology::Bind;

/// The version of this protocol.
pub(super) const PROTOCOL: u32 = 1;

/// The version of this program, which must be the same everywhere.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The first line of an agent.
pub(super) const GREETING: &[u8] = b"\n#!tbccl-agent\n";

/// No frame has longer parts; a length beyond it is not ours.
const MAX_PART_BYTES: usize = 64 << 20;

/// A key and its value.
pub(super) type Variable = (OsString, OsString);

/// From the launcher to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToAgent {
    /// Make everything ready to start these ranks.
    Prepare(Box<Prepare>),
    /// Start them.
    Go,
    /// Bytes for a rank's stdin, or its end when there are none.
    Stdin { rank: u32 },
    /// A signal for all ranks.
    Signal { number: i32 },
    /// The job is over: end what is left of it, and go.
    Finish,
    /// The launcher is there.
    Alive,
}

/// The processes that a host is to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Prepare {
    /// The ranks of this host.
    pub(super) ranks: Vec<PrepareRank>,
    /// How many ranks the job has.
    pub(super) of: u32,
    /// The program, as it was typed.
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
    /// For every rank.
    pub(super) env: Vec<Variable>,
    /// The working folder of the ranks.
    pub(super) cwd: Option<PathBuf>,
    /// Files that variables name: the variable, and what is in the file. They are there while the job runs.
    pub(super) files: Vec<(String, String)>,
    /// How ranks are kept on cores.
    pub(super) bind: BindName,
    /// From SIGTERM to SIGKILL, in milliseconds.
    pub(super) grace_ms: u64,
}

/// A rank to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PrepareRank {
    pub(super) rank: u32,
    /// Identity variables, set before those for every rank.
    pub(super) identity: Vec<Variable>,
    /// Its own: after those for every rank.
    pub(super) own: Vec<Variable>,
    /// Whether the rank gets the launcher's stdin.
    pub(super) stdin: bool,
}

/// [`Bind`] by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum BindName {
    None,
    Core,
    Numa,
}

impl From<Bind> for BindName {
    fn from(bind: Bind) -> BindName {
        match bind {
            Bind::None => BindName::None,
            Bind::Core => BindName::Core,
            Bind::Numa => BindName::Numa,
        }
    }
}

impl From<BindName> for Bind {
    fn from(name: BindName) -> Bind {
        match name {
            BindName::None => Bind::None,
            BindName::Core => Bind::Core,
            BindName::Numa => Bind::Numa,
        }
    }
}

/// Which of a rank's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// From an agent to the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FromAgent {
    /// The agent's version and addresses.
    Hello {
        version: String,
        protocol: u32,
        /// The launcher's address as this host's ssh server sees it.
        launcher: Option<String>,
    },
    /// Everything is there that the ranks need.
    Ready,
    /// The ranks cannot be started: the reason and the remedy, in one line.
    Refused { why: String },
    /// The processes of the ranks, in the order of [`Prepare::ranks`].
    Started { pids: Vec<u32> },
    /// A rank has written the bytes that follow.
    Output { rank: u32, stream: Stream },
    /// A rank has read what was sent to its stdin, or will never.
    StdinTaken { rank: u32 },
    /// A rank has ended.
    Ended { rank: u32, how: Ended },
    /// Something that keeps nothing from being done.
    Warning { text: String },
    /// Nothing is left of the job on this host.
    Finished,
    /// The agent is there.
    Alive,
}

/// A frame as bytes.
pub(super) fn encode(what: &impl Serialize, tail: &[u8]) -> Vec<u8> {
    // Every value of these types can be written as JSON.
    let text = serde_json::to_vec(what).unwrap_or_default();
    let mut frame = Vec::with_capacity(8 + text.len() + tail.len());
    frame.extend((text.len() as u32).to_le_bytes());
    frame.extend((tail.len() as u32).to_le_bytes());
    frame.extend(text);
    frame.extend(tail);
    frame
}

/// Puts frames together from pieces.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    bytes: Vec<u8>,
}

impl Decoder {
    /// Takes what was read.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one. The error says what is wrong with the bytes.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<(T, Vec<u8>)>, String> {
        let Some((lengths, rest)) = self.bytes.split_first_chunk::<8>() else { return Ok(None) };
        let (text_len, tail_len) = lengths.split_at(4);
        let length =
            |bytes: &[u8]| bytes.iter().rev().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
        let (text_len, tail_len) = (length(text_len), length(tail_len));
        if text_len > MAX_PART_BYTES || tail_len > MAX_PART_BYTES {
            return Err(format!("a frame of {text_len} and {tail_len} bytes"));
        }
        if rest.len() < text_len + tail_len {
            return Ok(None);
        }
        let what =
            serde_json::from_slice(&rest[..text_len]).map_err(|e| format!("a frame that is none: {e}"))?;
        let tail = rest[text_len..text_len + tail_len].to_vec();
        self.bytes.drain(..8 + text_len + tail_len);
        Ok(Some((what, tail)))
    }

    /// Passes over everything up to the end of the greeting. False while it has not come.
    pub(super) fn skip_to_greeting(&mut self) -> bool {
        let at = self.bytes.windows(GREETING.len()).position(|window| window == GREETING);
        if let Some(at) = at {
            self.bytes.drain(..at + GREETING.len());
        }
        at.is_some()
    }

    /// How much is here that is no whole frame.
    pub(super) fn pending(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_are_put_together_from_any_pieces() {
        let prepare = Prepare {
            ranks: vec![PrepareRank {
                rank: 3,
                identity: vec![("A".into(), "\u{1}\n".into())],
                own: Vec::new(),
                stdin: true,
            }],
            of: 4,
            program: "p".into(),
            args: vec!["".into(), "a b".into()],
            env: Vec::new(),
            cwd: Some("/".into()),
            files: vec![("F".into(), "text".into())],
            bind: BindName::Numa,
            grace_ms: 7,
        };
        let frames = [ToAgent::Prepare(Box::new(prepare)), ToAgent::Stdin { rank: 1 }, ToAgent::Alive];
        let bytes: Vec<u8> =
            frames.iter().zip([&b""[..], b"\0tail\xff", b""]).flat_map(|(f, tail)| encode(f, tail)).collect();
        for size in [1, 7, bytes.len()] {
            let (mut decoder, mut read) = (Decoder::default(), Vec::new());
            for piece in bytes.chunks(size) {
                decoder.push(piece);
                while let Some(frame) = decoder.next::<ToAgent>().expect("ours") {
                    read.push(frame);
                }
            }
            assert_eq!(read.iter().map(|(f, _)| f.clone()).collect::<Vec<_>>(), frames);
            assert_eq!(read[1].1, b"\0tail\xff");
            assert!(decoder.pending().is_empty());
        }
    }

    #[test]
    fn what_a_shell_prints_is_passed_over() {
        let mut decoder = Decoder::default();
        decoder.push(b"Welcome to mac0!\n\n#!tbccl-a");
        assert!(!decoder.skip_to_greeting());
        decoder.push(b"gent\n");
        decoder.push(&encode(&FromAgent::Ready, b""));
        assert!(decoder.skip_to_greeting());
        assert_eq!(decoder.next().expect("ours"), Some((FromAgent::Ready, Vec::new())));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.next::<FromAgent>() {}
        }
    }
}
