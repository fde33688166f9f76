//! Pairwise exchange: rounds in which partners are mutual, and in which every pair of ranks meets once.

use topology::Rank;

/// Returns the partners of `rank` among `n` ranks, each with the number of its round. With a power of two the
/// partner is `rank XOR round`, else `round - rank` modulo `n`, which leaves some ranks without a partner in
/// some rounds.
pub(super) fn partners(rank: Rank, n: u32) -> impl Iterator<Item = (u32, Rank)> {
    let partner = move |round: u32| match n.is_power_of_two() {
        true => Rank(rank.0 ^ round),
        false => Rank(round).behind(rank.0, n),
    };
    (0..n).map(move |round| (round, partner(round))).filter(move |(_, peer)| *peer != rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_have_each_other_and_everyone_meets_everyone() {
        for n in 1..40 {
            for rank in (0..n).map(Rank) {
                let mut met: Vec<Rank> = partners(rank, n).map(|(_, peer)| peer).collect();
                for (round, peer) in partners(rank, n) {
                    assert!(partners(peer, n).any(|both| both == (round, rank)), "{n}: {rank} in {round}");
                }
                met.sort_unstable();
                assert!(met.into_iter().eq((0..n).map(Rank).filter(|peer| *peer != rank)), "{n}: {rank}");
            }
        }
    }
}
