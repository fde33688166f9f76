//! The planners, and the table of algorithms.
//!
//! Each algorithm has a file of its own: `plan/all_reduce/ring.rs` plans `all_reduce` by `ring`. Its public
//! function `plan` turns a [`Spec`] into a [`Schedule`]. The private modules hold what several planners
//! share: `trees`, `sub_ring`, `fold`, `halving`, `hops`, `pairs`, `aggregated` and `renumber`.
//!
//! Invariants, for every number of ranks and every root, in place and out of place:
//!
//! * The schedule is safe with zero credits.
//! * The messages (sender, receiver, order and lane) do not depend on `in_place`, so ranks may differ in it.
//! * All ranks get the same bits from an `all_reduce`, even where the operation is not associative.
//! * The FIFO order of messages decides only which send matches which receive. The builder does not rely on
//!   that order for the safety of data: a lane per message would be safe, too.
//!
//! A planner knows no sizes. It does not segment, replicate or stripe either: the builder does, by
//! [passes](crate::pass).

use crate::pass;
use crate::schedule::Schedule;
use crate::{Collective, Numerics, PlanError, RingOrder, Spec, UnknownName};

mod aggregated;
pub mod all_gather;
pub mod all_reduce;
pub mod all_to_all;
pub mod barrier;
pub mod broadcast;
pub mod exclusive_scan;
mod fold;
pub mod gather;
mod halving;
mod hops;
mod pairs;
pub mod reduce;
pub mod reduce_scatter;
mod renumber;
pub mod scan;
pub mod scatter;
pub mod send_recv;
mod sub_ring;
mod trees;

/// An algorithm: one row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Algorithm {
    /// The collective that it plans.
    pub collective: Collective,
    /// The name, unique within the collective.
    pub name: &'static str,
    /// A one-line description.
    pub about: &'static str,
    /// The most ranks that it plans for. The limit bounds the size of plans; it is not needed for
    /// correctness.
    pub max_ranks: u32,
    /// The strongest guarantee about the order of reduction that it can give.
    pub numerics: Numerics,
    planner: fn(&Spec) -> Result<Schedule, PlanError>,
}

macro_rules! algorithms {
    ($(
        $collective:ident $planner:path as $public:literal up to $max:literal $numerics:ident :
        $about:literal;
    )*) => {
        &[$(Algorithm {
            collective: Collective::$collective,
            name: $public,
            about: $about,
            max_ranks: $max,
            numerics: Numerics::$numerics,
            planner: $planner,
        }),*]
    };
}

/// Name of the algorithms that relay messages along a tree.
const RELAYING: &str = "spanning_tree";

/// Names of the algorithms whose messages go along a ring of all ranks, or along a part of it.
const ALONG_RINGS: [&str; 3] = ["ring", "bidirectional_ring", "chain"];

/// All algorithms. Every collective has one for up to 1024 ranks, and its first is its default.
pub const ALGORITHMS: &[Algorithm] = algorithms! {
    AllReduce all_reduce::ring::plan as "ring" up to 1024 Fast:
        "reduce-scatter, then all-gather around one ring; least traffic, 2(n-1) stages";
    AllReduce all_reduce::bidirectional_ring::plan as "bidirectional_ring" up to 512 Fast:
        "two rings in opposite directions, each with half of the data; uses both directions of every cable";
    AllReduce all_reduce::mesh::plan as "mesh" up to 256 Reproducible:
        "every rank sends its block to every other rank; one stage, for small messages";
    AllReduce all_reduce::reduce_scatter_all_gather::plan as "rsag_mesh" up to 256 Reproducible:
        "reduce-scatter, then all-gather over direct links; least traffic, 2 stages";
    AllReduce all_reduce::recursive_doubling::plan as "recursive_doubling" up to 4096 Reproducible:
        "pairs exchange and combine everything, log2(n) stages; for small messages on many ranks";
    AllReduce all_reduce::double_binary_tree::plan as "double_binary_tree" up to 4096 Fast:
        "two complementary trees, each with half of the data; logarithmic, segments pipeline it";
    AllReduce all_reduce::rabenseifner::plan as "rabenseifner" up to 4096 Reproducible:
        "recursive halving, then doubling; least traffic in 2 log2(n) stages";
    AllReduce all_reduce::reduce_broadcast::plan as "reduce_broadcast" up to 4096 Reproducible:
        "up a binomial tree and down again; fewest messages in total";
    AllReduce all_reduce::multi_ring::plan as "multi_ring" up to 256 Fast:
        "up to four rings, each through the ranks in another order; for several links per rank";
    AllReduce all_reduce::torus::plan as "torus" up to 1024 Fast:
        "rings in the rows of a rectangle, then in its columns; least traffic in about 4 sqrt(n) stages";
    AllReduce all_reduce::hierarchical::plan as "hierarchical" up to 256 Fast:
        "within hosts, around rings between them, then within hosts again";
    AllReduce all_reduce::spanning_tree::plan as "spanning_tree" up to 64 Reproducible:
        "sums along a tree of cables to its center, and the result back";
    AllGather all_gather::ring::plan as "ring" up to 1024 Reproducible:
        "blocks travel around the ring, n-1 stages";
    AllGather all_gather::direct::plan as "direct" up to 256 Reproducible:
        "every rank sends its block to every other rank, one stage";
    AllGather all_gather::recursive_doubling::plan as "recursive_doubling" up to 4096 Reproducible:
        "pairs exchange all their blocks, log2(n) stages; bruck unless n is a power of two";
    AllGather all_gather::bruck::plan as "bruck" up to 4096 Reproducible:
        "runs of blocks travel 1, 2, 4, ... ranks back, log2(n) stages for any n";
    AllGather all_gather::neighbour_exchange::plan as "neighbour_exchange" up to 1024 Reproducible:
        "two blocks at a time with alternating neighbors, n/2 stages; ring for odd n";
    AllGather all_gather::pat::plan as "pat" up to 1024 Reproducible:
        "aggregated trees, the furthest first; log2(n) stages, little data travels far";
    AllGather all_gather::bidirectional_ring::plan as "bidirectional_ring" up to 1024 Reproducible:
        "blocks travel half of the ring in either direction, n/2 stages";
    AllGather all_gather::hierarchical::plan as "hierarchical" up to 256 Reproducible:
        "every block once to every host, then to all its ranks";
    AllGather all_gather::spanning_tree::plan as "spanning_tree" up to 64 Reproducible:
        "blocks along a tree of cables, from neighbor to neighbor";
    ReduceScatter reduce_scatter::ring::plan as "ring" up to 1024 Fast:
        "partial sums travel around the ring, n-1 stages";
    ReduceScatter reduce_scatter::direct::plan as "direct" up to 256 Reproducible:
        "every rank sends each block to its owner, one stage";
    ReduceScatter reduce_scatter::recursive_halving::plan as "recursive_halving" up to 1024 Reproducible:
        "pairs exchange halves of their blocks, log2(n) stages";
    ReduceScatter reduce_scatter::pairwise::plan as "pairwise" up to 1024 Fast:
        "one partner after the other, n-1 stages";
    ReduceScatter reduce_scatter::pat::plan as "pat" up to 1024 Fast:
        "aggregated trees, the furthest last; log2(n) stages, little data travels far";
    ReduceScatter reduce_scatter::bidirectional_ring::plan as "bidirectional_ring" up to 1024 Fast:
        "sums come from both sides of the ring, n/2 stages";
    ReduceScatter reduce_scatter::spanning_tree::plan as "spanning_tree" up to 64 Reproducible:
        "sums along a tree of cables to the owner of each block";
    Broadcast broadcast::binomial::plan as "binomial" up to 4096 Reproducible:
        "the number of ranks that have the data doubles in every stage";
    Broadcast broadcast::chain::plan as "chain" up to 4096 Reproducible:
        "from rank to rank down a chain; segments pipeline it";
    Broadcast broadcast::direct::plan as "direct" up to 4096 Reproducible:
        "the root sends to every rank, one stage";
    Broadcast broadcast::knomial::plan4 as "knomial4" up to 4096 Reproducible:
        "the number of ranks that have the data grows fourfold per level";
    Broadcast broadcast::knomial::plan8 as "knomial8" up to 4096 Reproducible:
        "the number of ranks that have the data grows eightfold per level";
    Broadcast broadcast::scatter_all_gather::plan as "scatter_all_gather" up to 1024 Reproducible:
        "pieces down a tree, then around the ring; for large blocks without segments";
    Broadcast broadcast::double_tree::plan as "double_tree" up to 4096 Reproducible:
        "down two complementary trees, each with half of the data; segments pipeline it";
    Broadcast broadcast::spanning_tree::plan as "spanning_tree" up to 64 Reproducible:
        "along a tree of cables, from neighbor to neighbor";
    Reduce reduce::binomial::plan as "binomial" up to 4096 Reproducible:
        "the number of sums halves in every stage";
    Reduce reduce::chain::plan as "chain" up to 4096 Fast:
        "partial sums go from rank to rank around to the root; segments pipeline it";
    Reduce reduce::direct::plan as "direct" up to 4096 Reproducible:
        "every rank sends to the root, one stage";
    Reduce reduce::knomial::plan4 as "knomial4" up to 4096 Fast:
        "the number of sums shrinks to a quarter per level";
    Reduce reduce::reduce_scatter_gather::plan as "reduce_scatter_gather" up to 4096 Reproducible:
        "recursive halving, then a gather; for large blocks without segments";
    Reduce reduce::double_tree::plan as "double_tree" up to 4096 Fast:
        "up two complementary trees, each with half of the data; segments pipeline it";
    Reduce reduce::spanning_tree::plan as "spanning_tree" up to 64 Reproducible:
        "sums along a tree of cables to the root";
    Gather gather::direct::plan as "direct" up to 4096 Reproducible:
        "every rank sends its block to the root, one stage";
    Gather gather::chain::plan as "chain" up to 1024 Reproducible:
        "blocks travel down a chain to the root, n-1 stages; for rings of cables";
    Gather gather::binomial::plan as "binomial" up to 4096 Reproducible:
        "blocks of whole subtrees up a tree, log2(n) stages";
    Gather gather::spanning_tree::plan as "spanning_tree" up to 64 Reproducible:
        "blocks along a tree of cables to the root";
    Scatter scatter::direct::plan as "direct" up to 4096 Reproducible:
        "the root sends every rank its block, one stage";
    Scatter scatter::chain::plan as "chain" up to 1024 Reproducible:
        "blocks travel down a chain from the root, n-1 stages; for rings of cables";
    Scatter scatter::binomial::plan as "binomial" up to 4096 Reproducible:
        "blocks of whole subtrees down a tree, log2(n) stages";
    Scatter scatter::spanning_tree::plan as "spanning_tree" up to 64 Reproducible:
        "blocks along a tree of cables from the root";
    Scan scan::chain::plan as "chain" up to 4096 Reproducible:
        "partial sums go from rank to rank down a chain; segments pipeline it";
    Scan scan::recursive_doubling::plan as "recursive_doubling" up to 4096 Fast:
        "sums of 1, 2, 4, ... ranks travel as many ranks ahead, log2(n) stages";
    Scan scan::direct::plan as "direct" up to 256 Reproducible:
        "every rank sends to all higher ranks, one stage";
    Scan scan::spanning_tree::plan as "spanning_tree" up to 64 Reproducible:
        "partial sums from rank to rank, relayed along a tree of cables";
    ExclusiveScan exclusive_scan::chain::plan as "chain" up to 4096 Reproducible:
        "partial sums go from rank to rank down a chain; segments pipeline it";
    ExclusiveScan exclusive_scan::recursive_doubling::plan as "recursive_doubling" up to 4096 Fast:
        "sums of 1, 2, 4, ... ranks travel as many ranks ahead, log2(n) stages";
    ExclusiveScan exclusive_scan::direct::plan as "direct" up to 256 Reproducible:
        "every rank sends to all higher ranks, one stage";
    ExclusiveScan exclusive_scan::spanning_tree::plan as "spanning_tree" up to 64 Reproducible:
        "partial sums from rank to rank, relayed along a tree of cables";
    AllToAll all_to_all::direct::plan as "direct" up to 1024 Reproducible:
        "every rank sends each block to its destination, one stage";
    AllToAll all_to_all::ring::plan as "ring" up to 32 Reproducible:
        "blocks travel around the ring and leave at their destinations, n-1 stages; for rings of cables";
    AllToAll all_to_all::pairwise::plan as "pairwise" up to 1024 Reproducible:
        "one partner after the other, n-1 stages; in place with two blocks of scratch";
    AllToAll all_to_all::bruck::plan as "bruck" up to 1024 Reproducible:
        "blocks travel by the bits of their distance, log2(n) messages per rank; for tiny blocks";
    AllToAll all_to_all::spanning_tree::plan as "spanning_tree" up to 64 Reproducible:
        "blocks relayed along a tree of cables; for cables that form no ring";
    SendRecv send_recv::shift::plan as "shift" up to 4096 Reproducible:
        "every rank sends to the next rank and receives from the previous one";
    SendRecv send_recv::spanning_tree::plan as "spanning_tree" up to 64 Reproducible:
        "blocks relayed to the next rank along a tree of cables";
    Barrier barrier::dissemination::plan as "dissemination" up to 4096 Reproducible:
        "every rank signals the rank 1, 2, 4, ... ranks ahead, log2(n) stages";
    Barrier barrier::mesh::plan as "mesh" up to 256 Reproducible:
        "every rank signals every other rank; one stage, for few ranks";
    Barrier barrier::ring::plan as "ring" up to 1024 Reproducible:
        "every rank forwards the signals it has received to the next rank, n-1 stages; for rings of cables";
    Barrier barrier::recursive_doubling::plan as "recursive_doubling" up to 4096 Reproducible:
        "pairs signal each other, log2(n) stages";
    Barrier barrier::binomial::plan as "binomial" up to 4096 Reproducible:
        "up a tree and down again; fewest messages in total";
    Barrier barrier::spanning_tree::plan as "spanning_tree" up to 64 Reproducible:
        "signals along a tree of cables to its center and back";
};

/// Returns the algorithms of a collective.
pub fn algorithms(collective: Collective) -> impl Iterator<Item = &'static Algorithm> {
    ALGORITHMS.iter().filter(move |algorithm| algorithm.collective == collective)
}

/// Returns the first algorithm of a collective, for calls for which no rule names another one.
///
/// # Panics
/// If the collective has no algorithm.
#[must_use]
pub fn default_algorithm(collective: Collective) -> &'static Algorithm {
    algorithms(collective).next().expect("every collective has an algorithm")
}

/// Finds an algorithm by name, regardless of case; `-` stands for `_`.
///
/// # Errors
/// [`PlanError::UnknownAlgorithm`], which suggests the nearest name.
pub fn algorithm(collective: Collective, name: &str) -> Result<&'static Algorithm, PlanError> {
    // Fast path without allocation: selection looks up exact names in every new call.
    if let Some(exact) = algorithms(collective).find(|algorithm| algorithm.name == name) {
        return Ok(exact);
    }
    let lower = name.to_lowercase().replace('-', "_");
    algorithms(collective).find(|algorithm| algorithm.name == lower).ok_or_else(|| {
        let error = UnknownName::new("algorithm", name, algorithms(collective).map(|a| a.name));
        PlanError::UnknownAlgorithm { collective, error }
    })
}

/// Plans `spec` by the algorithm `name`, including segments.
///
/// # Errors
/// [`PlanError::UnknownAlgorithm`], and those of [`Algorithm::plan`].
pub fn plan(spec: &Spec, name: &str) -> Result<Schedule, PlanError> {
    algorithm(spec.collective(), name)?.plan(spec)
}

impl Algorithm {
    /// Plans `spec`, including segments. Its collective must be that of the algorithm.
    ///
    /// # Errors
    /// * [`PlanError::UnknownAlgorithm`] for a `spec` of another collective that has no algorithm of this
    ///   name.
    /// * [`PlanError::TooManyRanks`] above the limit of ranks.
    /// * [`PlanError::Order`] if the algorithm cannot keep the order of reduction.
    /// * [`PlanError::Unpackable`] if the messages cannot be packed as `spec` asks.
    /// * [`PlanError::TooLarge`] for too many segments, [`PlanError::Lanes`] for too many replicas or
    ///   stripes.
    pub fn plan(&self, spec: &Spec) -> Result<Schedule, PlanError> {
        if spec.collective() != self.collective {
            return algorithm(spec.collective(), self.name)?.plan(spec);
        }
        self.check_ranks(spec.ranks())?;
        self.check_numerics(spec.numerics())?;
        check_codec(spec)?;
        if spec.ring() == RingOrder::default() || !self.takes_ring_order() {
            return (self.planner)(spec);
        }
        Ok(renumber::renumber((self.planner)(&spec.by_position())?, spec))
    }

    /// Whether the plans go along a ring whose ranks may have any order ([`Spec::with_ring`]). Prefix sums go
    /// from rank to rank in the order of their numbers.
    #[must_use]
    pub fn takes_ring_order(&self) -> bool {
        let is_prefix_sum = matches!(self.collective, Collective::Scan | Collective::ExclusiveScan);
        ALONG_RINGS.contains(&self.name) && !is_prefix_sum
    }

    /// Whether the plans relay messages along a tree. Other plans are faster where they have all connections
    /// that they need.
    #[must_use]
    pub fn relays(&self) -> bool {
        self.name == RELAYING
    }

    /// Checks that the algorithm can keep an order of reduction.
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

    /// Checks that the algorithm can plan for `ranks` ranks.
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

/// Checks that the messages of a collective can be packed, if `spec` has a codec.
fn check_codec(spec: &Spec) -> Result<(), PlanError> {
    let Some(codec) = spec.codec() else { return Ok(()) };
    let why = match (spec.collective(), spec.numerics()) {
        _ if spec.weights().lanes() > 1 => pass::WHOLE_MESSAGES,
        (Collective::AllReduce, Numerics::Fast) => return Ok(()),
        (Collective::AllReduce, Numerics::Reproducible) => {
            "what is lost on the way depends on the algorithm, so results are not reproducible; ask for \
             fast numerics"
        }
        _ => "only those of all_reduce can be",
    };
    Err(PlanError::Unpackable { collective: spec.collective(), codec, why })
}
