//! Streams to one peer: those of all communicators that the two processes have in common.
//!
//! A stream has a number, which both ends know, and an index, by which this end finds it. Streams are opened
//! and closed with their communicator. Messages for a stream that is closed here are dropped.
//!
//! Invariant: an index names one open stream. It is used again after that stream is closed, so nothing keeps
//! an index beyond the close.
//!
//! This module is pure.

use super::stream::Stream;
use std::{
    cell::Cell,
    ops::{Index, IndexMut},
};

/// Streams by index and by number.
#[derive(Debug)]
pub(super) struct Streams {
    places: Vec<Option<Stream>>,
    /// Number and index of each open stream, sorted by number.
    numbers: Vec<(u32, usize)>,
    /// The entry of `numbers` that was found last.
    recent: Cell<usize>,
    /// Indices of streams whose counters or repetitions may have to be sent, each once.
    pending: Vec<usize>,
}

impl Streams {
    pub(super) fn new() -> Streams {
        Streams { places: Vec::new(), numbers: Vec::new(), recent: Cell::new(0), pending: Vec::new() }
    }

    /// Opens a stream; returns its index, or `None` if there is a stream of that number.
    pub(super) fn open(&mut self, stream: Stream) -> Option<usize> {
        let number = stream.number();
        let Err(at) = self.numbers.binary_search_by_key(&number, |entry| entry.0) else { return None };
        let index = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
        if index == self.places.len() {
            self.places.push(None);
        }
        self.places[index] = Some(stream);
        self.numbers.insert(at, (number, index));
        Some(index)
    }

    /// Closes a stream; returns it.
    pub(super) fn close(&mut self, index: usize) -> Option<Stream> {
        self.numbers.retain(|entry| entry.1 != index);
        self.pending.retain(|pending| *pending != index);
        self.places[index].take()
    }

    /// Index of the open stream with a number.
    #[inline]
    pub(super) fn find(&self, number: u32) -> Option<usize> {
        if let Some(entry) = self.numbers.get(self.recent.get())
            && entry.0 == number
        {
            return Some(entry.1);
        }
        let at = self.numbers.binary_search_by_key(&number, |entry| entry.0).ok()?;
        self.recent.set(at);
        Some(self.numbers[at].1)
    }

    /// The open stream with an index.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Stream> {
        self.places.get(index)?.as_ref()
    }

    /// The open stream with an index.
    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Stream> {
        self.places.get_mut(index)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.places.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.places.iter_mut().flatten()
    }

    /// Range that contains the indices of all open streams.
    pub(super) fn indices(&self) -> std::ops::Range<usize> {
        0..self.places.len()
    }

    /// Notes that the peer may have to be sent something about a stream.
    #[inline]
    pub(super) fn touch(&mut self, index: usize) {
        if !self.pending.contains(&index) {
            self.pending.push(index);
        }
    }

    /// Notes it about all streams.
    pub(super) fn touch_all(&mut self) {
        self.pending = self.numbers.iter().map(|entry| entry.1).collect();
    }

    /// Whether any stream is pending.
    #[inline]
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The pending stream at a position.
    #[inline]
    pub(super) fn pending(&self, position: usize) -> Option<usize> {
        self.pending.get(position).copied()
    }

    /// Takes out the pending stream at a position, about which nothing has to be sent now.
    #[inline]
    pub(super) fn settle(&mut self, position: usize) {
        self.pending.swap_remove(position);
    }
}

impl Index<usize> for Streams {
    type Output = Stream;

    #[inline]
    fn index(&self, index: usize) -> &Stream {
        self.places[index].as_ref().expect("an open stream")
    }
}

impl IndexMut<usize> for Streams {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut Stream {
        self.places[index].as_mut().expect("an open stream")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::verbs::granted::Granted;

    fn stream(number: u32) -> Stream {
        Stream::new(number, Granted::unused())
    }

    #[test]
    fn streams_are_found_by_number_whatever_was_found_before() {
        let mut streams = Streams::new();
        let numbers = [7, 1 << 30, 0, 9, 8];
        let opened: Vec<Option<usize>> = numbers.iter().map(|number| streams.open(stream(*number))).collect();
        for (number, index) in numbers.into_iter().zip(&opened).chain(numbers.into_iter().zip(&opened).rev())
        {
            assert_eq!((streams.find(number), streams.find(5)), (*index, None));
        }
        assert_eq!(streams.open(stream(9)), None);
    }

    #[test]
    fn a_closed_stream_is_found_no_more_and_its_index_is_used_again() {
        let mut streams = Streams::new();
        let indices: Vec<usize> = [3, 4, 5].into_iter().filter_map(|n| streams.open(stream(n))).collect();
        assert_eq!(streams.find(4), Some(indices[1]));
        streams.touch(indices[1]);
        assert_eq!(streams.close(indices[1]).map(|stream| stream.number()), Some(4));
        assert_eq!((streams.find(4), streams.pending(0)), (None, None));
        assert_eq!(streams.find(5), Some(indices[2]));
        assert_eq!(streams.open(stream(40)), Some(indices[1]));
        assert_eq!(streams.find(40), Some(indices[1]));
    }

    #[test]
    fn a_stream_is_pending_once() {
        let mut streams = Streams::new();
        let indices: Vec<usize> = [3, 4].into_iter().filter_map(|n| streams.open(stream(n))).collect();
        [1, 0, 1].into_iter().for_each(|at| streams.touch(indices[at]));
        assert_eq!([0, 1, 2].map(|at| streams.pending(at)), [Some(indices[1]), Some(indices[0]), None]);
        streams.settle(0);
        assert_eq!([0, 1].map(|at| streams.pending(at)), [Some(indices[0]), None]);
        streams.touch_all();
        assert_eq!(streams.pending(1), Some(indices[1]));
    }
}
