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
    /// Every rank receives the reduction of all ranks' blocks. Input 1 block, output 1 block.
    AllReduce,
    /// Every rank receives all ranks' blocks in rank order. Input 1 block, output n blocks.
    AllGather,
    /// Block `r` of everyone, reduced, to rank `r`. Input n blocks, output 1 block.
    ReduceScatter,
    /// The root's block to everyone. Input 1 block (the root's is read), output 1 block.
    Broadcast,
    /// Block `j` of rank `i` becomes block `i` of rank `j`. Input n blocks, output n blocks.
    AllToAll,
    /// The root receives the reduction of all ranks' blocks. Input 1 block, output 1 block at the root.
    Reduce,
    /// The root receives all ranks' blocks in rank order. Input 1 block, output n blocks at the root.
    Gather,
    /// Block `r` of the root to rank `r`. Input n blocks at the root, output 1 block.
    Scatter,
    /// The blocks of the ranks up to and with the own one, reduced. Input 1 block, output 1 block.
    Scan,
    /// Each rank receives the reduction of the blocks of the ranks before it; rank 0's output is unchanged.
    /// Input 1 block, output 1 block.
    ExclusiveScan,
    /// Rank `r`'s block to rank `r + 1`, round the circle. Input 1 block, output 1 block.
    SendRecv,
    /// No rank leaves before every rank has entered. No data: `count` is 0.
    Barrier,
}

impl Collective {
    /// Every collective, in the order of tables.
    pub const ALL: [Collective; 12] = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllToAll,
        Collective::Scan,
        Collective::ExclusiveScan,
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
            Collective::Reduce => "reduce",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::AllToAll => "all_to_all",
            Collective::Scan => "scan",
            Collective::ExclusiveScan => "exclusive_scan",
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
            Collective::ExclusiveScan => &["exscan"],
            Collective::SendRecv => &["send_recv"],
            Collective::Reduce | Collective::Gather | Collective::Scatter | Collective::Scan => &[],
            Collective::Barrier => &[],
        }
    }

    /// Whether elements are combined by an operation.
    #[must_use]
    pub const fn reduces(self) -> bool {
        self.shape().reduces
    }

    /// Whether the elements of all ranks are combined, so that they have an average.
    #[must_use]
    pub const fn averages(self) -> bool {
        self.shape().averages
    }

    /// Whether one rank is the root.
    #[must_use]
    pub const fn has_root(self) -> bool {
        self.shape().has_root
    }

    /// Blocks of the largest input on `ranks` ranks.
    #[must_use]
    pub const fn input_blocks(self, ranks: u32) -> u32 {
        self.shape().send.count(ranks)
    }

    /// Blocks of the largest output on `ranks` ranks.
    #[must_use]
    pub const fn output_blocks(self, ranks: u32) -> u32 {
        self.shape().recv.count(ranks)
    }

    /// Blocks of the input and of the output of a rank.
    ///
    /// Where only the root's input is read, or only the root gets a result, the other ranks have none. A broadcast's
    /// input counts on every rank.
    #[must_use]
    pub const fn blocks_of(self, ranks: u32, at_root: bool) -> (u32, u32) {
        let (send, recv) = (self.shape().send, self.shape().recv);
        let has_input = send.is_present(at_root) || matches!(self, Collective::Broadcast);
        let input = if has_input { send.count(ranks) } else { 0 };
        let output = if recv.is_present(at_root) { recv.count(ranks) } else { 0 };
        (input, output)
    }

    /// nccl-tests' factor from algorithm bandwidth (bytes of the larger side / time) to bus bandwidth.
    #[must_use]
    pub fn busbw_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::AllGather
            | Collective::ReduceScatter
            | Collective::AllToAll
            | Collective::Gather
            | Collective::Scatter => (n - 1.0) / n,
            Collective::Broadcast
            | Collective::Reduce
            | Collective::Scan
            | Collective::ExclusiveScan
            | Collective::SendRecv => 1.0,
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
