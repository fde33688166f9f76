//! Messages of probes and ranks to the process that has started them: lines of JSON on stdout.

use super::check::Check;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// First word of the line of a message.
const MARK: &str = "@selftest ";

/// A message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// The step that begins; if the process dies or hangs, the report names the latest one.
    Step(String),
    /// The result of a check.
    Check(Check),
    /// A result that only repeats that another rank has failed or is gone.
    Echo(Check),
    /// Names of devices.
    Devices(Vec<String>),
    /// Cables between the first two ranks.
    Cables(Vec<Cable>),
    /// A request to the user.
    Ask(Ask),
}

/// A cable, by the names of the devices at both ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cable {
    /// Device of rank 0.
    pub(super) ours: String,
    /// Device of rank 1.
    pub(super) theirs: String,
}

/// A request to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ask {
    /// Pull the cable.
    Pull,
    /// Plug it in again.
    Plug,
}

impl Message {
    /// Prints the message, in one write.
    pub(super) fn print(&self) {
        let text = serde_json::to_string(self).unwrap_or_default();
        let mut stdout = io::stdout().lock();
        let _ = stdout.write_all(format!("{MARK}{text}\n").as_bytes()).and_then(|()| stdout.flush());
    }

    /// Reads a message from a line of output, which may begin with `[RANK] `. Returns `rank RANK: ` before it
    /// then.
    pub(super) fn parse(line: &str) -> Option<(String, Message)> {
        let (before, text) = line.split_once(MARK)?;
        let rank = before.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let rank = rank.map_or(String::new(), |rank| format!("rank {rank}: "));
        Some((rank, serde_json::from_str(text).ok()?))
    }
}

/// Names the step that begins.
pub(super) fn step(text: impl Into<String>) {
    Message::Step(text.into()).print();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_behind_the_rank() {
        let message = Message::Check(Check::fail("a", "b", "c"));
        let text = serde_json::to_string(&message).expect("JSON");
        assert_eq!(
            Message::parse(&format!("[12] @selftest {text}")),
            Some(("rank 12: ".to_owned(), message))
        );
        assert_eq!(Message::parse("[0] softrdma: something"), None);
        assert_eq!(Message::parse("@selftest {"), None);
    }
}
