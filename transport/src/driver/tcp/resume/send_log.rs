//! Log of a sent stream: a copy of its last bytes, which the peer may not have received.

use crate::memory::{Span, SpanMut};

/// The last bytes of a stream.
#[derive(Debug, Default)]
pub(super) struct SendLog {
    /// Position in the stream of the first retained byte.
    start: u64,
    /// Retained bytes, behind `head` bytes that are no longer needed.
    bytes: Vec<u8>,
    head: usize,
}

impl SendLog {
    /// Maximum number of retained bytes.
    pub(super) const CAPACITY: usize = 512 << 10;

    /// Returns the position of the first retained byte.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Returns the position behind the last retained byte.
    pub(super) fn end(&self) -> u64 {
        self.start + self.len() as u64
    }

    /// Returns the number of retained bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.head
    }

    /// Appends bytes; there must be room for them.
    pub(super) fn append(&mut self, bytes: Span<'_>) {
        debug_assert!(self.len() + bytes.len() <= SendLog::CAPACITY, "{} bytes", self.len());
        if self.head > 0 && self.bytes.len() + bytes.len() > SendLog::CAPACITY {
            self.bytes.copy_within(self.head.., 0);
            self.bytes.truncate(self.len());
            self.head = 0;
        }
        let at = self.bytes.len();
        self.bytes.resize(at + bytes.len(), 0);
        SpanMut::from(&mut self.bytes[at..]).copy_from(bytes);
    }

    /// Drops the bytes before a position. A position outside of the log counts as its nearest end.
    pub(super) fn release(&mut self, position: u64) {
        let position = position.clamp(self.start, self.end());
        self.head += (position - self.start) as usize;
        self.start = position;
        if self.head == self.bytes.len() {
            // The next messages use the same memory, which is in cache.
            self.bytes.clear();
            self.head = 0;
        }
    }

    /// Drops all bytes, and continues at a position behind them.
    pub(super) fn skip_to(&mut self, position: u64) {
        debug_assert!(position >= self.end(), "{position} before {}", self.end());
        self.bytes.clear();
        (self.start, self.head) = (position, 0);
    }

    /// Returns the retained bytes from a position on.
    pub(super) fn bytes_from(&self, position: u64) -> &[u8] {
        debug_assert!(position >= self.start, "{position} before {}", self.start);
        let at = (position - self.start).min(self.len() as u64) as usize;
        &self.bytes[self.head + at..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_from_the_first_one_that_is_not_released() {
        let mut log = SendLog::default();
        log.append(Span::from(&b"abcdef"[..]));
        log.release(2);
        assert_eq!((log.start(), log.end(), log.bytes_from(3)), (2, 6, &b"def"[..]));
        log.release(1);
        assert_eq!(log.bytes_from(2), b"cdef");
        log.release(99);
        assert_eq!((log.start(), log.len()), (6, 0));
        log.skip_to(10);
        log.append(Span::from(&b"x"[..]));
        assert_eq!((log.bytes_from(10), log.bytes_from(11)), (&b"x"[..], &b""[..]));
    }

    #[test]
    fn a_log_that_is_released_stays_within_its_capacity() {
        let mut log = SendLog::default();
        let piece = vec![7; 100_000];
        for number in 0..50u64 {
            log.append(Span::from(&piece[..]));
            log.release((number * 100_000).saturating_sub(150_000));
            assert!(log.bytes.len() <= SendLog::CAPACITY, "{}", log.bytes.len());
        }
    }
}
