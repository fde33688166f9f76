//! Announcements of receives: early, and before anything is sent.

use super::{
    ELEM_BYTES, LANES, TimeoutWatch, constants, executor, links, over_local,
    stub_link::{self, StubLink},
    without_memory,
};
use crate::{
    executor::{Binding, CallConstants, Program, Sizing},
    kernels::Reducer,
};
use collectives::{
    Collective, DType, ReduceOp, Schedule,
    schedule::{Action, After, Buffer, ChunkRange, InPlace, RankProgram, Step},
};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};
use topology::Rank;
use transport::{
    Capabilities, Link, SendProgress, SizeClass,
    memory::{Span, SpanMut},
};

const SILENT: Capabilities =
    Capabilities { driver: "silent", announced_bytes: Some(0), ..stub_link::CAPABILITIES };

/// Returns a link on which nothing arrives. It counts announcements, and requires one before anything is
/// sent.
fn silent(announced: &Arc<AtomicU32>) -> impl Link + 'static {
    let seen = Arc::clone(announced);
    let send = move |_: Span<'_>| {
        let times = seen.load(Ordering::Relaxed);
        assert_ne!(times, 0, "something was sent before the peer was told what to send");
        SendProgress::Idle
    };
    StubLink { capabilities: &SILENT, send, announced: Arc::clone(announced), prepared: Arc::default() }
}

/// Returns the announcements to each peer of rank 0 of four while it runs these steps, on a megabyte, and
/// nothing arrives.
fn announced(steps: Vec<Step>) -> [u32; 4] {
    let schedule = Schedule {
        collective: Collective::AllReduce,
        algorithm: "by_hand".into(),
        root: Rank(0),
        in_place: InPlace::Yes,
        chunks: 1,
        scratch_blocks: 0,
        lanes: 1,
        packing: None,
        programs: vec![RankProgram { steps }],
    };
    let program = Program::compile(&schedule, Rank(0), LANES);
    let (_, slab) = over_local(1).remove(0);
    let announced: [Arc<AtomicU32>; 4] = Default::default();
    let silent = |peer: u32, _| Box::new(silent(&announced[peer as usize])) as Box<dyn Link>;
    let mut executor = executor(links(0, 4, silent), &slab, 4);
    let mut data = vec![0u8; 1 << 20];
    let output = SpanMut::from(&mut data[..]);
    let constants = CallConstants {
        reducer: Some(Reducer::new(DType::F32, ReduceOp::Sum).expect("a pair")),
        ranks: 4,
        sizing: Sizing::ByCall(SizeClass::Bulk),
        gathers: false,
        ..constants(1 << 18, ELEM_BYTES, (1, 1))
    };
    let binding = Binding { input: output.as_span(), output, ..without_memory(&constants) };
    executor.run(&program, &[binding], &mut TimeoutWatch).expect_err("nothing arrives");
    announced.map(|announced| announced.load(Ordering::Relaxed))
}

const WHOLE: ChunkRange = ChunkRange { buffer: Buffer::Output, first: 0, len: 1 };

/// Large messages arrive only when they are announced. Receives that reduce one after the other must all be
/// announced at the same time, or their transfers would be sequential as well. Receives into memory in use
/// must not be announced.
#[test]
fn what_will_be_reduced_is_asked_for_before_its_turn() {
    let (local, dst) = (WHOLE, WHOLE);
    let step = |action, after: &[u32]| Step { action, lane: 0, after: after.into(), follows: None };
    let steps = vec![
        step(Action::RecvReduce { peer: Rank(1), local, dst, last: false }, &[]),
        step(Action::RecvReduce { peer: Rank(2), local, dst, last: true }, &[0]),
        step(Action::Recv { peer: Rank(3), dst }, &[1]),
    ];
    assert_eq!(announced(steps), [0, 1, 1, 0]);
}

/// Messages are sent in the order of sending, through queues as well: a peer would wait for an announcement
/// behind a megabyte.
#[test]
fn peers_are_told_what_to_send_before_anything_is_sent_to_them() {
    let step = |action| Step { action, lane: 0, after: After::new(), follows: None };
    let peers = [Rank(1), Rank(2), Rank(3)];
    let sends = peers.map(|peer| step(Action::Send { peer, src: WHOLE }));
    let local = WHOLE;
    let recvs = peers.map(|peer| step(Action::RecvReduce { peer, local, dst: WHOLE, last: false }));
    // The link asserts the order.
    assert_eq!(announced([sends, recvs].concat()), [0, 1, 1, 1]);
}
