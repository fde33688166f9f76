//! The boards of ranks that do not see each other's: kept here, and passed on to those who ask.
//!
//! A rank that asks is told at most once, and then asks again: however long it computes without reading, no more than
//! one piece of news is under way to it.

use super::{
    super::wire::{FromServer, Word},
    state::State,
};
use std::collections::BTreeMap;

/// What ranks have told of their boards.
#[derive(Debug, Default)]
pub(super) struct Boards {
    /// Rises with every change.
    version: u64,
    /// By rank and index: the word, and the version with which it came.
    words: BTreeMap<u32, BTreeMap<u16, (u64, u64)>>,
    /// The first failure.
    failure: Option<Vec<Word>>,
}

impl Boards {
    fn put(&mut self, rank: u32, words: &[Word]) {
        if !words.is_empty() {
            self.version += 1;
        }
        let board = self.words.entry(rank).or_default();
        board.extend(words.iter().map(|(index, value)| (*index, (*value, self.version))));
    }

    /// What others than `rank` have told since a version.
    fn since(&self, seen: u64, rank: u32) -> Vec<(u32, Vec<Word>)> {
        let newer = |board: &BTreeMap<u16, (u64, u64)>| -> Vec<Word> {
            board.iter().filter(|(_, (_, v))| *v > seen).map(|(index, (value, _))| (*index, *value)).collect()
        };
        let others = self.words.iter().filter(|(whose, _)| **whose != rank);
        others.map(|(whose, board)| (*whose, newer(board))).filter(|(_, words)| !words.is_empty()).collect()
    }
}

impl State {
    /// Takes in what is new on a rank's board, and tells those who have asked.
    pub(super) fn publish(&mut self, rank: u32, words: &[Word]) {
        if words.is_empty() {
            return;
        }
        self.boards.put(rank, words);
        for asker in 0..self.seats.len() as u32 {
            self.tell_news(asker);
        }
    }

    /// A rank tells what is new on its board, and asks for what is newer than it has seen.
    pub(super) fn look(&mut self, rank: u32, seen: u64, words: &[Word]) {
        self.seats[rank as usize].seen = Some(seen);
        self.publish(rank, words);
        self.tell_news(rank);
    }

    /// Tells a rank what is new, if it has asked and there is something.
    fn tell_news(&mut self, rank: u32) {
        let Some(seen) = self.seats[rank as usize].seen else { return };
        let boards = self.boards.since(seen, rank);
        if !boards.is_empty() {
            self.seats[rank as usize].seen = None;
            let version = self.boards.version;
            self.seats[rank as usize].tell(&FromServer::News { version, boards });
        }
    }

    /// Keeps the first failure, and tells everyone.
    pub(super) fn raise(&mut self, words: Vec<Word>) {
        if self.boards.failure.is_some() {
            return;
        }
        let notice = FromServer::Failed { words: words.clone() };
        self.boards.failure = Some(words);
        self.seats.iter_mut().for_each(|seat| seat.tell(&notice));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_newer_and_of_others_is_told() {
        let mut boards = Boards::default();
        boards.put(0, &[(1, 10), (2, 20)]);
        boards.put(1, &[(1, 11)]);
        boards.put(0, &[(1, 12)]);
        boards.put(1, &[]);
        assert_eq!(boards.version, 3);
        assert_eq!(boards.since(0, 2), [(0, vec![(1, 12), (2, 20)]), (1, vec![(1, 11)])]);
        assert_eq!(boards.since(1, 1), [(0, vec![(1, 12)])]);
        assert_eq!(boards.since(3, 2), []);
    }
}
