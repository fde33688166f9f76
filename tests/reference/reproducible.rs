//! Reductions whose result depends on the order. With `reproducible` numerics their bits follow from the
//! definition of that order, for every algorithm, segmentation, length and transport.

use half::{bf16, f16};
use tbccl::{Collective, Communicator, DType, Numerics, ReduceOp, Result};
use tbccl_cli::reference::{Call, Case, Exchange, Kind, Meaning, Order, Sample, Way, mix};

/// An odd count that small rings split.
const COUNT: usize = 1031;

const TYPES: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];

/// Operations that round.
const OPERATIONS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Avg];

/// Floats with the guaranteed arithmetic: narrow ones are reduced as f32 and rounded once.
trait Rough: Sample {
    fn of(number: f64) -> Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Returns the sum divided by the number of ranks.
    fn mean(self, other: Self, ranks: usize) -> Self;
}

macro_rules! rough {
    ($($rust:ty, $of:expr, $wide:ty: $up:expr, $down:expr;)*) => {$(
        impl Rough for $rust {
            fn of(number: f64) -> $rust {
                $of(number)
            }

            fn add(self, other: $rust) -> $rust {
                $down($up(self) + $up(other))
            }

            fn mul(self, other: $rust) -> $rust {
                $down($up(self) * $up(other))
            }

            fn mean(self, other: $rust, ranks: usize) -> $rust {
                $down(($up(self) + $up(other)) / ranks as $wide)
            }
        }
    )*};
}

rough! {
    f64, |x| x, f64: |x| x, |x| x;
    f32, |x| x as f32, f32: |x| x, |x| x;
    f16, f16::from_f64, f32: f16::to_f32, f16::from_f32;
    bf16, bf16::from_f64, f32: bf16::to_f32, bf16::from_f32;
}

/// Returns a number with many digits; products of nine neither underflow nor overflow, and sums lose digits.
fn number(op: ReduceOp, random: u64) -> f64 {
    let digits = 1.0 + (random >> 12) as f64 / (1u64 << 52) as f64;
    let exponent = if op == ReduceOp::Prod { 0 } else { (random % 9) as i32 - 4 };
    let sign = if random & 0x400 == 0 { 1.0 } else { -1.0 };
    sign * digits * f64::from(exponent).exp2()
}

/// Reduces in pairs of neighbors: first as many pairs as leave a power of two, then pairs of the results, and
/// so on.
fn in_pairs<T: Rough>(op: ReduceOp, elements: &[T]) -> T {
    let ranks = elements.len();
    let pairs = 2 * (ranks - (1 << ranks.ilog2()));
    let combine = |two: &[T], last: bool| match (op, two) {
        (_, [one]) => *one,
        (ReduceOp::Avg, [a, b]) if last => a.mean(*b, ranks),
        (ReduceOp::Sum | ReduceOp::Avg, [a, b]) => a.add(*b),
        (_, [a, b]) => a.mul(*b),
        _ => unreachable!("chunks of two"),
    };
    let (first, rest) = elements.split_at(pairs);
    let mut terms: Vec<T> =
        first.chunks(2).map(|two| combine(two, ranks == 2)).chain(rest.iter().copied()).collect();
    while terms.len() > 1 {
        let last = terms.len() == 2;
        terms = terms.chunks(2).map(|two| combine(two, last)).collect();
    }
    terms[0]
}

/// Reduces in rank order.
fn one_by_one<T: Rough>(op: ReduceOp, elements: &[T]) -> T {
    let combine = |a: T, b: &T| if op == ReduceOp::Prod { a.mul(*b) } else { a.add(*b) };
    elements[1..].iter().fold(elements[0], combine)
}

fn meaning<T: Rough>() -> Meaning<T> {
    Meaning {
        sample: |op, random, _| T::of(number(op, random)),
        reduce: |op, elements, order| match order {
            Order::Whole => in_pairs(op, elements),
            Order::Prefix => one_by_one(op, elements),
        },
    }
}

/// Returns the collectives that reduce.
fn calls() -> impl Iterator<Item = Call> {
    Call::all().into_iter().filter(|call| call.reduces())
}

/// Returns the algorithms that keep the order.
fn able(call: Call) -> impl Iterator<Item = &'static str> {
    call.algorithms().filter(|a| a.numerics == Numerics::Reproducible).map(|a| a.name)
}

/// Returns every collective that reduces, by every algorithm that keeps the order, in one and in three
/// segments, and by the library's choice; in place and not; on all floats, with all operations that round.
pub(crate) fn cases(ranks: u32) -> impl Iterator<Item = Case> {
    let kinds = calls().flat_map(|call| {
        let by_name = able(call).flat_map(|name| [1, 3].map(|segments| Way::By(name, segments)));
        let ways: Vec<Way> = [Way::Chosen].into_iter().chain(by_name).collect();
        call.kinds().into_iter().filter(move |Kind { way, dtype, op, .. }| {
            ways.contains(way) && TYPES.contains(dtype) && OPERATIONS.contains(op)
        })
    });
    kinds.enumerate().map(move |(at, kind)| Case {
        kind,
        count: COUNT,
        seed: mix(u64::from(ranks) << 48, at),
    })
}

/// Runs a case.
pub(crate) fn run(comm: &mut Communicator, case: Case) -> Result<()> {
    fn run<T: Rough>(comm: &mut Communicator, case: Case) -> Result<()> {
        let mut exchange = Exchange::<T>::new(case, meaning(), comm)?;
        exchange.alone(comm)?;
        exchange.check().unwrap_or_else(|wrong| panic!("{wrong}"));
        Ok(())
    }
    match case.kind.dtype {
        DType::F32 => run::<f32>(comm, case),
        DType::F64 => run::<f64>(comm, case),
        DType::F16 => run::<f16>(comm, case),
        _ => run::<bf16>(comm, case),
    }
}

/// Otherwise the other tests would show nothing.
#[test]
fn the_order_decides_the_bits_of_these_numbers() {
    fn differ<T: Rough>(op: ReduceOp, ranks: usize) -> usize {
        let elements =
            |i: usize| -> Vec<T> { (0..ranks).map(|rank| T::of(number(op, mix(mix(7, rank), i)))).collect() };
        let bits = |x: T| tbccl::element::bytes_of(&[x]).to_vec();
        let same = |i: &usize| bits(in_pairs(op, &elements(*i))) == bits(one_by_one(op, &elements(*i)));
        COUNT - (0..COUNT).filter(same).count()
    }
    for ranks in 4..=9 {
        for op in [ReduceOp::Sum, ReduceOp::Prod] {
            let different =
                [differ::<f32>, differ::<f64>, differ::<f16>, differ::<bf16>].map(|d| d(op, ranks));
            assert!(different.iter().all(|d| *d > COUNT / 20), "{op}, {ranks} ranks: {different:?}");
        }
    }
}

#[test]
fn several_algorithms_keep_to_the_order() {
    for call in calls() {
        let able: Vec<_> = able(call).collect();
        let least = match call {
            Call::Even(Collective::AllReduce) => 5,
            Call::Even(Collective::Reduce) => 3,
            Call::Even(_) => 2,
            _ => 1,
        };
        assert!(able.len() >= least, "{call:?}: {able:?}");
    }
}
