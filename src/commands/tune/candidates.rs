//! Candidates: the algorithms and numbers of segments that can run a call on this communicator.

use collectives::{Collective, DType, MAX_SEGMENTS, Rank, plan};
use tbccl::{Communicator, Result};

/// Minimum bytes per segment; shorter ones cost more in messages than they gain in overlap.
const MIN_SEGMENT_BYTES: u64 = 32 << 10;

/// An algorithm with a number of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) algorithm: &'static str,
    pub(super) segments: u32,
}

/// Returns all candidates for a call with `count` elements per block, the same on all ranks.
///
/// The first one is the choice of the selection's thresholds; `comm` must have no other source of choices.
pub(super) fn collect_candidates(
    comm: &mut Communicator,
    collective: Collective,
    count: u64,
    dtype: DType,
) -> Result<Vec<Candidate>> {
    let (algorithm, segments) = comm.plan_of(collective, count, dtype, Rank(0))?;
    let mut found = vec![Candidate { algorithm, segments }];
    let block_bytes = count * dtype.size() as u64;
    // An algorithm that relays messages is a candidate only where others lack connections.
    let is_candidate = |candidate: &&plan::Algorithm| !candidate.relays() || candidate.name == algorithm;
    for algorithm in plan::algorithms(collective).filter(is_candidate) {
        comm.set_algorithm(Some(algorithm.name), 0)?;
        if let Some(suggested) = segments_of(comm, collective, count, dtype) {
            let all = segment_counts(suggested, block_bytes)
                .map(|segments| Candidate { algorithm: algorithm.name, segments });
            let new: Vec<_> = all.filter(|candidate| !found.contains(candidate)).collect();
            found.extend(new);
        }
    }
    comm.set_algorithm(None, 0)?;
    Ok(found)
}

/// Returns the suggested number of segments of the configured algorithm; `None` if it can't run the call from
/// every root.
fn segments_of(comm: &Communicator, collective: Collective, count: u64, dtype: DType) -> Option<u32> {
    let roots = if collective.has_root() { comm.size() } else { 1 };
    let plans: Result<Vec<_>> =
        (0..roots).map(|root| comm.plan_of(collective, count, dtype, Rank(root))).collect();
    plans.ok()?.first().map(|(_, segments)| *segments)
}

/// Returns the numbers of segments to try, ascending: one, the suggested number, and four times more and
/// fewer.
fn segment_counts(suggested: u32, block_bytes: u64) -> impl Iterator<Item = u32> {
    let max = (block_bytes / MIN_SEGMENT_BYTES).clamp(1, MAX_SEGMENTS.into()) as u32;
    let mut all = [1, (suggested / 4).max(1), suggested, suggested.saturating_mul(4).min(max)];
    all.sort_unstable();
    let mut last = 0;
    all.into_iter().filter(move |segments| std::mem::replace(&mut last, *segments) != *segments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tbccl::Config;

    fn of(ranks: u32, collective: Collective, count: u64) -> Vec<Candidate> {
        let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
        let mut comm = Communicator::local(ranks, &config).expect("memory for a test").swap_remove(0);
        let found = collect_candidates(&mut comm, collective, count, DType::F32).expect("planned");
        let (algorithm, segments) = comm.plan_of(collective, count, DType::F32, Rank(0)).expect("planned");
        assert_eq!(found[0], Candidate { algorithm, segments }, "the automatic choice comes first");
        found
    }

    #[test]
    fn every_algorithm_takes_part_once_where_pieces_would_be_short() {
        for collective in Collective::ALL {
            let found = of(4, collective, if collective == Collective::Barrier { 0 } else { 16 });
            let mut names: Vec<&str> = found.iter().map(|candidate| candidate.algorithm).collect();
            names.sort_unstable();
            let algorithms = plan::algorithms(collective).filter(|algorithm| !algorithm.relays());
            let mut all: Vec<&str> = algorithms.map(|algorithm| algorithm.name).collect();
            all.sort_unstable();
            assert_eq!(names, all, "{collective}");
        }
    }

    #[test]
    fn large_blocks_are_cut_into_few_and_into_many_pieces() {
        let found = of(4, Collective::Broadcast, 1 << 20);
        let of_chain = found.iter().filter(|candidate| candidate.algorithm == "chain");
        let mut segments: Vec<u32> = of_chain.map(|candidate| candidate.segments).collect();
        segments.sort_unstable();
        assert_eq!(segments, [1, 2, 8, 32]);
        assert!(
            segment_counts(1, 64 << 10).eq([1, 2])
                && segment_counts(64, 1 << 40).eq([1, 16, 64, 256.min(MAX_SEGMENTS)])
        );
    }

    #[test]
    fn who_can_not_have_so_many_ranks_takes_no_part() {
        let found = of(40, Collective::AllToAll, 16);
        assert!(found.iter().all(|candidate| candidate.algorithm != "ring"), "{found:?}");
    }
}
