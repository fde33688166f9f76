//! Tests that patterns are exact in any order, and that every rank affects the result. Elements are combined
//! here with separate arithmetic, independent of the kernels and the patterns.

use super::{PERIOD, Position, Table, Value};
use collectives::DType;
use half::{bf16, f16};
use num_complex::Complex32;
use std::fmt::Debug;
use tbccl::ReduceOp;

/// Arithmetic of the type on two elements.
trait Arithmetic: Value + Debug {
    fn combined(op: ReduceOp, a: Self, b: Self) -> Self;
    fn divided(self, ranks: u32) -> Self;
}

macro_rules! floats {
    ($($t:ty, $wide:expr, $narrow:expr;)*) => {
        $(impl Arithmetic for $t {
            fn combined(op: ReduceOp, a: $t, b: $t) -> $t {
                let (x, y): (f64, f64) = ($wide(a), $wide(b));
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => $narrow(x + y),
                    ReduceOp::Prod => $narrow(x * y),
                    ReduceOp::Min => if y < x { b } else { a },
                    ReduceOp::Max => if y > x { b } else { a },
                    _ => unreachable!("no bits of floats"),
                }
            }

            fn divided(self, ranks: u32) -> $t {
                $narrow($wide(self) / f64::from(ranks))
            }
        })*
    };
}

floats! {
    f32, f64::from, |x: f64| x as f32;
    f64, |x: f64| x, |x: f64| x;
    f16, f16::to_f64, f16::from_f64;
    bf16, bf16::to_f64, bf16::from_f64;
}

macro_rules! integers {
    ($($t:ty),*) => {
        $(impl Arithmetic for $t {
            fn combined(op: ReduceOp, a: $t, b: $t) -> $t {
                let (x, y) = (i128::from(a), i128::from(b));
                let wide = match op {
                    ReduceOp::Sum | ReduceOp::Avg => x + y,
                    ReduceOp::Prod => x.wrapping_mul(y),
                    ReduceOp::Min => if x < y { x } else { y },
                    ReduceOp::Max => if x > y { x } else { y },
                    ReduceOp::BitAnd => x & y,
                    ReduceOp::BitOr => x | y,
                    ReduceOp::BitXor => x ^ y,
                };
                wide as $t
            }

            fn divided(self, ranks: u32) -> $t {
                (i128::from(self) / i128::from(ranks)) as $t
            }
        })*
    };
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);

impl Arithmetic for bool {
    fn combined(op: ReduceOp, a: bool, b: bool) -> bool {
        match u8::from(a) + u8::from(b) {
            0 => false,
            1 => !matches!(op, ReduceOp::Prod | ReduceOp::Min | ReduceOp::BitAnd),
            _ => op != ReduceOp::BitXor,
        }
    }

    fn divided(self, _ranks: u32) -> bool {
        unreachable!("no average of truth values")
    }
}

impl Arithmetic for Complex32 {
    fn combined(op: ReduceOp, a: Complex32, b: Complex32) -> Complex32 {
        let smaller = if (a.re, a.im) < (b.re, b.im) { a } else { b };
        match op {
            ReduceOp::Sum | ReduceOp::Avg => Complex32::new(a.re + b.re, a.im + b.im),
            ReduceOp::Prod => Complex32::new(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re),
            ReduceOp::Min => smaller,
            ReduceOp::Max => {
                if smaller == a {
                    b
                } else {
                    a
                }
            }
            _ => unreachable!("no bits of complex numbers"),
        }
    }

    fn divided(self, ranks: u32) -> Complex32 {
        Complex32::new(self.re / ranks as f32, self.im / ranks as f32)
    }
}

/// A simple random number generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

/// Combines all elements in a random order and association.
fn combined<T: Arithmetic>(op: ReduceOp, ranks: u32, mut values: Vec<T>, dice: &mut Dice) -> T {
    while values.len() > 1 {
        let a = values.swap_remove(dice.roll(values.len()));
        let b = dice.roll(values.len());
        values[b] = T::combined(op, a, values[b]);
    }
    if op == ReduceOp::Avg { values[0].divided(ranks) } else { values[0] }
}

fn each_op<T: Arithmetic>(check: impl Fn(ReduceOp)) {
    ReduceOp::ALL.into_iter().filter(|op| op.is_legal_for(T::DTYPE)).for_each(check);
}

fn inputs<T: Value>(op: ReduceOp, at: Position) -> Vec<T> {
    at.each_contributor().map(|at| T::input(Some(op), at)).collect()
}

fn is_exact_in_any_order<T: Arithmetic>(ranks: &[u32]) {
    each_op::<T>(|op| {
        let mut dice = Dice(7);
        for &ranks in ranks {
            for index in 0..40 {
                let at = Position { rank: 0, ranks, contributors: ranks, index, seed: u64::from(ranks) };
                let expected = T::reduced(op, at);
                for _ in 0..2 {
                    let found = combined(op, ranks, inputs::<T>(op, at), &mut dice);
                    assert_eq!(found, expected, "{op} of {} on {ranks} ranks, index {index}", T::DTYPE);
                }
            }
        }
    });
}

fn needs_every_rank<T: Arithmetic>() {
    each_op::<T>(|op| {
        for ranks in [2, 3, 8] {
            for absent in 0..ranks {
                let differs = (0..4 * u64::from(ranks) * 16).any(|index| {
                    let at = Position { rank: 0, ranks, contributors: ranks, index, seed: 3 };
                    let mut values = inputs::<T>(op, at);
                    values.remove(absent as usize);
                    combined(op, ranks, values, &mut Dice(1)) != T::reduced(op, at)
                });
                assert!(differs, "{op} of {} on {ranks} ranks hides rank {absent}", T::DTYPE);
            }
        }
    });
}

macro_rules! every_type {
    ($check:ident($($args:expr)?)) => {
        $check::<f32>($($args)?);
        $check::<f64>($($args)?);
        $check::<f16>($($args)?);
        $check::<bf16>($($args)?);
        $check::<i8>($($args)?);
        $check::<i16>($($args)?);
        $check::<i32>($($args)?);
        $check::<i64>($($args)?);
        $check::<u8>($($args)?);
        $check::<u16>($($args)?);
        $check::<u32>($($args)?);
        $check::<u64>($($args)?);
        $check::<bool>($($args)?);
        $check::<Complex32>($($args)?);
    };
}

#[test]
fn results_are_exact_in_any_order() {
    every_type!(is_exact_in_any_order(&(1..=64).collect::<Vec<_>>()));
}

#[test]
fn results_of_narrow_floats_are_exact_on_more_ranks_than_they_can_count() {
    let many = &[255, 256, 257, 1000, 2048, 2049, 4096];
    is_exact_in_any_order::<bf16>(many);
    is_exact_in_any_order::<f16>(many);
}

#[test]
fn no_rank_can_be_left_out() {
    every_type!(needs_every_rank());
}

#[test]
fn inputs_differ_between_ranks_and_places() {
    fn check<T: Value + Debug>() {
        let table = |rank| Table::<T>::input(None, rank, 4, 1, PERIOD).0;
        let differing = |a: &[T], b: &[T]| a.iter().zip(b).filter(|(a, b)| a != b).count();
        assert!(differing(&table(0), &table(1)) > PERIOD / 3, "{} of two ranks", T::DTYPE);
        assert!(differing(&table(2), &table(2)[64..]) > PERIOD / 3, "{} shifted", T::DTYPE);
    }
    every_type!(check());
    assert_eq!(DType::ALL.len(), 14, "the macro above names them all");
}

#[test]
fn wrong_elements_are_counted_one_by_one() {
    let table = Table::<f32>::input(None, 1, 2, 5, 3 * PERIOD);
    let mut data = vec![0.0; 20_000];
    table.write(&mut data, 77);
    assert_eq!(table.count_wrong(&data, 77), 0);
    assert!(table.count_wrong(&data, 78) > 19_000);
    for index in [0, 1, 8191, 19_999] {
        data[index] += 1.0;
    }
    assert_eq!(table.count_wrong(&data, 77), 4);
}

#[test]
fn poison_is_wrong_everywhere() {
    fn check<T: Value>() {
        let table = Table::<T>::reduced(ReduceOp::Max, 3, 3, 5, 1000);
        let mut data = vec![T::default(); 1000];
        table.poison().write(&mut data, 0);
        assert_eq!(table.count_wrong(&data, 0), 1000, "{}", T::DTYPE);
    }
    every_type!(check());
}

#[test]
fn zeros_of_either_sign_are_equal() {
    let zeros = Table(vec![0.0f64; 8]);
    assert_eq!(zeros.count_wrong(&[-0.0; 8], 0), 0);
}
