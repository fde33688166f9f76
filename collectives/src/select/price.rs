//! Selection by simulation on a model of the cluster: bounds prune the algorithms, simulation decides.
//!
//! [`Candidates`] holds the algorithms that can do calls of one shape on the cluster of a [`Model`]. Two
//! values of each plan do not depend on the size of a call: the time with empty messages, and the seconds
//! that a byte of each chunk occupies the busiest link. They give a lower bound for every size
//! ([`Candidates::price`]). Candidates are simulated in the order of their bounds, whole and in a few numbers
//! of segments. A candidate whose bound is not below the best simulated time is not simulated.
//!
//! The bound of the busiest link holds for every plan and every number of segments: chunk sizes are rounded
//! down by the number of cache lines that segmentation may move between chunks. The bound of empty messages
//! assumes that longer messages do not make a plan faster. Exceptions can be constructed where processors
//! execute ready work in turn (R. Graham, "Bounds on multiprocessing timing anomalies", 1969); tests compare
//! with simulating everything.
//!
//! Results are a pure function of the arguments, and bitwise equal on all ranks. Calls of more than
//! [`MAX_RANKS`] ranks, and plans that exceed a budget of steps, are left to thresholds. This module caches
//! nothing: callers that price often keep the results (see [`bucket`]).

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

/// Most ranks of a priced call. Planning and simulating every algorithm for more would take seconds.
pub const MAX_RANKS: u32 = 64;

/// Most steps, of all ranks together, of a simulated plan.
const MAX_STEPS: usize = 150_000;

/// A model of a cluster: machines and cables, and the costs of messages and work.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The machines and cables.
    pub cluster: Cluster,
    /// The costs of messages and of work.
    pub costs: Costs,
}

/// The properties of a call except its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallShape {
    /// The collective.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: u32,
    /// The root, for collectives that have one.
    pub root: Rank,
    /// Whether input and output are the same memory.
    pub in_place: InPlace,
    /// Requirements on the plan.
    pub requirements: Requirements,
}

/// The candidates to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Candidates that their bounds do not rule out.
    Pruned,
    /// All candidates.
    Exhaustive,
}

/// The reason that a call has no price. Thresholds decide such calls.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unpriced {
    /// The call has more ranks than the model.
    #[error(
        "the model has {room} ranks and the call {ranks}, so thresholds decide; describe a larger cluster"
    )]
    TooFewRanks {
        /// Ranks of the call.
        ranks: u32,
        /// Ranks of the model.
        room: u32,
    },
    /// The call has more than [`MAX_RANKS`] ranks.
    #[error(
        "calls of more than {MAX_RANKS} ranks are not priced, and this one has {ranks}, so thresholds decide"
    )]
    TooManyRanks {
        /// Ranks of the call.
        ranks: u32,
    },
    /// No algorithm can do the call on this cluster.
    #[error("no algorithm of {collective} can do this call on this cluster: {why}")]
    NoCandidate {
        /// The collective.
        collective: Collective,
        /// The last excluded algorithm and its reason.
        why: String,
    },
}

/// An algorithm that cannot do the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded {
    /// Its name.
    pub algorithm: &'static str,
    /// The reason for the exclusion.
    pub why: String,
}

/// The price of one algorithm.
#[derive(Clone, Debug, PartialEq)]
pub struct Priced {
    /// Its name.
    pub algorithm: &'static str,
    /// A lower bound of the time in seconds, for every number of segments.
    pub bound: f64,
    /// The fastest number of segments and its time in seconds; `None` if the bound ruled the algorithm out.
    pub best: Option<(u32, f64)>,
    /// The simulated numbers of segments, each with its time in seconds.
    pub tried: Vec<(u32, f64)>,
}

/// The fastest algorithm and the figures that decided it.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The fastest algorithm and its number of segments.
    pub choice: Choice,
    /// The time of the choice, in seconds.
    pub seconds: f64,
    /// The algorithms that can do the call: simulated ones by time, then those that their bounds ruled out.
    pub candidates: Vec<Priced>,
    /// The algorithms that cannot do the call, in the order of the algorithm table.
    pub excluded: Vec<Excluded>,
    /// Lower bounds for every possible plan.
    pub bounds: Bounds,
}

/// The algorithms that can do calls of one shape on a cluster.
#[derive(Clone, Debug)]
pub struct Candidates<'a> {
    model: &'a Model,
    shape: CallShape,
    plans: Vec<PlanCosts>,
    excluded: Vec<Excluded>,
}

/// The costs of a plan that do not depend on the size of a call.
#[derive(Clone, Debug)]
struct PlanCosts {
    algorithm: &'static str,
    /// Chunks per block.
    chunks: u32,
    /// Steps of all ranks together.
    steps: usize,
    /// Time with empty messages, in seconds.
    empty: f64,
    /// Seconds per byte of a chunk on the busiest link.
    per_chunk_byte: f64,
}

/// Whether the default profile of a fabric file is one of Apple's.
fn is_apple(fabric: &toml::Table) -> bool {
    fabric.get("profile").and_then(toml::Value::as_str).is_some_and(|profile| profile.starts_with("apple"))
}

/// Rounds a size up to the next power of two, the key under which callers cache prices.
#[must_use]
pub fn bucket(block_bytes: u64) -> u64 {
    if block_bytes == 0 { 0 } else { block_bytes.checked_next_power_of_two().unwrap_or(1 << 62) }
}

impl Model {
    /// Parses the file of a cluster, as [`Cluster::from_toml`] does, with an optional `costs` key.
    ///
    /// `costs` is a name or a table; the default is `"rdma-held"` for a fabric of Apple's devices, and
    /// `"rdma"` for any other file. The devices of a fabric are software, which costs its ranks time.
    ///
    /// # Errors
    /// A message that says what is wrong in the cluster or its costs.
    pub fn from_toml(text: &str) -> Result<Model, String> {
        let cluster = Cluster::from_toml(text).map_err(|error| error.to_string())?;
        let mut table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
        let costs = match table.remove("costs") {
            None if is_apple(&table) => Costs::rdma_held().on_software_devices(),
            None if table.contains_key("node") => Costs::rdma().on_software_devices(),
            None => Costs::rdma(),
            Some(toml::Value::String(name)) => {
                name.parse().map_err(|error: crate::UnknownName| error.to_string())?
            }
            Some(other) => other.try_into().map_err(|error: toml::de::Error| {
                let message = error.message();
                format!("`costs`: {message}; name ideal, rdma, rdma-held or jaccl, or write a table")
            })?,
        };
        Ok(Model { cluster, costs })
    }

    /// Returns the data that determines prices as text: equal models have equal texts.
    #[must_use]
    pub fn canonical(&self) -> String {
        let ranks = self.cluster.ranks().min(MAX_RANKS);
        let mut text = format!("{} {:?} {:?}", self.cluster.ranks(), self.costs, self.cluster.links());
        for (a, b) in (0..ranks).flat_map(|a| (0..ranks).map(move |b| (a, b))) {
            // Writing to a string cannot fail.
            let _ = write!(text, " {:?}", self.cluster.route(Rank(a), Rank(b)));
        }
        text
    }

    /// Checks that calls of `ranks` ranks can be priced.
    ///
    /// # Errors
    /// [`Unpriced::TooManyRanks`] above [`MAX_RANKS`]; [`Unpriced::TooFewRanks`] above the ranks of the
    /// model.
    pub fn covers(&self, ranks: u32) -> Result<(), Unpriced> {
        let room = self.cluster.ranks();
        if ranks > MAX_RANKS {
            return Err(Unpriced::TooManyRanks { ranks });
        }
        if ranks > room { Err(Unpriced::TooFewRanks { ranks, room }) } else { Ok(()) }
    }
}

impl Priced {
    /// Orders simulated algorithms by time, then the others by their bounds.
    fn faster(a: &Priced, b: &Priced) -> Ordering {
        let key = |priced: &Priced| priced.best.map_or((1, priced.bound), |(_, seconds)| (0, seconds));
        let (a, b) = (key(a), key(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    }
}

impl<'a> Candidates<'a> {
    /// Divides the algorithms of a collective into candidates and excluded ones.
    ///
    /// A candidate can do calls of `shape`, is not excluded by `names`, and has a connection in `reach` and
    /// in the cluster for every message. Algorithms that relay messages are left out where no message has to
    /// be relayed.
    ///
    /// # Errors
    /// [`Unpriced::TooManyRanks`] or [`Unpriced::TooFewRanks`], as for [`Model::covers`].
    pub fn new(
        model: &'a Model,
        shape: CallShape,
        reach: &Reach,
        names: &Names,
    ) -> Result<Candidates<'a>, Unpriced> {
        model.covers(shape.ranks)?;
        let (mut plans, mut excluded) = (Vec::new(), Vec::new());
        let call = Call { collective: shape.collective, ranks: shape.ranks, block_bytes: 0 };
        // `PlanCosts::new` checks connections on the plan that it builds anyway.
        let everywhere = Reach::complete();
        let relays = shape.requirements.tree.is_some();
        let known = plan::algorithms(shape.collective).filter(|known| relays || !known.relays());
        for algorithm in known.map(|known| known.name) {
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

    /// Finds the fastest algorithm for blocks of `block_bytes` bytes.
    ///
    /// Of equally fast algorithms the one with the smaller bound wins, then the first of the table.
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
                // `min_by` returns the first of equal times, which has the fewest segments.
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

    /// Returns the candidates in the order of their bounds, not yet simulated, each with the numbers of
    /// segments to try.
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

    /// Returns the simulated time in seconds, or `None` if the plan cannot be simulated.
    #[must_use]
    pub fn seconds(&self, algorithm: &str, segments: u32, block_bytes: u64) -> Option<f64> {
        let tried = self.simulated(algorithm, block_bytes, &[segments]).ok()?;
        tried.first().map(|(_, seconds)| *seconds)
    }

    /// Simulates an algorithm with each number of segments. A plan that cannot be segmented is simulated
    /// whole only.
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
        .with_numerics(shape.requirements.numerics);
    let spec = shape.requirements.place(spec)?;
    plan::plan(&if shape.requirements.uneven { spec.with_uneven_blocks() } else { spec }, algorithm)
}

/// Simulates blocks of `block_bytes` elements of one byte.
fn outcome(model: &Model, schedule: &Schedule, block_bytes: u64) -> Result<Outcome, String> {
    let layout = schedule.layout(block_bytes, 1).map_err(|error| error.to_string())?;
    simulate(schedule, &layout, 1, &model.cluster, &model.costs).map_err(|error| error.to_string())
}

/// Segment sizes tried in addition, in bytes. A send that follows a receive forwards a long message in the
/// time of one link packet, however it is segmented; a message of few packets goes faster in shorter
/// segments.
const SHORT_SEGMENTS: [u64; 2] = [64 << 10, 16 << 10];

/// Returns the numbers of segments to try: one, the thresholds' number, twice that, and those that make short
/// segments up to `tuning.max_segments`. Numbers that give the plan too many steps are left out.
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
        if let Some((from, to)) = schedule.first_unconnected(reach) {
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

    /// Returns a lower bound in seconds for blocks of `block_bytes` bytes and all of these numbers of
    /// segments.
    fn bound(&self, block_bytes: u64, counts: &[u32], costs: &Costs) -> f64 {
        let most = counts.iter().copied().max().unwrap_or(1);
        // Segmentation assigns whole cache lines, the first segments first; the last line may be partial.
        let chunk =
            (block_bytes / u64::from(self.chunks)).saturating_sub(layout::LINE * (u64::from(most) + 1));
        (ANOMALY * self.empty)
            .max((costs.call_us + costs.send_us) * 1e-6 + self.per_chunk_byte * chunk as f64)
    }
}

/// Factor on the time with empty messages, since longer messages can make a plan faster: a rank that would
/// wait for one message may do other work (R. Graham: "Bounds on multiprocessing timing anomalies", SIAM
/// Journal on Applied Mathematics 17(2), 1969). The largest observed gain is 2 %.
const ANOMALY: f64 = 0.9;

/// Returns the largest ratio of carried chunks to bandwidth over all links, in seconds per byte of a chunk.
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
