//! Feeds the client of PyTorch's store with arbitrary answers, for tests and the fuzz target `store_answers`
//! under `fuzz/`.

use super::resolve::read_store;
use std::io::{self, Read, Write};

/// A store whose answers are given, and which ignores queries.
struct Answers<'a>(&'a [u8]);

impl Read for Answers<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Answers<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Feeds a rank with the answers of PyTorch's store, or of whatever listens in its place.
pub fn feed_store_client(answers: &[u8]) {
    if let Some(connect_spec) = read_store(Answers(answers)) {
        assert!(!connect_spec.addresses.is_empty() && connect_spec.secret.is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::feed_store_client;

    #[test]
    fn inputs_that_fuzzing_has_found_are_replayed() {
        support::replay("store_answers", feed_store_client);
    }
}
