//! Every collective by every algorithm, on every element type and legal operation, against its definition, bit by
//! bit. Inputs are such that any order of reduction gives the same bits.

use collectives::plan::{ALGORITHMS, Algorithm};
use half::{bf16, f16};
use num_complex::Complex32;
use std::{
    fmt::Debug,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    thread,
};
use tbccl::{Collective, Communicator, Config, Element, Rank, ReduceOp, element::bytes_of};

/// Mostly not divisible by the number of ranks, of chunks or of lanes of a vector; 0 and 1 among them.
const COUNTS: [usize; 16] = [0, 1, 2, 3, 5, 7, 8, 17, 31, 63, 65, 127, 129, 257, 511, 1031];

/// A number that looks random, by a seed and an index.
fn mix(seed: u64, index: usize) -> u64 {
    let mut x = seed ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// What an element type means, written as plainly as can be.
trait Sample: Element + Debug {
    /// An element of an input; `ranks` is how many of them are combined.
    fn sample(op: ReduceOp, random: u64, ranks: u32) -> Self;
    /// The elements of all ranks, combined.
    fn reduce(op: ReduceOp, elements: &[Self]) -> Self;
}

macro_rules! integers {
    ($($rust:ty),*) => {$(
        impl Sample for $rust {
            fn sample(_op: ReduceOp, random: u64, _ranks: u32) -> $rust {
                random as $rust
            }

            fn reduce(op: ReduceOp, elements: &[$rust]) -> $rust {
                let all = elements.iter().copied();
                let sum = || all.clone().fold(0, <$rust>::wrapping_add);
                let reduced = match op {
                    ReduceOp::Sum => return sum(),
                    ReduceOp::Avg => return (i128::from(sum()) / elements.len() as i128) as $rust,
                    ReduceOp::Prod => return all.fold(1, <$rust>::wrapping_mul),
                    ReduceOp::Min => all.min(),
                    ReduceOp::Max => all.max(),
                    ReduceOp::BitAnd => all.reduce(|a, b| a & b),
                    ReduceOp::BitOr => all.reduce(|a, b| a | b),
                    ReduceOp::BitXor => all.reduce(|a, b| a ^ b),
                };
                reduced.expect("a rank")
            }
        }
    )*};
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);

/// A small integer, such that sums and products are exact in eight bits of mantissa, and averages too.
fn small(op: ReduceOp, random: u64, ranks: u32) -> f32 {
    match op {
        ReduceOp::Prod => [1.0, 2.0, -1.0, -2.0][random as usize % 4],
        ReduceOp::Avg => (random % 4) as f32 * ranks as f32,
        _ => (random % 31) as f32 - 15.0,
    }
}

/// Exact on small integers, whatever the order.
fn reduce_floats(op: ReduceOp, elements: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let count = elements.len() as f64;
    match op {
        ReduceOp::Sum => elements.sum::<f64>() + 0.0,
        ReduceOp::Prod => elements.product(),
        ReduceOp::Min => elements.fold(f64::INFINITY, f64::min),
        ReduceOp::Max => elements.fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Avg => elements.sum::<f64>() / count + 0.0,
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => unreachable!("floats have no bits"),
    }
}

macro_rules! floats {
    ($($rust:ty: $from:expr, $to:expr;)*) => {$(
        impl Sample for $rust {
            fn sample(op: ReduceOp, random: u64, ranks: u32) -> $rust {
                $from(f64::from(small(op, random, ranks)))
            }

            fn reduce(op: ReduceOp, elements: &[$rust]) -> $rust {
                $from(reduce_floats(op, elements.iter().map($to)))
            }
        }
    )*};
}

floats! {
    f32: |x: f64| x as f32, |x| f64::from(*x);
    f64: |x: f64| x, |x| *x;
    f16: f16::from_f64, |x| x.to_f64();
    bf16: bf16::from_f64, |x| x.to_f64();
}

impl Sample for bool {
    fn sample(_op: ReduceOp, random: u64, ranks: u32) -> bool {
        // Rarely, so that "or" over many ranks is not always true.
        random.is_multiple_of(u64::from(ranks))
    }

    fn reduce(op: ReduceOp, elements: &[bool]) -> bool {
        let mut all = elements.iter().copied();
        match op {
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => all.any(|x| x),
            ReduceOp::Prod | ReduceOp::Min | ReduceOp::BitAnd => all.all(|x| x),
            ReduceOp::BitXor => all.fold(false, |a, b| a ^ b),
            ReduceOp::Avg => unreachable!("truth values have no average"),
        }
    }
}

impl Sample for Complex32 {
    fn sample(op: ReduceOp, random: u64, ranks: u32) -> Complex32 {
        if op == ReduceOp::Prod {
            let (one, two) = (Complex32::new(1.0, 0.0), Complex32::new(2.0, 0.0));
            return [one, two, -one, -two][random as usize % 4];
        }
        Complex32::new(small(op, random, ranks), small(op, random >> 32, ranks))
    }

    fn reduce(op: ReduceOp, elements: &[Complex32]) -> Complex32 {
        let lexicographic =
            |a: &&Complex32, b: &&Complex32| a.re.total_cmp(&b.re).then(a.im.total_cmp(&b.im));
        match op {
            ReduceOp::Min => *elements.iter().min_by(lexicographic).expect("a rank"),
            ReduceOp::Max => *elements.iter().max_by(lexicographic).expect("a rank"),
            ReduceOp::Prod => elements.iter().product(),
            _ => {
                let part = |of: fn(&Complex32) -> f32| {
                    reduce_floats(op, elements.iter().map(|x| f64::from(of(x)))) as f32
                };
                Complex32::new(part(|x| x.re), part(|x| x.im))
            }
        }
    }
}

/// One rank in one case.
struct Case<'a> {
    comm: &'a mut Communicator,
    op: ReduceOp,
    seed: u64,
    count: usize,
    what: String,
}

impl Case<'_> {
    fn ranks(&self) -> usize {
        self.comm.size() as usize
    }

    fn me(&self) -> usize {
        self.comm.rank().index()
    }

    /// The input of a rank.
    fn input<T: Sample>(&self, rank: usize, count: usize) -> Vec<T> {
        let seed = mix(self.seed, rank);
        (0..count).map(|i| T::sample(self.op, mix(seed, i), self.comm.size())).collect()
    }

    /// Element by element over all ranks' inputs.
    fn reduced<T: Sample>(&self, count: usize) -> Vec<T> {
        let inputs: Vec<Vec<T>> = (0..self.ranks()).map(|r| self.input(r, count)).collect();
        let column = |i: usize| inputs.iter().map(|input| input[i]).collect::<Vec<T>>();
        (0..count).map(|i| T::reduce(self.op, &column(i))).collect()
    }

    /// Neither zero nor anything that a reduction leaves.
    fn junk<T: Sample>(&self, count: usize) -> Vec<T> {
        self.input(99, count)
    }

    #[track_caller]
    fn same<T: Sample>(&self, got: &[T], wanted: &[T]) {
        assert_eq!(got.len(), wanted.len());
        let differs = got.iter().zip(wanted).position(|(a, b)| bytes_of(&[*a]) != bytes_of(&[*b]));
        if let Some(at) = differs {
            let (got, wanted) = (got[at], wanted[at]);
            panic!("{}, rank {}: element {at} is {got:?}, not {wanted:?}", self.what, self.me());
        }
    }

    fn run<T: Sample>(&mut self, collective: Collective) {
        let (n, me, count, op) = (self.ranks(), self.me(), self.count, self.op);
        let mine = me * count..(me + 1) * count;
        let done = "the call succeeds";
        match collective {
            Collective::AllReduce => {
                let wanted = self.reduced::<T>(count);
                let (input, mut output) = (self.input::<T>(me, count), self.junk(count));
                self.comm.all_reduce(&input, &mut output, op).expect(done);
                self.same(&output, &wanted);
                let mut data = input;
                self.comm.all_reduce_in_place(&mut data, op).expect(done);
                self.same(&data, &wanted);
            }
            Collective::ReduceScatter => {
                let wanted = self.reduced::<T>(count * n);
                let (mut input, mut output) = (self.input::<T>(me, count * n), self.junk(count));
                self.comm.reduce_scatter(&input, &mut output, op).expect(done);
                self.same(&output, &wanted[mine.clone()]);
                self.comm.reduce_scatter_in_place(&mut input, op).expect(done);
                self.same(&input[mine.clone()], &wanted[mine]);
            }
            Collective::AllGather => {
                let wanted: Vec<T> = (0..n).flat_map(|r| self.input(r, count)).collect();
                let mut output = self.junk::<T>(count * n);
                let input = self.input(me, count);
                self.comm.all_gather(&input, &mut output).expect(done);
                self.same(&output, &wanted);
                let mut output = self.junk::<T>(count * n);
                output[mine].copy_from_slice(&input);
                self.comm.all_gather_in_place(&mut output).expect(done);
                self.same(&output, &wanted);
            }
            Collective::Broadcast => {
                let root = self.seed as usize % n;
                let wanted = self.input::<T>(root, count);
                let (mut data, mut output) = (self.input(me, count), self.junk(count));
                self.comm.broadcast_from(&data, &mut output, Rank(root as u32)).expect(done);
                self.same(&output, &wanted);
                self.comm.broadcast(&mut data, Rank(root as u32)).expect(done);
                self.same(&data, &wanted);
            }
            Collective::Reduce | Collective::Gather | Collective::Scatter => self.rooted::<T>(collective),
            Collective::Scan | Collective::ExclusiveScan => self.scan::<T>(collective),
            Collective::AllToAll => {
                let (input, mut output) = (self.input::<T>(me, count * n), self.junk(count * n));
                self.comm.all_to_all(&input, &mut output).expect(done);
                let wanted: Vec<T> =
                    (0..n).flat_map(|r| self.input(r, count * n)[mine.clone()].to_vec()).collect();
                self.same(&output, &wanted);
            }
            Collective::SendRecv => {
                let (input, mut output) = (self.input::<T>(me, count), self.junk(count));
                self.comm.send_recv(&input, &mut output).expect(done);
                self.same(&output, &self.input((me + n - 1) % n, count));
            }
            Collective::Barrier => unreachable!("it has no elements"),
        }
    }

    fn rooted<T: Sample>(&mut self, collective: Collective) {
        let (n, me, count, op) = (self.ranks(), self.me(), self.count, self.op);
        let mine = me * count..(me + 1) * count;
        let root = Rank((self.seed % n as u64) as u32);
        let at_root = me == root.index();
        let done = "the call succeeds";
        let input = self.input::<T>(me, count);
        // Where there is no result, nothing changes, whatever its length.
        let mut output = self.junk::<T>(if at_root { count } else { me % 3 });
        match collective {
            Collective::Reduce => {
                let wanted = if at_root { self.reduced(count) } else { output.clone() };
                self.comm.reduce(&input, &mut output, op, root).expect(done);
                self.same(&output, &wanted);
                let mut data = input.clone();
                self.comm.reduce_in_place(&mut data, op, root).expect(done);
                self.same(&data, if at_root { &wanted } else { &input });
            }
            Collective::Gather => {
                let all: Vec<T> = (0..n).flat_map(|r| self.input(r, count)).collect();
                let mut output = if at_root { self.junk(count * n) } else { output };
                let wanted = if at_root { all.clone() } else { output.clone() };
                self.comm.gather(&input, &mut output, root).expect(done);
                self.same(&output, &wanted);
                let mut data = if at_root { self.junk(count * n) } else { input.clone() };
                if at_root {
                    data[mine].copy_from_slice(&input);
                }
                self.comm.gather_in_place(&mut data, root).expect(done);
                self.same(&data, if at_root { &all } else { &input });
            }
            _ => {
                let all = self.input::<T>(root.index(), count * n);
                let mut output = self.junk::<T>(count);
                self.comm.scatter(if at_root { &all } else { &[] }, &mut output, root).expect(done);
                self.same(&output, &all[mine.clone()]);
                let mut data = if at_root { all.clone() } else { self.junk(count) };
                self.comm.scatter_in_place(&mut data, root).expect(done);
                self.same(&data, if at_root { &all } else { &all[mine] });
            }
        }
    }

    fn scan<T: Sample>(&mut self, collective: Collective) {
        let (me, count, op) = (self.me(), self.count, self.op);
        if op == ReduceOp::Avg {
            return;
        }
        let inclusive = collective == Collective::Scan;
        let inputs: Vec<Vec<T>> = (0..me + usize::from(inclusive)).map(|r| self.input(r, count)).collect();
        let column = |i: usize| inputs.iter().map(|input| input[i]).collect::<Vec<T>>();
        let prefix = |before: &[T]| match inputs.len() {
            0 => before.to_vec(),
            _ => (0..count).map(|i| T::reduce(op, &column(i))).collect(),
        };
        let (input, mut output) = (self.input::<T>(me, count), self.junk::<T>(count));
        let (wanted, mut data) = (prefix(&output), input.clone());
        if inclusive {
            self.comm.scan(&input, &mut output, op).expect("the call succeeds");
            self.comm.scan_in_place(&mut data, op).expect("the call succeeds");
        } else {
            self.comm.exclusive_scan(&input, &mut output, op).expect("the call succeeds");
            self.comm.exclusive_scan_in_place(&mut data, op).expect("the call succeeds");
        }
        self.same(&output, &wanted);
        self.same(&data, &prefix(&input));
    }
}

/// All operations that a type has, on two counts each.
fn all_operations<T: Sample>(comm: &mut Communicator, algorithm: &Algorithm, seed: u64) {
    let reduces = algorithm.collective.reduces();
    let legal = ReduceOp::ALL.into_iter().filter(|op| op.is_legal_for(T::DTYPE));
    for op in legal.take(if reduces { usize::MAX } else { 1 }) {
        for turn in 0..2 {
            let seed = mix(seed, 100 * T::DTYPE as usize + 10 * op as usize + turn);
            let count = COUNTS[(seed >> 40) as usize % COUNTS.len()];
            let what = format!(
                "{} by {} of {count} {}, {op}, {} ranks, seed {seed}",
                algorithm.collective,
                algorithm.name,
                T::DTYPE,
                comm.size()
            );
            Case { comm: &mut *comm, op, seed, count, what }.run::<T>(algorithm.collective);
        }
    }
}

/// Runs an algorithm on so many threads.
fn job(algorithm: &Algorithm, ranks: u32, segments: u32) {
    let config = Config {
        algorithm: Some(algorithm.name.into()),
        segments,
        slab_bytes: Some(64 << 20),
        // Small enough that messages are in pieces, and lap the rings.
        piece_bytes: 512,
        staging_bytes: 2048,
        ..Config::default()
    };
    let seed = u64::from(ranks) * 1000 + u64::from(segments) * 100 + algorithm.name.len() as u64;
    thread::scope(|scope| {
        for mut comm in Communicator::local(ranks, &config).expect("memory for a test") {
            scope.spawn(move || {
                let comm = &mut comm;
                macro_rules! each {
                    ($($rust:ty),*) => { $(all_operations::<$rust>(comm, algorithm, seed);)* };
                }
                each!(f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, bool, Complex32);
            });
        }
    });
}

fn all_algorithms(collective: Collective) {
    for algorithm in ALGORITHMS.iter().filter(|a| a.collective == collective) {
        for ranks in 1..=8 {
            for segments in [1, 3] {
                job(algorithm, ranks, segments);
            }
        }
    }
}

#[test]
fn all_reduce_is_what_it_is_by_definition() {
    all_algorithms(Collective::AllReduce);
}

#[test]
fn reduce_scatter_is_what_it_is_by_definition() {
    all_algorithms(Collective::ReduceScatter);
}

#[test]
fn all_gather_is_what_it_is_by_definition() {
    all_algorithms(Collective::AllGather);
}

#[test]
fn broadcast_is_what_it_is_by_definition() {
    all_algorithms(Collective::Broadcast);
}

#[test]
fn reduce_is_what_it_is_by_definition() {
    all_algorithms(Collective::Reduce);
}

#[test]
fn gather_is_what_it_is_by_definition() {
    all_algorithms(Collective::Gather);
}

#[test]
fn scatter_is_what_it_is_by_definition() {
    all_algorithms(Collective::Scatter);
}

#[test]
fn scan_is_what_it_is_by_definition() {
    all_algorithms(Collective::Scan);
    all_algorithms(Collective::ExclusiveScan);
}

#[test]
fn all_to_all_is_what_it_is_by_definition() {
    all_algorithms(Collective::AllToAll);
}

#[test]
fn send_recv_is_what_it_is_by_definition() {
    all_algorithms(Collective::SendRecv);
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    for ranks in 1..=8 {
        let come = AtomicU32::new(0);
        let config = Config { slab_bytes: Some(64 << 20), ..Config::default() };
        thread::scope(|scope| {
            for mut comm in Communicator::local(ranks, &config).expect("memory for a test") {
                let come = &come;
                scope.spawn(move || {
                    for round in 1..=50 {
                        come.fetch_add(1, SeqCst);
                        comm.barrier().expect("the call succeeds");
                        assert!(come.load(SeqCst) >= round * ranks, "round {round} of {ranks} ranks");
                    }
                });
            }
        });
    }
}
