//! The boards of ranks that do not see each other's: kept here, and passed on to those who ask.
//!
//! A rank that asks is told at most once, and then asks again: however long it computes without reading, no more than
//! one piece of news is under way to it. Ranks that know equally much get the same bytes, written once; a rank ignores
//! what it has told itself.

use super::{
    super::wire::{FromServer, Word, frame_of},
    job::Job,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// The most words of one board. What lies beyond is none of ours.
const WORDS_MOST: u16 = 4096;

/// What ranks have told of their boards.
#[derive(Debug, Default)]
pub(super) struct Boards {
    /// Rises with every change.
    version: u64,
    /// By rank and index: the word, and the version with which it came.
    words: BTreeMap<(u32, u16), (u64, u64)>,
    /// The same by version, so that what is new is found without looking at what is old.
    latest: BTreeSet<(u64, u32, u16)>,
    /// The first failure.
    failure: Option<Vec<Word>>,
}

impl Boards {
    fn put(&mut self, rank: u32, words: &[Word]) {
        if !words.is_empty() {
            self.version += 1;
        }
        for (index, value) in words.iter().filter(|(index, _)| *index < WORDS_MOST) {
            if let Some((_, before)) = self.words.insert((rank, *index), (*value, self.version)) {
                self.latest.remove(&(before, rank, *index));
            }
            self.latest.insert((self.version, rank, *index));
        }
    }

    fn newer(&self, seen: u64) -> impl Iterator<Item = (u32, u16)> + '_ {
        self.latest.range((seen.saturating_add(1), 0, 0)..).map(|(_, rank, index)| (*rank, *index))
    }

    /// Has anyone but `rank` told something since a version?
    fn has_news_for(&self, rank: u32, seen: u64) -> bool {
        self.newer(seen).any(|(whose, _)| whose != rank)
    }

    /// What all have told since a version.
    fn since(&self, seen: u64) -> Vec<(u32, Vec<Word>)> {
        let mut boards: BTreeMap<u32, Vec<Word>> = BTreeMap::new();
        for (rank, index) in self.newer(seen) {
            let value = self.words.get(&(rank, index)).map_or(0, |(value, _)| *value);
            boards.entry(rank).or_default().push((index, value));
        }
        boards.into_iter().collect()
    }
}

impl Job {
    /// Takes in what is new on a rank's board.
    pub(super) fn publish(&mut self, rank: u32, words: &[Word]) {
        self.boards.put(rank, words);
    }

    /// A rank tells what is new on its board, and asks for what is newer than it has seen.
    pub(super) fn look(&mut self, rank: u32, seen: u64, words: &[Word]) {
        self.seats[rank as usize].seen = Some(seen);
        self.asking.insert(rank);
        self.publish(rank, words);
    }

    /// Tells those who have asked what is new, if there is something. To be called after one or more words came.
    pub(super) fn tell_news(&mut self) {
        let mut written: HashMap<u64, Arc<[u8]>> = HashMap::new();
        for rank in std::mem::take(&mut self.asking) {
            let Some(seen) = self.seats[rank as usize].seen else { continue };
            if !self.boards.has_news_for(rank, seen) {
                self.asking.insert(rank);
                continue;
            }
            self.seats[rank as usize].seen = None;
            let news = written.entry(seen).or_insert_with(|| {
                let (version, boards) = (self.boards.version, self.boards.since(seen));
                frame_of(&FromServer::News { version, boards }).into()
            });
            let news = Arc::clone(news);
            self.post(rank, news);
        }
    }

    /// Keeps the first failure, and tells everyone.
    pub(super) fn raise(&mut self, words: Vec<Word>) {
        if self.boards.failure.is_some() {
            return;
        }
        self.post_all(&FromServer::Failed { words: words.clone() });
        self.boards.failure = Some(words);
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
        assert_eq!(boards.since(0), [(0, vec![(2, 20), (1, 12)]), (1, vec![(1, 11)])]);
        assert_eq!(boards.since(1), [(0, vec![(1, 12)]), (1, vec![(1, 11)])]);
        assert_eq!(boards.since(3), []);
        assert!(boards.has_news_for(1, 2) && !boards.has_news_for(0, 2) && !boards.has_news_for(2, u64::MAX));
    }

    #[test]
    fn words_beyond_a_board_are_not_kept() {
        let mut boards = Boards::default();
        boards.put(0, &(0..=u16::MAX).map(|index| (index, 1)).collect::<Vec<_>>());
        assert_eq!(boards.words.len(), usize::from(WORDS_MOST));
        assert_eq!(boards.latest.len(), usize::from(WORDS_MOST));
    }
}
