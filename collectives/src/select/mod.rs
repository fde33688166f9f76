//! Which algorithm, and into how many pieces.
//!
//! The choice is a pure function of what all ranks of a call agree on: collective, ranks, count, element size, and a
//! [`Policy`] that they read from the same place. Whether a call is in place is not among it, since ranks may differ in
//! that. What people want comes first (`overrides`), then what was measured (`tuned`), then what a model of the machines
//! says, if there is one (`price`), then few thresholds. `survey` asks the model which cables to plug in.
//!
//! Where not every rank reaches every other, only plans are chosen whose messages travel where they can. Whether one does
//! is read off the plan itself.

mod overrides;
pub mod price;
pub mod survey;
mod tuned;

pub use overrides::{Names, Overrides, Rule, RulesError};
pub use tuned::{Best, Fingerprint, Links, Tuned, TunedError};

use crate::numerics::Core;
use crate::schedule::InPlace;
use crate::{Collective, MAX_SEGMENTS, Numerics, PlanError, Rank, Spec, plan};
use price::{Candidates, Effort, Kind, Model};
use serde::Deserialize;
use topology::Reach;

/// The thresholds. Read from a file, what is left out has its default.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tuning {
    /// `all_reduce` goes in one shot while a rank sends at most so many bytes in all.
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

/// What a plan must be able to do beside the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wanted {
    /// Blocks may differ in length.
    pub uneven: bool,
    /// The order in which contributions are combined.
    pub numerics: Numerics,
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
    wanted: Wanted,
) -> Result<Choice, PlanError> {
    choose_by(call, root, reach, policy, wanted, || simulated(call, root, reach, policy, wanted))
}

/// What the model of a policy says of a call, if it has one that says anything.
#[must_use]
pub fn simulated(call: Call, root: Rank, reach: &Reach, policy: &Policy, wanted: Wanted) -> Option<Choice> {
    let model = policy.model.as_ref()?;
    let Call { collective, ranks, block_bytes } = call;
    // Ranks may differ in whether a call is in place.
    let kind = Kind { collective, ranks, root, in_place: InPlace::No, wanted };
    let candidates = Candidates::new(model, kind, reach, &policy.overrides.names).ok()?;
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
    wanted: Wanted,
    simulated: impl FnOnce() -> Option<Choice>,
) -> Result<Choice, PlanError> {
    if let Some(choice) = asked_for(call, root, reach, policy, wanted)? {
        return Ok(choice);
    }
    let names = &policy.overrides.names;
    let tuned = policy.tuned.as_ref().and_then(|tuned| tuned.choose(call));
    let fit = |choice: &Choice| {
        names.allow(choice.algorithm) && can(call, root, choice.algorithm, reach, wanted).is_ok()
    };
    if let Some(choice) = tuned.filter(fit) {
        return Ok(choice);
    }
    if let Some(choice) = simulated().filter(fit) {
        return Ok(choice);
    }
    let (preferred, why) = preferred(call, &policy.tuning);
    let of = |algorithm, why| Choice { algorithm, segments: segments(call, algorithm, &policy.tuning), why };
    let first = of(preferred, why);
    if fit(&first) {
        return Ok(first);
    }
    let rest = plan::algorithms(call.collective).map(|a| a.name).filter(|name| names.allow(name));
    let instead = "the preferred algorithm cannot do this call, or needs cables that are not there";
    let mut able = rest.map(|name| of(name, instead)).filter(fit);
    able.next().ok_or_else(|| nothing(call, root, reach, preferred, wanted))
}

/// What people want for a call, if they want anything.
fn asked_for(
    call: Call,
    root: Rank,
    reach: &Reach,
    policy: &Policy,
    wanted: Wanted,
) -> Result<Option<Choice>, PlanError> {
    let segments = |algorithm, asked| match asked {
        0 => segments(call, algorithm, &policy.tuning),
        asked => asked,
    };
    if let Some(rule) = policy.overrides.rules.iter().find(|rule| rule.matches(call)) {
        let (algorithm, why) = (rule.algorithm, "a rule of the file says so");
        can(call, root, algorithm, reach, wanted)?;
        return Ok(Some(Choice { algorithm, segments: segments(algorithm, rule.segments), why }));
    }
    let mut refusal = None;
    for algorithm in policy.overrides.names.wanted(call.collective) {
        let takes = plan::algorithm(call.collective, algorithm).is_ok_and(|a| a.takes_uneven_blocks());
        match can(call, root, algorithm, reach, wanted) {
            Ok(()) => {
                let why = "it was asked for by name";
                return Ok(Some(Choice { algorithm, segments: segments(algorithm, 0), why }));
            }
            // Who asks for an algorithm means calls that have it.
            Err(_) if wanted.uneven && !takes => {}
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    refusal.map_or(Ok(None), Err)
}

/// Can an algorithm do a call?
///
/// # Errors
/// [`PlanError`]: why not.
fn can(call: Call, root: Rank, algorithm: &str, reach: &Reach, wanted: Wanted) -> Result<(), PlanError> {
    let found = plan::algorithm(call.collective, algorithm)?;
    found.check_ranks(call.ranks)?;
    found.check_numerics(wanted.numerics)?;
    if wanted.uneven && !found.takes_uneven_blocks() {
        return Err(PlanError::Uneven { algorithm: found.name, collective: call.collective });
    }
    check(call, root, found.name, reach)
}

/// Why nothing can do a call.
fn nothing(call: Call, root: Rank, reach: &Reach, preferred: &str, wanted: Wanted) -> PlanError {
    let neighbourly = plan::algorithms(call.collective).map(|a| a.name);
    let named = neighbourly.filter(|name| ["ring", "chain", "shift"].contains(name)).last();
    let errors = named.into_iter().chain([preferred]);
    let mut errors = errors.filter_map(|name| can(call, root, name, reach, wanted).err());
    errors.next().unwrap_or(PlanError::AllExcluded { collective: call.collective })
}

/// Do all messages of a plan travel between ranks that reach each other?
///
/// # Errors
/// [`PlanError::NoCable`] with the first pair that doesn't, and the algorithms that do without; others when there is no
/// such plan.
pub fn check(call: Call, root: Rank, algorithm: &str, reach: &Reach) -> Result<(), PlanError> {
    match gap(call, root, algorithm, reach)? {
        None => Ok(()),
        Some((from, to)) => Err(PlanError::NoCable {
            algorithm: plan::algorithm(call.collective, algorithm)?.name,
            collective: call.collective,
            from,
            to,
            instead: able(call, root, reach),
        }),
    }
}

/// The algorithms whose messages travel where they can.
fn able(call: Call, root: Rank, reach: &Reach) -> Vec<&'static str> {
    let names = plan::algorithms(call.collective).map(|algorithm| algorithm.name);
    names.filter(|name| gap(call, root, name, reach) == Ok(None)).collect()
}

fn gap(call: Call, root: Rank, algorithm: &str, reach: &Reach) -> Result<Option<(Rank, Rank)>, PlanError> {
    if reach.is_complete() {
        return Ok(None);
    }
    let spec = Spec::new(call.collective, call.ranks)?.with_root(root)?;
    Ok(plan::plan(&spec, algorithm)?.gap(reach))
}

fn preferred(call: Call, tuning: &Tuning) -> (&'static str, &'static str) {
    let Call { collective, ranks, block_bytes } = call;
    let direct = ranks <= tuning.direct_ranks;
    match collective {
        Collective::AllReduce => {
            let in_one_shot = block_bytes.saturating_mul(u64::from(ranks.saturating_sub(1)));
            if in_one_shot <= tuning.mesh_bytes {
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
        Collective::Reduce if block_bytes <= tuning.binomial_bytes => ("binomial", "small: fewest stages"),
        Collective::Reduce => ("chain", "large: every link carries it once, in a stream"),
        Collective::Gather | Collective::Scatter => ("direct", "one stage"),
        Collective::Scan | Collective::ExclusiveScan => ("chain", "the only one"),
        Collective::AllToAll => ("direct", "the only one"),
        Collective::SendRecv => ("shift", "the only one"),
        Collective::Barrier => ("dissemination", "the only one"),
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
    let wanted = chunk_bytes.div_ceil(tuning.segment_bytes.max(1));
    wanted.clamp(1, u64::from(tuning.max_segments.clamp(1, MAX_SEGMENTS))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spec;

    /// Fixed numbers, so that tuning the defaults does not change what the rules are tested on.
    fn choice(collective: Collective, ranks: u32, block_bytes: u64) -> (&'static str, u32) {
        let tuning = Tuning {
            mesh_bytes: 16 << 10,
            direct_ranks: 16,
            doubling_bytes: 4 << 10,
            binomial_bytes: 64 << 10,
            segment_bytes: 128 << 10,
            max_segments: 64,
        };
        let policy = Policy { tuning, ..Policy::default() };
        let call = Call { collective, ranks, block_bytes };
        let choice = choose(call, Rank(0), &Reach::complete(), &policy, Wanted::default()).expect("a plan");
        (choice.algorithm, choice.segments)
    }

    #[test]
    fn small_blocks_take_few_stages_and_large_ones_little_traffic() {
        assert_eq!(choice(Collective::AllReduce, 2, 16 << 10), ("mesh", 1));
        assert_eq!(choice(Collective::AllReduce, 4, 16 << 10), ("rsag_mesh", 1));
        assert_eq!(choice(Collective::AllReduce, 2, 1 << 20), ("rsag_mesh", 4));
        assert_eq!(choice(Collective::AllReduce, 32, 1 << 10), ("recursive_doubling", 1));
        assert_eq!(choice(Collective::AllReduce, 32, 1 << 30), ("ring", 64));
        assert_eq!(choice(Collective::Broadcast, 4, 1 << 10), ("binomial", 1));
        assert_eq!(choice(Collective::Broadcast, 4, 1 << 20), ("chain", 8));
        assert_eq!(choice(Collective::AllGather, 64, 8), ("ring", 1));
        assert_eq!(choice(Collective::Barrier, 64, 0), ("dissemination", 1));
    }

    #[test]
    fn every_choice_can_be_planned_for() {
        let tuning =
            Tuning { direct_ranks: u32::MAX, mesh_bytes: u64::MAX, max_segments: 0, ..Tuning::default() };
        for tuning in [Tuning::default(), tuning] {
            for collective in Collective::ALL {
                for ranks in [1, 2, 3, 16, 17, 257, 513, 1024] {
                    for block_bytes in [0, 1, 4096, 1 << 20, u64::MAX] {
                        let call = Call { collective, ranks, block_bytes };
                        let policy = Policy { tuning: tuning.clone(), ..Policy::default() };
                        let choice = choose(call, Rank(0), &Reach::complete(), &policy, Wanted::default())
                            .expect("a plan");
                        let algorithm = plan::algorithm(collective, choice.algorithm).expect("a known name");
                        algorithm.check_ranks(ranks).expect("made for so many");
                        let spec = Spec::new(collective, ranks).expect("in range");
                        spec.with_segments(choice.segments).expect("in range");
                    }
                }
            }
        }
    }

    /// Neighbours of a circle of so many ranks reach each other; `without` one pair, if any.
    fn ring(ranks: u32, without: Option<(u32, u32)>) -> Reach {
        Reach::new(ranks, |a, b| {
            (b == a.ahead(1, ranks) || a == b.ahead(1, ranks)) && without != Some((a.0, b.0))
        })
    }

    #[test]
    fn on_a_ring_of_cables_every_collective_has_a_plan_between_neighbours() {
        for ranks in [4, 5, 8] {
            let reach = ring(ranks, None);
            for collective in Collective::ALL {
                for block_bytes in [0, 4, 1 << 20] {
                    let call = Call { collective, ranks, block_bytes };
                    for root in (0..ranks).map(Rank).filter(|r| *r == Rank(0) || collective.has_root()) {
                        let choice = choose(call, root, &reach, &Policy::default(), Wanted::default())
                            .expect("a ring");
                        let spec = Spec::new(collective, ranks)
                            .expect("in range")
                            .with_root(root)
                            .expect("in range");
                        let schedule = plan::plan(&spec, choice.algorithm).expect("a known name");
                        assert_eq!(schedule.gap(&reach), None, "{collective} by {}", choice.algorithm);
                    }
                }
            }
        }
    }

    #[test]
    fn where_everyone_reaches_everyone_the_choice_is_as_ever() {
        for ranks in [2, 3, 5, 16] {
            for collective in Collective::ALL {
                let call = Call { collective, ranks, block_bytes: 1 << 20 };
                let by = |reach: &Reach| choose(call, Rank(0), reach, &Policy::default(), Wanted::default());
                assert_eq!(by(&Reach::new(ranks, |_, _| true)), by(&Reach::complete()));
            }
        }
        // Three in a circle are a mesh.
        assert!(ring(3, None).is_complete());
    }

    fn policy(algorithm: &str, rules: &str) -> Policy {
        let overrides = Overrides {
            names: Names::parse(algorithm).expect("known"),
            rules: Overrides::rules_from_toml(rules).expect("good rules"),
        };
        Policy { overrides, ..Policy::default() }
    }

    #[test]
    fn what_people_want_comes_first() {
        let rules = "version = 1\n[[rule]]\ncollective = \"all_reduce\"\nbytes = \"..1K\"\nalgorithm = \"torus\"\nsegments = 2";
        let best = |bytes, algorithm: &str| Best {
            collective: Collective::AllReduce,
            bytes,
            algorithm: algorithm.into(),
            segments: 3,
            us: 1.0,
        };
        let tuned = {
            let mut tuned = Tuned::new(Fingerprint::default());
            tuned.choices.push(best(1, "recursive_doubling"));
            tuned
        };
        let by = |names: &str, rules: &str, block_bytes| {
            let policy = Policy { tuned: Some(tuned.clone()), ..policy(names, rules) };
            let call = Call { collective: Collective::AllReduce, ranks: 4, block_bytes };
            let choice =
                choose(call, Rank(0), &Reach::complete(), &policy, Wanted::default()).expect("a plan");
            (choice.algorithm, choice.segments)
        };
        assert_eq!(by("ring", rules, 1024), ("torus", 2));
        assert_eq!(by("ring", rules, 1025), ("ring", 1));
        assert_eq!(by("", rules, 1025), ("recursive_doubling", 3));
        // Of the names, the first that the collective has.
        assert_eq!(by("chain,mesh", "version = 1", 8), ("mesh", 1));
        assert_eq!(by("^recursive_doubling", "version = 1", 8), ("mesh", 1));
        assert_eq!(by("^recursive_doubling,mesh", "version = 1", 8), ("ring", 1));
    }

    #[test]
    fn what_can_not_do_a_call_is_said_why() {
        let by = |names: &str, wanted| {
            let call = Call { collective: Collective::AllGather, ranks: 4, block_bytes: 8 };
            choose(call, Rank(0), &Reach::complete(), &policy(names, "version = 1"), wanted)
        };
        let uneven = Wanted { uneven: true, ..Wanted::default() };
        assert_eq!(by("bruck", Wanted::default()).map(|choice| choice.algorithm), Ok("bruck"));
        assert_eq!(by("bruck", uneven).map(|choice| choice.algorithm), Ok("direct"));
        let all: Vec<&str> = plan::algorithms(Collective::AllGather).map(|a| a.name).collect();
        let error = by(&format!("^{}", all.join(",")), Wanted::default()).expect_err("nothing is left");
        assert_eq!(error, PlanError::AllExcluded { collective: Collective::AllGather });
    }

    #[test]
    fn a_plan_without_a_cable_is_refused_with_the_pair_and_a_way_out() {
        let call = Call { collective: Collective::AllReduce, ranks: 5, block_bytes: 4 };
        let error = check(call, Rank(0), "mesh", &ring(5, None)).expect_err("0 does not reach 2").to_string();
        assert!(error.contains("mesh") && error.contains("from rank 0 to rank 2"), "{error}");
        assert!(error.contains("choose ring or bidirectional_ring"), "{error}");
        let open = ring(5, Some((0, 4)));
        let error = choose(call, Rank(0), &open, &Policy::default(), Wanted::default())
            .expect_err("a line")
            .to_string();
        assert!(error.contains("from rank 0 to rank 4") && error.contains("order of the cables"), "{error}");
        // A line is enough for some.
        let down = Call { collective: Collective::Broadcast, ..call };
        assert_eq!(
            choose(down, Rank(0), &open, &Policy::default(), Wanted::default()).expect("a line").algorithm,
            "chain"
        );
        assert!(choose(down, Rank(1), &open, &Policy::default(), Wanted::default()).is_err());
    }

    #[test]
    fn a_tuning_file_names_only_what_it_changes() {
        let tuning: Tuning = toml::from_str("mesh_bytes = 4096").expect("a known key");
        assert_eq!(tuning, Tuning { mesh_bytes: 4096, ..Tuning::default() });
        assert!(toml::from_str::<Tuning>("mesh_byte = 4096").is_err());
    }
}
