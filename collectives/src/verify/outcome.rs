//! Checks that every rank's result is the one that the collective promises.

use super::fault::{Fault, LocatedStep};
use crate::analysis::{Expression, Expressions, Flow, Matching, Value, ValueError, Values};
use crate::numerics::{self, Numerics};
use crate::schedule::Schedule;
use crate::schedule::StepId;
use crate::{Collective, Sources};
use topology::Rank;

/// Properties of results that are right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// The order in which contributions are combined.
    pub(super) numerics: Numerics,
    /// The most times that a contribution is packed on its way.
    pub(super) encodings: u32,
}

/// Runs the schedule on symbolic values and compares the results with the promise.
pub(super) fn check(schedule: &Schedule, matching: &Matching, flow: &Flow) -> Result<Outcome, Fault> {
    let mut values = Values::new(schedule, matching.total());
    let mut fault = None;
    values.run(schedule, matching, flow, |id, outcome| {
        let mark = id.of(schedule).action.last();
        let outcome = outcome.and_then(|expected| match expected {
            Some(expected) if mark != Some(expected) => Err(ValueError::Last { expected }),
            _ => Ok(()),
        });
        fault = outcome.err().map(|wrong| name(schedule, id, wrong));
        fault.is_none()
    });
    fault.map_or(Ok(()), Err)?;
    (0..schedule.ranks()).try_for_each(|rank| check_result(schedule, &values, Rank(rank)))?;
    let numerics = check_order(schedule, &mut values)?;
    let results = (0..schedule.ranks()).flat_map(|rank| values.result(schedule, Rank(rank)));
    let encodings = results.flatten().map(|value| values.expressions.encodings(value.expression)).max();
    Ok(Outcome { numerics, encodings: encodings.unwrap_or(0) })
}

fn name(schedule: &Schedule, id: StepId, wrong: ValueError) -> Fault {
    let at = LocatedStep::new(schedule, id.rank, id.step);
    match wrong {
        ValueError::Undefined(range) => Fault::Undefined { at, range },
        ValueError::Mixed { a, b } => Fault::Mixed { at, a, b },
        ValueError::Twice(rank) => Fault::Twice { at, rank },
        ValueError::Last { expected } => Fault::Last { at, expected },
    }
}

/// The expected source of a chunk of the result.
struct Expected {
    /// The chunk of the input.
    position: u32,
    sources: Sources,
}

fn expected(schedule: &Schedule, rank: Rank, chunk: u32) -> Expected {
    let (ranks, chunks) = (schedule.ranks(), schedule.chunks);
    let (block, within) = (chunk / chunks, chunk % chunks);
    let position = schedule.collective.source_block(rank) * chunks + within;
    let sources = schedule.collective.result_rule().sources(ranks, schedule.root, rank, block);
    Expected { position, sources }
}

fn check_result(schedule: &Schedule, values: &Values, rank: Rank) -> Result<(), Fault> {
    let collective = schedule.collective;
    let result = values.result(schedule, rank);
    if collective == Collective::Barrier && result.is_empty() {
        return Err(Fault::Missing { collective, rank, chunk: 0 });
    }
    for (chunk, value) in (0..).zip(result) {
        let promise = expected(schedule, rank, chunk);
        if promise.sources == Sources::Any {
            continue;
        }
        let value = value.as_ref().ok_or(Fault::Missing { collective, rank, chunk })?;
        check_chunk(&promise, *value, &values.expressions, schedule.ranks(), (rank, chunk))?;
    }
    Ok(())
}

fn check_chunk(
    promise: &Expected,
    value: Value,
    sums: &Expressions,
    ranks: u32,
    (rank, chunk): (Rank, u32),
) -> Result<(), Fault> {
    let (sum, count) = (value.expression, sums.count(value.expression));
    let found_rank = sums.ranks(sum).next().filter(|_| count == 1);
    let expected_rank = match promise.sources {
        Sources::One(rank) => Some(rank),
        _ => None,
    };
    if value.position != promise.position || (expected_rank.is_some() && expected_rank != found_rank) {
        let (expected, found) = (promise.position, value.position);
        return Err(Fault::Contents { rank, chunk, expected, expected_rank, found, found_rank });
    }
    let below = match promise.sources {
        Sources::All => ranks,
        Sources::Below(rank) => rank.0,
        Sources::One(_) | Sources::Any => return Ok(()),
    };
    // The ranks are ascending: the first one that is not where it should be is missing.
    let mut held = sums.ranks(sum);
    if let Some(lacks) = (0..below).map(Rank).find(|rank| held.next() != Some(*rank)) {
        return Err(Fault::Incomplete { rank, chunk, lacks });
    }
    match held.next() {
        Some(extra) => Err(Fault::Surplus { rank, chunk, extra }),
        None => Ok(()),
    }
}

/// In what order contributions are combined: the strongest class that the results keep to.
///
/// # Errors
/// [`Fault::Disagreement`] when ranks that should have the same result add it up differently.
fn check_order(schedule: &Schedule, values: &mut Values) -> Result<Numerics, Fault> {
    if !schedule.collective.reduces() {
        return Ok(Numerics::Reproducible);
    }
    let ranks = schedule.ranks();
    let sums = &mut values.expressions;
    let mut add = |a, b| sums.sum(a, b).expect("every rank is in it once");
    let whole = numerics::fold(ranks, &mut Expressions::of, &mut add);
    let mut prefixes: Vec<Expression> = vec![Expressions::of(Rank(0))];
    for rank in 1..ranks {
        let prefix = add(prefixes[rank as usize - 1], Expressions::of(Rank(rank)));
        prefixes.push(prefix);
    }
    let mut class = Numerics::Reproducible;
    for rank in (0..ranks).map(Rank) {
        for (chunk, value) in (0..).zip(values.result(schedule, rank)) {
            let canonical = match expected(schedule, rank, chunk).sources {
                Sources::All => whole,
                Sources::Below(end) => prefixes[end.0 as usize - 1],
                Sources::One(_) | Sources::Any => continue,
            };
            if value.as_ref().is_some_and(|value| value.expression != canonical) {
                class = Numerics::Fast;
            }
        }
    }
    if schedule.collective == Collective::AllReduce && class == Numerics::Fast {
        check_agreement(schedule, values)?;
    }
    Ok(class)
}

/// Whether all ranks get the same bits.
fn check_agreement(schedule: &Schedule, values: &Values) -> Result<(), Fault> {
    let first = values.result(schedule, Rank(0));
    for rank in (1..schedule.ranks()).map(Rank) {
        for (chunk, (a, b)) in (0..).zip(first.iter().zip(values.result(schedule, rank))) {
            if a.as_ref().map(|a| a.expression) != b.as_ref().map(|b| b.expression) {
                return Err(Fault::Disagreement { chunk, rank });
            }
        }
    }
    Ok(())
}
