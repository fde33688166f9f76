//! Boards of ranks that share no memory: the server keeps them and passes changes on upon request.
//!
//! A request is answered once, with [`UPDATE_WORDS`] words or a few more. However long a rank computes
//! without reading, at most one such update is on its way to it, which fits the receive window of a TCP
//! connection. If more words have changed, the next requests get those of further ranks, as they are then: of
//! a word that has changed several times only the last value is sent. The version that the rank knows rises
//! with the last part.
//!
//! All changed words of a rank's board are in one part, since they belong together. Ranks that ask for the
//! same part receive the same bytes, encoded once; a rank ignores its own words.

use super::{
    super::super::wire::{FromServer, Word, encode},
    Job,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// Number of words after which an update ends with the board that holds the last one: about 25 bytes each.
const UPDATE_WORDS: usize = 1024;

/// Number of words that a board may have. Words beyond are ignored.
const MAX_WORDS: u16 = 4096;

/// Encoded part of an update, and the rank from which the next part goes on, if there is one.
type Part = (Arc<[u8]>, Option<u32>);

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

    /// Returns words changed after a version, from the board of rank `from` on, and the rank from which the
    /// next part goes on, if any is missing.
    fn changes_after(&self, seen: u64, from: u32) -> (Vec<(u32, Vec<Word>)>, Option<u32>) {
        if from == 0 && self.changed_after(seen).nth(UPDATE_WORDS).is_none() {
            let mut boards: BTreeMap<u32, Vec<Word>> = BTreeMap::new();
            for (rank, index) in self.changed_after(seen) {
                let value = self.words.get(&(rank, index)).map_or(0, |(value, _)| *value);
                boards.entry(rank).or_default().push((index, value));
            }
            return (boards.into_iter().collect(), None);
        }
        let (mut boards, mut words): (Vec<(u32, Vec<Word>)>, usize) = (Vec::new(), 0);
        let changed = self.words.range((from, 0)..).filter(|(_, (_, version))| *version > seen);
        for ((rank, index), (value, _)) in changed {
            match boards.last_mut().filter(|(last, _)| last == rank) {
                Some((_, board)) => board.push((*index, *value)),
                None if words >= UPDATE_WORDS => return (boards, Some(*rank)),
                None => boards.push((*rank, vec![(*index, *value)])),
            }
            words += 1;
        }
        (boards, None)
    }
}

impl Job {
    /// Records changed words of a rank's board.
    pub(super) fn publish(&mut self, rank: u32, words: &[Word]) {
        self.boards.record(rank, words);
    }

    /// Records changed words of a rank's board, and its request for words newer than version `seen`.
    pub(super) fn sync_board(&mut self, rank: u32, seen: u64, words: &[Word]) {
        let state = &mut self.rank_states[rank as usize];
        if state.rest.is_some_and(|(of, ..)| of != seen) {
            state.rest = None;
        }
        state.seen = Some(seen);
        self.awaiting_updates.insert(rank);
        self.publish(rank, words);
    }

    /// Answers pending requests for which there are changes. Call this after handling messages.
    pub(in super::super) fn send_board_updates(&mut self) {
        let mut written: HashMap<(u64, u64, u32), Part> = HashMap::new();
        for rank in std::mem::take(&mut self.awaiting_updates) {
            let Some(seen) = self.rank_states[rank as usize].seen else { continue };
            let rest = self.rank_states[rank as usize].rest;
            if rest.is_none() && !self.boards.has_updates_for(rank, seen) {
                self.awaiting_updates.insert(rank);
                continue;
            }
            let (_, version, from) = rest.unwrap_or((seen, self.boards.version, 0));
            let part = written.entry((seen, version, from));
            let (update, next) = part.or_insert_with(|| {
                let (boards, next) = self.boards.changes_after(seen, from);
                let version = if next.is_some() { seen } else { version };
                (encode(&FromServer::BoardUpdate { version, boards }).into(), next)
            });
            let state = &mut self.rank_states[rank as usize];
            (state.seen, state.rest) = (None, next.map(|next| (seen, version, next)));
            let update = Arc::clone(update);
            self.send(rank, update);
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
    use super::{
        super::super::super::wire::{decode, split_frame},
        *,
    };

    #[test]
    fn only_what_is_newer_and_of_others_is_told() {
        let mut boards = Boards::default();
        boards.record(0, &[(1, 10), (2, 20)]);
        boards.record(1, &[(1, 11)]);
        boards.record(0, &[(1, 12)]);
        boards.record(1, &[]);
        assert_eq!(boards.version, 3);
        let after = |seen| boards.changes_after(seen, 0).0;
        assert_eq!(after(0), [(0, vec![(2, 20), (1, 12)]), (1, vec![(1, 11)])]);
        assert_eq!(after(1), [(0, vec![(1, 12)]), (1, vec![(1, 11)])]);
        assert_eq!(after(3), []);
        assert!(
            boards.has_updates_for(1, 2)
                && !boards.has_updates_for(0, 2)
                && !boards.has_updates_for(2, u64::MAX)
        );
    }

    #[test]
    fn many_words_come_in_parts_of_whole_boards_and_as_they_are_by_then() {
        let mut job = Job::new(9);
        job.probed = 9;
        let board = |value| (0..600).map(|index| (index, value)).collect::<Vec<_>>();
        (1..9).for_each(|rank| job.publish(rank, &board(1)));
        let (mut seen, mut parts, mut known) = (0, Vec::new(), BTreeMap::new());
        for part in 0.. {
            job.sync_board(0, seen, &[]);
            job.send_board_updates();
            if part == 1 {
                // Between two parts, of boards that are sent already and of such that are not.
                job.publish(1, &board(2));
                job.publish(8, &board(2));
            }
            let mut outgoing = job.take_outgoing().into_iter();
            let Some(super::super::Outgoing::Payload(0, payload)) = outgoing.next() else { break };
            let super::super::Payload::Bytes(bytes) = payload else { panic!("no bytes") };
            assert!(bytes.len() < 48 << 10, "{} bytes", bytes.len());
            let (text, _) = split_frame(&bytes, 1 << 20).expect("short").expect("whole");
            let FromServer::BoardUpdate { version, boards } = decode(text).expect("ours") else {
                panic!("an update")
            };
            seen = version;
            parts.push(boards.iter().map(|(rank, _)| *rank).collect::<Vec<_>>());
            for (rank, words) in boards {
                assert_eq!(words.len(), 600, "rank {rank}'s words come together");
                known.insert(rank, words[7].1);
            }
        }
        assert_eq!(parts[..4], [[1, 2], [3, 4], [5, 6], [7, 8]], "{parts:?}");
        assert_eq!(parts[4..], [[1, 8]], "what has changed meanwhile, once");
        assert!(known.into_iter().eq((1..9).map(|rank| (rank, if rank % 7 == 1 { 2 } else { 1 }))));
    }

    #[test]
    fn words_beyond_a_board_are_not_kept() {
        let mut boards = Boards::default();
        boards.record(0, &(0..=u16::MAX).map(|index| (index, 1)).collect::<Vec<_>>());
        assert_eq!(boards.words.len(), usize::from(MAX_WORDS));
        assert_eq!(boards.by_version.len(), usize::from(MAX_WORDS));
    }
}
