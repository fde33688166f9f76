//! A schedule, flattened for simulation: the steps of all ranks in a row, and the streams that their messages
//! form.
//!
//! The kind of a step is derived from its accesses ([`Action::message`](crate::schedule::Action::message) and
//! similar), so a new kind of action needs no code here. A packed chunk has its packed length in flight;
//! packing and unpacking take the time of its elements.

use super::SimulationError;
use crate::{
    BlockLayout, Schedule,
    schedule::{Action, ChunkRange, Direction},
};
use std::collections::HashMap;
use topology::{Cluster, Rank, Route};

/// Placeholder for no step and no stream.
pub(super) const NONE: u32 = u32::MAX;

/// The work that a step takes from its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    Recv,
    RecvReduce,
    Copy,
    Reduce,
    /// Packing, unpacking, or unpacking and reducing.
    Pack,
}

/// One step of one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) kind: Kind,
    pub(super) rank: u32,
    /// The stream of its message.
    pub(super) stream: u32,
    /// Bytes of its message, or of its result.
    pub(super) bytes: u64,
}

/// The messages from one rank to another on one lane, in order.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// The positions of its steps in `sends` and `recvs`.
    pub(super) first: u32,
    pub(super) end: u32,
}

/// All steps of a schedule.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) steps: Vec<Step>,
    /// The first step of each rank; one entry more than ranks.
    pub(super) bases: Vec<u32>,
    /// Per step: number of steps that it comes after.
    pub(super) waits_for: Vec<u32>,
    /// The steps that come after step `s` are `dependents[starts[s]..starts[s + 1]]`.
    pub(super) starts: Vec<u32>,
    pub(super) dependents: Vec<u32>,
    pub(super) streams: Vec<Stream>,
    pub(super) routes: Vec<Route>,
    /// Routes in the opposite direction.
    pub(super) back: Vec<Route>,
    pub(super) sends: Vec<u32>,
    pub(super) recvs: Vec<u32>,
    /// Per step: the position in `recvs` of the receive that it follows; `NONE` for most.
    pub(super) follows: Vec<u32>,
}

fn kind(action: &Action) -> Kind {
    let reads = action.reads().into_iter().flatten().count();
    let touched = action.reads().into_iter().flatten().chain(action.writes());
    let packed = touched.into_iter().any(ChunkRange::is_packed);
    match action.message() {
        None if packed => Kind::Pack,
        Some((_, Direction::Out)) => Kind::Send,
        Some((_, Direction::In)) if reads == 0 => Kind::Recv,
        Some((_, Direction::In)) => Kind::RecvReduce,
        None if reads > 1 => Kind::Reduce,
        None => Kind::Copy,
    }
}

/// Returns the bytes of a step's message in flight, or the bytes that a local step produces or unpacks.
fn bytes(schedule: &Schedule, layout: &BlockLayout, elem_size: usize, action: &Action) -> u64 {
    let Some(range) = action.payload().or_else(|| action.writes()) else { return 0 };
    let (_, elements) = layout.range(range);
    match schedule.packing.filter(|_| range.is_packed() && action.message().is_some()) {
        Some(packing) => packing.codec.packed_bytes(elements),
        None => elements * elem_size as u64,
    }
}

impl Program {
    pub(super) fn new(
        schedule: &Schedule,
        layout: &BlockLayout,
        elem_size: usize,
        cluster: &Cluster,
    ) -> Result<Program, SimulationError> {
        let total: usize = schedule.programs.iter().map(|program| program.steps.len()).sum();
        let mut keys: HashMap<(u32, u32, u8), u32> = HashMap::new();
        let mut streams: Vec<Stream> = Vec::new();
        let (mut routes, mut back) = (Vec::new(), Vec::new());
        let mut steps = Vec::with_capacity(total);
        let mut bases = Vec::with_capacity(schedule.programs.len() + 1);
        for (rank, program) in (0..).zip(&schedule.programs) {
            bases.push(steps.len() as u32);
            for step in &program.steps {
                let bytes = bytes(schedule, layout, elem_size, &step.action);
                let mut stream = NONE;
                if let Some((Rank(peer), direction)) = step.action.message() {
                    let (from, to) = if direction == Direction::Out { (rank, peer) } else { (peer, rank) };
                    let fresh = streams.len() as u32;
                    stream = *keys.entry((from, to, step.lane)).or_insert(fresh);
                    if stream == fresh {
                        let (from, to) = (Rank(from), Rank(to));
                        let way =
                            |from, to| cluster.route(from, to).ok_or(SimulationError::NoRoute { from, to });
                        routes.push(way(from, to)?);
                        back.push(way(to, from)?);
                        streams.push(Stream { first: 0, end: 0 });
                    }
                }
                steps.push(Step { kind: kind(&step.action), rank, stream, bytes });
            }
        }
        bases.push(steps.len() as u32);
        let (starts, dependents, waits_for) = dependents(schedule, &bases);
        let [sends, recvs] = [true, false].map(|sends| of_streams(&steps, &mut streams, sends));
        let follows = follows(schedule, &bases, &recvs);
        let program = Program {
            steps,
            bases,
            waits_for,
            starts,
            dependents,
            streams,
            routes,
            back,
            sends,
            recvs,
            follows,
        };
        program.check()?;
        Ok(program)
    }

    /// Checks that every message has two ends of the same length.
    fn check(&self) -> Result<(), SimulationError> {
        let at = |step: Option<&u32>| self.place(step.copied().unwrap_or(0));
        if self.sends.len() != self.recvs.len() {
            return Err(SimulationError::Unmatched { at: at(self.sends.first().or(self.recvs.first())) });
        }
        let wrong = self.sends.iter().zip(&self.recvs).find(|(send, recv)| {
            let (send, recv) = (self.steps[**send as usize], self.steps[**recv as usize]);
            (send.stream, send.bytes) != (recv.stream, recv.bytes)
        });
        match wrong {
            Some((send, _)) => Err(SimulationError::Unmatched { at: at(Some(send)) }),
            None => Ok(()),
        }
    }

    /// Returns the rank of a step, and its number there.
    pub(super) fn place(&self, step: u32) -> (Rank, u32) {
        let rank = self.steps.get(step as usize).map_or(0, |step| step.rank);
        (Rank(rank), step - self.bases[rank as usize])
    }
}

/// Sorts the sends, or the receives, by their streams, each in order.
fn of_streams(steps: &[Step], streams: &mut [Stream], sends: bool) -> Vec<u32> {
    let is_one = |step: &Step| step.stream != NONE && (step.kind == Kind::Send) == sends;
    let mut counts = vec![0u32; streams.len()];
    steps.iter().filter(|step| is_one(step)).for_each(|step| counts[step.stream as usize] += 1);
    let mut first = 0;
    let mut next = Vec::with_capacity(streams.len());
    for (stream, count) in streams.iter_mut().zip(counts) {
        next.push(first);
        (stream.first, stream.end) = (first, first + count);
        first += count;
    }
    let mut sorted = vec![NONE; first as usize];
    for (number, step) in steps.iter().enumerate().filter(|(_, step)| is_one(step)) {
        let slot = &mut next[step.stream as usize];
        sorted[*slot as usize] = number as u32;
        *slot += 1;
    }
    sorted
}

/// Returns the position, among all `recvs`, of the receive that each step follows.
fn follows(schedule: &Schedule, bases: &[u32], recvs: &[u32]) -> Vec<u32> {
    let mut places = vec![NONE; bases.last().copied().unwrap_or(0) as usize];
    for (place, recv) in (0..).zip(recvs) {
        places[*recv as usize] = place;
    }
    let followed = schedule.programs.iter().zip(bases).flat_map(|(program, base)| {
        program.steps.iter().map(move |step| step.follows.map(|followed| (base + followed) as usize))
    });
    followed
        .map(|followed| followed.and_then(|followed| places.get(followed).copied()).unwrap_or(NONE))
        .collect()
}

/// Returns the dependents of each step: the start of each list, the lists, and the number of steps that each
/// waits for.
fn dependents(schedule: &Schedule, bases: &[u32]) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
    let total = bases.last().copied().unwrap_or(0) as usize;
    let edges =
        || {
            schedule.programs.iter().zip(bases).flat_map(|(program, base)| {
                program.steps.iter().zip(*base..).flat_map(move |(step, number)| {
                    step.after.iter().map(move |before| (base + before, number))
                })
            })
        };
    let (mut starts, mut waits_for) = (vec![0u32; total + 1], vec![0u32; total]);
    for (before, after) in edges() {
        starts[before as usize + 1] += 1;
        waits_for[after as usize] += 1;
    }
    for step in 0..total {
        starts[step + 1] += starts[step];
    }
    let mut next = starts.clone();
    let mut heads = vec![0u32; starts.last().copied().unwrap_or(0) as usize];
    for (before, after) in edges() {
        let slot = &mut next[before as usize];
        heads[*slot as usize] = after;
        *slot += 1;
    }
    (starts, heads, waits_for)
}
