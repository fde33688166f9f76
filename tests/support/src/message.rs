//! Lines that ranks print for tests: `@word rank rest`.

use std::time::SystemTime;

/// A line that a rank has printed.
#[derive(Clone, Debug)]
pub struct Message {
    /// The kind of the message.
    pub word: String,
    /// The rank that printed it.
    pub rank: u32,
    /// The rest of the line.
    pub rest: String,
}

impl Message {
    /// Finds a message in a line. Output of the test harness may precede it.
    #[must_use]
    pub fn parse(line: &str) -> Option<Message> {
        let mut parts = line[line.find('@')? + 1..].trim_end().splitn(3, ' ');
        let word = parts.next()?.to_owned();
        let rank = parts.next()?.parse().ok()?;
        Some(Message { word, rank, rest: parts.next().unwrap_or_default().to_owned() })
    }
}

/// Returns the messages with this word, in rank order.
#[must_use]
pub fn messages_of<'m>(messages: &'m [Message], word: &str) -> Vec<&'m Message> {
    let mut found: Vec<&Message> = messages.iter().filter(|message| message.word == word).collect();
    found.sort_by_key(|message| message.rank);
    found
}

/// Returns milliseconds since the epoch, a clock that processes share.
///
/// # Panics
/// If the clock is before 1970.
#[must_use]
pub fn milliseconds() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis()
}
