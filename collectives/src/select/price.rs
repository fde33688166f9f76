//! Which algorithm is fastest on a cluster, by simulation: bounds prune, simulation decides.
//!
//! [`Candidates`] are the algorithms that can do a kind of call on the cluster of a [`Model`], with two numbers of each plan
//! that do not depend on the size: how long it takes with empty messages, and how many seconds a byte of each chunk
//! occupies the link that carries most chunks for its rate. From these follows a bound for every size
//! ([`Candidates::price`]). Candidates are simulated in the order of their bounds, whole and in a few numbers of segments;
//! those whose bound is no better than what was already simulated are not.
//!
//! The link's part holds for every plan and cutting: bytes are rounded down by as many lines as segments may shift between
//! chunks. The part of empty messages takes for granted that longer messages don't make a plan faster. Where processors
//! carry out what is ready in turn, exceptions can be constructed (R. Graham, "Bounds on multiprocessing timing anomalies",
//! 1969); tests compare with simulating everything.
//!
//! All is a function of its arguments, and equal to the bit on all ranks. Calls of many ranks (above [`MAX_RANKS`]) and plans
//! of more than a budget of steps are left to thresholds. It knows no memory of earlier
//! prices: who asks often keeps them (see [`bucket`]).

#[cfg(test)]
mod tests;

use super::{Call, Choice, Names, Requirements, Tuning, check_call, segments};
use crate::schedule::{Direction, InPlace};
use crate::simulate::{
    Costs, Outcome,
    bounds::{Bounds, bounds},
    simulate,
};
use crate::{Collective, MAX_SEGMENTS, PlanError, Schedule, Spec, layout, plan};
use std::{cmp::Ordering, fmt::Write};
use thiserror::Error;
use topology::{Cluster, Rank, Reach};

/// Calls of more ranks are not priced: planning and simulating every algorithm would take seconds.
pub const MAX_RANKS: u32 = 64;

/// Plans of more steps, of all ranks together, are not simulated.
const MAX_STEPS: usize = 150_000;

/// What prices plans: machines and cables with numbers, and what work costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The machines and cables.
    pub cluster: Cluster,
    /// What messages and work cost.
    pub costs: Costs,
}

/// A kind of call: all but its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallShape {
    /// The collective.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: u32,
    /// The root, of collectives that have one.
    pub root: Rank,
    /// Are input and output the same memory?
    pub in_place: InPlace,
    /// What plans must be able to do beside it.
    pub requirements: Requirements,
}

/// How thoroughly candidates are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Those that their bounds don't rule out.
    Pruned,
    /// All.
    Exhaustive,
}

/// Why nothing is priced. Thresholds decide then.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unpriced {
    /// More ranks than the model has.
    #[error(
        "the model has {room} ranks and the call {ranks}, so thresholds decide; describe a larger cluster"
    )]
    TooFewRanks {
        /// The call's.
        ranks: u32,
        /// The model's.
        room: u32,
    },
    /// More than anyone would wait for.
    #[error(
        "calls of more than {MAX_RANKS} ranks are not priced, and this one has {ranks}, so thresholds decide"
    )]
    TooManyRanks {
        /// The call's.
        ranks: u32,
    },
    /// No algorithm can do the call on this cluster.
    #[error("no algorithm of {collective} can do this call on this cluster: {why}")]
    NoCandidate {
        /// The collective.
        collective: Collective,
        /// The last one, and its reason.
        why: String,
    },
}

/// An algorithm that is out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded {
    /// Its name.
    pub algorithm: &'static str,
    /// Why it can't be taken.
    pub why: String,
}

/// What an algorithm came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Priced {
    /// Its name.
    pub algorithm: &'static str,
    /// No cutting of its plan takes less, in seconds.
    pub bound: f64,
    /// The fastest number of segments and its seconds; none where the bound was enough to rule it out.
    pub best: Option<(u32, f64)>,
    /// All that was simulated: segments and seconds.
    pub tried: Vec<(u32, f64)>,
}

/// What is fastest, and all that decided it.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The fastest.
    pub choice: Choice,
    /// What it takes, in seconds.
    pub seconds: f64,
    /// Every algorithm that can do the call: the simulated ones by their times, then those ruled out by their bounds.
    pub candidates: Vec<Priced>,
    /// Those that can't, in the order of the table of algorithms.
    pub excluded: Vec<Excluded>,
    /// What no plan at all can undercut.
    pub bounds: Bounds,
}

/// The algorithms that can do a kind of call on a cluster.
#[derive(Clone, Debug)]
pub struct Candidates<'a> {
    model: &'a Model,
    shape: CallShape,
    plans: Vec<PlanCosts>,
    excluded: Vec<Excluded>,
}

/// What is known of a plan without a size.
#[derive(Clone, Debug)]
struct PlanCosts {
    algorithm: &'static str,
    /// Chunks of a block.
    chunks: u32,
    /// Of all ranks.
    steps: usize,
    /// Seconds with empty messages.
    empty: f64,
    /// Seconds for each byte of a chunk, on the link that takes longest.
    per_chunk_byte: f64,
}

/// The size that stands for all sizes of one bucket: the next power of two.
#[must_use]
pub fn bucket(block_bytes: u64) -> u64 {
    if block_bytes == 0 { 0 } else { block_bytes.checked_next_power_of_two().unwrap_or(1 << 62) }
}

impl Model {
    /// Reads a cluster's file, as [`Cluster::from_toml`], that may also have `costs`: a name (`costs = "rdma"`, which is also
    /// what is taken when there are none) or a table.
    ///
    /// # Errors
    /// What is wrong with either, for people.
    pub fn from_toml(text: &str) -> Result<Model, String> {
        let cluster = Cluster::from_toml(text).map_err(|error| error.to_string())?;
        let mut table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
        let costs = match table.remove("costs") {
            None => Costs::rdma(),
            Some(toml::Value::String(name)) => {
                name.parse().map_err(|error: crate::UnknownName| error.to_string())?
            }
            Some(other) => other.try_into().map_err(|error: toml::de::Error| {
                format!("`costs`: {}; name ideal, rdma or jaccl, or write a table", error.message())
            })?,
        };
        Ok(Model { cluster, costs })
    }

    /// Everything that prices follow from, in an order that does not depend on anything else: equal models have equal texts.
    #[must_use]
    pub fn canonical(&self) -> String {
        let ranks = self.cluster.ranks().min(MAX_RANKS);
        let mut text = format!("{} {:?} {:?}", self.cluster.ranks(), self.costs, self.cluster.links());
        for (a, b) in (0..ranks).flat_map(|a| (0..ranks).map(move |b| (a, b))) {
            // Writing to a string can't fail.
            let _ = write!(text, " {:?}", self.cluster.route(Rank(a), Rank(b)));
        }
        text
    }

    /// Can calls of so many ranks be priced?
    ///
    /// # Errors
    /// [`Unpriced`]: why not.
    pub fn covers(&self, ranks: u32) -> Result<(), Unpriced> {
        let room = self.cluster.ranks();
        if ranks > MAX_RANKS {
            return Err(Unpriced::TooManyRanks { ranks });
        }
        if ranks > room { Err(Unpriced::TooFewRanks { ranks, room }) } else { Ok(()) }
    }
}

impl Priced {
    /// The simulated ones by their times, then the others by their bounds.
    fn faster(a: &Priced, b: &Priced) -> Ordering {
        let key = |priced: &Priced| priced.best.map_or((1, priced.bound), |(_, seconds)| (0, seconds));
        let (a, b) = (key(a), key(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    }
}

impl<'a> Candidates<'a> {
    /// Sorts the algorithms of a collective into those that can do such calls, where `reach` and the cluster have a cable for
    /// every message and `names` does not exclude them, and those that can't.
    ///
    /// # Errors
    /// [`Unpriced`] when there are too many ranks.
    pub fn new(
        model: &'a Model,
        shape: CallShape,
        reach: &Reach,
        names: &Names,
    ) -> Result<Candidates<'a>, Unpriced> {
        model.covers(shape.ranks)?;
        let (mut plans, mut excluded) = (Vec::new(), Vec::new());
        let call = Call { collective: shape.collective, ranks: shape.ranks, block_bytes: 0 };
        // Whether its messages have cables is asked of the plan that is needed anyway.
        let everywhere = Reach::complete();
        for algorithm in plan::algorithms(shape.collective).map(|algorithm| algorithm.name) {
            let checked = if names.is_allowed(algorithm) {
                check_call(call, shape.root, algorithm, &everywhere, shape.requirements)
                    .map_err(|error| error.to_string())
            } else {
                Err("it is excluded by name".to_owned())
            };
            match checked.and_then(|()| PlanCosts::new(model, shape, algorithm, reach)) {
                Ok(plan_costs) => plans.push(plan_costs),
                Err(why) => excluded.push(Excluded { algorithm, why }),
            }
        }
        Ok(Candidates { model, shape, plans, excluded })
    }

    /// Finds the fastest for blocks of so many bytes. Where two are equally fast, the one with the smaller bound is taken,
    /// and then the first of the table.
    ///
    /// # Errors
    /// [`Unpriced::NoCandidate`] when no algorithm can do the call.
    pub fn price(&self, block_bytes: u64, tuning: &Tuning, effort: Effort) -> Result<Verdict, Unpriced> {
        let CallShape { collective, ranks, .. } = self.shape;
        let mut excluded = self.excluded.clone();
        let mut candidates: Vec<Priced> = Vec::new();
        let mut best: Option<(Choice, f64)> = None;
        for (mut priced, counts) in self.by_bounds(block_bytes, tuning) {
            if effort == Effort::Exhaustive || best.is_none_or(|(_, seconds)| priced.bound < seconds) {
                match self.simulated(priced.algorithm, block_bytes, &counts) {
                    Ok(tried) => priced.tried = tried,
                    Err(why) => {
                        excluded.push(Excluded { algorithm: priced.algorithm, why });
                        continue;
                    }
                }
                // The first of equals: fewer segments.
                priced.best = priced.tried.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
            }
            if let Some((segments, seconds)) = priced.best
                && best.is_none_or(|(_, fastest)| seconds < fastest)
            {
                let why = "simulated to be the fastest on the model";
                best = Some((Choice { algorithm: priced.algorithm, segments, why }, seconds));
            }
            candidates.push(priced);
        }
        let Some((choice, seconds)) = best else {
            let why =
                excluded.pop().map(|last| format!("{}: {}", last.algorithm, last.why)).unwrap_or_default();
            return Err(Unpriced::NoCandidate { collective, why });
        };
        candidates.sort_by(Priced::faster);
        let bounds = bounds(collective, ranks, block_bytes, &self.model.cluster, &self.model.costs);
        Ok(Verdict { choice, seconds, candidates, excluded, bounds })
    }

    /// The candidates in the order of their bounds, not yet simulated, and the numbers of segments to try.
    fn by_bounds(&self, block_bytes: u64, tuning: &Tuning) -> Vec<(Priced, Vec<u32>)> {
        let CallShape { collective, ranks, .. } = self.shape;
        let call = Call { collective, ranks, block_bytes };
        let of = |plan_costs: &PlanCosts| {
            let algorithm = plan_costs.algorithm;
            let chunk_bytes = block_bytes / u64::from(plan_costs.chunks);
            let counts = segment_candidates(
                segments(call, algorithm, tuning),
                chunk_bytes,
                plan_costs,
                collective,
                tuning,
            );
            let bound = plan_costs.bound(block_bytes, &counts, &self.model.costs);
            (Priced { algorithm, bound, best: None, tried: Vec::new() }, counts)
        };
        let mut order: Vec<_> = self.plans.iter().map(of).collect();
        order.sort_by(|a, b| a.0.bound.total_cmp(&b.0.bound));
        order
    }

    /// What a choice takes for blocks of so many bytes, in seconds; none where it can't be simulated.
    #[must_use]
    pub fn seconds(&self, algorithm: &str, segments: u32, block_bytes: u64) -> Option<f64> {
        let tried = self.simulated(algorithm, block_bytes, &[segments]).ok()?;
        tried.first().map(|(_, seconds)| *seconds)
    }

    /// The seconds of an algorithm in these numbers of segments. Where the plan cannot be cut, it is tried whole only.
    fn simulated(
        &self,
        algorithm: &str,
        block_bytes: u64,
        counts: &[u32],
    ) -> Result<Vec<(u32, f64)>, String> {
        let mut tried = Vec::new();
        for segments in counts {
            let run = planned(self.shape, algorithm, *segments)
                .map_err(|error| error.to_string())
                .and_then(|schedule| outcome(self.model, &schedule, block_bytes));
            match run {
                Ok(outcome) => tried.push((*segments, outcome.makespan)),
                Err(why) if tried.is_empty() => return Err(why),
                Err(_) => {}
            }
        }
        Ok(tried)
    }
}

fn planned(shape: CallShape, algorithm: &str, segments: u32) -> Result<Schedule, PlanError> {
    let spec = Spec::new(shape.collective, shape.ranks)?
        .with_root(shape.root)?
        .with_in_place(shape.in_place)
        .with_segments(segments)?
        .with_numerics(shape.requirements.numerics)
        .with_hosts(shape.requirements.hosts)?;
    plan::plan(&if shape.requirements.uneven { spec.with_uneven_blocks() } else { spec }, algorithm)
}

/// Simulates blocks of so many elements of one byte.
fn outcome(model: &Model, schedule: &Schedule, block_bytes: u64) -> Result<Outcome, String> {
    let layout = schedule.layout(block_bytes, 1).map_err(|error| error.to_string())?;
    simulate(schedule, &layout, 1, &model.cluster, &model.costs).map_err(|error| error.to_string())
}

/// Segments of so many bytes are tried as well. Sends that follow receives take a long message through a rank in the time of a
/// link's piece, whatever it is cut into; a message of few pieces goes faster in segments that are shorter than those.
const SHORT_SEGMENTS: [u64; 2] = [64 << 10, 16 << 10];

/// The numbers of segments that are tried of chunks of so many bytes: one, what suits by thresholds, twice as many, and what
/// makes short segments, no more than thresholds would take at most; as far as the plan has not too many steps then.
fn segment_candidates(
    usual: u32,
    chunk_bytes: u64,
    plan_costs: &PlanCosts,
    collective: Collective,
    tuning: &Tuning,
) -> Vec<u32> {
    if collective == Collective::Barrier {
        return vec![1];
    }
    let most = u64::from(tuning.max_segments);
    let short = SHORT_SEGMENTS.map(|bytes| chunk_bytes.div_ceil(bytes).min(most) as u32);
    let mut counts = vec![1, usual, 2 * usual, short[0], short[1]];
    counts.retain(|count| {
        *count == 1
            || ((2..=MAX_SEGMENTS).contains(count)
                && plan_costs.steps.saturating_mul(*count as usize) <= MAX_STEPS)
    });
    counts.sort_unstable();
    counts.dedup();
    counts
}

impl PlanCosts {
    fn new(
        model: &Model,
        shape: CallShape,
        algorithm: &'static str,
        reach: &Reach,
    ) -> Result<PlanCosts, String> {
        let schedule = planned(shape, algorithm, 1).map_err(|error| error.to_string())?;
        if let Some((from, to)) = schedule.gap(reach) {
            return Err(format!("it sends from rank {from} to rank {to}, and no cable connects them"));
        }
        let steps = schedule.programs.iter().map(|program| program.steps.len()).sum();
        if steps > MAX_STEPS {
            return Err(format!("its plan has {steps} steps, and no more than {MAX_STEPS} are simulated"));
        }
        let empty = outcome(model, &schedule, 0)?.makespan;
        let per_chunk_byte = busiest(&schedule, &model.cluster);
        Ok(PlanCosts { algorithm, chunks: schedule.chunks.max(1), steps, empty, per_chunk_byte })
    }

    /// No plan takes less for blocks of so many bytes, in seconds, in none of these numbers of segments.
    fn bound(&self, block_bytes: u64, counts: &[u32], costs: &Costs) -> f64 {
        let most = counts.iter().copied().max().unwrap_or(1);
        // Blocks are dealt to pieces in whole lines, the first ones first; the last line may not be full.
        let chunk =
            (block_bytes / u64::from(self.chunks)).saturating_sub(layout::LINE * (u64::from(most) + 1));
        (ANOMALY * self.empty)
            .max((costs.call_us + costs.send_us) * 1e-6 + self.per_chunk_byte * chunk as f64)
    }
}

/// Longer messages can make a plan faster: who waits for one may be busy with another in the meantime (R. Graham: "Bounds
/// on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17(2), 1969). They were seen to do so by 2 %.
const ANOMALY: f64 = 0.9;

/// The chunks that the busiest link carries, over its rate.
fn busiest(schedule: &Schedule, cluster: &Cluster) -> f64 {
    let mut carried = vec![0u64; cluster.links().len()];
    for (id, step) in schedule.steps() {
        if let (Some((to, Direction::Out)), Some(range)) = (step.action.message(), step.action.payload())
            && let Some(route) = cluster.route(Rank(id.rank), to)
        {
            route.links().iter().for_each(|link| carried[*link as usize] += u64::from(range.len));
        }
    }
    let links = cluster.links().iter().zip(carried);
    links.map(|(link, chunks)| chunks as f64 / link.bytes_per_second).fold(0.0, f64::max)
}
