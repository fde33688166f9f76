//! Checks each step by itself, without the others.

use super::fault::{Fault, LocatedStep};
use crate::schedule::Memory;
use crate::schedule::{Action, Buffer, ChunkRange, InPlace, Schedule, Step};
use topology::MAX_RANKS;
use topology::Rank;

/// More chunks than this on all ranks together are taken for a mistake.
const MAX_CELLS: u64 = 1 << 28;

/// Checks the shape of the schedule and of every step.
pub(crate) fn check(schedule: &Schedule) -> Result<(), Fault> {
    let ranks = schedule.programs.len() as u64;
    check_shape(schedule, ranks)?;
    for (rank, program) in schedule.programs.iter().enumerate() {
        let memory = Memory::new(schedule, ranks as u32, Rank(rank as u32));
        if memory.cells() as u64 > MAX_CELLS / ranks {
            return Err(Fault::Shape(format!(
                "rank {rank} has {} chunks, which is too many",
                memory.cells()
            )));
        }
        for (number, step) in program.steps.iter().enumerate() {
            let at = || LocatedStep::new(schedule, rank as u32, number as u32);
            check_message(schedule, Rank(rank as u32), step, at)?;
            check_dependencies(step, number as u32, at)?;
            check_ranges(schedule.chunks, &memory, step, at)?;
            check_packed(step, at)?;
            check_writes(schedule.in_place, &memory, step, at)?;
        }
    }
    Ok(())
}

/// Checks what can be said without the steps.
pub(crate) fn check_shape(schedule: &Schedule, ranks: u64) -> Result<(), Fault> {
    let wrong = |message: String| Err(Fault::Shape(message));
    if ranks == 0 || ranks > u64::from(MAX_RANKS) {
        return wrong(format!("{ranks} ranks; a schedule has 1 to {MAX_RANKS}"));
    }
    if schedule.chunks == 0 {
        return wrong("a block has at least 1 chunk".to_owned());
    }
    let packed = schedule.packing.map_or(0, |packing| packing.blocks);
    let blocks = ranks.max(u64::from(schedule.scratch_blocks)).max(u64::from(packed));
    if u64::from(schedule.chunks) * blocks > u64::from(u32::MAX) {
        return wrong(format!("{} chunks in each of {blocks} blocks are too many", schedule.chunks));
    }
    if u64::from(schedule.root.0) >= ranks || (schedule.root.0 > 0 && !schedule.collective.has_root()) {
        let collective = schedule.collective;
        return wrong(format!("rank {} cannot be the root of {collective} on {ranks} ranks", schedule.root));
    }
    Ok(())
}

fn check_message(
    schedule: &Schedule,
    rank: Rank,
    step: &Step,
    at: impl Fn() -> LocatedStep,
) -> Result<(), Fault> {
    let message = step.action.message();
    let nobody = |peer: &Rank| *peer == rank || peer.0 >= schedule.ranks();
    if let Some(peer) = message.map(|(peer, _)| peer).filter(nobody) {
        return Err(Fault::Peer { at: at(), peer });
    }
    let lanes = if message.is_some() { schedule.lanes } else { 1 };
    if step.lane >= lanes { Err(Fault::Lane { at: at(), lanes }) } else { Ok(()) }
}

fn check_dependencies(step: &Step, number: u32, at: impl Fn() -> LocatedStep) -> Result<(), Fault> {
    let mut previous = None;
    for before in &step.after {
        if *before >= number || previous >= Some(*before) {
            return Err(Fault::Dependency { at: at(), before: *before });
        }
        previous = Some(*before);
    }
    Ok(())
}

fn check_ranges(
    chunks: u32,
    memory: &Memory,
    step: &Step,
    at: impl Fn() -> LocatedStep,
) -> Result<(), Fault> {
    let shape = |range: ChunkRange| (range.first % chunks, range.len);
    let mut first = None;
    for range in step.action.ranges() {
        if range.len == 0 || !memory.holds(range) {
            return Err(Fault::Bounds { at: at(), range, chunks: memory.chunks(range.buffer) });
        }
        let a = *first.get_or_insert(range);
        if shape(a) != shape(range) {
            return Err(Fault::Lengths { at: at(), a, b: range });
        }
    }
    Ok(())
}

/// Packed chunks are encoded, sent, received and decoded, one by one; they do not lie side by side.
fn check_packed(step: &Step, at: impl Fn() -> LocatedStep) -> Result<(), Fault> {
    // The place among the action's ranges: the range that it writes comes first.
    let place = match step.action {
        Action::Send { src: range, .. } | Action::Recv { dst: range, .. } => range.is_packed().then_some(0),
        Action::Encode { .. } => Some(0),
        Action::Decode { .. } => Some(1),
        Action::DecodeReduce { .. } => Some(2),
        Action::RecvReduce { .. } | Action::Copy { .. } | Action::Reduce { .. } => None,
    };
    for (nth, range) in step.action.ranges().enumerate() {
        let packed = place == Some(nth);
        if range.is_packed() != packed || (packed && range.len != 1) {
            return Err(Fault::Packed { at: at(), range });
        }
    }
    Ok(())
}

fn check_writes(
    in_place: InPlace,
    memory: &Memory,
    step: &Step,
    at: impl Fn() -> LocatedStep,
) -> Result<(), Fault> {
    let Some(dst) = step.action.writes() else { return Ok(()) };
    let (span, output) = (memory.span(dst), memory.whole(Buffer::Output));
    let shared = in_place == InPlace::Yes && output.start <= span.start && span.end <= output.end;
    if dst.buffer == Buffer::Input && !shared {
        return Err(Fault::InputWritten { at: at(), range: dst });
    }
    let may_be_same = !matches!(step.action, Action::Copy { .. });
    for operand in step.action.reads().into_iter().flatten() {
        let same = memory.span(operand) == memory.span(dst);
        if memory.overlap(operand, dst) && !(same && may_be_same) {
            return Err(Fault::Overlap { at: at(), operand });
        }
    }
    Ok(())
}
