//! An interpreter that runs schedules on numbers, one step at a time in an order drawn by seed.
//!
//! It shares only types with the verifier: it has its own model of memory, of the steps that may run next and
//! of the expected result. Where sends follow receives, messages travel in two pieces, each a step of its
//! own. Undefined memory holds garbage. Packed chunks hold the elements with one bit inverted, so that
//! confusing packed and plain data changes the result.

use collectives::schedule::{Action, Buffer, ChunkRange, InPlace, Step};
use collectives::{BlockLayout, Collective, Schedule};
use std::collections::{HashMap, VecDeque};

/// The reduction of two elements.
pub(crate) type Op = fn(i64, i64) -> i64;

/// The time at which a send may complete.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sends {
    /// When its receive takes the data.
    Synchronous,
    /// At once: the message is buffered.
    Buffered,
}

/// A small random number generator (splitmix64), so that runs depend on their seed only.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// The state of a running schedule.
struct Machine<'a> {
    schedule: &'a Schedule,
    layout: BlockLayout,
    op: Op,
    /// The offset of each buffer in the rank's memory.
    bases: Vec<[usize; 4]>,
    memory: Vec<Vec<i64>>,
    /// The number of pieces of each message.
    pieces: usize,
    /// The number of completed pieces of each step. A step without a message completes all of them at once.
    done: Vec<Vec<usize>>,
    /// Pieces of messages that wait, by source, destination and lane.
    waiting: HashMap<(usize, usize, u8), VecDeque<Vec<i64>>>,
}

/// Returns the contribution of a rank: different for every rank and element. The contribution to a barrier is
/// one bit.
pub(crate) fn contribution(collective: Collective, rank: usize, index: usize) -> i64 {
    match collective {
        Collective::Barrier => 1 << rank,
        _ => Random((rank as u64) << 32 | index as u64).next() as i64,
    }
}

/// The memory of every rank at the end, per buffer; or the ranks that are stuck.
pub(crate) struct Outcome {
    pub(crate) outputs: Vec<Vec<i64>>,
    pub(crate) inputs: Vec<Vec<i64>>,
    pub(crate) scratch: Vec<Vec<i64>>,
}

/// Runs `schedule` on blocks of `count` elements.
pub(crate) fn run(
    schedule: &Schedule,
    count: usize,
    op: Op,
    sends: Sends,
    seed: u64,
) -> Result<Outcome, String> {
    let mut random = Random(seed);
    let mut machine = Machine::new(schedule, count, op, &mut random);
    let total = schedule.programs.iter().map(|p| p.steps.len()).sum::<usize>() * machine.pieces;
    let mut ran = 0;
    while ran < total {
        // Several random draws before the exhaustive search, which is slow.
        let choice = (0..8).find_map(|_| {
            let rank = random.below(schedule.programs.len());
            let steps = machine.runnable(rank, sends);
            (!steps.is_empty()).then(|| (rank, steps[random.below(steps.len())]))
        });
        let choice = choice.or_else(|| {
            (0..schedule.programs.len())
                .find_map(|rank| Some((rank, *machine.runnable(rank, sends).first()?)))
        });
        let (rank, step) = choice.ok_or_else(|| format!("stuck after {ran} of {total} pieces of steps"))?;
        ran += machine.execute(rank, step, sends);
    }
    Ok(machine.outcome())
}

impl<'a> Machine<'a> {
    fn new(schedule: &'a Schedule, count: usize, op: Op, random: &mut Random) -> Machine<'a> {
        // Elements of 64 bytes: a cache line is one element, so that every boundary occurs.
        let layout = schedule.layout(count as u64, 64).expect("small");
        let n = schedule.ranks();
        let len = |blocks: u32| blocks as usize * count;
        let mut bases = Vec::new();
        let mut memory = Vec::new();
        for rank in 0..n as usize {
            let [input, output] = blocks(schedule, rank).map(|blocks| blocks * count);
            let [i, o] = match (schedule.in_place, schedule.collective) {
                (InPlace::No, _) => [0, input],
                (InPlace::Yes, Collective::AllGather) => [rank * count, 0],
                (InPlace::Yes, Collective::ReduceScatter) => [0, rank * count],
                (InPlace::Yes, Collective::Gather) if output > 0 => [rank * count, 0],
                (InPlace::Yes, Collective::Scatter) if input > 0 => [0, rank * count],
                (InPlace::Yes, _) => [0, 0],
            };
            let s = (i + input).max(o + output);
            let p = s + len(schedule.scratch_blocks);
            let end = p + len(schedule.packing.map_or(0, |packing| packing.blocks));
            let mut cells: Vec<i64> = (0..end).map(|_| random.next() as i64).collect();
            let own = if schedule.collective == Collective::Barrier { s..s + count } else { i..i + input };
            for (index, cell) in cells[own].iter_mut().enumerate() {
                *cell = contribution(schedule.collective, rank, index);
            }
            bases.push([i, o, s, p]);
            memory.push(cells);
        }
        let done = schedule.programs.iter().map(|p| vec![0; p.steps.len()]).collect();
        let mut steps = schedule.programs.iter().flat_map(|p| &p.steps);
        let pieces = if steps.any(|step| step.follows.is_some()) { 2 } else { 1 };
        Machine { schedule, layout, op, bases, memory, pieces, done, waiting: HashMap::new() }
    }

    fn step(&self, rank: usize, step: usize) -> &'a Step {
        &self.schedule.programs[rank].steps[step]
    }

    /// Returns the steps whose dependencies are complete and that are first of their FIFO.
    fn ready_steps(&self, rank: usize) -> Vec<usize> {
        let mut fifos = Vec::new();
        let mut found = Vec::new();
        for (index, step) in self.schedule.programs[rank].steps.iter().enumerate() {
            if self.done[rank][index] == self.pieces {
                continue;
            }
            if let Some(message) = step.action.message() {
                if fifos.contains(&(message, step.lane)) {
                    continue;
                }
                fifos.push((message, step.lane));
            }
            let is_over = |before: &u32| {
                let done = self.done[rank][*before as usize];
                // The step that a send follows must be one piece ahead of it.
                done == self.pieces || step.follows == Some(*before) && done > self.done[rank][index]
            };
            if step.after.iter().all(is_over) {
                found.push(index);
            }
        }
        found
    }

    /// Returns the steps that can run now. A synchronous send runs together with its receive, and is listed
    /// as the receive.
    fn runnable(&self, rank: usize, sends: Sends) -> Vec<usize> {
        let mut steps = self.ready_steps(rank);
        steps.retain(|index| {
            let step = self.step(rank, *index);
            match (step.action, sends) {
                (Action::Send { .. }, mode) => mode == Sends::Buffered,
                (Action::Recv { peer, .. } | Action::RecvReduce { peer, .. }, Sends::Buffered) => {
                    self.waiting.get(&(peer.index(), rank, step.lane)).is_some_and(|q| !q.is_empty())
                }
                (Action::Recv { .. } | Action::RecvReduce { .. }, _) => self.sender(rank, *index).is_some(),
                _ => true,
            }
        });
        steps
    }

    /// Returns the send that is ready for a receive.
    fn sender(&self, rank: usize, recv: usize) -> Option<(usize, usize)> {
        let step = self.step(rank, recv);
        let peer = step.action.message()?.0.index();
        self.ready_steps(peer).into_iter().map(|index| (peer, index)).find(|(peer, index)| {
            let send = self.step(*peer, *index);
            matches!(send.action, Action::Send { peer, .. } if peer.index() == rank) && send.lane == step.lane
        })
    }

    fn execute(&mut self, rank: usize, index: usize, sends: Sends) -> usize {
        let step = self.step(rank, index);
        let is_message = step.action.message().is_some();
        let mut ran = if is_message { 1 } else { self.pieces };
        let piece = is_message.then_some(self.done[rank][index]);
        let mut message = Vec::new();
        if matches!(step.action, Action::Recv { .. } | Action::RecvReduce { .. }) {
            let peer = step.action.message().expect("a message").0.index();
            if sends == Sends::Synchronous {
                let (peer, send) = self.sender(rank, index).expect("runnable");
                let Action::Send { src, .. } = self.step(peer, send).action else { unreachable!() };
                message = self.read(peer, src, piece);
                self.done[peer][send] += 1;
                ran += 1;
            } else {
                let queue = self.waiting.get_mut(&(peer, rank, step.lane)).expect("runnable");
                message = queue.pop_front().expect("runnable");
            }
        }
        match step.action {
            Action::Send { peer, src } => {
                let message = self.read(rank, src, piece);
                self.waiting.entry((rank, peer.index(), step.lane)).or_default().push_back(message);
            }
            Action::Recv { dst, .. } => self.write(rank, dst, piece, &message),
            Action::RecvReduce { local, dst, .. } => {
                let local = self.read(rank, local, piece);
                self.write(rank, dst, piece, &self.reduce(&local, &message));
            }
            Action::Copy { src, dst } => self.write(rank, dst, None, &self.read(rank, src, None)),
            Action::Reduce { a, b, dst, .. } => {
                let (a, b) = (self.read(rank, a, None), self.read(rank, b, None));
                self.write(rank, dst, None, &self.reduce(&a, &b));
            }
            Action::Encode { src, dst } | Action::Decode { src, dst } => {
                self.write(rank, dst, None, &toggle_packed(&self.read(rank, src, None)));
            }
            Action::DecodeReduce { local, src, dst, .. } => {
                let (a, b) = (self.read(rank, local, None), toggle_packed(&self.read(rank, src, None)));
                self.write(rank, dst, None, &self.reduce(&a, &b));
            }
        }
        self.done[rank][index] += if is_message { 1 } else { self.pieces };
        ran
    }

    fn reduce(&self, a: &[i64], b: &[i64]) -> Vec<i64> {
        a.iter().zip(b).map(|(a, b)| (self.op)(*a, *b)).collect()
    }

    /// Returns the position of a range, or of a piece of it, in a rank's memory.
    fn memory_range(&self, rank: usize, range: ChunkRange, piece: Option<usize>) -> std::ops::Range<usize> {
        let base = match range.buffer {
            Buffer::Input => self.bases[rank][0],
            Buffer::Output => self.bases[rank][1],
            Buffer::Scratch => self.bases[rank][2],
            Buffer::Packed => self.bases[rank][3],
        };
        let (start, len) = self.layout.range(range);
        let (start, len) = (base + start as usize, len as usize);
        match piece {
            None => start..start + len,
            Some(piece) => start + len * piece / self.pieces..start + len * (piece + 1) / self.pieces,
        }
    }

    fn read(&self, rank: usize, range: ChunkRange, piece: Option<usize>) -> Vec<i64> {
        self.memory[rank][self.memory_range(rank, range, piece)].to_vec()
    }

    fn write(&mut self, rank: usize, range: ChunkRange, piece: Option<usize>, data: &[i64]) {
        let memory_range = self.memory_range(rank, range, piece);
        assert_eq!(memory_range.len(), data.len(), "lengths of a message differ");
        self.memory[rank][memory_range].copy_from_slice(data);
    }

    fn outcome(&self) -> Outcome {
        let count = self.layout.count() as usize;
        let part = |buffer: usize, blocks: &dyn Fn(usize) -> usize| {
            let slice = |(rank, memory): (usize, &Vec<i64>)| {
                let first = self.bases[rank][buffer];
                memory[first..first + blocks(rank) * count].to_vec()
            };
            self.memory.iter().enumerate().map(slice).collect()
        };
        Outcome {
            inputs: part(0, &|rank| blocks(self.schedule, rank)[0]),
            outputs: part(1, &|rank| blocks(self.schedule, rank)[1]),
            scratch: part(2, &|_| self.schedule.scratch_blocks as usize),
        }
    }
}

/// Packs or unpacks elements.
fn toggle_packed(elements: &[i64]) -> Vec<i64> {
    elements.iter().map(|element| element ^ 0x40).collect()
}

/// Returns the blocks of a rank's input and output.
fn blocks(schedule: &Schedule, rank: usize) -> [usize; 2] {
    let (n, root) = (schedule.programs.len(), rank == schedule.root.index());
    match schedule.collective {
        Collective::AllGather => [1, n],
        Collective::Gather => [1, if root { n } else { 0 }],
        Collective::ReduceScatter => [n, 1],
        Collective::Scatter => [if root { n } else { 0 }, 1],
        Collective::Reduce => [1, usize::from(root)],
        Collective::AllToAll => [n, n],
        Collective::Barrier => [0, 0],
        _ => [1, 1],
    }
}

/// Checks that the outcome is the result of the collective, for an associative operation.
pub(crate) fn check_outcome(
    schedule: &Schedule,
    count: usize,
    op: Op,
    outcome: &Outcome,
) -> Result<(), String> {
    let n = schedule.programs.len();
    let collective = schedule.collective;
    let own = |rank: usize, index: usize| contribution(collective, rank, index);
    let sum_of =
        |ranks: usize, index: usize| (1..ranks).fold(own(0, index), |sum, rank| op(sum, own(rank, index)));
    let sum = |index: usize| sum_of(n, index);
    for rank in 0..n {
        let root = rank == schedule.root.index();
        let side_by_side = || (0..n * count).map(|i| own(i / count, i % count)).collect();
        let expected: Vec<i64> = match collective {
            Collective::AllReduce => (0..count).map(sum).collect(),
            Collective::ReduceScatter => (rank * count..(rank + 1) * count).map(sum).collect(),
            Collective::Reduce if root => (0..count).map(sum).collect(),
            Collective::Gather if root => side_by_side(),
            Collective::Reduce | Collective::Gather => Vec::new(),
            Collective::Scatter => (0..count).map(|i| own(schedule.root.index(), rank * count + i)).collect(),
            Collective::Scan => (0..count).map(|i| sum_of(rank + 1, i)).collect(),
            Collective::ExclusiveScan if rank == 0 => outcome.outputs[0].clone(),
            Collective::ExclusiveScan => (0..count).map(|i| sum_of(rank, i)).collect(),
            Collective::AllGather => side_by_side(),
            Collective::AllToAll => {
                (0..n * count).map(|i| own(i / count, rank * count + i % count)).collect()
            }
            Collective::Broadcast => (0..count).map(|i| own(schedule.root.index(), i)).collect(),
            Collective::SendRecv => (0..count).map(|i| own((rank + n - 1) % n, i)).collect(),
            Collective::Barrier => vec![(0..n).map(|rank| own(rank, 0)).fold(0, |a, b| a | b); count],
        };
        let found = match collective {
            Collective::Barrier => &outcome.scratch[rank][outcome.scratch[rank].len() - count..],
            _ => &outcome.outputs[rank][..],
        };
        if found != expected {
            return Err(format!("rank {rank} of {n} has {found:?} instead of {expected:?}"));
        }
        let clean = outcome.inputs[rank].iter().enumerate().all(|(i, x)| {
            let may_change = match collective {
                Collective::ReduceScatter | Collective::Scatter => i / count.max(1) == rank,
                _ => !outcome.outputs[rank].is_empty(),
            };
            (schedule.in_place == InPlace::Yes && may_change) || *x == own(rank, i)
        });
        if !clean {
            return Err(format!("rank {rank} of {n} has changed its input"));
        }
    }
    Ok(())
}

/// Returns addition for data, and bitwise OR for barriers.
pub(crate) fn natural_op(collective: Collective) -> Op {
    if collective == Collective::Barrier { |a, b| a | b } else { i64::wrapping_add }
}

/// Runs under several seeds, synchronous and buffered, and returns the first error.
pub(crate) fn check_many(
    schedule: &Schedule,
    count: usize,
    seeds: std::ops::Range<u64>,
) -> Result<(), String> {
    let op = natural_op(schedule.collective);
    for seed in seeds {
        for sends in [Sends::Synchronous, Sends::Buffered] {
            let outcome = run(schedule, count, op, sends, seed)?;
            check_outcome(schedule, count, op, &outcome)
                .map_err(|e| format!("{sends:?}, seed {seed}: {e}"))?;
        }
    }
    Ok(())
}

/// Gives every message a lane of its own, so that nothing depends on the order of a FIFO. Returns `false` if
/// there are too many messages.
pub(crate) fn use_lane_per_message(schedule: &mut Schedule) -> bool {
    let mut used: HashMap<_, usize> = HashMap::new();
    let room = 255 / usize::from(schedule.lanes);
    for (rank, program) in schedule.programs.iter_mut().enumerate() {
        for step in &mut program.steps {
            let Some(message) = step.action.message() else { continue };
            let nth = used.entry((rank, message, step.lane)).or_default();
            if *nth == room {
                return false;
            }
            step.lane = (usize::from(step.lane) * room + *nth) as u8;
            *nth += 1;
        }
    }
    schedule.lanes = 255;
    true
}
