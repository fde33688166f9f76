//! Does every rank end up with what the collective promises?

use super::fault::{At, Fault};
use crate::Collective;
use crate::analysis::{Flow, Matching, StepId, Value, Values, Wrong};
use crate::schedule::Schedule;
use topology::Rank;

/// Runs the schedule on symbolic values and compares the results with the promise.
pub(super) fn check(schedule: &Schedule, matching: &Matching, flow: &Flow) -> Result<(), Fault> {
    let mut values = Values::new(schedule, matching.total());
    let mut fault = None;
    values.run(schedule, matching, flow, |id, outcome| {
        let mark = id.of(schedule).action.last();
        let outcome = outcome.and_then(|expected| match expected {
            Some(expected) if mark != Some(expected) => Err(Wrong::Last { expected }),
            _ => Ok(()),
        });
        fault = outcome.err().map(|wrong| name(schedule, id, wrong));
        fault.is_none()
    });
    fault.map_or(Ok(()), Err)?;
    (0..schedule.ranks()).try_for_each(|rank| check_result(schedule, &values, Rank(rank)))
}

fn name(schedule: &Schedule, id: StepId, wrong: Wrong) -> Fault {
    let at = At::new(schedule, id.rank, id.step);
    match wrong {
        Wrong::Undefined(range) => Fault::Undefined { at, range },
        Wrong::Mixed { a, b } => Fault::Mixed { at, a, b },
        Wrong::Twice(rank) => Fault::Twice { at, rank },
        Wrong::Last { expected } => Fault::Last { at, expected },
    }
}

/// What a chunk of the result should be made from.
struct Promise {
    /// The chunk of the input.
    position: u32,
    /// Whose input; all ranks' when none.
    source: Option<Rank>,
}

fn promise(schedule: &Schedule, rank: Rank, chunk: u32) -> Promise {
    let (ranks, chunks) = (schedule.ranks(), schedule.chunks);
    let (block, within) = (chunk / chunks, chunk % chunks);
    let (position, source) = match schedule.collective {
        Collective::AllReduce | Collective::Barrier => (chunk, None),
        Collective::ReduceScatter => (rank.0 * chunks + chunk, None),
        Collective::AllGather => (within, Some(Rank(block))),
        Collective::AllToAll => (rank.0 * chunks + within, Some(Rank(block))),
        Collective::Broadcast => (chunk, Some(schedule.root)),
        Collective::SendRecv => (chunk, Some(rank.behind(1, ranks))),
    };
    Promise { position, source }
}

fn check_result(schedule: &Schedule, values: &Values, rank: Rank) -> Result<(), Fault> {
    let collective = schedule.collective;
    let result = values.result(schedule, rank);
    if collective == Collective::Barrier && result.is_empty() {
        return Err(Fault::Missing { collective, rank, chunk: 0 });
    }
    for (chunk, value) in (0..).zip(result) {
        let value = value.as_ref().ok_or(Fault::Missing { collective, rank, chunk })?;
        check_chunk(&promise(schedule, rank, chunk), value, schedule.ranks(), rank, chunk)?;
    }
    Ok(())
}

fn check_chunk(promise: &Promise, value: &Value, ranks: u32, rank: Rank, chunk: u32) -> Result<(), Fault> {
    let found_rank = value.ranks().next().filter(|_| value.count() == 1);
    let right_source = promise.source.is_none() || promise.source == found_rank;
    if value.position != promise.position || !right_source {
        let (expected, found) = (promise.position, value.position);
        return Err(Fault::Contents {
            rank,
            chunk,
            expected,
            expected_rank: promise.source,
            found,
            found_rank,
        });
    }
    if promise.source.is_some() || value.count() == ranks {
        return Ok(());
    }
    let lacks = (0..ranks).map(Rank).find(|rank| value.ranks().all(|r| r != *rank)).unwrap_or_default();
    Err(Fault::Incomplete { rank, chunk, lacks })
}
