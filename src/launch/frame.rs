//! Frames between the launcher and its agents, over each agent's stdin and stdout, or a socket on this host.
//!
//! ```text
//! agent -> launcher   the line GREETING, then Hello (version, address by which ssh came from the launcher)
//! launcher -> agent   Prepare (program, arguments, environment, folder, ranks)
//! agent -> launcher   Ready                                         | Refused (why)
//! launcher -> agent   Go
//! agent -> launcher   Started (process ids)                         | Refused (why)
//! ...                 Stdin + bytes, Signal, Alive                  Output + bytes, StdinTaken, Ended, Alive
//! launcher -> agent   Finish
//! agent -> launcher   Finished
//! ```
//!
//! A frame consists of two little-endian u32 lengths, a JSON text, and raw bytes. Output of a login shell
//! before the greeting is ignored.

use super::{Ended, processes::JobMark};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{ffi::OsString, path::PathBuf};
use topology::Bind;

/// Version of the frame protocol.
pub(super) const PROTOCOL: u32 = 2;

/// Version of this program; it must be equal on all hosts.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// First line that an agent writes.
pub(super) const GREETING: &[u8] = b"\n#!tbccl-agent\n";

/// Maximum length of either part of a frame; larger lengths are rejected.
const MAX_PART_BYTES: usize = 64 << 20;

/// A key and its value.
pub(super) type Variable = (OsString, OsString);

/// A frame from the launcher to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToAgent {
    /// Prepare to start these ranks.
    Prepare(Box<Prepare>),
    /// Start the prepared ranks.
    Go,
    /// Bytes for a rank's stdin; no bytes mark its end.
    Stdin { rank: u32 },
    /// Send this signal to all ranks.
    Signal { number: i32 },
    /// The job is over: end the remaining processes and exit.
    Finish,
    /// Keep-alive.
    Alive,
}

/// The processes that a host starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Prepare {
    /// The ranks of this host.
    pub(super) ranks: Vec<PrepareRank>,
    /// Ranks of the whole job.
    pub(super) of: u32,
    /// The program as typed.
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
    /// Variables for every rank.
    pub(super) env: Vec<Variable>,
    /// The working folder of the ranks.
    pub(super) cwd: Option<PathBuf>,
    /// Files for the ranks: the variable that names a file, and its content. They exist while the job runs.
    pub(super) files: Vec<(String, String)>,
    /// Binding of ranks to cores.
    pub(super) bind: BindName,
    /// Whether the ranks have the agent's stdin, stdout and stderr.
    pub(super) inherits: bool,
    /// The mark of the job's processes.
    pub(super) mark: JobMark,
    /// Milliseconds between SIGTERM and SIGKILL.
    pub(super) grace_ms: u64,
}

/// A rank to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PrepareRank {
    pub(super) rank: u32,
    /// Identity variables, set before those for every rank.
    pub(super) identity: Vec<Variable>,
    /// Variables of this rank, set after those for every rank.
    pub(super) own: Vec<Variable>,
    /// Whether the rank gets the launcher's stdin.
    pub(super) stdin: bool,
}

/// The wire form of [`Bind`].
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

/// A stream of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// A frame from an agent to the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FromAgent {
    /// The agent's version and addresses.
    Hello {
        version: String,
        protocol: u32,
        /// The launcher's address as this host's ssh server sees it.
        launcher: Option<String>,
    },
    /// The program and the folder exist; the ranks can be started.
    Ready,
    /// The ranks cannot be started: the reason and the remedy, in one line.
    Refused { why: String },
    /// Process ids of the ranks, in the order of [`Prepare::ranks`].
    Started { pids: Vec<u32> },
    /// Output of a rank; its bytes follow.
    Output { rank: u32, stream: Stream },
    /// A rank has read the bytes sent to its stdin, or has closed it.
    StdinTaken { rank: u32 },
    /// A rank has ended.
    Ended { rank: u32, how: Ended },
    /// A problem that does not prevent the job.
    Warning { text: String },
    /// No process of the job is left on this host.
    Finished,
    /// Keep-alive.
    Alive,
}

/// Encodes a frame.
pub(super) fn encode(what: &impl Serialize, tail: &[u8]) -> Vec<u8> {
    // All of these types serialize to JSON without error.
    let text = serde_json::to_vec(what).unwrap_or_default();
    let mut frame = Vec::with_capacity(8 + text.len() + tail.len());
    frame.extend((text.len() as u32).to_le_bytes());
    frame.extend((tail.len() as u32).to_le_bytes());
    frame.extend(text);
    frame.extend(tail);
    frame
}

/// Decodes frames from arbitrary pieces of a byte stream.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    bytes: Vec<u8>,
}

impl Decoder {
    /// Appends bytes that were read.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete frame, if any. The error describes the invalid bytes.
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
            serde_json::from_slice(&rest[..text_len]).map_err(|e| format!("not a valid frame: {e}"))?;
        let tail = rest[text_len..text_len + tail_len].to_vec();
        self.bytes.drain(..8 + text_len + tail_len);
        Ok(Some((what, tail)))
    }

    /// Skips all bytes up to the end of the greeting. Returns false if it has not arrived yet.
    pub(super) fn skip_to_greeting(&mut self) -> bool {
        let at = self.bytes.windows(GREETING.len()).position(|window| window == GREETING);
        if let Some(at) = at {
            self.bytes.drain(..at + GREETING.len());
        }
        at.is_some()
    }

    /// Returns the bytes of the incomplete frame.
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
            inherits: false,
            mark: JobMark::new(),
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
