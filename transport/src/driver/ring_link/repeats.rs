//! Messages that are sent again as they were.
//!
//! The lines of a message that the peer has read by system call are in its core's caches until somebody
//! writes them, so that reading them again takes half the time of a copy or less. If the sender has written
//! the message, its stores have taken each line out of there, and the copy is faster. A link that may choose
//! between both ([`Protocol::PullUnchanged`]) looks at a sample of the message.
//!
//! The sample decides about time alone. A message that has changed elsewhere arrives as it is. A sample of
//! equal words says nothing, since programs write zeros and ones again and again.
//!
//! [`Protocol::PullUnchanged`]: crate::Protocol::PullUnchanged

use crate::memory::{Span, SpanMut};

/// Words of a sample, which are as far apart as the message allows. Each is a cache line to load.
const SAMPLED: usize = 16;
const WORD: usize = size_of::<u64>();
/// Messages that a link remembers, as a power of two.
const SLOTS_BITS: u32 = 5;

/// A message that was sent, with a sample of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    address: usize,
    len: usize,
    sample: [[u8; WORD]; SAMPLED],
}

impl Sent {
    const NONE: Sent = Sent { address: 0, len: 0, sample: [[0; WORD]; SAMPLED] };

    fn of(message: Span<'_>) -> Sent {
        let len = message.len();
        let mut sample = [[0; WORD]; SAMPLED];
        if len >= WORD {
            for (at, word) in sample.iter_mut().enumerate() {
                let offset = (len - WORD) * at / (SAMPLED - 1);
                SpanMut::from(&mut word[..]).copy_from(message.sub(offset, WORD));
            }
        }
        Sent { address: message.as_ptr() as usize, len, sample }
    }

    /// Whether all words are equal.
    fn is_uniform(&self) -> bool {
        self.sample.iter().all(|word| *word == self.sample[0])
    }

    /// Returns the number of the place for messages of this memory.
    fn slot(&self) -> usize {
        const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = (self.address as u64 ^ (self.len as u64).rotate_left(32)).wrapping_mul(MIX);
        (mixed >> (u64::BITS - SLOTS_BITS)) as usize
    }
}

/// The latest messages of a link.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// One message for each slot; empty before the first one.
    sent: Box<[Sent]>,
}

impl Repeats {
    /// Whether the latest message from this memory is likely to have had the same bytes. This one is the
    /// latest from then on.
    pub(super) fn has(&mut self, message: Span<'_>) -> bool {
        if self.sent.is_empty() {
            self.sent = vec![Sent::NONE; 1 << SLOTS_BITS].into();
        }
        let now = Sent::of(message);
        let sent = &mut self.sent[now.slot()];
        let is_repeated = *sent == now && !now.is_uniform();
        *sent = now;
        is_repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_repeated_if_its_memory_has_the_same_bytes_as_before() {
        let mut repeats = Repeats::default();
        let mut first: Vec<u8> = (0..4096u32).map(|at| (at / 7) as u8).collect();
        let second = first.clone();
        assert!(!repeats.has(Span::from(&first[..])));
        assert!(repeats.has(Span::from(&first[..])));
        assert!(!repeats.has(Span::from(&second[..])), "the same bytes in other memory");
        assert!(!repeats.has(Span::from(&first[..2048])), "a part of them");
        first.reverse();
        assert!(!repeats.has(Span::from(&first[..])));
        assert!(repeats.has(Span::from(&first[..])));
    }

    /// A program that writes the same zeros each time has written them all the same.
    #[test]
    fn a_message_of_equal_words_is_never_taken_for_repeated() {
        let (mut repeats, zeros) = (Repeats::default(), vec![0u8; 4096]);
        for _ in 0..3 {
            assert!(!repeats.has(Span::from(&zeros[..])));
        }
    }

    #[test]
    fn a_change_of_the_first_or_the_last_byte_or_of_an_eighth_is_seen() {
        for len in [9usize, 100, 4096, 1_000_003] {
            let mut message: Vec<u8> = (0..len).map(|at| (at * 37 / 11) as u8).collect();
            for range in [0..1, len - 1..len, len / 2..len / 2 + len.div_ceil(8)] {
                let mut repeats = Repeats::default();
                repeats.has(Span::from(&message[..]));
                message[range.clone()].iter_mut().for_each(|byte| *byte ^= 0x40);
                assert!(!repeats.has(Span::from(&message[..])), "{range:?} of {len}");
                assert!(repeats.has(Span::from(&message[..])));
            }
        }
    }

    #[test]
    fn messages_without_a_word_and_more_messages_than_slots_are_allowed() {
        let mut repeats = Repeats::default();
        let bytes = vec![3u8; 4096];
        for len in 0..1024 {
            assert!(!repeats.has(Span::from(&bytes[..len])));
        }
    }
}
