//! Enumeration of every plan that exists, for `tbccl plan verify --all` and the tests.

use crate::plan::{ALGORITHMS, Algorithm};
use crate::schedule::{InPlace, Schedule};
use crate::verify::{Credits, Fault, Report, verify};
use crate::{
    BlockLen, Codec, Collective, Hosts, Numerics, PlanError, RingOrder, Sizes, SpanningTree, Spec, Weights,
};
use std::fmt;
use std::ops::RangeInclusive;
use thiserror::Error;
use topology::Rank;

/// A plan to verify.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The planner.
    pub algorithm: &'static Algorithm,
    /// The spec of the plan.
    pub spec: Spec,
}

/// A plan that could not be made, or that is wrong.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum CaseError {
    /// The planner refused the spec.
    #[error("{case}: {error}")]
    Plan {
        /// The case, as it prints.
        case: String,
        /// The planner's error.
        #[source]
        error: PlanError,
    },
    /// The plan is wrong.
    #[error("{case}: {fault}")]
    Fault {
        /// The case, as it prints.
        case: String,
        /// The fault that the verifier found.
        #[source]
        fault: Box<Fault>,
    },
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { algorithm, spec } = self;
        write!(f, "{} {} on {} ranks", spec.collective(), algorithm.name, spec.ranks())?;
        if spec.collective().has_root() {
            write!(f, ", root {}", spec.root())?;
        }
        f.write_str(if spec.in_place() == InPlace::Yes { ", in place" } else { "" })?;
        f.write_str(if spec.numerics() == Numerics::Reproducible { ", reproducible" } else { "" })?;
        if spec.hosts() != Hosts::One {
            write!(f, ", {}", spec.hosts())?;
        }
        if spec.tree() != SpanningTree::default() {
            write!(f, ", tree {:?}", spec.tree())?;
        }
        if spec.ring() != RingOrder::default() {
            write!(f, ", ring {:?}", spec.ring())?;
        }
        if spec.replicas() > 1 {
            write!(f, ", {} replicas", spec.replicas())?;
        }
        if spec.weights() != Weights::ONE {
            write!(f, ", stripes {}", spec.weights())?;
        }
        if let Some(codec) = spec.codec() {
            write!(f, ", {codec}")?;
        }
        if spec.segments() > 1 { write!(f, ", {} segments", spec.segments()) } else { Ok(()) }
    }
}

impl Case {
    /// Plans the case.
    ///
    /// # Errors
    /// [`CaseError::Plan`] if the planner refuses the spec.
    pub fn plan(&self) -> Result<Schedule, CaseError> {
        self.algorithm.plan(&self.spec).map_err(|error| CaseError::Plan { case: self.to_string(), error })
    }

    /// Plans and verifies the case.
    ///
    /// # Errors
    /// [`CaseError::Plan`] if the planner refuses the spec; [`CaseError::Fault`] if the plan is wrong.
    pub fn verify(&self, credits: Credits) -> Result<Report, CaseError> {
        let fault = |fault| CaseError::Fault { case: self.to_string(), fault: Box::new(fault) };
        let report = verify(&self.plan()?, credits).map_err(fault)?;
        let promised = self.spec.numerics();
        if report.numerics < promised { Err(fault(Fault::Order { promised })) } else { Ok(report) }
    }
}

/// Returns a case for every plan on `ranks` ranks.
///
/// The cases cover every algorithm that supports this number of ranks, with every root, in place and out of
/// place, in every order of additions that it has, and with packed messages where they are possible. Where it
/// matters, hosts are dealt in several ways, trees have several shapes, and rings several orders. Each plan
/// is cut into each number of `segments`. Plans for different codecs are alike, so one codec stands for all.
/// Cases for different numbers of ranks are independent, so callers may distribute them over threads.
pub fn cases(ranks: u32, segments: &[u32]) -> impl Iterator<Item = Case> {
    let algorithms = ALGORITHMS.iter().filter(move |algorithm| algorithm.check_ranks(ranks).is_ok());
    algorithms.flat_map(move |algorithm| {
        let roots = if algorithm.collective.has_root() { ranks } else { 1 };
        let variants = (0..roots).flat_map(move |root| {
            let both = [InPlace::No, InPlace::Yes].into_iter();
            both.flat_map(move |in_place| segments.iter().map(move |k| (Rank(root), in_place, *k)))
        });
        variants.flat_map(move |(root, in_place, segments)| {
            packings(algorithm).flat_map(move |(numerics, codec)| {
                placements(algorithm, ranks).into_iter().filter_map(move |placement| {
                    let spec = Spec::new(algorithm.collective, ranks).ok()?.with_root(root).ok()?;
                    let spec = spec.with_in_place(in_place).with_segments(segments).ok()?;
                    let spec = match placement {
                        Placing::Hosts(hosts) => spec.with_hosts(hosts).ok()?,
                        Placing::Tree(tree) => spec.with_tree(tree).ok()?,
                        Placing::Ring(ring) => spec.with_ring(ring).ok()?,
                    };
                    Some(Case { algorithm, spec: spec.with_numerics(numerics).with_codec(codec) })
                })
            })
        })
    })
}

/// A property of the machines that some planners look at.
#[derive(Clone, Copy, Debug)]
enum Placing {
    Hosts(Hosts),
    Tree(SpanningTree),
    Ring(RingOrder),
}

/// Returns the placements of ranks that differ for planners.
fn placements(algorithm: &Algorithm, ranks: u32) -> Vec<Placing> {
    match algorithm.name {
        "hierarchical" => dealt_hosts(ranks).into_iter().map(Placing::Hosts).collect(),
        "spanning_tree" => trees(ranks).into_iter().map(Placing::Tree).collect(),
        _ if algorithm.takes_ring_order() && ranks <= RingOrder::MAX_RANKS => {
            ring_orders(ranks).into_iter().map(Placing::Ring).collect()
        }
        _ => vec![Placing::Hosts(Hosts::One)],
    }
}

/// Returns orders of the ranks along a ring: that of their numbers, and one in which few neighbors have
/// neighboring numbers.
fn ring_orders(ranks: u32) -> Vec<RingOrder> {
    let evens_first: Vec<Rank> = (0..ranks).step_by(2).chain((1..ranks).step_by(2).rev()).map(Rank).collect();
    let other = RingOrder::new(&evens_first).filter(|order| *order != RingOrder::default());
    [RingOrder::default()].into_iter().chain(other).collect()
}

/// Returns trees of different shapes: a line in the order of ranks, a line that begins elsewhere, a tree
/// whose ranks have two further ones, and a star around the last rank. Of many ranks, two or one of them.
fn trees(ranks: u32) -> Vec<SpanningTree> {
    let tree = |neighbor: &dyn Fn(u32) -> u32| {
        SpanningTree::new(&(0..ranks).map(|rank| Rank(neighbor(rank))).collect::<Vec<_>>())
    };
    let half = ranks / 2;
    // The ranks from the middle on, then the others.
    let turned = |rank: u32| match rank {
        rank if rank < half => rank.saturating_sub(1),
        rank if rank + 1 == ranks => 0,
        rank => rank + 1,
    };
    let shapes: [&dyn Fn(u32) -> u32; 4] =
        [&|rank| rank.saturating_sub(1), &turned, &|rank| rank.saturating_sub(1) / 2, &|rank| match rank {
            last if last + 1 == ranks => 0,
            _ => ranks - 1,
        }];
    let few = match ranks {
        0..=12 => 0..4,
        13..=24 => 1..3,
        _ => 2..3,
    };
    let mut trees: Vec<SpanningTree> = Vec::new();
    for shape in &shapes[few] {
        trees.extend(tree(shape).filter(|tree| !trees.contains(tree)));
    }
    trees
}

/// Returns the placements of ranks on hosts that differ for planners: hosts of many ranks and of few, full
/// and not.
fn dealt_hosts(ranks: u32) -> Vec<Hosts> {
    let sizes = [1, 2, 3, 4, 8].into_iter().filter(|size| *size < ranks);
    let dealt = sizes.flat_map(|size| [Hosts::Blocks(size), Hosts::Turns(size)]);
    let unequal = [vec![1, ranks - 1], vec![ranks.saturating_sub(3), 1, 2]];
    let unequal = unequal.iter().filter_map(|each| Sizes::new(each)).map(Hosts::Sizes);
    let unequal = unequal.filter(|hosts| hosts.fits(ranks));
    dealt.filter(|hosts| *hosts != Hosts::Turns(1)).chain(unequal).chain([Hosts::One]).collect()
}

/// Returns the numeric classes whose plans differ; one for a collective without reduction.
fn numerics_of(algorithm: &Algorithm) -> impl Iterator<Item = Numerics> + use<> {
    let (most, reduces) = (algorithm.numerics, algorithm.collective.reduces());
    Numerics::ALL.into_iter().filter(move |class| *class == Numerics::Fast || (reduces && *class <= most))
}

/// Returns the combinations of numerics and codec to plan for.
fn packings(algorithm: &Algorithm) -> impl Iterator<Item = (Numerics, Option<Codec>)> + use<> {
    let packed = (Numerics::Fast, Some(Codec::Int8(BlockLen::B128)));
    let packed = (algorithm.collective == Collective::AllReduce).then_some(packed);
    numerics_of(algorithm).map(|numerics| (numerics, None)).chain(packed)
}

/// Verifies all [`cases`] with zero credits, and returns their number. Calls `progress` with each number of
/// ranks before its cases.
///
/// # Errors
/// The error of the first case that fails.
pub fn verify_all(
    ranks: RangeInclusive<u32>,
    segments: &[u32],
    progress: &mut dyn FnMut(&str),
) -> Result<u64, CaseError> {
    let mut count = 0;
    for n in ranks {
        progress(&format!("{n} ranks"));
        for case in cases(n, segments) {
            case.verify(Credits(0))?;
            count += 1;
        }
    }
    Ok(count)
}
