//! Tests of a communicator of one rank, and of threads.

use super::call::{Blocks, Call};
use super::execute::scratch_of;
use super::keys::CallKey;
use super::link_access::ErrorContext;
use super::*;
use crate::{CallRecord, call::CallKind};
use collectives::{MAX_SEGMENTS, ReduceOp};
use transport::{TransportError, memory::Span};

fn alone() -> Communicator {
    let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
    Communicator::local(4, &config).expect("memory for a test").swap_remove(0)
}

#[test]
fn an_algorithm_that_a_program_asks_for_holds_until_it_lets_go() {
    let mut comm = alone();
    let of = |comm: &Communicator, collective| {
        comm.plan_of(collective, 1 << 20, DType::F32, Rank(0)).expect("a plan")
    };
    let before = of(&comm, Collective::AllReduce);
    let gather = of(&comm, Collective::AllGather);
    comm.set_algorithm(Some("recursive-doubling"), 3).expect("known");
    assert_eq!(of(&comm, Collective::AllReduce), ("recursive_doubling", 3));
    comm.set_algorithm(Some("mesh"), 0).expect("known");
    assert_eq!(of(&comm, Collective::AllReduce).0, "mesh");
    assert_eq!(of(&comm, Collective::AllGather), gather, "it has no mesh");
    let error = comm.set_algorithm(Some("mash"), 0).expect_err("unknown").to_string();
    assert!(error.contains("did you mean `mesh`"), "{error}");
    assert!(comm.set_algorithm(Some("ring"), MAX_SEGMENTS + 1).is_err());
    assert_eq!(of(&comm, Collective::AllReduce).0, "mesh", "an error changes nothing");
    comm.set_algorithm(None, 0).expect("always");
    assert_eq!(of(&comm, Collective::AllReduce), before);
}

#[test]
fn what_is_planned_ahead_is_what_a_call_takes() {
    let mut comm = alone();
    let ahead = |comm: &mut Communicator, root| {
        comm.plan_ahead(Collective::Broadcast, 1 << 20, DType::F32, Rank(root), true)
    };
    ahead(&mut comm, 1).expect("a plan");
    let planned = comm.plans.programs_compiled();
    assert_eq!(planned, 1);
    ahead(&mut comm, 1).expect("at hand");
    assert_eq!(comm.plans.programs_compiled(), planned, "it is not planned twice");
    let error = ahead(&mut comm, 4).expect_err("there is none").to_string();
    assert!(error.contains("root") && error.contains("0..4"), "{error}");
}

#[test]
fn two_kinds_of_calls_with_the_same_place_in_the_cache_are_both_kept() {
    let mut comm = alone();
    let call = |count| Call {
        collective: Collective::AllGather,
        dtype: DType::F32,
        op: None,
        count,
        root: Rank(0),
        in_place: InPlace::No,
        codec: None,
    };
    let numerics = Numerics::Fast;
    // Plans of one program, which counts those that are kept.
    let mut plans_kept = |count| {
        let (slot, planned) = comm.plans.borrow(&call(count), Blocks::Even, numerics).expect("a plan");
        let kept = Arc::strong_count(&planned.program) - 1;
        comm.plans.give_back(slot, planned);
        kept
    };
    let place = |count| CallKey::new(&call(count), Blocks::Even, numerics).hash();
    let same: Vec<u64> = (1..10_000).filter(|count| place(*count) == place(1)).take(3).collect();
    let [first, second, third] = same[..] else { panic!("three of ten thousand: {same:?}") };
    assert_eq!([plans_kept(first), plans_kept(second), plans_kept(first), plans_kept(second)], [1, 2, 2, 2]);
    assert_eq!(plans_kept(third), 2, "it takes the place of one");
}

#[test]
fn a_panic_in_a_run_fails_the_communicator_of_all_ranks_at_once_and_names_its_cause() {
    const TIMEOUT: Duration = Duration::from_secs(120);
    let config = Config { slab_bytes: Some(1 << 20), timeout: TIMEOUT, ..Config::default() };
    let mut comms = Communicator::local(2, &config).expect("memory for a test");
    let (mut broken, mut other) = (comms.pop().expect("two"), comms.pop().expect("two"));
    // Receives in groups from rank 0 use the link to a rank that does not exist.
    let program = Program::message(Rank(7), false, Communicator::LANES);
    broken.message_programs[0] = Some(Arc::new(program));
    let began = std::time::Instant::now();
    let peer = std::thread::spawn(move || other.recv(&mut [0u8; 4], Rank(1)).expect_err("nothing is sent"));
    let call = std::panic::AssertUnwindSafe(|| {
        let mut memory = [0u8; 4];
        let mut group = broken.group();
        group.recv(&mut memory, Rank(0))?;
        group.run()
    });
    assert!(std::panic::catch_unwind(call).is_err(), "the panic goes on to the caller");
    let error = broken.send(&[1u8], Rank(0)).expect_err("the communicator has failed");
    let text = error.to_string();
    assert!(matches!(error, Error::Defect(_)) && text.contains("rank 1 panicked in recv of 4 u8"), "{text}");
    assert!(text.contains("index out of bounds"), "{text}");
    let error = peer.join().expect("an error and no panic");
    assert!(matches!(error, Error::Remote { rank: Rank(1), .. }), "{error}");
    assert!(error.to_string().contains("panicked"), "{error}");
    assert!(began.elapsed() < TIMEOUT / 2, "after {:?}", began.elapsed());
}

/// A rank enters its call after it has sent what is brief. The error was a broken link where the peer looked
/// between the two.
#[test]
fn a_mismatch_names_the_call_of_a_peer_that_enters_it_after_its_first_message() {
    let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
    let mut comms = Communicator::local(2, &config).expect("memory for a test");
    let (mut other, mut comm) = (comms.pop().expect("two"), comms.pop().expect("two"));
    let kind = CallKind::Collective(Collective::AllGather);
    let record = CallRecord { kind, dtype: DType::F32, count: 2, ..CallRecord::nothing(1) };
    let message = [0u8; 8];
    assert!(other.executor.link(0).send_brief(record.digest(), Span::from(&message[..]), false));
    let call = std::thread::spawn(move || {
        comm.all_reduce_in_place(&mut [1.0f32, 2.0], ReduceOp::Sum).expect_err("the peer is in another call")
    });
    std::thread::sleep(Duration::from_millis(50));
    other.peers.agreement.enter(&record.encode());
    let error = call.join().expect("an error and no panic");
    let text = error.to_string();
    assert!(matches!(error, Error::Mismatch { .. }), "{text}");
    assert!(text.contains("all_reduce of 2 f32") && text.contains("all_gather of 2 f32"), "{text}");
}

#[test]
fn threads_of_one_process_don_t_take_each_other_s_earlier_choice() {
    let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
    let comms = Communicator::local(2, &config).expect("memory for a test");
    std::thread::scope(|scope| {
        for mut comm in comms {
            scope.spawn(move || {
                for (algorithm, messages) in [("mesh", 1), ("rsag_mesh", 2), ("mesh", 1)] {
                    comm.set_algorithm(Some(algorithm), 1).expect("known");
                    let before = comm.counters().sent_messages;
                    comm.all_reduce_in_place(&mut [1.0f32; 64], ReduceOp::Sum).expect("done");
                    assert_eq!(comm.counters().sent_messages - before, messages, "{algorithm}");
                }
            });
        }
    });
}

#[test]
fn a_peer_that_has_failed_is_not_the_culprit_once_the_launcher_is_gone() {
    let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
    let mut comms = Communicator::local(2, &config).expect("memory for a test");
    comms[0].peers.launcher_gone = true;
    let mut links = LinkAccess::new(comms.swap_remove(0));
    let about = ErrorContext { record: CallRecord::nothing(1), details: "step 5", waited: Duration::ZERO };
    for error in [TransportError::Revoked { peer: 1 }, TransportError::Closed { peer: 1 }] {
        let cause = links.explain(&about, Rank(1), error);
        assert!(matches!(cause, Error::LauncherGone), "{cause}");
    }
}

#[test]
fn a_small_call_after_a_large_one_gets_no_more_scratch_memory_than_it_needs() {
    let mut memory = Some(Box::new(alone().slab.allocate(1 << 16).expect("room")));
    assert_eq!(scratch_of(&mut memory, 64).len(), 64);
    assert_eq!(scratch_of(&mut memory, 1 << 16).len(), 1 << 16);
    assert_eq!(scratch_of(&mut None, 0).len(), 0);
}
