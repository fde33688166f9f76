//! Boards of ranks that share no memory: the server keeps them and passes changes on upon request.
//!
//! A request is answered once. However long a rank computes without reading, at most one update is on its way
//! to it. Ranks with the same version receive the same bytes, encoded once; a rank ignores its own words.

use super::{
    super::super::wire::{FromServer, Word, encode},
    Job,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// Number of words that a board may have. Words beyond are ignored.
const MAX_WORDS: u16 = 4096;

/// Boards of all ranks, as far as reported.
#[derive(Debug, Default)]
pub(super) struct Boards {
    /// Rises with every change.
    version: u64,
    /// By rank and index: the word, and the version of its last change.
    words: BTreeMap<(u32, u16), (u64, u64)>,
    /// Positions of the same words by version, so that changed words are found without a scan.
    by_version: BTreeSet<(u64, u32, u16)>,
    /// The first failure.
    failure: Option<Vec<Word>>,
}

impl Boards {
    fn record(&mut self, rank: u32, words: &[Word]) {
        if !words.is_empty() {
            self.version += 1;
        }
        for (index, value) in words.iter().filter(|(index, _)| *index < MAX_WORDS) {
            if let Some((_, before)) = self.words.insert((rank, *index), (*value, self.version)) {
                self.by_version.remove(&(before, rank, *index));
            }
            self.by_version.insert((self.version, rank, *index));
        }
    }

    fn changed_after(&self, seen: u64) -> impl Iterator<Item = (u32, u16)> + '_ {
        self.by_version.range((seen.saturating_add(1), 0, 0)..).map(|(_, rank, index)| (*rank, *index))
    }

    /// Whether a rank other than `rank` has changed a word since a version.
    fn has_updates_for(&self, rank: u32, seen: u64) -> bool {
        self.changed_after(seen).any(|(other, _)| other != rank)
    }

    /// Returns the words changed after a version.
    fn changes_after(&self, seen: u64) -> Vec<(u32, Vec<Word>)> {
        let mut boards: BTreeMap<u32, Vec<Word>> = BTreeMap::new();
        for (rank, index) in self.changed_after(seen) {
            let value = self.words.get(&(rank, index)).map_or(0, |(value, _)| *value);
            boards.entry(rank).or_default().push((index, value));
        }
        boards.into_iter().collect()
    }
}

impl Job {
    /// Records changed words of a rank's board.
    pub(super) fn publish(&mut self, rank: u32, words: &[Word]) {
        self.boards.record(rank, words);
    }

    /// Records changed words of a rank's board, and its request for words newer than version `seen`.
    pub(super) fn sync_board(&mut self, rank: u32, seen: u64, words: &[Word]) {
        self.rank_states[rank as usize].seen = Some(seen);
        self.awaiting_updates.insert(rank);
        self.publish(rank, words);
    }

    /// Answers pending requests for which there are changes. Call this after handling messages.
    pub(in super::super) fn send_board_updates(&mut self) {
        let mut written: HashMap<u64, Arc<[u8]>> = HashMap::new();
        for rank in std::mem::take(&mut self.awaiting_updates) {
            let Some(seen) = self.rank_states[rank as usize].seen else { continue };
            if !self.boards.has_updates_for(rank, seen) {
                self.awaiting_updates.insert(rank);
                continue;
            }
            self.rank_states[rank as usize].seen = None;
            let news = written.entry(seen).or_insert_with(|| {
                let (version, boards) = (self.boards.version, self.boards.changes_after(seen));
                encode(&FromServer::BoardUpdate { version, boards }).into()
            });
            let news = Arc::clone(news);
            self.send(rank, news);
        }
    }

    /// Keeps the first failure and sends it to all ranks.
    pub(super) fn report_failure(&mut self, words: Vec<Word>) {
        if self.boards.failure.is_some() {
            return;
        }
        self.send_to_all(&FromServer::Failed { words: words.clone() });
        self.boards.failure = Some(words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_newer_and_of_others_is_told() {
        let mut boards = Boards::default();
        boards.record(0, &[(1, 10), (2, 20)]);
        boards.record(1, &[(1, 11)]);
        boards.record(0, &[(1, 12)]);
        boards.record(1, &[]);
        assert_eq!(boards.version, 3);
        assert_eq!(boards.changes_after(0), [(0, vec![(2, 20), (1, 12)]), (1, vec![(1, 11)])]);
        assert_eq!(boards.changes_after(1), [(0, vec![(1, 12)]), (1, vec![(1, 11)])]);
        assert_eq!(boards.changes_after(3), []);
        assert!(
            boards.has_updates_for(1, 2)
                && !boards.has_updates_for(0, 2)
                && !boards.has_updates_for(2, u64::MAX)
        );
    }

    #[test]
    fn words_beyond_a_board_are_not_kept() {
        let mut boards = Boards::default();
        boards.record(0, &(0..=u16::MAX).map(|index| (index, 1)).collect::<Vec<_>>());
        assert_eq!(boards.words.len(), usize::from(MAX_WORDS));
        assert_eq!(boards.by_version.len(), usize::from(MAX_WORDS));
    }
}
