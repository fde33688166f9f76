//! Ranks of one host that come to a call after it has failed, where their boards are mirrored (`shm+tcp`).

use std::{sync::mpsc::channel, thread, time::Duration};
use tbccl::{Buffer, Communicator, Config, Error, Rank, Result, Transport, UniqueId};

/// Elements of a buffer that is read in place.
const COUNT: usize = 100_000;

/// Runs `call` on rank 0, which times out and overwrites its memory, and then on rank 1.
fn assert_the_late_rank_fails(call: impl Fn(&mut Communicator, &mut Buffer<f32>) -> Result<()> + Sync) {
    let config = Config {
        transport: Transport::Mixed,
        slab_bytes: Some(16 << 20),
        timeout: Duration::from_secs(5),
        ..Config::default()
    };
    let id = UniqueId::create().expect("a rendezvous");
    // A rank that panics drops its sender, which ends the other rank's wait.
    let ((has_failed, failure), (is_done, end)) = (channel(), channel());
    let (id, config, call) = (&id, &config, &call);
    let rank_0 = move || {
        let mut comm = Communicator::from_unique_id(id, 0, 2, config).expect("all come");
        assert_eq!(comm.transport(), "shm+tcp");
        comm.set_timeout(Duration::from_millis(300));
        let mut data = comm.alloc::<f32>(COUNT).expect("memory");
        data.fill(1.0);
        let error = call(&mut comm, &mut data).expect_err("alone");
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        data.fill(666.0);
        has_failed.send(()).expect("rank 1 waits");
        end.recv().expect("rank 1 fails");
    };
    let rank_1 = move || {
        let mut comm = Communicator::from_unique_id(id, 1, 2, config).expect("all come");
        let mut data = comm.alloc::<f32>(COUNT).expect("memory");
        failure.recv().expect("rank 0 fails");
        let error = call(&mut comm, &mut data).map(|()| data[0]).expect_err("rank 0 has failed").to_string();
        assert!(error.starts_with("rank 0 failed: no progress within the time limit"), "{error}");
        is_done.send(()).expect("rank 0 waits");
    };
    thread::scope(|scope| {
        scope.spawn(rank_0);
        scope.spawn(rank_1);
    });
}

#[test]
fn a_late_rank_of_a_broadcast_gets_no_bytes_that_the_root_wrote_after_its_failure() {
    assert_the_late_rank_fails(|comm, data| comm.broadcast(data, Rank(0)));
}

#[test]
fn a_late_root_of_a_gather_gets_no_bytes_that_a_rank_wrote_after_its_failure() {
    assert_the_late_rank_fails(|comm, data| {
        // Rank 1 is late, and its result is the second call's memory.
        let mut all = comm.alloc::<f32>(2 * COUNT)?;
        comm.gather(data, &mut all, Rank(1))
    });
}

#[test]
fn a_late_receiver_gets_no_bytes_that_the_sender_wrote_after_its_failure() {
    assert_the_late_rank_fails(|comm, data| match comm.rank().0 {
        0 => comm.send(data, Rank(1)),
        _ => comm.recv(data, Rank(0)),
    });
}
