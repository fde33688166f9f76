//! Raw calls with invalid arguments, which are rejected before any memory is accessed.

use super::{call_group, call_raw, in_place, on_each_rank};
use std::ptr;
use tbccl::{Collective, DType, Error, Operation, Rank, RawCall, ReduceOp, Scale, element::bytes_of};

/// Returns calls with invalid arguments, each with a part of its error message.
fn invalid_calls(data: &mut [f32; 64]) -> Vec<(RawCall, &'static str)> {
    let sum = ReduceOp::Sum;
    let start: *mut u8 = data.as_mut_ptr().cast();
    let call = |operation: Operation<'static>, count: usize, send: usize, recv: usize| {
        let at =
            |offset: usize| if offset == usize::MAX { ptr::null_mut() } else { start.wrapping_add(offset) };
        RawCall { operation, dtype: DType::F32, count, send: at(send), recv: at(recv) }
    };
    const NULL: usize = usize::MAX;
    let lengths = |lengths: &[usize]| lengths.to_vec();
    vec![
        (call(Operation::new(Collective::AllReduce).with_op(sum), 1, NULL, 0), "send is null"),
        (call(Operation::new(Collective::AllReduce).with_op(sum), 1, 0, NULL), "recv is null"),
        (call(Operation::send(Rank(1)), 1, NULL, 0), "send is null"),
        (call(Operation::recv(Rank(1)), 1, 0, NULL), "recv is null"),
        (call(Operation::new(Collective::AllReduce).with_op(sum), 1, 2, 64), "send is at"),
        (call(Operation::new(Collective::AllReduce).with_op(sum), 1, 0, 66), "recv is at"),
        (
            call(Operation::new(Collective::AllReduce).with_op(sum), 8, 0, 4),
            "recv overlap; in place they are the same",
        ),
        (
            call(Operation::new(Collective::Scan).with_op(sum), 8, 28, 0),
            "recv overlap; in place they are the same",
        ),
        (call(Operation::new(Collective::AllGather), 4, 4, 0), "in place send is the block of this rank"),
        (
            call(Operation::new(Collective::ReduceScatter).with_op(sum), 4, 0, 4),
            "in place recv is the block of this rank",
        ),
        (call(Operation::new(Collective::AllToAll), 4, 0, 0), "no form in place"),
        (
            call(Operation::new(Collective::AllGather).with_counts(lengths(&[2, 2])), 0, 0, 0),
            "no form in place",
        ),
        (
            call(Operation::new(Collective::AllReduce).with_op(sum), usize::MAX, 0, 64),
            "more than memory can hold",
        ),
        (
            call(Operation::new(Collective::AllReduce).with_op(sum), usize::MAX / 4, 0, 64),
            "more than memory can hold",
        ),
        (call(Operation::new(Collective::AllGather), usize::MAX / 2 + 1, 0, 64), "more than memory can hold"),
        (
            call(Operation::new(Collective::Broadcast).with_root(Rank(2)), 1, 0, 64),
            "root 2 is not one of the ranks",
        ),
        (
            call(Operation::new(Collective::Reduce).with_op(sum).with_root(Rank(u32::MAX)), 1, 0, 64),
            "is not one of the ranks",
        ),
        (call(Operation::send(Rank(2)), 1, 0, 0), "to 2 is not one of the ranks"),
        (call(Operation::recv(Rank(2)), 1, 0, 0), "from 2 is not one of the ranks"),
        (call(Operation::new(Collective::AllReduce).with_op(ReduceOp::BitAnd), 1, 0, 64), "f32"),
        (call(Operation::new(Collective::Scan).with_op(ReduceOp::Avg), 1, 0, 64), "no average"),
        (
            call(Operation::new(Collective::AllGather).with_counts(lengths(&[2])), 0, 0, 64),
            "counts has 1 lengths, and there are 2 ranks",
        ),
        (
            call(
                Operation::new(Collective::Gather).with_root(Rank(0)).with_counts(lengths(&[2, 2, 2])),
                0,
                0,
                64,
            ),
            "counts has 3 lengths",
        ),
        (
            call(
                Operation::new(Collective::Scatter).with_root(Rank(0)).with_counts(lengths(&[usize::MAX, 2])),
                0,
                0,
                64,
            ),
            "more elements than memory",
        ),
        (
            call(
                Operation::new(Collective::ReduceScatter).with_op(sum).with_counts(lengths(&[usize::MAX, 0])),
                0,
                0,
                64,
            ),
            "than memory can hold",
        ),
        (
            call(
                Operation::new(Collective::AllToAll).with_own_counts(lengths(&[1, 1]), lengths(&[2, 2])),
                0,
                0,
                64,
            ),
            "the own block of recv",
        ),
    ]
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_touched() {
    on_each_rank(2, |comm| {
        let mut data = [5.0f32; 64];
        for (call, message) in invalid_calls(&mut data) {
            for error in [call_raw(comm, &call), call_group(comm, std::slice::from_ref(&call))] {
                let error = error.expect_err(message);
                let is_about_arguments = matches!(error, Error::InvalidArgument(_) | Error::IllegalOp(_));
                assert!(is_about_arguments && error.to_string().contains(message), "{call:?}: {error}");
            }
        }
        assert_eq!(data, [5.0; 64]);
        comm.barrier().expect("it is as it was");
    });
}

#[test]
fn a_factor_of_another_type_is_refused_and_nothing_is_multiplied() {
    on_each_rank(2, |comm| {
        let mut data = [3i32; 4];
        let mismatched =
            Operation::new(Collective::AllReduce).with_op(ReduceOp::Sum).with_scale(Scale::new(2.0f32));
        let error = call_raw(comm, &in_place(mismatched, 4, &mut data, (0, 0))).expect_err("f32 is not i32");
        assert!(error.to_string().contains("the factor is a f32"), "{error}");
        let legal = Operation::new(Collective::AllReduce).with_op(ReduceOp::Sum).with_scale(Scale::new(2i32));
        let illegal = Operation::new(Collective::Scan).with_op(ReduceOp::Avg);
        let mut other = [1i32; 4];
        let calls = [in_place(legal, 4, &mut data, (0, 0)), in_place(illegal, 4, &mut other, (0, 0))];
        call_group(comm, &calls).expect_err("a scan has no average");
        assert_eq!((data, other), ([3; 4], [1; 4]));
        assert!(Scale::from_bytes(DType::F64, &[0; 4]).is_err());
        assert_eq!(Scale::from_bytes(DType::I32, bytes_of(&[2i32])).expect("four"), Scale::new(2i32));
    });
}
