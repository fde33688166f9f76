//! Registrations of all shapes: sparse, overlapping, repeated, by several threads at once.
//!
//! Where pages are shared, the size of the file that contains them shows how many are in memory.

use crate::{
    memory::{Memory, PAGE},
    rig::{ALL, DataPath, End, Options, Rig},
    verbs::{Region, Work},
};
use std::{
    os::unix::fs::MetadataExt,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use verbs_sys::{QpType, Sge, WcStatus, WrOpcode};

/// Returns the bytes of memory that shared pages occupy.
fn shared_bytes(rig: &Rig) -> u64 {
    let run = rig.location().home.join("run");
    let shared = rig.files().into_iter().filter(|name| name.starts_with('m'));
    shared.map(|name| run.join(name).metadata().map_or(0, |about| about.blocks() * 512)).sum()
}

/// Sends a message between two registered memories, and checks the bytes.
fn check_send(a: &End, from: (&Memory, usize, &Region), b: &End, to: (&Memory, usize, &Region), len: usize) {
    let seed = (from.1 / PAGE) as u8 ^ 0x55;
    from.0.pattern(from.1, len, seed);
    to.0.fill(to.1, len, 0);
    assert_eq!(b.qp.receive(1, &[to.0.sge(to.1, len, to.2.lkey)]), 0);
    a.post(&Work::send(&[from.0.sge(from.1, len, from.2.lkey)]));
    assert_eq!((a.sent(), b.received()), ((0, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
    assert!(to.0.has_pattern(to.1, len, seed), "from {} to {}", from.1, to.1);
}

/// 6 GiB in regions of 256 MiB, of which a few pages are touched: registered fast, and without memory for the
/// rest.
pub(crate) fn what_was_never_touched_costs_nothing(rig: &Rig) {
    const SLAB: usize = 6 << 30;
    const EACH: usize = 256 << 20;
    let (a, b) = rig.unconnected(QpType::UC, Options::default());
    let slab = Memory::new(SLAB);
    slab.set(EACH + 5, 77);
    let before = shared_bytes(rig);
    let began = Instant::now();
    let part = |number: usize| {
        let start = slab.address() + (number * EACH) as u64;
        a.domain.register_part(&slab, start, EACH, start, ALL).expect("a registration")
    };
    let regions: Vec<Region> = (0..SLAB / EACH).map(part).collect();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(shared_bytes(rig) - before < 4 << 20, "{} bytes", shared_bytes(rig) - before);
    assert!(slab.resident() < 4 << 20, "{} bytes", slab.resident());
    assert_eq!((slab.get(EACH + 5), slab.get(EACH + 6)), (77, 0));
    a.connect(&b.info(), Options::default());
    b.connect(&a.info(), Options::default());
    for (number, region) in regions.iter().enumerate() {
        let at = number * EACH + 7 * PAGE;
        check_send(&a, (&slab, at, region), &b, (&b.memory, 0, &b.region), 2 * PAGE);
        check_send(&b, (&b.memory, 0, &b.region), &a, (&slab, at + 9 * PAGE, region), 2 * PAGE);
    }
    let is_shared = rig.path == DataPath::Shared;
    assert_eq!(
        shared_bytes(rig) - before > (SLAB / EACH * 4 * PAGE) as u64,
        is_shared,
        "who stores into it directly"
    );
}

/// Regions that overlap, contain each other, and begin or end within a page.
pub(crate) fn regions_may_overlap(rig: &Rig) {
    let (a, b) = rig.unconnected(QpType::UC, Options::default());
    let ranges =
        [(8, 8), (12, 8), (0, 10), (0, 32), (9, 2), (31, 1)].map(|(at, len)| (at * PAGE, len * PAGE));
    let odd = [(100, 3000), (8 * PAGE + 50, 4 * PAGE), (31 * PAGE, PAGE - 1)];
    let memories = [Memory::new(32 * PAGE), Memory::new(32 * PAGE)];
    let mut regions: [Vec<(usize, usize, Region)>; 2] = [Vec::new(), Vec::new()];
    for (index, end) in [&a, &b].into_iter().enumerate() {
        let memory = &memories[index];
        memory.pattern(0, memory.len(), 9);
        for (at, len) in ranges.into_iter().chain(odd) {
            let start = memory.address() + at as u64;
            let region = end.domain.register_part(memory, start, len, start, ALL).expect("a registration");
            regions[index].push((at, len, region));
        }
        assert!(memory.has_pattern(0, memory.len(), 9), "registering changes nothing");
    }
    a.connect(&b.info(), Options::default());
    b.connect(&a.info(), Options::default());
    for (at, len, region) in &regions[0] {
        for (to, room, other) in &regions[1] {
            let len = (*len).min(*room).min(PAGE);
            check_send(&a, (&memories[0], *at, region), &b, (&memories[1], *to, other), len);
        }
    }
    if rig.path == DataPath::Shared {
        assert!(memories.iter().all(|memory| memory.is_shared()), "all of it can be stored into directly");
    }
}

/// Memory that is mapped, registered and unmapped repeatedly is freed.
pub(crate) fn memory_that_is_gone_is_given_back(rig: &Rig) {
    let node = rig.open("a");
    let domain = node.pd().expect("a domain");
    for round in 0..100u8 {
        let memory = Memory::new(1 << 20);
        memory.fill(0, memory.len(), round + 1);
        drop(domain.register(&memory, ALL).expect("a registration"));
        assert!(memory.has_only(0, memory.len(), round + 1));
    }
    assert!(shared_bytes(rig) <= 4 << 20, "{} bytes", shared_bytes(rig));
    let many: Vec<_> = (0..32).map(|_| Memory::new(1 << 20)).collect();
    many.iter().for_each(|memory| memory.fill(0, memory.len(), 1));
    let regions: Vec<_> =
        many.iter().map(|memory| domain.register(memory, ALL).expect("a registration")).collect();
    assert_eq!(shared_bytes(rig) >= 32 << 20, rig.path == DataPath::Shared);
    drop((regions, many));
    let _next = domain.register(&Memory::new(PAGE), ALL).expect("a registration");
    assert!(shared_bytes(rig) <= 4 << 20, "{} bytes", shared_bytes(rig));
}

/// Registrations of one thread affect neither another thread nor messages in flight.
pub(crate) fn threads_register_and_connect_at_once(rig: &Rig) {
    let nodes = [rig.open("a"), rig.open("b")];
    thread::scope(|scope| {
        for seed in 0..2u8 {
            let nodes = &nodes;
            scope.spawn(move || {
                for round in 0..10u8 {
                    let [a, b] = nodes.each_ref().map(|node| End::new(node, QpType::UC, Options::default()));
                    let more: Vec<_> = (0..4).map(|_| Memory::new(4 * PAGE)).collect();
                    let register = |memory: &Arc<Memory>| {
                        memory.fill(0, memory.len(), seed * 100 + round + 1);
                        a.domain.register(memory, ALL).expect("a registration")
                    };
                    let regions: Vec<Region> = more.iter().map(register).collect();
                    a.connect(&b.info(), Options::default());
                    b.connect(&a.info(), Options::default());
                    for (memory, region) in more.iter().zip(&regions) {
                        assert!(memory.has_only(0, memory.len(), seed * 100 + round + 1));
                        check_send(&a, (memory, 0, region), &b, (&b.memory, 0, &b.region), PAGE);
                    }
                    let keys: std::collections::BTreeSet<u32> =
                        regions.iter().map(|region| region.lkey).collect();
                    assert_eq!(keys.len(), regions.len());
                }
            });
        }
    });
}

/// Peers write into memory that overlaps what other regions read.
pub(crate) fn writes_reach_every_region_over_the_memory(rig: &Rig) {
    let (a, b) = rig.pair(QpType::RC);
    let memory = Memory::new(16 * PAGE);
    let part = |at: usize, pages: usize| {
        let start = memory.address() + (at * PAGE) as u64;
        b.domain.register_part(&memory, start, pages * PAGE, start, ALL).expect("a registration")
    };
    let regions = [part(4, 6), part(0, 8), part(0, 16)];
    for (number, region) in (1..).zip(&regions) {
        let target = memory.address() + 5 * PAGE as u64;
        a.memory.set_word(0, number);
        a.post(&Work::new(WrOpcode::RDMA_WRITE, &[a.sge(0, 8)]).at(target, region.rkey));
        assert_eq!(a.sent().1, WcStatus::SUCCESS);
        assert_eq!(memory.word(5 * PAGE), number);
        for other in &regions {
            let sge: Sge = a.sge(64, 8);
            a.post(&Work::new(WrOpcode::RDMA_READ, &[sge]).at(target, other.rkey));
            assert_eq!((a.sent().1, a.memory.word(64)), (WcStatus::SUCCESS, number));
        }
    }
}
