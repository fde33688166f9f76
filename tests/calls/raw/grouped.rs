//! Raw calls in groups.

use super::{INT8, call_group, call_raw, filled, on_each_rank, raw};
use tbccl::{Collective, Operation, Rank, RawCall, ReduceOp, Scale};

#[test]
fn every_call_may_be_in_a_group() {
    on_each_rank(3, |comm| {
        const COUNT: usize = 50;
        let (n, me) = (3, comm.rank());
        let (next, previous) = (me.ahead(1, n), me.ahead(n - 1, n));
        let counts = vec![COUNT, 0, 2 * COUNT];
        let (own, all) = (counts[me.index()], 3 * COUNT);
        let (sum, root) = (ReduceOp::Sum, Rank(1));
        let received = vec![own; 3];
        let operations = [
            (Operation::new(Collective::AllReduce).with_op(sum), COUNT, COUNT),
            (Operation::new(Collective::AllReduce).with_op(sum), COUNT, COUNT),
            (Operation::new(Collective::Barrier), 0, 0),
            (Operation::new(Collective::AllReduce).with_op(sum).with_scale(Scale::new(3.0f32)), COUNT, COUNT),
            (Operation::new(Collective::AllReduce).with_op(sum).with_codec(INT8), COUNT, COUNT),
            (Operation::new(Collective::Reduce).with_op(sum).with_root(root), COUNT, COUNT),
            (
                Operation::new(Collective::Reduce)
                    .with_op(sum)
                    .with_root(root)
                    .with_scale(Scale::new(2.0f32)),
                COUNT,
                COUNT,
            ),
            (Operation::new(Collective::Broadcast).with_root(root), COUNT, COUNT),
            (Operation::new(Collective::AllGather), COUNT, all),
            (Operation::new(Collective::ReduceScatter).with_op(sum), all, COUNT),
            (
                Operation::new(Collective::ReduceScatter).with_op(sum).with_scale(Scale::new(me.0 as f32)),
                all,
                COUNT,
            ),
            (Operation::new(Collective::AllToAll), all, all),
            (Operation::new(Collective::Gather).with_root(root), COUNT, all),
            (Operation::new(Collective::Scatter).with_root(root), all, COUNT),
            (Operation::new(Collective::Scan).with_op(sum), COUNT, COUNT),
            (Operation::new(Collective::ExclusiveScan).with_op(sum), COUNT, COUNT),
            (Operation::new(Collective::AllGather).with_counts(counts.clone()), own, all),
            (Operation::new(Collective::ReduceScatter).with_op(sum).with_counts(counts.clone()), all, own),
            (Operation::new(Collective::Gather).with_root(root).with_counts(counts.clone()), own, all),
            (Operation::new(Collective::Scatter).with_root(root).with_counts(counts.clone()), all, own),
            (Operation::new(Collective::AllToAll).with_own_counts(counts.clone(), received), all, 3 * own),
        ];
        let sends: Vec<Vec<f32>> =
            operations.iter().map(|(_, sent, _)| filled(f32::from, me.0, *sent)).collect();
        let fresh = || operations.iter().map(|(_, _, received)| vec![-1.0f32; *received]).collect::<Vec<_>>();
        let calls = |recvs: &mut [Vec<f32>]| -> Vec<RawCall> {
            let memory = sends.iter().zip(recvs);
            operations
                .iter()
                .zip(memory)
                .map(|((operation, ..), (s, r))| raw(operation.clone(), COUNT, s, r))
                .collect()
        };
        let (mut one_by_one, mut grouped) = (fresh(), fresh());
        for call in calls(&mut one_by_one) {
            call_raw(comm, &call).unwrap_or_else(|error| panic!("{:?}: {error}", call.operation));
        }
        let mut group = calls(&mut grouped);
        let (send, mut from_previous, mut from_me) = (filled(f32::from, me.0, 9), vec![0.0; 9], vec![0.0; 9]);
        group.push(raw(Operation::send(next), 9, &send, &mut []));
        group.insert(0, raw(Operation::recv(previous), 9, &[], &mut from_previous));
        group.push(raw(Operation::recv(me), 9, &[], &mut from_me));
        group.push(raw(Operation::send(me), 9, &send, &mut []));
        call_group(comm, &group).expect("a group of everything");
        for (at, (operation, ..)) in operations.iter().enumerate() {
            assert_eq!(grouped[at], one_by_one[at], "{operation:?} in a group");
        }
        assert_eq!((from_previous, from_me), (filled(f32::from, previous.0, 9), send));
    });
}
