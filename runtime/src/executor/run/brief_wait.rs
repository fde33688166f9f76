//! Brief waits of a rank that shares its core with other ranks.
//!
//! Such a rank yields the core as soon as it finds nothing, since a rank that it waits for may need this
//! core. Where all that is missing comes from ranks on other cores, and these send before they wait as this
//! rank does, their messages are likely to be on the way. Then a few more polls take less time than two
//! changes of the process. docs/performance.md has times.
//!
//! In a tree or a chain a rank has to wait until the ranks before it have had their turns. There these polls
//! cost 5 to 10 % of a small `broadcast`, so such programs make none ([`Program::exchanges`]).
//!
//! [`Program::exchanges`]: crate::executor::Program

use topology::Rank;

/// Polls before the rank yields the core. Between 10 and 40 of them calls took about the same time.
const POLLS: u32 = 10;

/// The ranks on cores that this rank does not use, as one bit each; empty where that is of no use.
#[derive(Debug, Default)]
pub(crate) struct OnOtherCores(Box<[u64]>);

impl OnOtherCores {
    pub(crate) fn new(ranks: &[Rank]) -> OnOtherCores {
        let words = ranks.iter().map(|rank| rank.index() / 64 + 1).max().unwrap_or(0);
        let mut bits = vec![0; words];
        for rank in ranks {
            bits[rank.index() / 64] |= 1 << (rank.index() % 64);
        }
        OnOtherCores(bits.into())
    }

    #[inline]
    fn has(&self, rank: Rank) -> bool {
        self.0.get(rank.index() / 64).is_some_and(|word| word >> (rank.index() % 64) & 1 != 0)
    }
}

/// A brief wait, and the polls that are left of it.
#[derive(Debug)]
pub(super) struct BriefWait<'e> {
    others: &'e OnOtherCores,
    /// Polls of a wait.
    polls: u32,
    left: u32,
}

impl<'e> BriefWait<'e> {
    /// `is_useful` tells whether the rank yields the core at once otherwise, in a program that exchanges.
    #[inline]
    pub(super) fn new(others: &'e OnOtherCores, is_useful: bool) -> BriefWait<'e> {
        let polls = if is_useful && !others.0.is_empty() { POLLS } else { 0 };
        BriefWait { others, polls, left: polls }
    }

    /// Begins anew, after a poll that made progress.
    #[inline]
    pub(super) fn reset(&mut self) {
        self.left = self.polls;
    }

    /// Whether to poll again at once, after a poll that found nothing. `missing` are the ranks that messages
    /// are exchanged with before the program can go on.
    #[inline]
    pub(super) fn goes_on(&mut self, mut missing: impl Iterator<Item = Rank>) -> bool {
        let goes_on = self.left > 0 && missing.all(|rank| self.others.has(rank));
        self.left -= u32::from(goes_on);
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polls(wait: &mut BriefWait<'_>, missing: &[u32]) -> usize {
        (0..100).take_while(|_| wait.goes_on(missing.iter().map(|rank| Rank(*rank)))).count()
    }

    #[test]
    fn a_rank_polls_a_little_for_ranks_on_other_cores_alone() {
        let others = OnOtherCores::new(&[Rank(2), Rank(3), Rank(70)]);
        let mut wait = BriefWait::new(&others, true);
        assert_eq!(polls(&mut wait, &[2, 1]), 0, "rank 1 needs this core");
        assert_eq!(polls(&mut wait, &[128]), 0, "rank 128 is not known");
        assert_eq!(polls(&mut wait, &[2, 70]), POLLS as usize);
        assert_eq!(polls(&mut wait, &[2]), 0, "the wait is over");
        wait.reset();
        assert_eq!(polls(&mut wait, &[3]), POLLS as usize);
    }

    #[test]
    fn a_rank_does_not_poll_where_no_rank_is_known_or_it_spins_anyway() {
        let (none, others) = (OnOtherCores::default(), OnOtherCores::new(&[Rank(2)]));
        assert_eq!(polls(&mut BriefWait::new(&none, true), &[2]), 0);
        assert_eq!(polls(&mut BriefWait::new(&others, false), &[2]), 0);
    }
}
