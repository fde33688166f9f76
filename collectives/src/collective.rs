//! The collectives, and the shapes of their buffers.

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
    /// Rank `r` receives the reduction of block `r` of all ranks. Input n blocks, output 1 block.
    ReduceScatter,
    /// Every rank receives the root's block. Input 1 block (only the root's is read), output 1 block.
    Broadcast,
    /// Block `j` of rank `i` becomes block `i` of rank `j`. Input n blocks, output n blocks.
    AllToAll,
    /// The root receives the reduction of all ranks' blocks. Input 1 block, output 1 block at the root.
    Reduce,
    /// The root receives all ranks' blocks in rank order. Input 1 block, output n blocks at the root.
    Gather,
    /// Rank `r` receives block `r` of the root. Input n blocks at the root, output 1 block.
    Scatter,
    /// Every rank receives the reduction of the blocks of the lower ranks and its own. Input 1 block, output
    /// 1 block.
    Scan,
    /// Each rank receives the reduction of the blocks of the ranks before it; rank 0's output is unchanged.
    /// Input 1 block, output 1 block.
    ExclusiveScan,
    /// Rank `r + 1` receives rank `r`'s block, around the ring. Input 1 block, output 1 block.
    SendRecv,
    /// No rank leaves before every rank has entered. No data: `count` is 0.
    Barrier,
}

impl Collective {
    /// All collectives, in the order of tables.
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

    /// Returns the name: `all_reduce`.
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

    /// Returns other spellings in use: those of NCCL, MPI and the peers' benchmarks.
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

    /// Whether the collective combines elements by an operation.
    #[must_use]
    pub const fn reduces(self) -> bool {
        self.shape().reduces
    }

    /// Whether the collective combines the elements of all ranks, so that they have an average.
    #[must_use]
    pub const fn averages(self) -> bool {
        self.shape().averages
    }

    /// Whether the collective has a root.
    #[must_use]
    pub const fn has_root(self) -> bool {
        self.shape().has_root
    }

    /// Returns the blocks of the largest input on `ranks` ranks.
    #[must_use]
    pub const fn input_blocks(self, ranks: u32) -> u32 {
        self.shape().send.count(ranks)
    }

    /// Returns the blocks of the largest output on `ranks` ranks.
    #[must_use]
    pub const fn output_blocks(self, ranks: u32) -> u32 {
        self.shape().recv.count(ranks)
    }

    /// Returns the blocks of a rank's input and output.
    ///
    /// Where only the root's input is read, or only the root gets a result, the other ranks have none. The
    /// input of a broadcast counts on every rank.
    #[must_use]
    pub const fn blocks_of(self, ranks: u32, at_root: bool) -> (u32, u32) {
        let (send, recv) = (self.shape().send, self.shape().recv);
        let has_input = send.is_present(at_root) || matches!(self, Collective::Broadcast);
        let input = if has_input { send.count(ranks) } else { 0 };
        let output = if recv.is_present(at_root) { recv.count(ranks) } else { 0 };
        (input, output)
    }

    /// Returns nccl-tests' factor from algorithm bandwidth (bytes of the larger side / time) to bus
    /// bandwidth.
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
