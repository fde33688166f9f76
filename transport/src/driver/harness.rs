//! Messages by which ranks describe themselves before they connect, for tests and the fuzz target
//! `connection_messages` under `fuzz/`.

use super::{mixed, tcp, verbs};

/// Parses the bytes as each kind of message, from two ranks.
///
/// # Panics
/// If a valid message differs after encoding and decoding, or leads to a panic.
pub fn feed(bytes: &[u8]) {
    tcp::feed_descriptions(bytes);
    mixed::feed_locations(bytes);
    verbs::feed_descriptions(bytes);
}

#[cfg(test)]
mod tests {
    use super::feed;

    #[test]
    fn inputs_that_fuzzing_has_found_are_replayed() {
        support::replay("connection_messages", feed);
    }
}
