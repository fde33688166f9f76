//! The planners, and the table that names them.
//!
//! One algorithm is one file, at a path that can be guessed: `plan/all_reduce/ring.rs` plans `all_reduce` by
//! `ring`. Each has one public function `plan`, from a [`Spec`] to a [`Schedule`].
//!
//! Invariants, for every number of ranks, every root, in place and not: the schedule is safe with zero
//! credits; who sends what to whom, in what order and on which lane does not depend on `in_place`, so ranks
//! may differ in it; and all ranks get the same bits from an `all_reduce`, even where the operation is not
//! associative. The FIFO order of messages decides only which send meets which receive: data would be safe if
//! every message had a lane of its own.
//!
//! A planner does not know sizes. It does not segment either: the builder does, by the [segment pass](crate::pass).

use crate::schedule::Schedule;
use crate::{Collective, Numerics, PlanError, Spec, UnknownName};

pub mod all_gather;
pub mod all_reduce;
pub mod all_to_all;
pub mod barrier;
pub mod broadcast;
pub mod exclusive_scan;
mod fold;
pub mod gather;
pub mod reduce;
pub mod reduce_scatter;
pub mod scan;
pub mod scatter;
pub mod send_recv;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Algorithm {
    /// What it plans.
    pub collective: Collective,
    /// Its name, unique among those of the collective.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// The ranks that it can plan for at most: a limit on the size of plans, not on correctness.
    pub max_ranks: u32,
    /// The strongest promise that it can keep about the order in which contributions are combined.
    pub numerics: Numerics,
    planner: fn(&Spec) -> Result<Schedule, PlanError>,
}

macro_rules! algorithms {
    ($($collective:ident $module:ident :: $name:ident as $public:literal up to $max:literal $numerics:ident : $about:literal;)*) => {
        &[$(Algorithm {
            collective: Collective::$collective,
            name: $public,
            about: $about,
            max_ranks: $max,
            numerics: Numerics::$numerics,
            planner: $module::$name::plan,
        }),*]
    };
}

/// Every algorithm. On up to 1024 ranks every collective has one.
pub const ALGORITHMS: &[Algorithm] = algorithms! {
    AllReduce all_reduce::ring as "ring" up to 1024 Fast:
        "reduce-scatter, then all-gather round one ring; least traffic, 2(n-1) stages";
    AllReduce all_reduce::bidirectional_ring as "bidirectional_ring" up to 512 Fast:
        "two rings in opposite directions, each with half of the data; uses both directions of every cable";
    AllReduce all_reduce::mesh as "mesh" up to 256 Reproducible:
        "everyone sends everything to everyone; one stage, for small messages";
    AllReduce all_reduce::reduce_scatter_all_gather as "rsag_mesh" up to 256 Reproducible:
        "reduce-scatter, then all-gather over direct links; least traffic, 2 stages";
    AllReduce all_reduce::recursive_doubling as "recursive_doubling" up to 4096 Reproducible:
        "pairs exchange and combine everything, log2(n) stages; for small messages on many ranks";
    AllReduce all_reduce::double_binary_tree as "double_binary_tree" up to 4096 Fast:
        "two complementary trees, each with half of the data; logarithmic, segments make it stream";
    AllGather all_gather::ring as "ring" up to 1024 Reproducible:
        "blocks travel round the ring, n-1 stages";
    AllGather all_gather::direct as "direct" up to 256 Reproducible:
        "everyone sends its block to everyone, one stage";
    ReduceScatter reduce_scatter::ring as "ring" up to 1024 Fast:
        "partial sums travel round the ring, n-1 stages";
    ReduceScatter reduce_scatter::direct as "direct" up to 256 Reproducible:
        "everyone sends each block to its owner, one stage";
    Broadcast broadcast::binomial as "binomial" up to 4096 Reproducible:
        "the number of ranks that have the data doubles in every stage";
    Broadcast broadcast::chain as "chain" up to 4096 Reproducible:
        "from rank to rank down a line; segments make it stream";
    Reduce reduce::binomial as "binomial" up to 4096 Reproducible:
        "the number of sums halves in every stage";
    Reduce reduce::chain as "chain" up to 4096 Fast:
        "partial sums go from rank to rank round to the root; segments make it stream";
    Gather gather::direct as "direct" up to 4096 Reproducible:
        "everyone sends its block to the root, one stage";
    Gather gather::chain as "chain" up to 1024 Reproducible:
        "blocks travel down a line to the root, n-1 stages; for rings of cables";
    Scatter scatter::direct as "direct" up to 4096 Reproducible:
        "the root sends everyone its block, one stage";
    Scatter scatter::chain as "chain" up to 1024 Reproducible:
        "blocks travel down a line from the root, n-1 stages; for rings of cables";
    Scan scan::chain as "chain" up to 4096 Reproducible:
        "partial sums go from rank to rank down a line; segments make it stream";
    ExclusiveScan exclusive_scan::chain as "chain" up to 4096 Reproducible:
        "partial sums go from rank to rank down a line; segments make it stream";
    AllToAll all_to_all::direct as "direct" up to 1024 Reproducible:
        "everyone sends each block to its destination, one stage";
    AllToAll all_to_all::ring as "ring" up to 32 Reproducible:
        "blocks travel round the ring and are dropped on the way, n-1 stages; for rings of cables";
    SendRecv send_recv::shift as "shift" up to 4096 Reproducible:
        "everyone sends to the next rank and receives from the one before";
    Barrier barrier::dissemination as "dissemination" up to 4096 Reproducible:
        "everyone tells the rank 1, 2, 4, ... places ahead, log2(n) stages";
    Barrier barrier::ring as "ring" up to 1024 Reproducible:
        "everyone tells the next rank whom it has heard of, n-1 stages; for rings of cables";
};

/// The algorithms of a collective.
pub fn algorithms(collective: Collective) -> impl Iterator<Item = &'static Algorithm> {
    ALGORITHMS.iter().filter(move |algorithm| algorithm.collective == collective)
}

/// Finds an algorithm by name.
///
/// # Errors
/// [`PlanError::UnknownAlgorithm`], which suggests the nearest name.
pub fn algorithm(collective: Collective, name: &str) -> Result<&'static Algorithm, PlanError> {
    // Selection asks by the exact name, in every call that is new to it: no allocation for that.
    if let Some(exact) = algorithms(collective).find(|algorithm| algorithm.name == name) {
        return Ok(exact);
    }
    let lower = name.to_lowercase().replace('-', "_");
    algorithms(collective).find(|algorithm| algorithm.name == lower).ok_or_else(|| {
        let error = UnknownName::new("algorithm", name, algorithms(collective).map(|a| a.name));
        PlanError::UnknownAlgorithm { collective, error }
    })
}

/// Plans `spec` by the algorithm called `name`, segments included.
///
/// # Errors
/// [`PlanError::UnknownAlgorithm`], or what [`Algorithm::plan`] says.
pub fn plan(spec: &Spec, name: &str) -> Result<Schedule, PlanError> {
    algorithm(spec.collective(), name)?.plan(spec)
}

impl Algorithm {
    /// Plans `spec`, whose collective must be this algorithm's, segments included.
    ///
    /// # Errors
    /// [`PlanError::TooManyRanks`] above the limit, [`PlanError::UnknownAlgorithm`] for a spec of another
    /// collective.
    pub fn plan(&self, spec: &Spec) -> Result<Schedule, PlanError> {
        if spec.collective() != self.collective {
            return algorithm(spec.collective(), self.name)?.plan(spec);
        }
        self.check_ranks(spec.ranks())?;
        self.check_numerics(spec.numerics())?;
        (self.planner)(spec)
    }

    /// Can it keep to such an order?
    ///
    /// # Errors
    /// [`PlanError::Order`], which names algorithms that can.
    pub fn check_numerics(&self, numerics: Numerics) -> Result<(), PlanError> {
        if numerics <= self.numerics {
            return Ok(());
        }
        let able = algorithms(self.collective).filter(|other| other.numerics >= numerics);
        Err(PlanError::Order {
            algorithm: self.name,
            collective: self.collective,
            instead: able.map(|other| other.name).collect(),
        })
    }

    /// Can it plan for so many ranks?
    ///
    /// # Errors
    /// [`PlanError::TooManyRanks`], which names algorithms that can.
    pub fn check_ranks(&self, ranks: u32) -> Result<(), PlanError> {
        if ranks <= self.max_ranks {
            return Ok(());
        }
        let able = algorithms(self.collective).filter(|other| other.max_ranks >= ranks);
        Err(PlanError::TooManyRanks {
            algorithm: self.name,
            collective: self.collective,
            ranks,
            max: self.max_ranks,
            instead: able.map(|other| other.name).collect(),
        })
    }
}
