//! The collectives, and the shape of their buffers.

use crate::UnknownName;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// An operation that all ranks of a communicator call together.
///
/// `count` is the number of elements of one *block*; a buffer holds one block, or one block per rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Collective {
    /// Everyone's block, reduced, to everyone. Input 1 block, output 1 block.
    AllReduce,
    /// Everyone's block, side by side in rank order, to everyone. Input 1 block, output n blocks.
    AllGather,
    /// Block `r` of everyone, reduced, to rank `r`. Input n blocks, output 1 block.
    ReduceScatter,
    /// The root's block to everyone. Input 1 block (the root's is read), output 1 block.
    Broadcast,
    /// Block `j` of rank `i` becomes block `i` of rank `j`. Input n blocks, output n blocks.
    AllToAll,
    /// Rank `r`'s block to rank `r + 1`, round the circle. Input 1 block, output 1 block.
    SendRecv,
    /// No rank leaves before every rank has entered. No data: `count` is 0.
    Barrier,
}

impl Collective {
    /// Every collective, in the order of tables.
    pub const ALL: [Collective; 7] = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::AllToAll,
        Collective::SendRecv,
        Collective::Barrier,
    ];

    /// The name: `all_reduce`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::Broadcast => "broadcast",
            Collective::AllToAll => "all_to_all",
            Collective::SendRecv => "sendrecv",
            Collective::Barrier => "barrier",
        }
    }

    /// Other spellings in use: those of NCCL, MPI and the peers' benchmarks.
    const fn aliases(self) -> &'static [&'static str] {
        match self {
            Collective::AllReduce => &["allreduce"],
            Collective::AllGather => &["allgather"],
            Collective::ReduceScatter => &["reducescatter", "reduce_scatter_block"],
            Collective::Broadcast => &["bcast"],
            Collective::AllToAll => &["alltoall"],
            Collective::SendRecv => &["send_recv"],
            Collective::Barrier => &[],
        }
    }

    /// Does it combine elements?
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::ReduceScatter)
    }

    /// Does one rank play a part of its own?
    #[must_use]
    pub const fn has_root(self) -> bool {
        matches!(self, Collective::Broadcast)
    }

    /// Blocks of the input on `ranks` ranks.
    #[must_use]
    pub const fn input_blocks(self, ranks: u32) -> u32 {
        match self {
            Collective::ReduceScatter | Collective::AllToAll => ranks,
            Collective::Barrier => 0,
            _ => 1,
        }
    }

    /// Blocks of the output on `ranks` ranks.
    #[must_use]
    pub const fn output_blocks(self, ranks: u32) -> u32 {
        match self {
            Collective::AllGather | Collective::AllToAll => ranks,
            Collective::Barrier => 0,
            _ => 1,
        }
    }

    /// nccl-tests' factor from algorithm bandwidth (bytes of the larger side / time) to bus bandwidth.
    #[must_use]
    pub fn busbw_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => (n - 1.0) / n,
            Collective::Broadcast | Collective::SendRecv => 1.0,
            Collective::Barrier => 0.0,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Collective {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Collective, UnknownName> {
        let lower = text.to_lowercase().replace('-', "_");
        Collective::ALL
            .into_iter()
            .find(|c| c.name() == lower || c.aliases().contains(&lower.as_str()))
            .ok_or_else(|| {
                UnknownName::new("collective", text, Collective::ALL.into_iter().map(Collective::name))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_name_the_same_collective() {
        assert_eq!("allreduce".parse(), Ok(Collective::AllReduce));
        assert_eq!("all-reduce".parse(), Ok(Collective::AllReduce));
        assert_eq!("bcast".parse(), Ok(Collective::Broadcast));
        let error = "all_reduc".parse::<Collective>().expect_err("no such collective");
        assert_eq!(error.nearest, Some("all_reduce"));
    }

    #[test]
    fn busbw_factors_are_those_of_nccl_tests() {
        assert!((Collective::AllReduce.busbw_factor(4) - 1.5).abs() < 1e-12);
        assert!((Collective::AllGather.busbw_factor(4) - 0.75).abs() < 1e-12);
        assert!(Collective::AllReduce.busbw_factor(1).abs() < 1e-12);
    }
}
