//! `all_to_all_v` where some ranks have no cable between them: ranks in between forward blocks.
//!
//! A plan of all_to_all cannot do it: with blocks of unequal lengths a rank knows only the lengths of its own
//! blocks, so it has no memory for those of others. So ranks first exchange all lengths. Then each rank
//! scatters its blocks to all others, and these scatters run together: all ranks know the lengths of a
//! scatter, and on a ring of cables it goes down a line. Scatters come in the order of their roots in every
//! stream, and within a scatter messages move away from the root, so no circular wait is possible.
//!
//! Blocks are not padded. Boards show that ranks are in a scatter.

use super::{
    Communicator,
    call::{Blocks, Call},
    elements::settle_output,
};
use crate::error::{Error, Result};
use collectives::{Collective, DType, schedule::InPlace};
use topology::Rank;
use transport::memory::{Span, SpanMut};

/// The lengths of all blocks, as all ranks have exchanged them.
struct Lengths {
    ranks: usize,
    /// Lengths per rank: of the blocks that it sends to each rank, and of those that it expects from each.
    all: Vec<u64>,
}

impl Lengths {
    /// Returns the lengths of the blocks that a rank sends.
    fn sent(&self, rank: usize) -> &[u64] {
        &self.all[rank * 2 * self.ranks..][..self.ranks]
    }

    /// Returns the lengths of the blocks that a rank expects.
    fn expected(&self, rank: usize) -> &[u64] {
        &self.all[(rank * 2 + 1) * self.ranks..][..self.ranks]
    }

    /// Checks that sent and expected lengths agree. All ranks get the same result.
    fn check(&self) -> Result<()> {
        for (from, to) in (0..self.ranks).flat_map(|from| (0..self.ranks).map(move |to| (from, to))) {
            let (sent, expected) = (self.sent(from)[to], self.expected(to)[from]);
            if sent != expected {
                return Err(Error::InvalidArgument(format!(
                    "all_to_all_v: rank {from} sends {sent} elements to rank {to}, which expects {expected}"
                )));
            }
        }
        Ok(())
    }
}

impl Communicator {
    /// Runs an `all_to_all_v` whose arguments this rank has checked.
    #[cold]
    pub(super) fn all_to_all_relayed(
        &mut self,
        dtype: DType,
        (send, sent): (Span<'_>, &[u64]),
        (recv, expected): (SpanMut<'_>, &[u64]),
    ) -> Result<()> {
        let (ranks, me) = (self.size() as usize, self.rank().index());
        let mut lengths = Lengths { ranks, all: vec![0; 2 * ranks * ranks] };
        self.all_gather(&[sent, expected].concat(), &mut lengths.all)?;
        lengths.check()?;
        let mut rest = recv;
        let mut scatters = Vec::with_capacity(ranks);
        for root in 0..ranks {
            let all = lengths.sent(root);
            let own = &all[me..=me];
            let bytes = own[0] as usize * dtype.size();
            let output = rest.sub(0, bytes);
            rest = rest.sub(bytes, rest.len() - bytes);
            let input = if root == me { send } else { Span::empty() };
            let mean = all.iter().sum::<u64>() / ranks as u64;
            let blocks = Blocks::Uneven { input: all, output: own, all: Some(all) };
            let call = Call {
                collective: Collective::Scatter,
                dtype,
                op: None,
                count: mean,
                root: Rank(root as u32),
                in_place: InPlace::No,
                codec: None,
            };
            scatters.push(self.prepare(&call, blocks, input, output)?);
        }
        let done = self.carry_out_together(&scatters);
        drop(scatters);
        settle_output(dtype, recv);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use topology::Reach;

    /// Runs `each` on ranks that are threads, of which only neighbors of a ring reach each other.
    fn on_a_ring(ranks: u32, each: impl Fn(&mut Communicator) + Sync) {
        let config = Config { slab_bytes: Some(1 << 22), ..Config::default() };
        let comms = Communicator::local(ranks, &config).expect("memory for a test");
        let reach = Reach::new(ranks, |a, b| b == a.ahead(1, ranks) || a == b.ahead(1, ranks));
        std::thread::scope(|scope| {
            for mut comm in comms {
                comm.plans.limit_to(reach.clone());
                let each = &each;
                scope.spawn(move || each(&mut comm));
            }
        });
    }

    /// Returns the length of a block: empty for some, several cache lines for others.
    fn length(from: u32, to: u32) -> usize {
        ((from * 7 + to * 3) % 5 * 40) as usize
    }

    #[test]
    fn blocks_of_unequal_lengths_go_round_a_ring_of_cables() {
        for ranks in [4, 5, 7] {
            on_a_ring(ranks, |comm| {
                let me = comm.rank().0;
                let counts = |of: &dyn Fn(u32) -> usize| (0..ranks).map(of).collect::<Vec<_>>();
                let (sent, expected) = (counts(&|to| length(me, to)), counts(&|from| length(from, me)));
                for round in 0..3 {
                    let value = |from: u32, to: u32, at: usize| from * 1000 + to * 100 + at as u32 + round;
                    let blocks = |pairs: &dyn Fn(u32) -> (u32, u32)| -> Vec<u32> {
                        let block = |(from, to)| (0..length(from, to)).map(move |at| value(from, to, at));
                        (0..ranks).flat_map(|other| block(pairs(other))).collect()
                    };
                    let send = blocks(&|to| (me, to));
                    let mut recv = vec![0; expected.iter().sum()];
                    comm.all_to_all_v(&send, &sent, &mut recv, &expected).expect("relayed");
                    assert_eq!(recv, blocks(&|from| (from, me)), "rank {me} of {ranks}");
                }
            });
        }
    }

    #[test]
    fn lengths_that_differ_are_named_on_all_ranks_and_nothing_has_moved() {
        on_a_ring(4, |comm| {
            let wrong = if comm.rank() == Rank(2) { 2 } else { 1 };
            let mut recv = vec![0u8; 3 + wrong];
            let error = comm.all_to_all_v(&[1u8; 4], &[1; 4], &mut recv, &[1, wrong, 1, 1]);
            let error = error.expect_err("rank 2 expects more").to_string();
            assert!(error.contains("rank 1 sends 1 elements to rank 2, which expects 2"), "{error}");
            let mut recv = [0u8; 4];
            let send = [comm.rank().0 as u8; 4];
            comm.all_to_all_v(&send, &[1; 4], &mut recv, &[1; 4]).expect("it is as it was");
            assert_eq!(recv, [0, 1, 2, 3]);
        });
    }
}
