//! The request to a planner, and the reasons to refuse one.

use crate::schedule::InPlace;
use crate::{Codec, Collective, Hosts, Numerics, RingOrder, SpanningTree, UnknownName, Weights};
use thiserror::Error;
use topology::{MAX_RANKS, Rank};

/// Maximum number of pieces that a chunk can be cut into.
pub const MAX_SEGMENTS: u32 = 1024;

/// Maximum number of steps of a segmented plan, of all ranks together: a gigabyte or two of memory.
pub const MAX_STEPS: u64 = 1 << 24;

/// Maximum number of copies of a plan.
pub const MAX_REPLICAS: u8 = 16;

/// A request to a planner. A `Spec` is consistent: its root is one of its ranks, its hosts have all of them,
/// and its numbers are within limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    collective: Collective,
    ranks: u32,
    root: Rank,
    in_place: InPlace,
    segments: u32,
    numerics: Numerics,
    hosts: Hosts,
    tree: SpanningTree,
    ring: RingOrder,
    replicas: u8,
    weights: Weights,
    only: Option<Rank>,
    uneven: bool,
    codec: Option<Codec>,
}

/// The error of a planner.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A number of ranks that no plan supports.
    #[error("{collective} cannot be planned for {ranks} ranks; a plan has 1 to {MAX_RANKS}")]
    Ranks {
        /// The collective.
        collective: Collective,
        /// The ranks asked for.
        ranks: u32,
    },
    /// More ranks than the algorithm supports.
    #[error(
        "{algorithm} plans {collective} for at most {max} ranks, not for {ranks}; choose one of {}",
        .instead.join(", ")
    )]
    TooManyRanks {
        /// The algorithm.
        algorithm: &'static str,
        /// The collective.
        collective: Collective,
        /// The ranks asked for.
        ranks: u32,
        /// The ranks that it can plan for.
        max: u32,
        /// Algorithms that can plan for this number.
        instead: Vec<&'static str>,
    },
    /// A root that is not one of the ranks.
    #[error("rank {root} cannot be the root of {collective} on {ranks} ranks; the last one is {}", ranks - 1)]
    Root {
        /// The collective.
        collective: Collective,
        /// The root asked for.
        root: Rank,
        /// The number of ranks.
        ranks: u32,
    },
    /// A root other than 0 for a collective that has none.
    #[error("{collective} has no root, so rank {root} cannot be it; leave the root at 0")]
    Rootless {
        /// The collective.
        collective: Collective,
        /// The root asked for.
        root: Rank,
    },
    /// A rank outside the plan.
    #[error("{collective} on {ranks} ranks has no plan for rank {rank}; the last one is {}", ranks - 1)]
    NoSuchRank {
        /// The collective.
        collective: Collective,
        /// The rank asked for.
        rank: Rank,
        /// The number of ranks.
        ranks: u32,
    },
    /// An algorithm that cannot keep to the canonical order.
    #[error(
        "{algorithm} combines contributions for {collective} in an order of its own, so its results are not \
         reproducible; choose {}",
        .instead.join(" or ")
    )]
    Order {
        /// The algorithm.
        algorithm: &'static str,
        /// The collective.
        collective: Collective,
        /// Algorithms that can.
        instead: Vec<&'static str>,
    },
    /// Packed messages in a plan that cannot have them.
    #[error("{collective} cannot have its messages packed as {codec}: {why}")]
    Unpackable {
        /// The collective.
        collective: Collective,
        /// The codec.
        codec: Codec,
        /// The reason and the remedy.
        why: &'static str,
    },
    /// Hosts that have more or fewer ranks than the plan.
    #[error("{hosts} are not {ranks} ranks; say how many of the {ranks} each host has")]
    Hosts {
        /// The hosts.
        hosts: Hosts,
        /// The ranks asked for.
        ranks: u32,
    },
    /// A tree of other ranks than those of the plan.
    #[error("the tree is not one of {ranks} ranks; make it of all ranks of the plan")]
    Tree {
        /// The ranks asked for.
        ranks: u32,
    },
    /// An order of other ranks than those of the plan.
    #[error("the order of the ring is not one of {ranks} ranks; make it of all ranks of the plan")]
    Ring {
        /// The ranks asked for.
        ranks: u32,
    },
    /// A number of segments out of range.
    #[error("{collective} cannot be cut into {segments} segments; ask for 1 (whole) to {MAX_SEGMENTS}")]
    Segments {
        /// The collective.
        collective: Collective,
        /// The segments asked for.
        segments: u32,
    },
    /// A number of copies out of range.
    #[error("there cannot be {replicas} copies of {collective}; ask for 1 (it alone) to {MAX_REPLICAS}")]
    Replicas {
        /// The collective.
        collective: Collective,
        /// The copies asked for.
        replicas: u8,
    },
    /// More lanes than can be told apart.
    #[error(
        "{collective} would take {lanes} lanes, more than 255; ask for fewer replicas, or stripe over fewer"
    )]
    Lanes {
        /// The collective.
        collective: Collective,
        /// The lanes that it would take.
        lanes: u32,
    },
    /// A segmented plan that would take too much memory.
    #[error(
        "{collective} in {segments} segments would be a plan of {steps} steps, more than {MAX_STEPS}; \
         ask for fewer segments"
    )]
    TooLarge {
        /// The collective.
        collective: Collective,
        /// The segments asked for.
        segments: u32,
        /// The steps that there would be on all ranks together.
        steps: u64,
    },
    /// The collective has no algorithm of this name.
    #[error("no such plan for {collective}: {error}")]
    UnknownAlgorithm {
        /// The collective.
        collective: Collective,
        /// The algorithm asked for, and those that exist.
        #[source]
        error: UnknownName,
    },
    /// A plan with a message between ranks that nothing connects.
    #[error(
        "{algorithm} sends messages of {collective} from rank {from} to rank {to}, and no cable connects \
         them; connect \
         them, or {}",
        remedy(*.collective, .instead)
    )]
    NoCable {
        /// The algorithm.
        algorithm: &'static str,
        /// The collective.
        collective: Collective,
        /// The sending rank.
        from: Rank,
        /// The receiving rank.
        to: Rank,
        /// Algorithms whose messages all have cables.
        instead: Vec<&'static str>,
    },
    /// An algorithm whose plans are for blocks of equal length.
    #[error(
        "{algorithm} for {collective} has no plan for blocks of unequal lengths; choose another one, or none"
    )]
    Uneven {
        /// The algorithm.
        algorithm: &'static str,
        /// The collective.
        collective: Collective,
    },
    /// All algorithms that could do a call are excluded by name.
    #[error(
        "all algorithms of {collective} that can do this call are excluded; exclude fewer with TBCCL_ALGO"
    )]
    AllExcluded {
        /// The collective.
        collective: Collective,
    },
    /// A schedule that cannot be cut into segments, since it is malformed or cannot run with zero credits.
    #[error(
        "{algorithm} for {collective} cannot be segmented: its messages do not match, or wait in a circle"
    )]
    Unsegmentable {
        /// The algorithm.
        algorithm: String,
        /// The collective.
        collective: Collective,
    },
}

/// Returns another remedy for a plan that lacks a cable.
fn remedy(collective: Collective, instead: &[&str]) -> String {
    match instead {
        [] => format!(
            "number the ranks in the order of the cables of a ring: {collective} has no plan for this wiring"
        ),
        able => format!("choose {}", able.join(" or ")),
    }
}

impl Spec {
    /// Creates the spec of a plan for `ranks` ranks, with root 0, out of place, unsegmented.
    ///
    /// # Errors
    /// [`PlanError::Ranks`] for no ranks, or more than [`MAX_RANKS`].
    pub fn new(collective: Collective, ranks: u32) -> Result<Spec, PlanError> {
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(PlanError::Ranks { collective, ranks });
        }
        let (root, in_place, numerics) = (Rank(0), InPlace::No, Numerics::Fast);
        let (hosts, weights) = (Hosts::One, Weights::ONE);
        Ok(Spec {
            collective,
            ranks,
            root,
            in_place,
            segments: 1,
            numerics,
            hosts,
            tree: SpanningTree::default(),
            ring: RingOrder::default(),
            replicas: 1,
            weights,
            only: None,
            uneven: false,
            codec: None,
        })
    }

    /// Returns the spec with another root.
    ///
    /// # Errors
    /// [`PlanError::Root`] when it is none of the ranks, [`PlanError::Rootless`] when the collective has no
    /// root and it is not 0.
    pub fn with_root(self, root: Rank) -> Result<Spec, PlanError> {
        let Spec { collective, ranks, .. } = self;
        if root.0 >= ranks {
            return Err(PlanError::Root { collective, root, ranks });
        }
        if root != Rank(0) && !collective.has_root() {
            return Err(PlanError::Rootless { collective, root });
        }
        Ok(Spec { root, ..self })
    }

    /// Returns the spec with input and output in the same memory, or not.
    #[must_use]
    pub const fn with_in_place(self, in_place: InPlace) -> Spec {
        Spec { in_place, ..self }
    }

    /// Returns the spec with every chunk cut into `segments` pieces; 1 leaves it whole.
    ///
    /// # Errors
    /// [`PlanError::Segments`] for none, or more than [`MAX_SEGMENTS`].
    pub fn with_segments(self, segments: u32) -> Result<Spec, PlanError> {
        if !(1..=MAX_SEGMENTS).contains(&segments) {
            return Err(PlanError::Segments { collective: self.collective, segments });
        }
        Ok(Spec { segments, ..self })
    }

    /// Returns the spec with a guarantee about the order in which contributions are combined.
    #[must_use]
    pub const fn with_numerics(self, numerics: Numerics) -> Spec {
        Spec { numerics, ..self }
    }

    /// Returns the spec for blocks of unequal lengths, see [`crate::uneven`].
    #[must_use]
    pub const fn with_uneven_blocks(self) -> Spec {
        Spec { uneven: true, ..self }
    }

    /// Returns the spec with a placement of ranks on hosts.
    ///
    /// # Errors
    /// [`PlanError::Hosts`] when the hosts have more or fewer ranks than the spec.
    pub fn with_hosts(self, hosts: Hosts) -> Result<Spec, PlanError> {
        if hosts.fits(self.ranks) {
            Ok(Spec { hosts, ..self })
        } else {
            Err(PlanError::Hosts { hosts, ranks: self.ranks })
        }
    }

    /// Returns the spec with a tree along which `spanning_tree` plans send messages; without one, that is the
    /// line of the ranks in their order.
    ///
    /// # Errors
    /// [`PlanError::Tree`] when the tree is not one of all ranks of the spec.
    pub fn with_tree(self, tree: SpanningTree) -> Result<Spec, PlanError> {
        match tree.fits(self.ranks) {
            true => Ok(Spec { tree, ..self }),
            false => Err(PlanError::Tree { ranks: self.ranks }),
        }
    }

    /// Returns the spec with an order of the ranks along which plans around a ring send messages; without
    /// one, that is the order of their numbers.
    ///
    /// # Errors
    /// [`PlanError::Ring`] when the order is not one of all ranks of the spec.
    pub fn with_ring(self, ring: RingOrder) -> Result<Spec, PlanError> {
        match ring.fits(self.ranks) {
            true => Ok(Spec { ring, ..self }),
            false => Err(PlanError::Ring { ranks: self.ranks }),
        }
    }

    /// Returns the spec for the positions of its ring instead of its ranks.
    pub(crate) fn by_position(self) -> Spec {
        let position = |rank: Rank| self.ring.position(rank).unwrap_or(rank);
        // A collective without a root has root 0 by its number.
        let root = if self.collective.has_root() { position(self.root) } else { self.root };
        Spec { root, only: self.only.map(position), ring: RingOrder::default(), ..self }
    }

    /// Returns the spec with `replicas` copies on lanes of their own, each with an equal part of every chunk;
    /// 1 changes nothing.
    ///
    /// # Errors
    /// [`PlanError::Replicas`] for none, or more than [`MAX_REPLICAS`].
    pub fn with_replicas(self, replicas: u8) -> Result<Spec, PlanError> {
        if !(1..=MAX_REPLICAS).contains(&replicas) {
            return Err(PlanError::Replicas { collective: self.collective, replicas });
        }
        Ok(Spec { replicas, ..self })
    }

    /// Returns the spec with every message split over lanes.
    #[must_use]
    pub const fn with_weights(self, weights: Weights) -> Spec {
        Spec { weights, ..self }
    }

    /// Returns the spec with every message packed by a codec, or with none packed; see [`crate::pass`].
    ///
    /// Only `all_reduce` has packed messages, in any order of additions.
    #[must_use]
    pub const fn with_codec(self, codec: Option<Codec>) -> Spec {
        Spec { codec, ..self }
    }

    /// Returns the spec for one rank alone: the rank's program equals that of the plan for all ranks, and the
    /// other programs are empty.
    ///
    /// The rank can execute such a plan, but the verifier cannot check it.
    ///
    /// # Errors
    /// [`PlanError::NoSuchRank`] for a rank outside the plan.
    pub fn only_for(self, rank: Rank) -> Result<Spec, PlanError> {
        if rank.0 >= self.ranks {
            return Err(PlanError::NoSuchRank { collective: self.collective, rank, ranks: self.ranks });
        }
        Ok(Spec { only: Some(rank), ..self })
    }

    /// Returns the collective.
    #[must_use]
    pub const fn collective(&self) -> Collective {
        self.collective
    }

    /// Returns the number of ranks; at least 1.
    #[must_use]
    pub const fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Returns the root; 0 for collectives without one.
    #[must_use]
    pub const fn root(&self) -> Rank {
        self.root
    }

    /// Returns whether input and output are the same memory.
    #[must_use]
    pub const fn in_place(&self) -> InPlace {
        self.in_place
    }

    /// Returns the number of pieces that each chunk is cut into; at least 1.
    #[must_use]
    pub const fn segments(&self) -> u32 {
        self.segments
    }

    /// Returns the guarantee about the order in which contributions are combined.
    #[must_use]
    pub const fn numerics(&self) -> Numerics {
        self.numerics
    }

    /// Whether blocks may differ in length.
    #[must_use]
    pub const fn uneven(&self) -> bool {
        self.uneven
    }

    /// Returns the placement of ranks on hosts.
    #[must_use]
    pub const fn hosts(&self) -> Hosts {
        self.hosts
    }

    /// Returns the tree of `spanning_tree` plans.
    #[must_use]
    pub const fn tree(&self) -> SpanningTree {
        self.tree
    }

    /// Returns the order of the ranks along plans around a ring.
    #[must_use]
    pub const fn ring(&self) -> RingOrder {
        self.ring
    }

    /// Returns the number of copies of the plan; at least 1.
    #[must_use]
    pub const fn replicas(&self) -> u8 {
        self.replicas
    }

    /// Returns the shares of the lanes in every message.
    #[must_use]
    pub const fn weights(&self) -> Weights {
        self.weights
    }

    /// Returns the codec of packed messages; `None` where no message is packed.
    #[must_use]
    pub const fn codec(&self) -> Option<Codec> {
        self.codec
    }

    /// Returns the rank that the plan is limited to; `None` for a plan for all ranks.
    #[must_use]
    pub const fn only(&self) -> Option<Rank> {
        self.only
    }

    /// Returns the ranks to plan for, ascending: all, or one.
    pub fn planned_ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        let planned = self.only.map_or(0..self.ranks, |rank| rank.0..rank.0 + 1);
        planned.map(Rank)
    }
}
