//! Which algorithm, and into how many pieces.
//!
//! The choice is a pure function of what all ranks of a call agree on: collective, ranks, count, element size, and a
//! [`Tuning`] that they read from the same place. Whether a call is in place is not among it, since ranks may differ in
//! that. The rules are few thresholds, meant to be measured and changed.

use crate::{Collective, MAX_SEGMENTS, plan};
use serde::Deserialize;

/// The thresholds. Read from a file, what is left out has its default.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tuning {
    /// `all_reduce` goes in one shot while a rank sends at most so many bytes in all.
    pub mesh_bytes: u64,
    /// Up to so many ranks, data goes over direct links; above, round a ring.
    pub direct_ranks: u32,
    /// `all_reduce` of blocks up to this size goes by recursive doubling, where one shot would send too much.
    pub doubling_bytes: u64,
    /// `broadcast` of blocks up to this size goes down a binomial tree; above, down a line.
    pub binomial_bytes: u64,
    /// The size of a message that pipelines aim at.
    pub segment_bytes: u64,
    /// The pieces that a chunk is cut into at most.
    pub max_segments: u32,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            mesh_bytes: 48 << 10,
            direct_ranks: 16,
            doubling_bytes: 4 << 10,
            binomial_bytes: 64 << 10,
            segment_bytes: 512 << 10,
            max_segments: 64,
        }
    }
}

/// What a call is about, as far as all ranks agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The collective.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: u32,
    /// The bytes of one block.
    pub block_bytes: u64,
}

/// What to plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The name of the algorithm.
    pub algorithm: &'static str,
    /// The pieces that each chunk is cut into.
    pub segments: u32,
    /// The rule that decided.
    pub why: &'static str,
}

/// Chooses the algorithm and the segments for a call.
#[must_use]
pub fn choose(call: Call, tuning: &Tuning) -> Choice {
    let (wanted, why) = preferred(call, tuning);
    let able =
        |name: &str| plan::algorithm(call.collective, name).is_ok_and(|a| a.check_ranks(call.ranks).is_ok());
    let (algorithm, why) = if able(wanted) {
        (wanted, why)
    } else {
        let mut rest = plan::algorithms(call.collective).map(|a| a.name);
        (
            rest.find(|name| able(name)).unwrap_or(wanted),
            "the preferred algorithm is not made for so many ranks",
        )
    };
    Choice { algorithm, segments: segments(call, algorithm, tuning), why }
}

fn preferred(call: Call, tuning: &Tuning) -> (&'static str, &'static str) {
    let Call { collective, ranks, block_bytes } = call;
    let direct = ranks <= tuning.direct_ranks;
    match collective {
        Collective::AllReduce => {
            let in_one_shot = block_bytes.saturating_mul(u64::from(ranks.saturating_sub(1)));
            if in_one_shot <= tuning.mesh_bytes {
                ("mesh", "small: one stage is fastest")
            } else if !direct && block_bytes <= tuning.doubling_bytes {
                ("recursive_doubling", "small, on many ranks: fewer messages")
            } else if direct {
                ("rsag_mesh", "large, on few ranks: two stages with the least traffic")
            } else {
                ("ring", "large, on many ranks: least traffic with two neighbours only")
            }
        }
        Collective::AllGather | Collective::ReduceScatter if direct => ("direct", "few ranks: one stage"),
        Collective::AllGather | Collective::ReduceScatter => ("ring", "many ranks: two neighbours only"),
        Collective::Broadcast if block_bytes <= tuning.binomial_bytes => ("binomial", "small: fewest stages"),
        Collective::Broadcast => ("chain", "large: every link carries it once, in a stream"),
        Collective::AllToAll => ("direct", "the only one"),
        Collective::SendRecv => ("shift", "the only one"),
        Collective::Barrier => ("dissemination", "the only one"),
    }
}

/// As many pieces as make a message of this algorithm about as long as the tuning says.
#[must_use]
pub fn segments(call: Call, algorithm: &str, tuning: &Tuning) -> u32 {
    let chunks = match (call.collective, algorithm) {
        (Collective::Barrier, _) => return 1,
        (Collective::AllReduce, "ring" | "rsag_mesh") => call.ranks,
        (Collective::AllReduce, "bidirectional_ring") => 2 * call.ranks,
        (Collective::AllReduce, "double_binary_tree") => 2,
        _ => 1,
    };
    let chunk_bytes = call.block_bytes / u64::from(chunks.max(1));
    let wanted = chunk_bytes.div_ceil(tuning.segment_bytes.max(1));
    wanted.clamp(1, u64::from(tuning.max_segments.clamp(1, MAX_SEGMENTS))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spec;

    /// Fixed numbers, so that tuning the defaults does not change what the rules are tested on.
    fn choice(collective: Collective, ranks: u32, block_bytes: u64) -> (&'static str, u32) {
        let tuning = Tuning {
            mesh_bytes: 16 << 10,
            direct_ranks: 16,
            doubling_bytes: 4 << 10,
            binomial_bytes: 64 << 10,
            segment_bytes: 128 << 10,
            max_segments: 64,
        };
        let choice = choose(Call { collective, ranks, block_bytes }, &tuning);
        (choice.algorithm, choice.segments)
    }

    #[test]
    fn small_blocks_take_few_stages_and_large_ones_little_traffic() {
        assert_eq!(choice(Collective::AllReduce, 2, 16 << 10), ("mesh", 1));
        assert_eq!(choice(Collective::AllReduce, 4, 16 << 10), ("rsag_mesh", 1));
        assert_eq!(choice(Collective::AllReduce, 2, 1 << 20), ("rsag_mesh", 4));
        assert_eq!(choice(Collective::AllReduce, 32, 1 << 10), ("recursive_doubling", 1));
        assert_eq!(choice(Collective::AllReduce, 32, 1 << 30), ("ring", 64));
        assert_eq!(choice(Collective::Broadcast, 4, 1 << 10), ("binomial", 1));
        assert_eq!(choice(Collective::Broadcast, 4, 1 << 20), ("chain", 8));
        assert_eq!(choice(Collective::AllGather, 64, 8), ("ring", 1));
        assert_eq!(choice(Collective::Barrier, 64, 0), ("dissemination", 1));
    }

    #[test]
    fn every_choice_can_be_planned_for() {
        let tuning =
            Tuning { direct_ranks: u32::MAX, mesh_bytes: u64::MAX, max_segments: 0, ..Tuning::default() };
        for tuning in [Tuning::default(), tuning] {
            for collective in Collective::ALL {
                for ranks in [1, 2, 3, 16, 17, 257, 513, 1024] {
                    for block_bytes in [0, 1, 4096, 1 << 20, u64::MAX] {
                        let choice = choose(Call { collective, ranks, block_bytes }, &tuning);
                        let algorithm = plan::algorithm(collective, choice.algorithm).expect("a known name");
                        algorithm.check_ranks(ranks).expect("made for so many");
                        let spec = Spec::new(collective, ranks).expect("in range");
                        spec.with_segments(choice.segments).expect("in range");
                    }
                }
            }
        }
    }

    #[test]
    fn a_tuning_file_names_only_what_it_changes() {
        let tuning: Tuning = toml::from_str("mesh_bytes = 4096").expect("a known key");
        assert_eq!(tuning, Tuning { mesh_bytes: 4096, ..Tuning::default() });
        assert!(toml::from_str::<Tuning>("mesh_byte = 4096").is_err());
    }
}
