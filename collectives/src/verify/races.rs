//! Finds two steps of a rank that touch the same memory in no defined order, at least one of them writing.
//!
//! Steps are taken in list order, which every dependency and FIFO respects. Each is compared with the steps
//! that have [touched](Touched) its chunks since they were last written.

use super::{
    fault::{Fault, LocatedStep},
    follows,
};
use crate::analysis::{Matching, Order, Touched, Turn};
use crate::schedule::{ChunkRange, Schedule, Step};
use crate::schedule::{Memory, StepId};
use topology::Rank;

/// Checks every rank; tells how many messages of one lane and direction may be under way at a time.
pub(super) fn check(schedule: &Schedule, matching: &Matching) -> Result<u32, Fault> {
    let mut past = Past::default();
    let mut max_in_flight = 0;
    for (rank, program) in (0..).zip(&schedule.programs) {
        let memory = Memory::new(schedule, schedule.ranks(), Rank(rank));
        past.start(&memory);
        for (number, step) in (0..).zip(&program.steps) {
            past.order.push(turn(matching, StepId { rank, step: number }, step), &step.after);
            if let Some((other, chunk)) = past.conflict(&memory, step, number) {
                let (first, second) =
                    (LocatedStep::new(schedule, rank, other), LocatedStep::new(schedule, rank, number));
                return Err(Fault::Race { first, second, chunk });
            }
            follows::check(&memory, &past.touched, program, step, || {
                LocatedStep::new(schedule, rank, number)
            })?;
            past.touched.touch(&memory, &step.action, number);
            if step.action.message().is_some() {
                max_in_flight = past.in_flight(step, number).max(max_in_flight);
            }
        }
    }
    Ok(max_in_flight)
}

/// The steps that a step waits for because of its FIFO.
fn turn(matching: &Matching, id: StepId, step: &Step) -> Turn {
    let number = matching.number(id) as u32;
    match matching.before(number) {
        // Steps of a rank have numbers in a row.
        Some(before) => Turn::Behind(id.step - (number - before)),
        None if step.action.message().is_some() => Turn::First,
        None => Turn::Local,
    }
}

/// The accesses of a rank up to now.
#[derive(Default)]
struct Past {
    order: Order,
    touched: Touched,
    /// Messages of each FIFO that are known to be complete before the newest one starts.
    settled: Vec<u32>,
}

impl Past {
    /// Begins with another rank.
    fn start(&mut self, memory: &Memory) {
        self.order.clear();
        self.touched.start(memory);
        self.settled.clear();
    }

    /// An earlier step that `step` should come after but does not, and a chunk that both touch.
    fn conflict(&self, memory: &Memory, step: &Step, number: u32) -> Option<(u32, ChunkRange)> {
        let unordered = |other: &u32| !self.order.precedes(*other, number);
        for range in step.action.reads().into_iter().flatten() {
            for (cell, chunk) in memory.span(range).zip(range.first..) {
                if let Some(other) = self.touched.writer(cell).filter(unordered) {
                    return Some((other, ChunkRange::one(range.buffer, chunk)));
                }
            }
        }
        let range = step.action.writes()?;
        memory.span(range).zip(range.first..).find_map(|(cell, chunk)| {
            let other = self.touched.writer_and_readers(cell).find(unordered)?;
            Some((other, ChunkRange::one(range.buffer, chunk)))
        })
    }

    /// How many messages of the newest step's FIFO may be under way when it starts, its own included.
    fn in_flight(&mut self, step: &Step, number: u32) -> u32 {
        let (place, fifo) = self.order.place(number);
        if self.settled.len() <= fifo as usize {
            self.settled.resize(fifo as usize + 1, 0);
        }
        let done = &mut self.settled[fifo as usize];
        *done = self.order.settled(number, &step.after).max(*done);
        place + 1 - *done
    }
}
