//! One case as one rank: its buffers, the call, and what must be in them afterwards.
//!
//! Inputs repeat after a prime number of elements, so that long ones cost no more than copying them; pieces and chunks
//! never lie at such a distance.

use crate::{
    case::{Call, Case, mix},
    definition::Sample,
};
use std::ops::{Deref, DerefMut, Range};
use tbccl::{Buffer, Collective, Communicator, Group, Rank, ReduceOp, Result, element::bytes_of};

/// After so many elements inputs repeat.
const PERIOD: usize = 4099;

/// In what order contributions are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// That of a result that all ranks contribute to.
    Whole,
    /// That of a prefix.
    Prefix,
}

/// What inputs are, and what becomes of them.
#[derive(Clone, Copy)]
pub(crate) struct Meaning<T> {
    /// An element of an input, given a random number and the number of ranks.
    pub(crate) sample: fn(ReduceOp, u64, u32) -> T,
    /// The elements of ranks, in their order, combined.
    pub(crate) reduce: fn(ReduceOp, &[T], Order) -> T,
}

/// Inputs on which the order does not matter.
pub(crate) fn exact<T: Sample>() -> Meaning<T> {
    Meaning { sample: T::sample, reduce: |op, elements, _| T::reduce(op, elements) }
}

/// Memory of the program's own, or such as peers read in place.
enum Memory<T> {
    Own(Vec<T>),
    Registered(Buffer<T>),
}

impl<T: Sample> Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Memory::Own(memory) => memory,
            Memory::Registered(memory) => memory,
        }
    }
}

impl<T: Sample> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Memory::Own(memory) => memory,
            Memory::Registered(memory) => memory,
        }
    }
}

/// The inputs of all ranks, from the point of view of one.
struct Inputs<T> {
    case: Case,
    meaning: Meaning<T>,
    me: usize,
    ranks: usize,
}

/// `len` elements from a place on, of a sequence that repeats.
fn repeated<T: Copy>(range: Range<usize>, at: impl Fn(usize) -> T) -> Vec<T> {
    let (start, len) = (range.start, range.len());
    let mut all: Vec<T> = (0..len.min(PERIOD)).map(|i| at((start + i) % PERIOD)).collect();
    while all.len() < len {
        let more = all.len().min(len - all.len());
        all.extend_from_within(..more);
    }
    all
}

impl<T: Sample> Inputs<T> {
    fn at(&self, rank: usize, index: usize) -> T {
        let random = mix(mix(self.case.seed, rank), index);
        (self.meaning.sample)(self.case.kind.op, random, self.ranks as u32)
    }

    /// A part of the input of a rank.
    fn of(&self, rank: usize, range: Range<usize>) -> Vec<T> {
        repeated(range, |index| self.at(rank, index))
    }

    /// Neither zero nor anything that a reduction leaves.
    fn junk(&self, count: usize) -> Vec<T> {
        self.of(99, 0..count)
    }

    /// A part of the inputs of some ranks, combined.
    fn reduced(&self, ranks: Range<usize>, range: Range<usize>, order: Order) -> Vec<T> {
        repeated(range, |index| {
            let column: Vec<T> = ranks.clone().map(|rank| self.at(rank, index)).collect();
            (self.meaning.reduce)(self.case.kind.op, &column, order)
        })
    }

    /// The inputs of all ranks, side by side.
    fn gathered(&self, range_of: impl Fn(usize) -> Range<usize>) -> Vec<T> {
        (0..self.ranks).flat_map(|rank| self.of(rank, range_of(rank))).collect()
    }

    /// The length of a block of a vector form; some are empty, and some much longer than others.
    fn length(&self, from: usize, to: usize) -> usize {
        let count = self.case.count;
        [0, 1, count, count / 2, count + 3][(mix(!self.case.seed, from * 64 + to) >> 20) as usize % 5]
    }
}

/// One case as one rank.
pub(crate) struct Exchange<T> {
    inputs: Inputs<T>,
    root: Rank,
    send: Memory<T>,
    /// The data, if it is in place.
    recv: Memory<T>,
    /// What `recv` has afterwards, and where.
    wanted: Vec<T>,
    checked: Range<usize>,
    /// The lengths of blocks: what all ranks know, or what this one sends to each.
    counts: Vec<usize>,
    /// What this rank receives from each.
    recv_counts: Vec<usize>,
    /// How much further on a message's destination is.
    shift: usize,
}

/// What a rank has before and after a call.
struct Buffers<T> {
    send: Vec<T>,
    recv: Vec<T>,
    wanted: Vec<T>,
    checked: Option<Range<usize>>,
}

impl<T> Buffers<T> {
    fn new(send: Vec<T>, recv: Vec<T>, wanted: Vec<T>) -> Buffers<T> {
        Buffers { send, recv, wanted, checked: None }
    }
}

/// Issues the call of an exchange to a communicator or to a group, which have it by the same names.
macro_rules! issue {
    ($exchange:expr, $on:expr) => {{
        let Exchange { inputs, root, send, recv, counts, recv_counts, .. } = $exchange;
        let (on, root, op, in_place) = ($on, *root, inputs.case.kind.op, inputs.case.kind.in_place);
        let (send, recv) = (&send[..], &mut recv[..]);
        match (inputs.case.kind.call, in_place) {
            (Call::Even(Collective::AllReduce), false) => on.all_reduce(send, recv, op),
            (Call::Even(Collective::AllReduce), true) => on.all_reduce_in_place(recv, op),
            (Call::Even(Collective::AllGather), false) => on.all_gather(send, recv),
            (Call::Even(Collective::AllGather), true) => on.all_gather_in_place(recv),
            (Call::Even(Collective::ReduceScatter), false) => on.reduce_scatter(send, recv, op),
            (Call::Even(Collective::ReduceScatter), true) => on.reduce_scatter_in_place(recv, op),
            (Call::Even(Collective::Broadcast), false) => on.broadcast_from(send, recv, root),
            (Call::Even(Collective::Broadcast), true) => on.broadcast(recv, root),
            (Call::Even(Collective::Reduce), false) => on.reduce(send, recv, op, root),
            (Call::Even(Collective::Reduce), true) => on.reduce_in_place(recv, op, root),
            (Call::Even(Collective::Gather), false) => on.gather(send, recv, root),
            (Call::Even(Collective::Gather), true) => on.gather_in_place(recv, root),
            (Call::Even(Collective::Scatter), false) => on.scatter(send, recv, root),
            (Call::Even(Collective::Scatter), true) => on.scatter_in_place(recv, root),
            (Call::Even(Collective::Scan), false) => on.scan(send, recv, op),
            (Call::Even(Collective::Scan), true) => on.scan_in_place(recv, op),
            (Call::Even(Collective::ExclusiveScan), false) => on.exclusive_scan(send, recv, op),
            (Call::Even(Collective::ExclusiveScan), true) => on.exclusive_scan_in_place(recv, op),
            (Call::Even(Collective::AllToAll), _) => on.all_to_all(send, recv),
            (Call::Even(Collective::SendRecv), _) => on.send_recv(send, recv),
            (Call::Vector(Collective::AllGather), _) => on.all_gather_v(send, recv, counts),
            (Call::Vector(Collective::ReduceScatter), _) => on.reduce_scatter_v(send, recv, counts, op),
            (Call::Vector(Collective::Gather), _) => on.gather_v(send, recv, counts, root),
            (Call::Vector(Collective::Scatter), _) => on.scatter_v(send, recv, counts, root),
            (Call::Vector(Collective::AllToAll), _) => on.all_to_all_v(send, counts, recv, recv_counts),
            (other, _) => unreachable!("{other:?} is none of these"),
        }
    }};
}

impl<T: Sample> Exchange<T> {
    pub(crate) fn new(case: Case, meaning: Meaning<T>, comm: &Communicator) -> Exchange<T> {
        let (me, ranks) = (comm.rank().index(), comm.size() as usize);
        let inputs = Inputs { case, meaning, me, ranks };
        let root = (case.seed >> 8) as usize % ranks;
        let shift = match (case.kind.call, ranks) {
            (Call::Messages, 2..) => 1 + (case.seed >> 12) as usize % (ranks - 1),
            _ => 0,
        };
        let (counts, recv_counts): (Vec<usize>, Vec<usize>) = match case.kind.call {
            Call::Vector(Collective::AllToAll) => {
                (0..ranks).map(|peer| (inputs.length(me, peer), inputs.length(peer, me))).unzip()
            }
            _ => (0..ranks).map(|rank| (inputs.length(rank, 0), 0)).unzip(),
        };
        let buffers = match case.kind.call {
            Call::Even(collective) if case.kind.in_place => inputs.in_place(collective, root),
            Call::Even(collective) => inputs.even(collective, root),
            Call::Vector(collective) => inputs.vector(collective, root, &counts),
            Call::Messages => {
                let len = case.count;
                Buffers::new(
                    inputs.of(me, 0..len),
                    inputs.junk(len),
                    inputs.of((me + ranks - shift) % ranks, 0..len),
                )
            }
        };
        let registered = case.seed >> 16 & 1 == 1;
        let memory = |contents: Vec<T>| {
            if !registered {
                return Memory::Own(contents);
            }
            let mut memory = comm.alloc(contents.len()).expect("room in the slab");
            memory.copy_from_slice(&contents);
            Memory::Registered(memory)
        };
        let Buffers { send, recv, wanted, checked } = buffers;
        let checked = checked.unwrap_or(0..recv.len());
        assert_eq!(checked.len(), wanted.len(), "a reference for {case:?}");
        let (send, recv, root) = (memory(send), memory(recv), Rank(root as u32));
        Exchange { inputs, root, send, recv, wanted, checked, counts, recv_counts, shift }
    }

    /// Carries it out.
    pub(crate) fn alone(&mut self, comm: &mut Communicator) -> Result<()> {
        if self.inputs.case.kind.call != Call::Messages {
            return issue!(self, comm);
        }
        let (to, from) = self.peers();
        // Of ranks in a circle, not all wait for the same.
        if comm.rank() < to {
            comm.send(&self.send, to)?;
            comm.recv(&mut self.recv, from)
        } else {
            comm.recv(&mut self.recv, from)?;
            comm.send(&self.send, to)
        }
    }

    /// Gives it to a group.
    pub(crate) fn queue<'m>(&'m mut self, group: &mut Group<'_, 'm>) -> Result<()> {
        if self.inputs.case.kind.call != Call::Messages {
            return issue!(self, group);
        }
        let (to, from) = self.peers();
        group.send(&self.send, to)?;
        group.recv(&mut self.recv, from)
    }

    fn peers(&self) -> (Rank, Rank) {
        let Inputs { me, ranks, .. } = self.inputs;
        (Rank(((me + self.shift) % ranks) as u32), Rank(((me + ranks - self.shift) % ranks) as u32))
    }

    /// Compares what is there with what is wanted, bit by bit.
    pub(crate) fn check(&self) {
        let got = &self.recv[self.checked.clone()];
        if bytes_of(got) == bytes_of(&self.wanted) {
            return;
        }
        let differs = |(a, b): (&T, &T)| bytes_of(&[*a]) != bytes_of(&[*b]);
        let at = got.iter().zip(&self.wanted).position(differs).expect("they differ somewhere");
        let Inputs { case, me, ranks, .. } = &self.inputs;
        let (got, wanted) = (got[at], self.wanted[at]);
        panic!("{case:?}, rank {me} of {ranks}: element {at} is {got:?}, not {wanted:?}");
    }
}

impl<T: Sample> Inputs<T> {
    /// The block of this rank.
    fn mine(&self) -> Range<usize> {
        let count = self.case.count;
        self.me * count..(self.me + 1) * count
    }

    fn even(&self, collective: Collective, root: usize) -> Buffers<T> {
        let (n, me, count, mine) = (self.ranks, self.me, self.case.count, self.mine());
        let at_root = me == root;
        let input = || self.of(me, 0..count);
        // Where there is no result, nothing changes, whatever its length.
        let left_alone = || (self.junk(me % 3), self.junk(me % 3));
        let (send, (recv, wanted)) = match collective {
            Collective::AllReduce => {
                (input(), (self.junk(count), self.reduced(0..n, 0..count, Order::Whole)))
            }
            Collective::ReduceScatter => {
                let wanted = self.reduced(0..n, mine, Order::Whole);
                (self.of(me, 0..count * n), (self.junk(count), wanted))
            }
            Collective::AllGather => (input(), (self.junk(count * n), self.gathered(|_| 0..count))),
            Collective::Broadcast => (input(), (self.junk(count), self.of(root, 0..count))),
            Collective::Reduce if at_root => {
                (input(), (self.junk(count), self.reduced(0..n, 0..count, Order::Whole)))
            }
            Collective::Gather if at_root => (input(), (self.junk(count * n), self.gathered(|_| 0..count))),
            Collective::Reduce | Collective::Gather => (input(), left_alone()),
            Collective::Scatter => {
                let all = if at_root { self.of(me, 0..count * n) } else { Vec::new() };
                (all, (self.junk(count), self.of(root, mine)))
            }
            Collective::Scan | Collective::ExclusiveScan => {
                let before = self.junk(count);
                let wanted = self.prefix(collective, &before);
                (input(), (before, wanted))
            }
            Collective::AllToAll => {
                (self.of(me, 0..count * n), (self.junk(count * n), self.gathered(|_| mine.clone())))
            }
            Collective::SendRecv => (input(), (self.junk(count), self.of((me + n - 1) % n, 0..count))),
            Collective::Barrier => unreachable!("it has no elements"),
        };
        Buffers::new(send, recv, wanted)
    }

    fn in_place(&self, collective: Collective, root: usize) -> Buffers<T> {
        let (n, me, count, mine) = (self.ranks, self.me, self.case.count, self.mine());
        let at_root = me == root;
        let input = || self.of(me, 0..count);
        let own_block_of_junk = || {
            let mut data = self.junk(count * n);
            data[mine.clone()].copy_from_slice(&input());
            data
        };
        let (data, wanted) = match collective {
            Collective::AllReduce => (input(), self.reduced(0..n, 0..count, Order::Whole)),
            Collective::ReduceScatter => {
                let wanted = self.reduced(0..n, mine.clone(), Order::Whole);
                let buffers = Buffers::new(Vec::new(), self.of(me, 0..count * n), wanted);
                return Buffers { checked: Some(mine), ..buffers };
            }
            Collective::AllGather => (own_block_of_junk(), self.gathered(|_| 0..count)),
            Collective::Broadcast => (input(), self.of(root, 0..count)),
            Collective::Reduce if at_root => (input(), self.reduced(0..n, 0..count, Order::Whole)),
            Collective::Gather if at_root => (own_block_of_junk(), self.gathered(|_| 0..count)),
            Collective::Reduce | Collective::Gather => (input(), input()),
            Collective::Scatter if at_root => (self.of(me, 0..count * n), self.of(me, 0..count * n)),
            Collective::Scatter => (self.junk(count), self.of(root, mine)),
            Collective::Scan | Collective::ExclusiveScan => (input(), self.prefix(collective, &input())),
            other => unreachable!("there is no {other} in place"),
        };
        Buffers::new(Vec::new(), data, wanted)
    }

    fn vector(&self, collective: Collective, root: usize, counts: &[usize]) -> Buffers<T> {
        let (n, me) = (self.ranks, self.me);
        let total: usize = counts.iter().sum();
        let start = |rank: usize| counts[..rank].iter().sum::<usize>();
        let mine = start(me)..start(me) + counts[me];
        let (send, recv, wanted) = match collective {
            Collective::Gather if me != root => {
                (self.of(me, 0..counts[me]), self.junk(me % 3), self.junk(me % 3))
            }
            Collective::AllGather | Collective::Gather => {
                (self.of(me, 0..counts[me]), self.junk(total), self.gathered(|rank| 0..counts[rank]))
            }
            Collective::ReduceScatter => {
                let wanted = self.reduced(0..n, mine, Order::Whole);
                (self.of(me, 0..total), self.junk(counts[me]), wanted)
            }
            Collective::Scatter => {
                let all = if me == root { self.of(me, 0..total) } else { Vec::new() };
                (all, self.junk(counts[me]), self.of(root, mine))
            }
            Collective::AllToAll => {
                let to_me = |from: usize| {
                    let start: usize = (0..me).map(|to| self.length(from, to)).sum();
                    start..start + self.length(from, me)
                };
                let wanted = self.gathered(to_me);
                (self.of(me, 0..total), self.junk(wanted.len()), wanted)
            }
            other => unreachable!("{other} has no vector form"),
        };
        Buffers::new(send, recv, wanted)
    }

    /// What a scan leaves where this was before.
    fn prefix(&self, collective: Collective, before: &[T]) -> Vec<T> {
        let ranks = self.me + usize::from(collective == Collective::Scan);
        if ranks == 0 { before.to_vec() } else { self.reduced(0..ranks, 0..self.case.count, Order::Prefix) }
    }
}
