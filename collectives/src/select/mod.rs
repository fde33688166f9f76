//! Which algorithm, and into how many pieces.
//!
//! The choice is a pure function of what all ranks of a call agree on: collective, ranks, count, element size, and a
//! [`Policy`] that they read from the same place. Whether a call is in place is not among it, since ranks may differ in
//! that. What people want comes first (`overrides`), then what was measured (`tuned`), then what a model of the machines
//! says, if there is one (`price`), then few thresholds. `survey` asks the model which cables to plug in.
//!
//! Where not every rank reaches every other, only plans are chosen whose messages travel where they can. Whether one does
//! is read off the plan itself.

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
use crate::{Collective, Hosts, MAX_SEGMENTS, Numerics, PlanError, Rank, Spec, plan};
use price::{CallShape, Candidates, Effort, Model};
use serde::Deserialize;
use topology::Reach;

/// The thresholds. Read from a file, what is left out has its default.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tuning {
    /// `all_reduce`, and `reduce` on few ranks, go in one shot while a rank sends, or gets, at most so many bytes in all.
    pub mesh_bytes: u64,
    /// Up to so many ranks, data goes over direct links; above, round a ring.
    pub direct_ranks: u32,
    /// `all_reduce` of blocks up to this size goes by recursive doubling, where one shot would send too much.
    pub doubling_bytes: u64,
    /// `broadcast` of blocks up to this size goes down a binomial tree; above, down a line.
    pub binomial_bytes: u64,
    /// The size of a message that pipelines aim at.
    pub segment_bytes: u64,
    /// The pieces that a chunk is cut into at most.
    pub max_segments: u32,
    /// What a link between hosts carries in the time that one more stage takes: so many bytes of a host's must a plan of
    /// several hosts save for each stage that it has more.
    pub stage_bytes: u64,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            mesh_bytes: 48 << 10,
            direct_ranks: 16,
            doubling_bytes: 4 << 10,
            binomial_bytes: 64 << 10,
            segment_bytes: 512 << 10,
            max_segments: 64,
            stage_bytes: 64 << 10,
        }
    }
}

/// What a call is about, as far as all ranks agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The collective.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: u32,
    /// The bytes of one block.
    pub block_bytes: u64,
}

/// What a plan must keep to beside the call, the same on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Requirements {
    /// Blocks may differ in length.
    pub uneven: bool,
    /// The order in which contributions are combined.
    pub numerics: Numerics,
    /// Which ranks share a host.
    pub hosts: Hosts,
}

/// What to plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The name of the algorithm.
    pub algorithm: &'static str,
    /// The pieces that each chunk is cut into.
    pub segments: u32,
    /// The rule that decided.
    pub why: &'static str,
}

/// All that decides a choice, the same on all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// What people want.
    pub overrides: Overrides,
    /// What was measured, if anything was on these links.
    pub tuned: Option<Tuned>,
    /// The machines and cables, if they are described: what was not measured is simulated.
    pub model: Option<Model>,
    /// The thresholds for what was not.
    pub tuning: Tuning,
    /// All ranks are on one host, which has fewer cores.
    pub oversubscribed: bool,
}

/// Chooses the algorithm and the segments for a call: by the first rule that matches, by name, by what was measured, by
/// what the model says of the size, by thresholds, in this order; among the algorithms all of whose messages travel
/// between ranks that reach each other.
///
/// # Errors
/// [`PlanError`] when what people want cannot do the call. [`PlanError::NoCable`] when nothing can; it names a pair of
/// ranks that lacks a cable, of the algorithm that needs neighbours only if there is one.
pub fn choose(
    call: Call,
    root: Rank,
    reach: &Reach,
    policy: &Policy,
    requirements: Requirements,
) -> Result<Choice, PlanError> {
    choose_by(call, root, reach, policy, requirements, || simulated(call, root, reach, policy, requirements))
}

/// What the model of a policy says of a call, if it has one that says anything.
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
    // Ranks may differ in whether a call is in place.
    let shape = CallShape { collective, ranks, root, in_place: InPlace::No, requirements };
    let candidates = Candidates::new(model, shape, reach, &policy.overrides.names).ok()?;
    let verdict = candidates.price(block_bytes, &policy.tuning, Effort::Pruned).ok()?;
    Some(verdict.choice)
}

/// As [`choose`], for callers that keep what the model says: `simulated` is asked only where it decides.
///
/// # Errors
/// As for [`choose`].
pub fn choose_by(
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
    let rest = plan::algorithms(call.collective).map(|a| a.name).filter(|name| names.is_allowed(name));
    let instead = "the preferred algorithm cannot do this call, or needs cables that are not there";
    let mut capable = rest.map(|name| with_segments(name, instead)).filter(fit);
    capable.next().ok_or_else(|| no_algorithm_error(call, root, reach, preferred, requirements))
}

/// What people want for a call, if they want anything.
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
            // Who asks for an algorithm means calls that have it.
            Err(_) if requirements.uneven && !takes_uneven => {}
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    refusal.map_or(Ok(None), Err)
}

/// Can an algorithm do a call?
///
/// # Errors
/// [`PlanError`]: why not.
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

/// Why nothing can do a call.
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
    // What is made for other blocks anyway is not what stands in the way.
    errors.sort_by_key(|error| matches!(error, PlanError::Uneven { .. }));
    errors.into_iter().next().unwrap_or(PlanError::AllExcluded { collective: call.collective })
}

/// Do all messages of a plan travel between ranks that reach each other?
///
/// # Errors
/// [`PlanError::NoCable`] with the first pair that doesn't, and the algorithms that do without; others when there is no
/// such plan.
pub fn check(
    call: Call,
    root: Rank,
    algorithm: &str,
    reach: &Reach,
    requirements: Requirements,
) -> Result<(), PlanError> {
    match gap(call, root, algorithm, reach, requirements.hosts)? {
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

/// The algorithms whose messages travel where they can.
fn capable_algorithms(
    call: Call,
    root: Rank,
    reach: &Reach,
    requirements: Requirements,
) -> Vec<&'static str> {
    let capable =
        plan::algorithms(call.collective).filter(|a| !requirements.uneven || a.takes_uneven_blocks());
    let names = capable.map(|algorithm| algorithm.name);
    names.filter(|name| gap(call, root, name, reach, requirements.hosts) == Ok(None)).collect()
}

fn gap(
    call: Call,
    root: Rank,
    algorithm: &str,
    reach: &Reach,
    hosts: Hosts,
) -> Result<Option<(Rank, Rank)>, PlanError> {
    if reach.is_complete() {
        return Ok(None);
    }
    let spec = Spec::new(call.collective, call.ranks)?.with_root(root)?.with_hosts(hosts)?;
    Ok(plan::plan(&spec, algorithm)?.gap(reach))
}

fn preferred(call: Call, tuning: &Tuning) -> (&'static str, &'static str) {
    let Call { collective, ranks, block_bytes } = call;
    let direct = ranks <= tuning.direct_ranks;
    let sent_bytes = block_bytes.saturating_mul(u64::from(ranks.saturating_sub(1)));
    match collective {
        Collective::AllReduce => {
            if sent_bytes <= tuning.mesh_bytes {
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
        Collective::Gather | Collective::Scatter => ("direct", "one stage"),
        Collective::Scan | Collective::ExclusiveScan => ("chain", "every link carries it once, in a stream"),
        Collective::AllToAll => ("direct", "one stage"),
        Collective::SendRecv => ("shift", "the only one"),
        Collective::Barrier => ("dissemination", "log2(n) stages on any number of ranks"),
    }
}

/// As many pieces as make a message of this algorithm about as long as the tuning says.
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
