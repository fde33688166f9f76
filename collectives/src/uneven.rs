//! Blocks of unequal lengths: the vector forms of collectives.
//!
//! A schedule knows blocks and chunks, not elements. So the plans of `all_gather_v` and the other vector
//! forms are those of the plain forms with another layout: each block has a length of its own, and is cut
//! into chunks by itself. That is correct if every step keeps the chunks of a block in blocks of the same
//! length. To check that, each block of each buffer gets the *shape* of one of the call's blocks. A plan for
//! uneven blocks never mixes shapes, which [`check`] verifies.
//!
//! | collective | shapes |
//! |---|---|
//! | `all_gather`, `gather` | rank `r`'s input has shape `r`, block `b` of the output shape `b` |
//! | `reduce_scatter`, `scatter` | block `b` of the input has shape `b`, rank `r`'s output shape `r` |
//! | `all_to_all` | block `j` of rank `i`'s input, and block `i` of rank `j`'s output, have shape `i n + j` |
//!
//! Block `b` of scratch has shape `b mod n`. In `all_to_all` scratch has no shape, since a rank knows only
//! the lengths of its own blocks.
//!
//! Blocks are contiguous, without gaps.

use crate::analysis::Matching;
use crate::layout::{BlockLayout, TooLarge};
use crate::plan::Algorithm;
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::verify::{Fault, LocatedStep};
use crate::{Collective, Rank};

/// Whether the collective has a vector form.
#[must_use]
pub const fn has_vector_form(collective: Collective) -> bool {
    use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
    matches!(collective, AllGather | ReduceScatter | Gather | Scatter | AllToAll)
}

impl Algorithm {
    /// Whether the algorithm's plans are correct for blocks of unequal lengths, if the [`Spec`](crate::Spec)
    /// asks for it.
    #[must_use]
    pub fn takes_uneven_blocks(&self) -> bool {
        use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        match self.collective {
            AllGather => matches!(self.name, "ring" | "direct" | "hierarchical" | "spanning_tree"),
            ReduceScatter => matches!(self.name, "ring" | "direct" | "spanning_tree"),
            Gather | Scatter => matches!(self.name, "direct" | "chain" | "spanning_tree"),
            AllToAll => self.name == "direct",
            _ => false,
        }
    }
}

/// Returns the shape of a block; `None` where a rank does not know its length.
fn shape(collective: Collective, ranks: u32, rank: Rank, buffer: Buffer, block: u32) -> Option<u32> {
    use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
    match (collective, buffer) {
        (AllToAll, Buffer::Input) => Some(rank.0 * ranks + block),
        (AllToAll, Buffer::Output) => Some(block * ranks + rank.0),
        (AllToAll, Buffer::Scratch) => None,
        (AllGather | Gather, Buffer::Input) | (ReduceScatter | Scatter, Buffer::Output) => Some(rank.0),
        _ => Some(block % ranks),
    }
}

/// Checks that a plan never mixes the shapes of blocks. The verifier must have accepted the plan.
///
/// # Errors
/// [`Fault::Shapes`] with the first step that mixes shapes.
pub fn check(schedule: &Schedule) -> Result<(), Fault> {
    let (ranks, chunks) = (schedule.ranks(), schedule.chunks);
    let shapes = |rank: Rank, range: ChunkRange| -> Option<Vec<u32>> {
        let blocks = range.first / chunks..(range.first + range.len).div_ceil(chunks);
        blocks.map(|block| shape(schedule.collective, ranks, rank, range.buffer, block)).collect()
    };
    let matching = Matching::new(schedule)
        .map_err(|_| Fault::Shape("its messages do not match; verify it first".to_owned()))?;
    for (id, step) in schedule.steps() {
        let rank = Rank(id.rank);
        let mut all = step.action.ranges().map(|range| shapes(rank, range));
        let own = all.next().flatten();
        let alike = own.is_some() && all.all(|other| other == own);
        let partner = matching.partner(id);
        let met = partner.is_none_or(|partner| {
            partner.of(schedule).action.payload().and_then(|range| shapes(Rank(partner.rank), range)) == own
        });
        if !(alike && met) {
            return Err(Fault::Shapes { at: LocatedStep::new(schedule, id.rank, id.step) });
        }
    }
    Ok(())
}

/// The elements of every chunk of one rank's buffers, whose blocks have lengths of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnevenLayout {
    /// Start and chunks of each block, per buffer. The last entry is the end.
    blocks: [Box<[(u64, BlockLayout)]>; 3],
}

impl UnevenLayout {
    /// Returns the layout of `rank`'s buffers in a schedule, given the elements of each block of its input
    /// and of its output, of `elem_size` bytes each. Blocks of scratch have the lengths of the larger
    /// buffer's blocks.
    ///
    /// # Errors
    /// [`TooLarge`] when such buffers cannot exist.
    pub fn new(
        schedule_chunks: u32,
        scratch_blocks: u32,
        input: &[u64],
        output: &[u64],
        elem_size: usize,
    ) -> Result<UnevenLayout, TooLarge> {
        let larger = if input.len() > output.len() { input } else { output };
        let scratch: Vec<u64> = larger.iter().copied().cycle().take(scratch_blocks as usize).collect();
        let place = |counts: &[u64]| {
            let mut start = 0u64;
            let mut blocks = Vec::with_capacity(counts.len() + 1);
            for count in counts.iter().copied().chain([0]) {
                blocks.push((start, BlockLayout::new(count, elem_size, schedule_chunks, 1)?));
                start = start.checked_add(count).filter(|end| fits(*end, elem_size)).ok_or(TooLarge {
                    count,
                    elem_size,
                    blocks: counts.len() as u32,
                })?;
            }
            Ok(blocks.into_boxed_slice())
        };
        Ok(UnevenLayout { blocks: [place(input)?, place(output)?, place(&scratch)?] })
    }

    /// Returns the first element of a chunk within its buffer. Chunk 0 of the block behind the last one is
    /// the end.
    #[must_use]
    pub fn offset(&self, buffer: Buffer, block: u32, chunk: u32) -> u64 {
        let (start, layout) = &self.blocks[index(buffer)][block as usize];
        start + layout.start(chunk)
    }

    /// Returns the elements of a whole buffer.
    #[must_use]
    pub fn len(&self, buffer: Buffer) -> u64 {
        self.blocks[index(buffer)].last().map_or(0, |(end, _)| *end)
    }
}

const fn index(buffer: Buffer) -> usize {
    match buffer {
        Buffer::Input => 0,
        Buffer::Output => 1,
        Buffer::Scratch => 2,
        Buffer::Packed => panic!("nothing is packed where blocks differ in length"),
    }
}

fn fits(elements: u64, elem_size: usize) -> bool {
    elements.checked_mul(elem_size as u64).is_some_and(|bytes| i64::try_from(bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ALGORITHMS;
    use crate::schedule::InPlace;
    use crate::{Hosts, Numerics, RingOrder, Spec, verify};

    /// Returns every spec that asks an algorithm for blocks of unequal lengths.
    fn specs(algorithm: &Algorithm, ranks: u32) -> Vec<Spec> {
        let roots = (0..ranks).filter(|root| *root == 0 || algorithm.collective.has_root());
        let mut specs = Vec::new();
        let evens_first = (0..ranks).step_by(2).chain((1..ranks).step_by(2));
        for root in roots {
            for (in_place, segments) in [(InPlace::No, 1), (InPlace::Yes, 1), (InPlace::No, 3)] {
                // No algorithm has an in-place all-to-all of uneven blocks.
                if algorithm.collective == Collective::AllToAll && in_place == InPlace::Yes {
                    continue;
                }
                let spec = Spec::new(algorithm.collective, ranks).and_then(|s| s.with_root(Rank(root)));
                let spec = spec.and_then(|s| s.with_segments(segments)).expect("in range");
                let dealt: &[Hosts] = match algorithm.name {
                    "hierarchical" => &[Hosts::One, Hosts::Blocks(3), Hosts::Turns(2)],
                    _ => &[Hosts::One],
                };
                for hosts in dealt {
                    let spec = spec.with_hosts(*hosts).expect("any ranks").with_in_place(in_place);
                    let kept = Numerics::ALL.into_iter().filter(|class| *class <= algorithm.numerics);
                    let kept: Vec<Spec> =
                        kept.map(|class| spec.with_uneven_blocks().with_numerics(class)).collect();
                    let turned = RingOrder::new(&evens_first.clone().map(Rank).collect::<Vec<_>>());
                    let turned = turned.filter(|_| algorithm.takes_ring_order());
                    specs.extend(
                        turned
                            .iter()
                            .flat_map(|ring| kept.iter().map(|spec| spec.with_ring(*ring).expect("of all"))),
                    );
                    specs.extend(kept);
                }
            }
        }
        specs
    }

    /// A plan in canonical order once kept partial sums in scratch of other lengths.
    #[test]
    fn plans_for_uneven_blocks_are_right_and_never_mix_shapes_whatever_the_order_of_additions() {
        for algorithm in ALGORITHMS.iter().filter(|algorithm| algorithm.takes_uneven_blocks()) {
            for ranks in (1..=12).chain([17, 32]) {
                for spec in specs(algorithm, ranks) {
                    is_right_and_mixes_nothing(algorithm, &spec);
                }
            }
        }
    }

    fn is_right_and_mixes_nothing(algorithm: &Algorithm, spec: &Spec) {
        let schedule = algorithm.plan(spec).expect("a plan");
        let what =
            format!("{} {} on {}, {}", algorithm.collective, algorithm.name, spec.ranks(), spec.hosts());
        verify::verify(&schedule, verify::Credits(0)).unwrap_or_else(|fault| panic!("{what}: {fault}"));
        check(&schedule).unwrap_or_else(|fault| panic!("{what}: {fault}"));
    }

    #[test]
    fn a_plan_that_keeps_a_block_in_scratch_of_another_shape_is_found_out() {
        let spec = Spec::new(Collective::ReduceScatter, 4).expect("in range");
        let schedule = crate::plan::plan(&spec, "ring").expect("a plan");
        let fault = check(&schedule).expect_err("scratch is used in turns").to_string();
        assert!(fault.contains("mixes blocks"), "{fault}");
    }

    #[test]
    fn blocks_lie_side_by_side() {
        let layout = UnevenLayout::new(2, 5, &[3], &[3, 0, 40], 4).expect("small");
        let starts: Vec<u64> = (0..4).map(|block| layout.offset(Buffer::Output, block, 0)).collect();
        assert_eq!(starts, [0, 3, 3, 43]);
        // Chunks are whole cache lines: 16 elements.
        assert_eq!(layout.offset(Buffer::Output, 2, 1), 3 + 32);
        assert_eq!(layout.len(Buffer::Scratch), 3 + 40 + 3);
        assert_eq!((layout.len(Buffer::Input), layout.offset(Buffer::Input, 1, 0)), (3, 3));
        assert!(UnevenLayout::new(1, 0, &[], &[1 << 62, 1 << 62], 1).is_err());
        assert!(UnevenLayout::new(1, 0, &[u64::MAX, 1], &[], 1).is_err());
    }
}
