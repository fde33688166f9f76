//! Do two steps of a rank touch the same memory in no defined order, at least one of them writing?
//!
//! Steps are taken in list order, which every dependency and FIFO respects. For each chunk of memory it is
//! enough to compare with the last writer and with those who have read since: what came before them has been
//! compared with them, and order is transitive.

use super::fault::{At, Fault};
use crate::analysis::{FastMap, Memory, Order};
use crate::schedule::{ChunkRange, Schedule, Step};
use topology::Rank;

/// Who has touched a chunk of memory.
#[derive(Clone, Default)]
struct Touched {
    writer: Option<u32>,
    /// Those who have read what the writer wrote.
    readers: Vec<u32>,
}

/// Checks every rank; tells how many messages of one lane and direction may be under way at a time.
pub(super) fn check(schedule: &Schedule) -> Result<u32, Fault> {
    let mut max_in_flight = 0;
    for rank in 0..schedule.ranks() {
        let mut order = Order::default();
        let memory = Memory::new(schedule, schedule.ranks(), Rank(rank));
        let mut cells = vec![Touched::default(); memory.cells()];
        let mut settled: FastMap<u32, u32> = FastMap::default();
        for (number, step) in schedule.programs[rank as usize].steps.iter().enumerate() {
            let number = number as u32;
            order.push(&step.action, step.lane, &step.after);
            if let Some((other, chunk)) = conflict(&memory, &cells, &order, step, number) {
                let (first, second) = (At::new(schedule, rank, other), At::new(schedule, rank, number));
                return Err(Fault::Race { first, second, chunk });
            }
            touch(&memory, &mut cells, step, number);
            if step.action.message().is_some() {
                let (place, fifo) = order.place(number);
                let done = settled.entry(fifo).or_default();
                *done = order.settled(number, &step.after).max(*done);
                max_in_flight = max_in_flight.max(place + 1 - *done);
            }
        }
    }
    Ok(max_in_flight)
}

/// An earlier step that `step` should come after but does not, and a chunk that both touch.
fn conflict(
    memory: &Memory,
    cells: &[Touched],
    order: &Order,
    step: &Step,
    number: u32,
) -> Option<(u32, ChunkRange)> {
    let reads = step.action.reads().into_iter().flatten().map(|range| (range, false));
    let writes = step.action.writes().into_iter().map(|range| (range, true));
    reads.chain(writes).find_map(|(range, writes)| {
        memory.span(range).zip(range.first..).find_map(|(cell, chunk)| {
            let readers = cells[cell].readers.iter().filter(|_| writes);
            let others = cells[cell].writer.iter().chain(readers);
            let unordered = others.copied().find(|other| !order.precedes(*other, number))?;
            Some((unordered, ChunkRange::one(range.buffer, chunk)))
        })
    })
}

fn touch(memory: &Memory, cells: &mut [Touched], step: &Step, number: u32) {
    for range in step.action.reads().into_iter().flatten() {
        cells[memory.span(range)].iter_mut().for_each(|cell| cell.readers.push(number));
    }
    for cell in step.action.writes().map(|range| &mut cells[memory.span(range)]).into_iter().flatten() {
        cell.writer = Some(number);
        cell.readers.clear();
    }
}
