//! Operations with packed messages, whose inexact results are compared with an error bound.
//!
//! All ranks must have the same bits, and every element must be within the codec's bound of the exact result;
//! other elements count as wrong.

use super::{
    buffers::Buffers,
    case::{Case, Packed},
    operation::Form,
    pattern::Value,
};
use collectives::ReduceOp;
use std::any::Any;
use tbccl::{Communicator, Error, Result, element::bytes_of};
use xxhash_rust::xxh3::xxh3_64;

/// The accuracy of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::commands) struct Accuracy {
    /// Elements beyond the error bound.
    pub(super) wrong: u64,
    /// Largest error, relative to the largest magnitude of the exact result.
    pub(super) error: f64,
}

/// Runs the operation once.
pub(super) fn run<T: Value>(
    packed: Packed,
    case: &Case,
    buffers: &mut Buffers<T>,
    comm: &mut Communicator,
) -> Result<()> {
    let op = case.redop.unwrap_or(ReduceOp::Sum);
    let buffers: &mut dyn Any = buffers;
    let Some(Buffers { input, output }) = buffers.downcast_mut::<Buffers<f32>>() else {
        return Err(Error::InvalidArgument(format!("{} elements can't be packed", T::DTYPE)));
    };
    match case.form {
        Form::OutOfPlace => {
            comm.all_reduce_quantized(input.get(case.count), output.get_mut(case.count), op, packed.codec)
        }
        Form::InPlace => comm.all_reduce_quantized_in_place(output.get_mut(case.count), op, packed.codec),
    }
}

/// Compares a result with the exact one, which repeats after its length, given the input of each rank.
pub(super) fn evaluate<T: Value>(
    packed: Packed,
    case: &Case,
    actual: &[T],
    expected: &[T],
    inputs: impl Iterator<Item = Vec<T>>,
) -> Accuracy {
    let magnitudes = inputs.map(|input| largest(&input)).sum();
    let bound = packed.codec.error_bound(packed.encodings, case.ranks, magnitudes);
    let bound = if case.redop == Some(ReduceOp::Avg) { bound / f64::from(case.ranks) } else { bound };
    let (mut wrong, mut largest_error) = (0, 0.0f64);
    for (actual, expected) in floats(actual).iter().zip(floats(expected).iter().cycle()) {
        let error = (f64::from(*actual) - f64::from(*expected)).abs();
        // NaN counts as an infinite error.
        wrong += u64::from(error.is_nan() || error > bound);
        largest_error = largest_error.max(if error.is_nan() { f64::INFINITY } else { error });
    }
    let scale = largest(expected);
    Accuracy { wrong, error: if scale > 0.0 { largest_error / scale } else { largest_error } }
}

/// Returns a hash of a result's bytes.
pub(super) fn fingerprint<T: Value>(actual: &[T]) -> u64 {
    xxh3_64(bytes_of(actual))
}

fn largest<T: Value>(elements: &[T]) -> f64 {
    floats(elements).iter().fold(0.0, |largest, x| largest.max(f64::from(x.abs())))
}

/// Returns the elements as f32, the only type that is packed; empty for other types.
fn floats<T: Value>(elements: &[T]) -> &[f32] {
    let is_f32 = T::DTYPE == collectives::DType::F32;
    if is_f32 { bytemuck::cast_slice(bytes_of(elements)) } else { &[] }
}

#[cfg(test)]
mod tests {
    use super::{super::operation::Operation, *};
    use collectives::{BlockLen, Collective};

    #[test]
    fn what_is_further_off_than_the_bound_is_wrong() {
        let packed = Packed { codec: collectives::Codec::Int8(BlockLen::B128), encodings: 1 };
        let operation = Operation::Collective(Collective::AllReduce);
        let (redop, form) = (Some(ReduceOp::Sum), Form::InPlace);
        let case = Case { operation, redop, form, count: 6, rank: 0, ranks: 2, packed: Some(packed) };
        let inputs = || [vec![127.0f32, 1.0, 2.0], vec![-127.0f32, 5.0, 9.0]].into_iter();
        let expected = [0.0f32, 6.0, 11.0];
        // With magnitudes 127 and 127, each rank loses at most 127 / 254 per element.
        let actual = [0.9f32, 6.0, 11.0, -1.1, 6.0, f32::NAN];
        let accuracy = evaluate(packed, &case, &actual, &expected, inputs());
        assert_eq!(accuracy.wrong, 2);
        assert!(accuracy.error.is_infinite());
        assert!((evaluate(packed, &case, &actual[..3], &expected, inputs()).error - 0.9 / 11.0).abs() < 1e-6);
        let mean = Case { redop: Some(ReduceOp::Avg), ..case };
        assert_eq!(evaluate(packed, &mean, &actual[..3], &expected, inputs()).wrong, 1);
    }
}
