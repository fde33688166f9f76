//! Two ranks of one host and one of another, with RDMA between hosts.

use crate::{
    fixture::*,
    mixed::side,
    tcp::{config, connect_all, open},
    verbs::DeviceSink,
};
use std::{path::PathBuf, time::Instant};
use transport::{
    Protocol, RecvProgress, RecvState, SendProgress, SendState, SizeClass, TransportError,
    driver::{
        Choice, Endpoint, Fallback, HostMemory,
        mixed::{Mixed, OpenInterHost},
        tcp::Security,
        verbs::{VerbsConfig, VerbsEndpoint},
    },
    memory::ArenaLayout,
};

/// Host name of each rank.
const HOSTS: [&str; 3] = ["x", "x", "y"];

fn verbs_config(device: &str) -> VerbsConfig {
    let (device, unreliable) = device.split_once(' ').map_or((device, false), |(name, _)| (name, true));
    let (there, here) = (vec![device.to_owned()], vec![format!("{device}_2")]);
    VerbsConfig {
        library: std::env::var_os("TBCCL_TEST_VERBS_LIBRARY").map(PathBuf::from),
        matrix: Some(vec![
            vec![vec![], vec![], there.clone()],
            vec![vec![], vec![], there],
            vec![here.clone(), here, vec![]],
        ]),
        reliable: unreliable.then_some(false),
        piece_bytes: 16 << 10,
        slab_bytes: Some(24 << 20),
        ..VerbsConfig::default()
    }
}

fn opened(
    config: &VerbsConfig,
    rank: usize,
    host_memory: &mut HostMemory,
) -> Result<Box<dyn Endpoint>, TransportError> {
    Ok(Box::new(VerbsEndpoint::new_at(config, rank as u32, host_memory, Box::new(|_| ()))))
}

fn mixed(between: impl Fn(usize) -> OpenInterHost + Sync) -> Vec<Mixed> {
    let layout = ArenaLayout { ranks: 3, ..LAYOUT };
    connect_all(3, |rank| {
        Mixed::open(between(rank), layout, rank as u32, HOSTS[rank], PATIENCE).expect("memory for a test")
    })
}

fn over_verbs(device: &str) -> [Mixed; 3] {
    let config = verbs_config(device);
    let between = |rank| {
        let config = config.clone();
        Box::new(move |host_memory: &mut HostMemory| opened(&config, rank, host_memory)) as OpenInterHost
    };
    mixed(between).try_into().expect("three")
}

impl Pair {
    /// Returns the pair of ranks 0 and 2.
    pub(crate) fn mixed_verbs(device: &str) -> Pair {
        let [a, other, b] = over_verbs(device);
        assert_eq!((a.name(), b.name()), ("shm+verbs", "shm+verbs"));
        let mut pair = Pair([side(a, 2), side(b, 0)]);
        pair.0[0].kept.push(other);
        pair
    }

    /// Returns the pair of ranks 0 and 1.
    pub(crate) fn mixed_verbs_within(device: &str) -> Pair {
        let [a, b, other] = over_verbs(device);
        let mut pair = Pair([side(a, 1), side(b, 0)]);
        pair.0[0].kept.push(other);
        pair
    }
}

/// Memory registered once is mapped by local peers and known to the device.
pub(crate) fn one_buffer_is_read_by_a_neighbour_and_put_into_another_host_without_a_copy(mut pair: Pair) {
    let mut neighbour = pair.0[0].kept.pop().expect("rank 1");
    let mut to_neighbour = pair.0[0].kept[0].link(1, 1);
    let mut at_neighbour = neighbour.link(0, 1);
    for len in [200_000, (3 << 20) + 5] {
        let bytes = noise(len, 8);
        let src = registered(&pair.0[0].slab, &bytes);
        let mut received = neighbour.slab().allocate(len).expect("room");
        let before = (to_neighbour.counters(), at_neighbour.counters());
        let mut folding = ReduceSink(received.as_mut_slice());
        transfer((&mut *to_neighbour, &mut *at_neighbour), Protocol::Direct, src.span(), &mut folding);
        assert!(received.as_slice() == bytes, "{len} bytes within the host");
        let copied = |after: u64, before: u64| assert_eq!(after - before, 0, "{len} bytes within the host");
        copied(to_neighbour.counters().copied_bytes, before.0.copied_bytes);
        copied(at_neighbour.counters().copied_bytes, before.1.copied_bytes);

        let mut dst = pair.0[1].slab.allocate(len).expect("room");
        let (a, b) = pair.ends(1);
        let before = (a.counters(), b.counters());
        let mut send = SendState::new(9, Protocol::Copy).with_size(SizeClass::Bulk);
        let mut recv = RecvState::new(9, len).with_size(SizeClass::Bulk);
        assert!(b.announce(&mut recv, Some(dst.span_mut())).expect("announced"));
        let (mut sent, mut received) = (false, false);
        let until = Instant::now() + PATIENCE;
        while !(sent && received) {
            assert!(Instant::now() < until, "stuck");
            sent = sent || a.poll_send(&mut send, src.span()).expect("send") == SendProgress::Complete;
            let mut sink = DeviceSink(dst.span_mut());
            received = received || b.poll_recv(&mut recv, &mut sink).expect("recv") == RecvProgress::Complete;
        }
        assert!(dst.as_slice() == bytes, "{len} bytes between hosts");
        let copied = (a.counters() - before.0).copied_bytes + (b.counters() - before.1).copied_bytes;
        assert_eq!(copied, 0, "{len} bytes between hosts");
    }
}

/// No other thread makes progress: a remote rank that waits for this rank's answer would also wait for its
/// neighbor.
pub(crate) fn who_waits_for_a_neighbour_answers_other_hosts(mut pair: Pair) {
    let mut near = pair.0[0].kept[0].link(1, 0);
    let polls = |pair: &mut Pair| pair.ends(0).0.poll_counters().polls;
    let before = polls(&mut pair);
    let (mut state, mut received) = (RecvState::new(1, 8), [0; 8]);
    for _ in 0..400 {
        assert_eq!(
            near.poll_recv(&mut state, &mut CopySink(&mut received)).expect("recv"),
            RecvProgress::Idle
        );
    }
    assert!(polls(&mut pair) - before >= 100, "nothing was looked for while it waited");
}

/// Returns the options of a rank without a cable between the last two ranks.
fn without_cable(_: usize) -> VerbsConfig {
    let mut config = verbs_config("far_ib");
    let matrix = config.matrix.as_mut().expect("given");
    (matrix[1][2], matrix[2][1]) = (vec![], vec![]);
    config
}

/// Returns the endpoints of all ranks that prefer RDMA, and the reason of each rank for falling back.
///
/// Of up to `max_relayed_ranks` ranks, those without a cable between them may be reached along others.
fn preferring(
    config: impl Fn(usize) -> VerbsConfig + Sync,
    max_relayed_ranks: u32,
) -> (Vec<Mixed>, Vec<Option<String>>) {
    let (sender, reasons) = std::sync::mpsc::channel();
    let tcp = config_of_tcp();
    let between = |rank: usize| {
        let (verbs, second, sender) = (config(rank), open(&tcp, rank), sender.clone());
        Box::new(move |host_memory: &mut HostMemory| {
            let first = opened(&verbs, rank, host_memory);
            let on_choice = Box::new(move |choice: Choice<'_>| {
                let why = match choice {
                    Choice::First => None,
                    Choice::FirstRelaying => Some("relaying".to_owned()),
                    Choice::Second(why) => Some(why.to_owned()),
                };
                sender.send(why).expect("somebody listens");
            });
            let ranks = (host_memory.hosts().to_vec(), max_relayed_ranks);
            let both = Fallback::new(rank as u32, ranks, first, Box::new(second), on_choice);
            Ok(Box::new(both) as Box<dyn Endpoint>)
        }) as OpenInterHost
    };
    let ends = mixed(between);
    (ends, reasons.try_iter().collect())
}

fn config_of_tcp() -> transport::driver::tcp::TcpConfig {
    config("127.0.0.1", 1, Security::Authenticate)
}

/// Sends a message of registered memory between each two ranks.
fn exchange_all(ends: &mut [Mixed]) {
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        let bytes = noise(50_000, 4);
        let src = registered(ends[a].slab(), &bytes);
        let (mut from, mut to) = (ends[a].link(b as u32, 1), ends[b].link(a as u32, 1));
        let mut received = vec![0; bytes.len()];
        transfer((&mut *from, &mut *to), Protocol::Copy, src.span(), &mut CopySink(&mut received));
        assert!(received == bytes, "from {a} to {b}");
    }
}

fn on_the_fabric(name: &str, test: impl FnOnce()) {
    crate::fabric::on(name, crate::verbs::FABRIC, |_| test());
}

#[test]
fn rdma_is_taken_where_all_ranks_have_it() {
    on_the_fabric("mixed_verbs::rdma_is_taken_where_all_ranks_have_it", || {
        let (ends, why) = preferring(|_| verbs_config("far_ib"), 3);
        assert!(ends.iter().all(|end| end.name() == "shm+verbs"), "{why:?}");
        assert_eq!(why, [None, None, None]);
    });
}

#[test]
fn tcp_is_taken_by_all_where_one_has_no_library_or_no_device_or_no_cable() {
    let name = "mixed_verbs::tcp_is_taken_by_all_where_one_has_no_library_or_no_device_or_no_cable";
    on_the_fabric(name, || {
        let without_library = |rank| match rank {
            1 => VerbsConfig { library: Some("/nowhere/libibverbs.so".into()), ..verbs_config("far_ib") },
            _ => verbs_config("far_ib"),
        };
        let without_device = |rank| match rank {
            1 => {
                let mut config = verbs_config("far_ib");
                config.matrix.as_mut().expect("given")[1][2] = vec!["none".into()];
                config
            }
            _ => verbs_config("far_ib"),
        };
        let tries: [(&(dyn Fn(usize) -> VerbsConfig + Sync), &str); 3] = [
            (&without_library, "rank 1: the verbs library"),
            (&without_device, "rank 1: the device matrix names an"),
            (&without_cable, "no cable connects rank 1 with rank 2"),
        ];
        for (config, sender) in tries {
            let (mut ends, why) = preferring(config, 0);
            assert!(ends.iter().all(|end| end.name() == "shm+tcp"), "{why:?}");
            let is_right = |why: &Option<String>| why.as_ref().is_some_and(|why| why.starts_with(sender));
            assert!(why.len() == 3 && why.iter().all(is_right), "{sender}: {why:?}");
            // The whole slab is free, including the ranges that the dropped driver had allocated.
            assert!(ends.iter().all(|end| end.slab().free_bytes() == LAYOUT.slab_bytes as u64));
            exchange_all(&mut ends);
        }
    });
}

#[test]
fn rdma_is_taken_along_other_ranks_and_tcp_between_those_without_a_cable() {
    let name = "mixed_verbs::rdma_is_taken_along_other_ranks_and_tcp_between_those_without_a_cable";
    on_the_fabric(name, || {
        let (mut ends, why) = preferring(without_cable, 3);
        assert!(ends.iter().all(|end| end.name() == "shm+verbs"), "{why:?}");
        assert!(why.len() == 3 && why.iter().all(|why| why.as_deref() == Some("relaying")), "{why:?}");
        for end in &ends {
            let pairs = [(0, 1), (0, 2), (1, 2)];
            assert!(pairs.iter().all(|(a, b)| end.connects(*a, *b)));
            assert_eq!(pairs.map(|(a, b)| end.is_for_schedules(a, b)), [true, true, false]);
        }
        let driver = |link: &dyn transport::Link| link.capabilities().driver;
        let drivers = [(0, 2), (1, 2)].map(|(from, to)| driver(&*ends[from].link(to, 0)));
        assert_eq!(drivers, ["verbs", "tcp"]);
        exchange_all(&mut ends);
    });
}
