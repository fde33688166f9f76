//! One case on one rank: its buffers, its call, and the expected result.
//!
//! Inputs repeat after a prime number of elements, so that generating long ones costs no more than copying.
//! The distance of pieces or chunks is never a multiple of that number.

use super::{Call, Case, Sample, mix};
use crate::with_element;
use std::{
    fmt,
    ops::{Deref, DerefMut, Range},
};
use tbccl::{Buffer, Collective, Communicator, Group, Rank, ReduceOp, Result, element::bytes_of};

/// Elements after which inputs repeat.
const PERIOD: usize = 4099;

/// Order of reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The order of results to which all ranks contribute.
    Whole,
    /// The order of prefix results.
    Prefix,
}

/// The definition of inputs and of their reduction.
#[derive(Clone, Copy, Debug)]
pub struct Meaning<T> {
    /// Returns an element of an input, given a random number and the number of ranks.
    pub sample: fn(ReduceOp, u64, u32) -> T,
    /// Reduces elements, in rank order.
    pub reduce: fn(ReduceOp, &[T], Order) -> T,
}

/// Returns the definition with inputs that reduce exactly in any order.
#[must_use]
pub fn exact<T: Sample>() -> Meaning<T> {
    Meaning { sample: T::sample, reduce: |op, elements, _| T::reduce(op, elements) }
}

/// Unregistered memory, or registered memory that peers read in place.
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

/// The inputs of all ranks, as one rank computes them.
struct Inputs<T> {
    case: Case,
    meaning: Meaning<T>,
    me: usize,
    ranks: usize,
}

/// Returns the elements of a range of a repeating sequence.
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

    /// Returns a range of the input of a rank.
    fn of(&self, rank: usize, range: Range<usize>) -> Vec<T> {
        repeated(range, |index| self.at(rank, index))
    }

    /// Returns elements that are neither zero nor a possible result.
    fn junk(&self, count: usize) -> Vec<T> {
        self.of(99, 0..count)
    }

    /// Returns the reduction of a range of the inputs of some ranks.
    fn reduced(&self, ranks: Range<usize>, range: Range<usize>, order: Order) -> Vec<T> {
        repeated(range, |index| {
            let column: Vec<T> = ranks.clone().map(|rank| self.at(rank, index)).collect();
            (self.meaning.reduce)(self.case.kind.op, &column, order)
        })
    }

    /// Returns the inputs of all ranks, concatenated.
    fn gathered(&self, range_of: impl Fn(usize) -> Range<usize>) -> Vec<T> {
        (0..self.ranks).flat_map(|rank| self.of(rank, range_of(rank))).collect()
    }

    /// Returns the length of a block of a vector form; some are 0, and some much longer than others.
    fn length(&self, from: usize, to: usize) -> usize {
        let count = self.case.count;
        [0, 1, count, count / 2, count + 3][(mix(!self.case.seed, from * 64 + to) >> 20) as usize % 5]
    }
}

/// A case on one rank: its buffers, its call, and the expected result.
pub struct Exchange<T> {
    inputs: Inputs<T>,
    root: Rank,
    send: Memory<T>,
    /// The data, if the call is in place.
    recv: Memory<T>,
    /// Expected content of `recv`.
    wanted: Vec<T>,
    checked: Range<usize>,
    /// Block lengths: those that all ranks know, or those that this rank sends.
    counts: Vec<usize>,
    /// Block lengths that this rank receives.
    recv_counts: Vec<usize>,
    /// Distance from this rank to the destination of its message.
    shift: usize,
}

/// The buffers of a rank and their expected content.
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

/// Issues the call of an exchange to a communicator or a group, whose methods have the same names.
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
    /// Allocates and fills the buffers of a case. `comm` is the communicator of its call.
    ///
    /// # Errors
    /// Those of [`Communicator::alloc`].
    pub fn new(case: Case, meaning: Meaning<T>, comm: &Communicator) -> Result<Exchange<T>> {
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
        let memory = |contents: Vec<T>| -> Result<Memory<T>> {
            if !registered {
                return Ok(Memory::Own(contents));
            }
            let mut memory = comm.alloc(contents.len())?;
            memory.copy_from_slice(&contents);
            Ok(Memory::Registered(memory))
        };
        let Buffers { send, recv, wanted, checked } = buffers;
        let checked = checked.unwrap_or(0..recv.len());
        assert_eq!(checked.len(), wanted.len(), "a reference for {case:?}");
        let (send, recv, root) = (memory(send)?, memory(recv)?, Rank(root as u32));
        Ok(Exchange { inputs, root, send, recv, wanted, checked, counts, recv_counts, shift })
    }

    /// Runs the call by itself.
    ///
    /// # Errors
    /// Those of the call.
    pub fn alone(&mut self, comm: &mut Communicator) -> Result<()> {
        if self.inputs.case.kind.call != Call::Messages {
            return issue!(self, comm);
        }
        let (to, from) = self.peers();
        // Not all ranks of the ring may wait for their predecessor.
        if comm.rank() < to {
            comm.send(&self.send, to)?;
            comm.recv(&mut self.recv, from)
        } else {
            comm.recv(&mut self.recv, from)?;
            comm.send(&self.send, to)
        }
    }

    /// Adds the call to a group.
    ///
    /// # Errors
    /// Those of the group's function.
    pub fn queue<'m>(&'m mut self, group: &mut Group<'_, 'm>) -> Result<()> {
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

    /// Compares the result with the expected bits.
    ///
    /// # Errors
    /// A sentence about the first element that differs.
    pub fn check(&self) -> Result<(), String> {
        let got = &self.recv[self.checked.clone()];
        if bytes_of(got) == bytes_of(&self.wanted) {
            return Ok(());
        }
        let differs = |(a, b): (&T, &T)| bytes_of(&[*a]) != bytes_of(&[*b]);
        let at = got.iter().zip(&self.wanted).position(differs).unwrap_or_default();
        let Inputs { case, me, ranks, .. } = &self.inputs;
        let (got, wanted) = (got[at], self.wanted[at]);
        Err(format!("{case:?}, rank {me} of {ranks}: element {at} is {got:?}, not {wanted:?}"))
    }

    /// Overwrites all buffers, as their owner may after the call has ended, well or not.
    pub fn overwrite(&mut self) {
        for memory in [&mut self.send, &mut self.recv] {
            let junk = self.inputs.of(77, 0..memory.len());
            memory.copy_from_slice(&junk);
        }
    }
}

impl<T: Sample> Inputs<T> {
    /// Returns the range of this rank's block.
    fn mine(&self) -> Range<usize> {
        let count = self.case.count;
        self.me * count..(self.me + 1) * count
    }

    fn even(&self, collective: Collective, root: usize) -> Buffers<T> {
        let (n, me, count, mine) = (self.ranks, self.me, self.case.count, self.mine());
        let at_root = me == root;
        let input = || self.of(me, 0..count);
        // Without a result the buffer stays unchanged, with any length.
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

    /// Returns the result of a scan on a buffer with the content `before`.
    fn prefix(&self, collective: Collective, before: &[T]) -> Vec<T> {
        let ranks = self.me + usize::from(collective == Collective::Scan);
        if ranks == 0 { before.to_vec() } else { self.reduced(0..ranks, 0..self.case.count, Order::Prefix) }
    }
}

impl<T> fmt::Debug for Exchange<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("case", &self.inputs.case).field("root", &self.root).finish()
    }
}

/// An [`Exchange`] of any element type.
pub trait AnyExchange: fmt::Debug {
    /// Runs the call by itself, as [`Exchange::alone`].
    ///
    /// # Errors
    /// Those of the call.
    fn alone(&mut self, comm: &mut Communicator) -> Result<()>;

    /// Adds the call to a group, as [`Exchange::queue`].
    ///
    /// # Errors
    /// Those of the group's function.
    fn queue<'m>(&'m mut self, group: &mut Group<'_, 'm>) -> Result<()>;

    /// Compares the result with the expected bits, as [`Exchange::check`].
    ///
    /// # Errors
    /// A sentence about the first element that differs.
    fn check(&self) -> Result<(), String>;

    /// Overwrites all buffers, as [`Exchange::overwrite`].
    fn overwrite(&mut self);
}

impl<T: Sample> AnyExchange for Exchange<T> {
    fn alone(&mut self, comm: &mut Communicator) -> Result<()> {
        Exchange::alone(self, comm)
    }

    fn queue<'m>(&'m mut self, group: &mut Group<'_, 'm>) -> Result<()> {
        Exchange::queue(self, group)
    }

    fn check(&self) -> Result<(), String> {
        Exchange::check(self)
    }

    fn overwrite(&mut self) {
        Exchange::overwrite(self);
    }
}

/// Returns the exchange of a case with inputs that reduce exactly in any order.
///
/// # Errors
/// Those of [`Exchange::new`].
pub fn exchange_of(case: Case, comm: &Communicator) -> Result<Box<dyn AnyExchange>> {
    with_element!(case.kind.dtype, T => Ok(Box::new(Exchange::<T>::new(case, exact(), comm)?)))
}
