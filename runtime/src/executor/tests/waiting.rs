//! Waits of ranks that share their cores.

use super::{
    stub_link::{CAPABILITIES, StubLink},
    *,
};
use crate::executor::OnOtherCores;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use transport::Sleeper;

/// Counts how often a wait leaves the core to others.
#[derive(Debug, Default)]
struct Pauses(AtomicU32);

impl Sleeper for Pauses {
    fn sleep(&self, _: Duration) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Returns how often an exchange with rank 1, which has no room for a message for four polls, leaves the
/// core.
fn pauses_of_an_exchange(on_other_cores: &[Rank]) -> u32 {
    let range = |buffer| ChunkRange { buffer, first: 0, len: 1 };
    let step = |action| Step { action, lane: 0, after: Vec::new().into(), follows: None };
    let send = step(Action::Send { peer: Rank(1), src: range(Buffer::Input) });
    let recv = step(Action::Recv { peer: Rank(1), dst: range(Buffer::Output) });
    let program = by_hand(1, vec![send, recv]);
    let mut polls = 0;
    let link = StubLink {
        capabilities: &CAPABILITIES,
        send: move |_: Span<'_>| {
            polls += 1;
            if polls > 4 { SendProgress::Complete } else { SendProgress::Idle }
        },
        announced: Arc::default(),
        prepared: Arc::default(),
    };
    let (_, slab) = over_local(1).remove(0);
    let links: Vec<Option<Box<dyn Link>>> = vec![None, None, Some(Box::new(link)), None];
    let wait = WaitPolicy { yield_for: Duration::ZERO, ..WaitPolicy::for_host(4, 2) };
    let pauses = Arc::<Pauses>::default();
    let mut executor = Executor::new(links, slab, wait, Protocols::with_minima(usize::MAX, u64::MAX))
        .with_sleeper(Some(Arc::<Pauses>::clone(&pauses)))
        .with_others(OnOtherCores::new(on_other_cores));
    let constants = constants(0, 1, (1, 2));
    let straight = SizedStraight::new(&program, &constants, executor.protocols());
    let binding = Binding { straight: straight.as_ref(), ..without_memory(&constants) };
    executor.run(&program, &[binding], &mut TimeoutWatch).expect("all comes");
    pauses.0.load(Relaxed)
}

#[test]
fn a_rank_polls_again_for_a_peer_on_another_core_before_it_leaves_its_core() {
    assert!(pauses_of_an_exchange(&[]) > 0, "the peer may need the core");
    assert_eq!(pauses_of_an_exchange(&[Rank(1)]), 0);
}

/// Returns, for each of four ranks, whether its part of a plan sends before it waits, and receives.
fn exchanges(collective: Collective, algorithm: &str) -> Vec<bool> {
    let spec = Spec::new(collective, 4).expect("four ranks");
    let schedule = plan::plan(&spec, algorithm).expect("a plan");
    (0..4).map(|rank| Program::compile(&schedule, Rank(rank), LANES).exchanges).collect()
}

#[test]
fn ranks_of_a_tree_or_a_chain_do_not_exchange() {
    for (collective, algorithm) in [
        (Collective::AllReduce, "mesh"),
        (Collective::AllReduce, "ring"),
        (Collective::AllGather, "direct"),
        (Collective::AllToAll, "direct"),
        (Collective::Barrier, "dissemination"),
    ] {
        assert_eq!(exchanges(collective, algorithm), [true; 4], "{algorithm}");
    }
    for (collective, algorithm) in [
        (Collective::Broadcast, "chain"),
        (Collective::Broadcast, "binomial"),
        (Collective::Reduce, "chain"),
        (Collective::Reduce, "direct"),
    ] {
        assert_eq!(exchanges(collective, algorithm), [false; 4], "{algorithm}");
    }
}
