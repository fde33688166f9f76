//! An order in which the whole job can run, or the cycle that forbids it.
//!
//! With zero credits a send completes only when its receive has taken the data, so the two are one node. With
//! `k` credits, `k` messages of a lane may wait at the receiver: send `j` of a lane needs receive `j - k` to
//! be complete, and receive `j` needs send `j`.

use super::{FastMap, Matching};
use crate::schedule::StepId;
use crate::schedule::{Direction, Schedule, Step};
use std::collections::VecDeque;

/// A cycle: each step waits for the next, and the last for the first.
#[derive(Debug)]
pub(crate) struct Cycle(pub(crate) Vec<StepId>);

/// A possible run of the whole job.
#[derive(Debug)]
pub(crate) struct Flow {
    /// All steps; a step comes later than everything that it waits for.
    pub(crate) order: Vec<StepId>,
    /// The length of the longest chain of steps that ends at each step, by step number; a matched send and
    /// receive count as one under zero credits, so they have the same stage.
    pub(crate) stages: Vec<u32>,
}

/// The graph while it is taken apart.
struct Graph<'a> {
    matching: &'a Matching,
    /// Edges from each step to those that wait for it: `heads[starts[s]..starts[s + 1]]`.
    starts: Vec<u32>,
    heads: Vec<u32>,
    /// The representative of each step: with zero credits a send for its receive, since the two complete
    /// together.
    representatives: Vec<u32>,
    /// Edges into the steps that each one representatives for which are not yet satisfied.
    pending: Vec<u32>,
    /// Whether a step and its partner are one node, as with zero credits.
    merged: bool,
}

impl Flow {
    /// Runs the schedule symbolically with `credits` messages of room per lane.
    pub(crate) fn new(schedule: &Schedule, matching: &Matching, credits: u32) -> Result<Flow, Cycle> {
        let mut graph = Graph::new(schedule, matching, credits);
        let (ids, total) = (matching.ids(), matching.total());
        let mut flow = Flow { order: Vec::with_capacity(total), stages: vec![0; total] };
        let mut ready = VecDeque::new();
        ready.extend((0..total as u32).filter(|step| graph.is_free(*step)));
        while let Some(step) = ready.pop_front() {
            flow.order.push(ids[step as usize]);
            let both = [Some(step), graph.twin(step)];
            let stage = flow.stages[step as usize];
            if let Some(twin) = both[1] {
                flow.order.push(ids[twin as usize]);
                flow.stages[twin as usize] = stage;
            }
            for done in both.into_iter().flatten() {
                for edge in graph.starts[done as usize]..graph.starts[done as usize + 1] {
                    let next = graph.representatives[graph.heads[edge as usize] as usize] as usize;
                    flow.stages[next] = flow.stages[next].max(stage + 1);
                    graph.pending[next] -= 1;
                    if graph.pending[next] == 0 {
                        ready.push_back(next as u32);
                    }
                }
            }
        }
        if flow.order.len() == total { Ok(flow) } else { Err(graph.cycle(&flow.order)) }
    }
}

impl<'a> Graph<'a> {
    fn new(schedule: &Schedule, matching: &'a Matching, credits: u32) -> Graph<'a> {
        let total = matching.total();
        let merged = credits == 0;
        let mut representatives: Vec<u32> = (0..total as u32).collect();
        let mut starts = vec![0u32; total + 1];
        let mut pending = vec![0u32; total];
        if merged {
            let receives = |(_, step): &(u32, (StepId, &Step))| receives(step.1);
            for (number, _) in (0..).zip(schedule.steps()).filter(receives) {
                representatives[number as usize] = matching.twin(number).unwrap_or(number);
            }
        }
        let sends = if merged { Vec::new() } else { waiting_for_room(schedule, matching, credits) };
        visit_edges(schedule, matching, merged, &sends, |tail, head| {
            starts[tail as usize + 1] += 1;
            pending[representatives[head as usize] as usize] += 1;
        });
        for step in 0..total {
            starts[step + 1] += starts[step];
        }
        let mut next = starts.clone();
        let mut heads = vec![0u32; starts[total] as usize];
        visit_edges(schedule, matching, merged, &sends, |tail, head| {
            let slot = &mut next[tail as usize];
            heads[*slot as usize] = head;
            *slot += 1;
        });
        Graph { matching, starts, heads, representatives, pending, merged }
    }

    /// The step that runs together with `step`.
    fn twin(&self, step: u32) -> Option<u32> {
        self.matching.twin(step).filter(|_| self.merged)
    }

    /// Whether the step represents itself and waits for nothing.
    fn is_free(&self, step: u32) -> bool {
        self.representatives[step as usize] == step && self.pending[step as usize] == 0
    }

    /// A cycle among the steps that never ran.
    fn cycle(&self, order: &[StepId]) -> Cycle {
        let ids = self.matching.ids();
        let mut stuck = vec![true; self.representatives.len()];
        for id in order {
            stuck[self.matching.number(*id)] = false;
        }
        let mut before = vec![u32::MAX; self.representatives.len()];
        for tail in (0..self.representatives.len()).filter(|tail| stuck[*tail]) {
            for edge in self.starts[tail]..self.starts[tail + 1] {
                before[self.heads[edge as usize] as usize] = tail as u32;
            }
        }
        let mut seen: FastMap<u32, usize> = FastMap::default();
        let mut chain = Vec::new();
        let mut at = stuck.iter().position(|s| *s).unwrap_or(0) as u32;
        // Every stuck step, or the one it meets, waits for another stuck step, so the walk comes back.
        while seen.insert(at, chain.len()).is_none() {
            chain.push(ids[at as usize]);
            if before[at as usize] == u32::MAX {
                at = self.twin(at).unwrap_or(at);
                if seen.insert(at, chain.len()).is_some() {
                    break;
                }
                chain.push(ids[at as usize]);
            }
            at = before[at as usize];
        }
        let start = chain.iter().position(|id| *id == ids[at as usize]).unwrap_or(0);
        Cycle(chain.split_off(start))
    }
}

/// Visits all dependencies as (before, after): a step's `after` and its predecessor in the FIFO; unless they
/// are merged, a receive's send; and for sends, room at the receiver.
fn visit_edges(
    schedule: &Schedule,
    matching: &Matching,
    merged: bool,
    sends: &[(u32, u32)],
    mut visit: impl FnMut(u32, u32),
) {
    let mut number = 0;
    for program in &schedule.programs {
        let first = number;
        for step in &program.steps {
            for before in &step.after {
                visit(first + before, number);
            }
            if let Some(before) = matching.before(number) {
                visit(before, number);
            }
            if let Some(send) = matching.twin(number).filter(|_| !merged && receives(step)) {
                visit(send, number);
            }
            number += 1;
        }
    }
    sends.iter().for_each(|(recv, send)| visit(*recv, *send));
}

/// Returns the sends that wait until there is room at the receiver, each with the receive that makes room.
fn waiting_for_room(schedule: &Schedule, matching: &Matching, credits: u32) -> Vec<(u32, u32)> {
    let mut waiting = Vec::new();
    // First step of each step's FIFO, by step, and the sends of each FIFO.
    let mut firsts: Vec<u32> = (0..matching.total() as u32).collect();
    let mut fifos: FastMap<u32, Vec<u32>> = FastMap::default();
    for (number, (_, step)) in (0..).zip(schedule.steps()) {
        let Some((_, Direction::Out)) = step.action.message() else { continue };
        let first = matching.before(number).map_or(number, |before| firsts[before as usize]);
        firsts[number as usize] = first;
        let fifo = fifos.entry(first).or_default();
        let earlier = fifo.len().checked_sub(credits as usize).map(|earlier| fifo[earlier]);
        waiting.extend(earlier.and_then(|send| matching.twin(send)).map(|recv| (recv, number)));
        fifo.push(number);
    }
    waiting
}

fn receives(step: &Step) -> bool {
    matches!(step.action.message(), Some((_, Direction::In)))
}
