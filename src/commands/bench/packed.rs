//! Operations with packed messages: results are not exact, so they are compared with a bound.
//!
//! All ranks must have the same bits, and every element must be within the codec's bound of the exact result;
//! others count as wrong.

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

/// The evaluation of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::commands) struct Judgement {
    /// Elements further off than they may be.
    pub(super) wrong: u64,
    /// The largest error, over the largest magnitude of the exact result.
    pub(super) error: f64,
}

/// Carries the operation out once.
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

/// Compares a result with the exact one, whose elements repeat, given the input of each rank.
pub(super) fn judge<T: Value>(
    packed: Packed,
    case: &Case,
    found: &[T],
    wanted: &[T],
    inputs: impl Iterator<Item = Vec<T>>,
) -> Judgement {
    let magnitudes = inputs.map(|input| largest(&input)).sum();
    let bound = packed.codec.error_bound(packed.encodings, case.ranks, magnitudes);
    let bound = if case.redop == Some(ReduceOp::Avg) { bound / f64::from(case.ranks) } else { bound };
    let (mut wrong, mut most) = (0, 0.0f64);
    for (found, wanted) in floats(found).iter().zip(floats(wanted).iter().cycle()) {
        let off = (f64::from(*found) - f64::from(*wanted)).abs();
        // NaN counts as infinitely far off.
        wrong += u64::from(off.is_nan() || off > bound);
        most = most.max(if off.is_nan() { f64::INFINITY } else { off });
    }
    let scale = largest(wanted);
    Judgement { wrong, error: if scale > 0.0 { most / scale } else { most } }
}

/// A number that stands for the bits of a result.
pub(super) fn fingerprint<T: Value>(found: &[T]) -> u64 {
    xxh3_64(bytes_of(found))
}

fn largest<T: Value>(elements: &[T]) -> f64 {
    floats(elements).iter().fold(0.0, |most, x| most.max(f64::from(x.abs())))
}

/// The elements as what alone is packed; none for other types.
fn floats<T: Value>(elements: &[T]) -> &[f32] {
    let alike = T::DTYPE == collectives::DType::F32;
    if alike { bytemuck::cast_slice(bytes_of(elements)) } else { &[] }
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
        let wanted = [0.0f32, 6.0, 11.0];
        // Of magnitudes 127 and 127 a 254th each is lost at most.
        let found = [0.9f32, 6.0, 11.0, -1.1, 6.0, f32::NAN];
        let judgement = judge(packed, &case, &found, &wanted, inputs());
        assert_eq!(judgement.wrong, 2);
        assert!(judgement.error.is_infinite());
        assert!((judge(packed, &case, &found[..3], &wanted, inputs()).error - 0.9 / 11.0).abs() < 1e-6);
        let mean = Case { redop: Some(ReduceOp::Avg), ..case };
        assert_eq!(judge(packed, &mean, &found[..3], &wanted, inputs()).wrong, 1);
    }
}
