//! Selection of the algorithm of a call and of the number of segments.
//!
//! The choice is a pure function of values on which all ranks of a call agree: the collective, the number of
//! ranks, the size of a block, and a [`Policy`] that every rank reads from the same source. Whether a call is
//! in place is not an input, since ranks may differ in it.
//!
//! The sources of a choice, in order of precedence:
//!
//! 1. `overrides`: rules and names that a person configured.
//! 2. `tuned`: measurements of these links.
//! 3. `price`: simulation on a model of the machines, if the policy has one.
//! 4. `oversubscribed`: thresholds for ranks that outnumber the cores of their host.
//! 5. `hierarchy`, the thresholds of [`Tuning`], and `cabled` where those need more cables than there are.
//!
//! `survey` uses the model to compare cablings.
//!
//! Where not every rank reaches every other rank, only plans whose messages all have a connection are chosen.
//! The plan itself, not the name of the algorithm, decides whether that holds.

mod cabled;
mod hierarchy;
mod overrides;
mod oversubscribed;
pub mod price;
pub mod survey;
#[cfg(test)]
mod tests;
mod tuned;

pub use overrides::{Names, Overrides, Rule, RulesError};
pub use tuned::{Fingerprint, Links, Tuned, TunedChoice, TunedError};

use crate::numerics::Core;
use crate::schedule::InPlace;
use crate::{
    Collective, Hosts, MAX_SEGMENTS, Numerics, PlanError, Rank, RingOrder, SpanningTree, Spec, plan,
};
use price::{CallShape, Candidates, Effort, Model};
use serde::Deserialize;
use topology::Reach;

/// Most ranks whose barrier takes one stage. With more, a rank's messages take longer than the waits between
/// the stages of other barriers.
const ONE_STAGE_BARRIER: u32 = 8;

/// Thresholds of selection. Keys that a file leaves out keep their defaults.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tuning {
    /// Most bytes that a rank sends or receives in total when `all_reduce`, or `reduce` on few ranks, takes
    /// one stage.
    pub mesh_bytes: u64,
    /// Largest block for which `all_reduce` takes one stage on two ranks. Both plans send as many bytes
    /// there.
    pub pair_bytes: u64,
    /// Most ranks for which data goes over direct links; more ranks use a ring.
    pub direct_ranks: u32,
    /// Largest block for which `all_reduce` uses recursive doubling where one stage would send too much.
    pub doubling_bytes: u64,
    /// Largest block that `broadcast` and `reduce` move over a binomial tree; larger blocks use a chain.
    pub binomial_bytes: u64,
    /// Largest block that `all_reduce` moves along a tree of cables where not all ranks are connected; larger
    /// blocks go around a ring.
    pub tree_bytes: u64,
    /// Target size of one pipelined message, in bytes.
    pub segment_bytes: u64,
    /// Most segments that a chunk is cut into.
    pub max_segments: u32,
    /// Bytes that a link between hosts carries in the time of one stage. A hierarchical plan must save this
    /// many bytes between hosts for each additional stage.
    pub stage_bytes: u64,
    /// Whether each message takes a system call at both ends, as over TCP, so that their number counts most
    /// where ranks share cores.
    pub messages_are_calls: bool,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            mesh_bytes: 48 << 10,
            pair_bytes: 48 << 10,
            direct_ranks: 16,
            doubling_bytes: 4 << 10,
            binomial_bytes: 64 << 10,
            tree_bytes: 128 << 10,
            segment_bytes: 512 << 10,
            max_segments: 64,
            stage_bytes: 64 << 10,
            messages_are_calls: false,
        }
    }
}

impl Tuning {
    /// Returns the thresholds for ranks on hosts of their own that reach each other by RDMA.
    ///
    /// A stage costs a latency there and few copies, so one stage pays for more bytes than in shared memory.
    /// On two ranks both plans of `all_reduce` send a block per rank. Two stages divide the reduction between
    /// the ranks and reduce each piece as it arrives, also in place. One stage in place reduces when all
    /// of it has come, since a block may not change before it has been sent. Blocks of more than 128 KiB
    /// travel in pieces, their halves in slots.
    #[must_use]
    pub fn rdma() -> Tuning {
        Tuning { mesh_bytes: 192 << 10, pair_bytes: 128 << 10, ..Tuning::default() }
    }

    /// Returns the thresholds for ranks that reach each other over TCP.
    ///
    /// Every message is a system call at both ends, so on two ranks one stage pays until the reduction of the
    /// second half takes longer. `all_reduce` in two stages and in one, two ranks of one host, us, on cores
    /// with and without a common cache: 64 KiB 14.3, 13.5 and 22, 20; 256 KiB 49, 38 and 68, 57; 512 KiB 83,
    /// 76 and 114, 110; 1 MiB 146, 158 and 205, 230.
    #[must_use]
    pub fn tcp() -> Tuning {
        Tuning { pair_bytes: 512 << 10, messages_are_calls: true, ..Tuning::default() }
    }
}

/// The properties of a call on which all ranks agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The collective.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: u32,
    /// Bytes of one block.
    pub block_bytes: u64,
}

/// Requirements on the plan beside the call itself, the same on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Requirements {
    /// Whether blocks may differ in length.
    pub uneven: bool,
    /// The required order of reduction.
    pub numerics: Numerics,
    /// The assignment of ranks to hosts.
    pub hosts: Hosts,
    /// The tree along which messages are relayed where not every rank reaches every other one; `None` where
    /// no message has to be relayed, or the ranks have no tree.
    pub tree: Option<SpanningTree>,
    /// The order of the ranks along a ring of connections; `None` where that of their numbers is one, or
    /// there is no ring.
    pub ring: Option<RingOrder>,
}

impl Requirements {
    /// Returns the requirements of ranks that reach each other in this way.
    #[must_use]
    pub fn within(self, ranks: u32, reach: &Reach) -> Requirements {
        let (tree, ring) =
            (SpanningTree::of(ranks, reach, self.hosts), RingOrder::of(ranks, reach, self.hosts));
        Requirements { tree, ring, ..self }
    }

    /// Adds hosts, tree and ring to the spec of a plan.
    ///
    /// # Errors
    /// [`PlanError::Hosts`], [`PlanError::Tree`] or [`PlanError::Ring`] if these have more or fewer ranks
    /// than the spec.
    pub fn place(&self, spec: Spec) -> Result<Spec, PlanError> {
        let spec = spec.with_hosts(self.hosts)?;
        let spec = self.tree.map_or(Ok(spec), |tree| spec.with_tree(tree))?;
        self.ring.map_or(Ok(spec), |ring| spec.with_ring(ring))
    }
}

/// The result of selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The name of the algorithm.
    pub algorithm: &'static str,
    /// Segments per chunk.
    pub segments: u32,
    /// The reason for the choice, for people.
    pub why: &'static str,
}

/// The inputs of selection beside the call, the same on all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// Algorithms that a person configured.
    pub overrides: Overrides,
    /// Measurements of these links, if there are any.
    pub tuned: Option<Tuned>,
    /// The model of machines and cables, if there is one. It decides the calls that were not measured.
    pub model: Option<Model>,
    /// Thresholds for calls that neither measurements nor the model decide.
    pub tuning: Tuning,
    /// Whether all ranks are on one host that has fewer cores than ranks.
    pub oversubscribed: bool,
}

/// Chooses the algorithm and the number of segments for a call.
///
/// The order of precedence is: the first matching rule, the requested names, measurements, the model,
/// thresholds. Algorithms with a message between ranks that do not reach each other are left out.
///
/// # Errors
/// The [`PlanError`] of [`check`] or of the algorithm's limits if a configured algorithm cannot do the call.
/// [`PlanError::NoCable`] if no algorithm has a connection for all its messages; the error names the pair of
/// ranks of the algorithm that needs neighbors only, if there is one. [`PlanError::AllExcluded`] if names
/// exclude every algorithm.
pub fn choose(
    call: Call,
    root: Rank,
    reach: &Reach,
    policy: &Policy,
    requirements: Requirements,
) -> Result<Choice, PlanError> {
    choose_with(call, root, reach, policy, requirements, || {
        simulated(call, root, reach, policy, requirements)
    })
}

/// Returns the choice of the policy's model, or `None` without a model or a simulated plan.
#[must_use]
pub fn simulated(
    call: Call,
    root: Rank,
    reach: &Reach,
    policy: &Policy,
    requirements: Requirements,
) -> Option<Choice> {
    let model = policy.model.as_ref()?;
    let Call { collective, ranks, block_bytes } = call;
    // The result must not depend on `in_place`, in which ranks may differ.
    let shape = CallShape { collective, ranks, root, in_place: InPlace::No, requirements };
    let candidates = Candidates::new(model, shape, reach, &policy.overrides.names).ok()?;
    let verdict = candidates.price(block_bytes, &policy.tuning, Effort::Pruned).ok()?;
    Some(verdict.choice)
}

/// Chooses as [`choose`] does, with a `simulated` choice that the caller may cache.
///
/// Calls `simulated` only if neither overrides nor measurements decide.
pub fn choose_with(
    call: Call,
    root: Rank,
    reach: &Reach,
    policy: &Policy,
    requirements: Requirements,
    simulated: impl FnOnce() -> Option<Choice>,
) -> Result<Choice, PlanError> {
    if let Some(choice) = override_choice(call, root, reach, policy, requirements)? {
        return Ok(choice);
    }
    let names = &policy.overrides.names;
    let tuned = policy.tuned.as_ref().and_then(|tuned| tuned.choose(call));
    let fit = |choice: &Choice| {
        names.is_allowed(choice.algorithm)
            && check_call(call, root, choice.algorithm, reach, requirements).is_ok()
    };
    if let Some(choice) = tuned.filter(fit) {
        return Ok(choice);
    }
    if let Some(choice) = simulated().filter(fit) {
        return Ok(choice);
    }
    let oversubscribed =
        if policy.oversubscribed { oversubscribed::choice(call, &policy.tuning) } else { None };
    if let Some(choice) = oversubscribed.filter(fit) {
        return Ok(choice);
    }
    let (preferred, why) = preferred(call, &policy.tuning);
    let with_segments =
        |algorithm, why| Choice { algorithm, segments: segments(call, algorithm, &policy.tuning), why };
    let hierarchical = hierarchy::preferred(call, requirements.hosts, preferred, policy.tuning.stage_bytes);
    let first = hierarchical.map(|(algorithm, why)| with_segments(algorithm, why)).filter(fit);
    if let Some(first) = first.or_else(|| Some(with_segments(preferred, why)).filter(fit)) {
        return Ok(first);
    }
    if !reach.is_complete() {
        let (names_first, why) = cabled::preferred(call, root, &requirements, &policy.tuning);
        let mut first = names_first.iter().filter(|name| names.is_allowed(name));
        let first = first.find_map(|name| Some(with_segments(name, why)).filter(fit));
        if let Some(first) = first {
            return Ok(first);
        }
    }
    let rest = plan::algorithms(call.collective).map(|a| a.name).filter(|name| names.is_allowed(name));
    let instead = "the preferred algorithm cannot do this call, or needs cables that are not there";
    let mut capable = rest.map(|name| with_segments(name, instead)).filter(fit);
    capable.next().ok_or_else(|| no_algorithm_error(call, root, reach, preferred, requirements))
}

/// Returns the algorithm that a person configured for a call, if any.
fn override_choice(
    call: Call,
    root: Rank,
    reach: &Reach,
    policy: &Policy,
    requirements: Requirements,
) -> Result<Option<Choice>, PlanError> {
    let segments = |algorithm, asked| match asked {
        0 => segments(call, algorithm, &policy.tuning),
        asked => asked,
    };
    if let Some(rule) = policy.overrides.rules.iter().find(|rule| rule.matches(call)) {
        let (algorithm, why) = (rule.algorithm, "a rule of the file says so");
        check_call(call, root, algorithm, reach, requirements)?;
        return Ok(Some(Choice { algorithm, segments: segments(algorithm, rule.segments), why }));
    }
    let mut refusal = None;
    for algorithm in policy.overrides.names.requested(call.collective) {
        let takes_uneven = plan::algorithm(call.collective, algorithm).is_ok_and(|a| a.takes_uneven_blocks());
        match check_call(call, root, algorithm, reach, requirements) {
            Ok(()) => {
                let why = "it was asked for by name";
                return Ok(Some(Choice { algorithm, segments: segments(algorithm, 0), why }));
            }
            // A name requested for all calls does not apply to calls whose unequal blocks the algorithm
            // cannot handle.
            Err(_) if requirements.uneven && !takes_uneven => {}
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    refusal.map_or(Ok(None), Err)
}

/// Checks that an algorithm can do a call.
///
/// # Errors
/// The [`PlanError`] that names the violated limit.
fn check_call(
    call: Call,
    root: Rank,
    algorithm: &str,
    reach: &Reach,
    requirements: Requirements,
) -> Result<(), PlanError> {
    let found = plan::algorithm(call.collective, algorithm)?;
    found.check_ranks(call.ranks)?;
    found.check_numerics(requirements.numerics)?;
    if requirements.uneven && !found.takes_uneven_blocks() {
        return Err(PlanError::Uneven { algorithm: found.name, collective: call.collective });
    }
    check(call, root, found.name, reach, requirements)
}

/// Returns the error for a call that no algorithm can do.
fn no_algorithm_error(
    call: Call,
    root: Rank,
    reach: &Reach,
    preferred: &str,
    requirements: Requirements,
) -> PlanError {
    let names = plan::algorithms(call.collective).map(|a| a.name);
    let between_neighbors = names.filter(|name| ["ring", "chain", "shift"].contains(name)).last();
    let errors = between_neighbors.into_iter().chain([preferred]);
    let mut errors: Vec<_> =
        errors.filter_map(|name| check_call(call, root, name, reach, requirements).err()).collect();
    // A missing cable is why the call fails, whatever else the plans between neighbors can't do. An algorithm
    // that only lacks support for unequal blocks is the least useful explanation.
    errors.sort_by_key(|error| match error {
        PlanError::Uneven { .. } => 2,
        PlanError::Order { .. } => 1,
        _ => 0,
    });
    errors.into_iter().next().unwrap_or(PlanError::AllExcluded { collective: call.collective })
}

/// Checks that all messages of a plan travel between ranks that reach each other.
///
/// # Errors
/// [`PlanError::NoCable`] with the first pair that does not, and the algorithms that work without that
/// connection. Other [`PlanError`]s if there is no such plan.
pub fn check(
    call: Call,
    root: Rank,
    algorithm: &str,
    reach: &Reach,
    requirements: Requirements,
) -> Result<(), PlanError> {
    match first_unconnected(call, root, algorithm, reach, requirements)? {
        None => Ok(()),
        Some((from, to)) => Err(PlanError::NoCable {
            algorithm: plan::algorithm(call.collective, algorithm)?.name,
            collective: call.collective,
            from,
            to,
            instead: capable_algorithms(call, root, reach, requirements),
        }),
    }
}

/// Returns the algorithms whose messages all have a connection.
fn capable_algorithms(
    call: Call,
    root: Rank,
    reach: &Reach,
    requirements: Requirements,
) -> Vec<&'static str> {
    let capable =
        plan::algorithms(call.collective).filter(|a| !requirements.uneven || a.takes_uneven_blocks());
    let capable = capable.filter(|a| a.check_numerics(requirements.numerics).is_ok());
    let names = capable.map(|algorithm| algorithm.name);
    names.filter(|name| first_unconnected(call, root, name, reach, requirements) == Ok(None)).collect()
}

fn first_unconnected(
    call: Call,
    root: Rank,
    algorithm: &str,
    reach: &Reach,
    requirements: Requirements,
) -> Result<Option<(Rank, Rank)>, PlanError> {
    if reach.is_complete() {
        return Ok(None);
    }
    let spec = requirements.place(Spec::new(call.collective, call.ranks)?.with_root(root)?)?;
    Ok(plan::plan(&spec, algorithm)?.first_unconnected(reach))
}

fn preferred(call: Call, tuning: &Tuning) -> (&'static str, &'static str) {
    let Call { collective, ranks, block_bytes } = call;
    let direct = ranks <= tuning.direct_ranks;
    let sent_bytes = block_bytes.saturating_mul(u64::from(ranks.saturating_sub(1)));
    match collective {
        Collective::AllReduce => {
            let in_one_stage = if ranks == 2 { tuning.pair_bytes } else { tuning.mesh_bytes };
            if sent_bytes <= in_one_stage {
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
        Collective::Reduce if direct && sent_bytes <= tuning.mesh_bytes => {
            ("direct", "small, on few ranks: one stage")
        }
        Collective::Reduce if block_bytes <= tuning.binomial_bytes => ("binomial", "small: fewest stages"),
        Collective::Reduce => ("chain", "large: every link carries it once, in a stream"),
        Collective::Barrier if ranks <= ONE_STAGE_BARRIER => ("mesh", "few ranks: one stage"),
        _ => {
            let name = plan::default_algorithm(collective).name;
            (name, reason_for_default(name))
        }
    }
}

/// Returns the reason for an algorithm that its collective uses for all sizes.
fn reason_for_default(algorithm: &str) -> &'static str {
    match algorithm {
        "chain" => "every link carries it once, in a stream",
        "direct" => "one stage",
        "dissemination" => "log2(n) stages on any number of ranks",
        "shift" => "the only one",
        _ => "the default",
    }
}

/// Returns the number of segments that brings messages closest to `tuning.segment_bytes`.
#[must_use]
pub fn segments(call: Call, algorithm: &str, tuning: &Tuning) -> u32 {
    let chunks = match (call.collective, algorithm) {
        (Collective::Barrier, _) => return 1,
        (Collective::AllReduce, "ring" | "rsag_mesh" | "torus" | "hierarchical") => call.ranks,
        (Collective::AllReduce, "bidirectional_ring") => 2 * call.ranks,
        (Collective::AllReduce, "multi_ring") => 4 * call.ranks,
        (Collective::AllReduce, "double_binary_tree") => 2,
        (Collective::Broadcast | Collective::Reduce, "double_tree") => 2,
        (Collective::AllReduce, "rabenseifner") | (Collective::Reduce, "reduce_scatter_gather") => {
            Core::of(call.ranks.max(1)).terms
        }
        (Collective::Broadcast, "scatter_all_gather") => call.ranks,
        _ => 1,
    };
    let chunk_bytes = call.block_bytes / u64::from(chunks.max(1));
    let pieces = chunk_bytes.div_ceil(tuning.segment_bytes.max(1));
    pieces.clamp(1, u64::from(tuning.max_segments.clamp(1, MAX_SEGMENTS))) as u32
}
