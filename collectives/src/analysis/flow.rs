//! An order in which the whole world can run, or the cycle that forbids it.
//!
//! With zero credits a send completes only when its receive has taken the data, so the two are one node. With
//! `k` credits, `k` messages of a lane may wait at the receiver: send `j` of a lane needs receive `j - k` to
//! be complete, and receive `j` needs send `j`.

use super::{FastMap, Matching};
use crate::schedule::{Action, Direction, Schedule, Step};
use std::collections::VecDeque;
use topology::Rank;

/// A step of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StepId {
    /// The rank.
    pub(crate) rank: u32,
    /// The index within the rank's program.
    pub(crate) step: u32,
}

impl StepId {
    /// The step itself.
    pub(crate) fn of(self, schedule: &Schedule) -> &Step {
        &schedule.programs[self.rank as usize].steps[self.step as usize]
    }
}

/// Steps each of which waits for the next, and the last for the first.
#[derive(Debug)]
pub(crate) struct Cycle(pub(crate) Vec<StepId>);

/// A possible run of the whole world.
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
    ids: Vec<StepId>,
    /// Edges from each step to those that wait for it: `heads[starts[s]..starts[s + 1]]`.
    starts: Vec<u32>,
    heads: Vec<u32>,
    /// Edges into each step that are not yet satisfied.
    pending: Vec<u32>,
    /// Which steps are sends.
    sends: Vec<bool>,
    /// With zero credits, a step and its partner go together.
    merged: bool,
}

impl Flow {
    /// Runs the schedule symbolically with `credits` messages of room per lane.
    pub(crate) fn new(schedule: &Schedule, matching: &Matching, credits: u32) -> Result<Flow, Cycle> {
        let mut graph = Graph::new(schedule, matching, credits);
        let total = graph.ids.len();
        let mut flow = Flow { order: Vec::with_capacity(total), stages: vec![0; total] };
        let mut ready = VecDeque::new();
        ready.extend((0..total as u32).filter(|step| graph.ready(*step) == Some(*step)));
        while let Some(step) = ready.pop_front() {
            flow.order.push(graph.ids[step as usize]);
            let both = [Some(step), graph.twin(step)];
            let stage = both.iter().flatten().map(|s| flow.stages[*s as usize]).max().unwrap_or(0);
            flow.order.extend(both[1].map(|twin| graph.ids[twin as usize]));
            for done in both.into_iter().flatten() {
                flow.stages[done as usize] = stage;
                for edge in graph.starts[done as usize]..graph.starts[done as usize + 1] {
                    let next = graph.heads[edge as usize];
                    flow.stages[next as usize] = flow.stages[next as usize].max(stage + 1);
                    graph.pending[next as usize] -= 1;
                    if graph.pending[next as usize] == 0 {
                        ready.extend(graph.ready(next));
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
        let mut ids = Vec::with_capacity(total);
        let mut sends = Vec::with_capacity(total);
        let mut edges: Vec<(u32, u32)> = Vec::with_capacity(2 * total);
        for (rank, program) in schedule.programs.iter().enumerate() {
            let mut fifos: FastMap<(Rank, Direction, u8), Vec<u32>> = FastMap::default();
            let base = ids.len() as u32;
            for (index, step) in program.steps.iter().enumerate() {
                let id = StepId { rank: rank as u32, step: index as u32 };
                let number = base + index as u32;
                ids.push(id);
                sends.push(matches!(step.action, Action::Send { .. }));
                edges.extend(step.after.iter().map(|before| (base + before, number)));
                let Some((peer, direction)) = step.action.message() else { continue };
                let fifo = fifos.entry((peer, direction, step.lane)).or_default();
                edges.extend(fifo.last().map(|before| (*before, number)));
                fifo.push(number);
                let Some(partner) = matching.partner(id).filter(|_| credits > 0) else { continue };
                if direction == Direction::In {
                    edges.push((matching.number(partner) as u32, number));
                } else if let Some(earlier) = (fifo.len() - 1).checked_sub(credits as usize) {
                    let earlier = ids[fifo[earlier] as usize];
                    edges
                        .extend(matching.partner(earlier).map(|recv| (matching.number(recv) as u32, number)));
                }
            }
        }
        let (starts, heads, pending) = compress(total, &edges);
        Graph { matching, ids, starts, heads, pending, sends, merged: credits == 0 }
    }

    /// The step that runs together with `step`.
    fn twin(&self, step: u32) -> Option<u32> {
        let partner = self.matching.partner(self.ids[step as usize]).filter(|_| self.merged)?;
        Some(self.matching.number(partner) as u32)
    }

    /// The step that stands for `step` in the queue, when nothing keeps it: of two that run together, the
    /// send.
    fn ready(&self, step: u32) -> Option<u32> {
        let twin = self.twin(step);
        let free = |s: u32| self.pending[s as usize] == 0;
        let pair = twin.filter(|_| !self.sends[step as usize]).unwrap_or(step);
        (free(step) && twin.is_none_or(free)).then_some(pair)
    }

    /// A cycle among the steps that never ran.
    fn cycle(&self, order: &[StepId]) -> Cycle {
        let mut stuck = vec![true; self.ids.len()];
        for id in order {
            stuck[self.matching.number(*id)] = false;
        }
        let mut before = vec![u32::MAX; self.ids.len()];
        for tail in (0..self.ids.len()).filter(|tail| stuck[*tail]) {
            for edge in self.starts[tail]..self.starts[tail + 1] {
                before[self.heads[edge as usize] as usize] = tail as u32;
            }
        }
        let mut seen: FastMap<u32, usize> = FastMap::default();
        let mut chain = Vec::new();
        let mut at = stuck.iter().position(|s| *s).unwrap_or(0) as u32;
        // Every stuck step, or the one it meets, waits for another stuck step, so the walk comes back.
        while seen.insert(at, chain.len()).is_none() {
            chain.push(self.ids[at as usize]);
            if before[at as usize] == u32::MAX {
                at = self.twin(at).unwrap_or(at);
                if seen.insert(at, chain.len()).is_some() {
                    break;
                }
                chain.push(self.ids[at as usize]);
            }
            at = before[at as usize];
        }
        let start = chain.iter().position(|id| *id == self.ids[at as usize]).unwrap_or(0);
        Cycle(chain.split_off(start))
    }
}

/// Turns a list of edges into successor lists and in-degrees.
fn compress(total: usize, edges: &[(u32, u32)]) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
    let mut starts = vec![0u32; total + 1];
    let mut pending = vec![0u32; total];
    for (tail, head) in edges {
        starts[*tail as usize + 1] += 1;
        pending[*head as usize] += 1;
    }
    for i in 0..total {
        starts[i + 1] += starts[i];
    }
    let mut next = starts.clone();
    let mut heads = vec![0u32; edges.len()];
    for (tail, head) in edges {
        let slot = &mut next[*tail as usize];
        heads[*slot as usize] = *head;
        *slot += 1;
    }
    (starts, heads, pending)
}
