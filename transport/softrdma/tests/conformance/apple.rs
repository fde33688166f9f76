//! The rules that only Apple's device has; one test for each.

use crate::{
    children::Child,
    memory::{Memory, PAGE},
    rig::{ALL, DataPath, End, Options, Rig, full_attr, init_attr, mask},
    verbs::{Queues, Work, is_readable},
};
use softrdma::profile::Profile;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use verbs_sys::{AccessFlags, PortState, QpState, QpType, SendFlags, WcStatus, WrOpcode};

const FRAME: usize = 4096;

fn queues(end: &End) -> Queues {
    Queues { send: Arc::clone(&end.send), recv: Arc::clone(&end.recv), srq: None }
}

/// TN, mlx issue 4530.
pub(crate) fn only_unreliable_connections_can_be_made(rig: &Rig) {
    let (a, _b) = rig.unconnected(QpType::UC, Options::default());
    for kind in [QpType::RC, QpType::UD, QpType::RAW_PACKET] {
        let refused = a.domain.qp(init_attr(kind, Options::default()), queues(&a)).err();
        assert_eq!(refused, Some(libc::EOPNOTSUPP), "{kind:?}");
    }
    assert_eq!(a.domain.srq(4, 1).err(), Some(libc::EOPNOTSUPP));
    assert_eq!(a.node.attr().max_srq, 0);
}

/// TN.
pub(crate) fn only_sends_can_be_posted(rig: &Rig) {
    let (a, b) = rig.pair(QpType::UC);
    assert_eq!((a.region.rkey, b.region.rkey), (0, 0));
    for opcode in WrOpcode::ALL.iter().filter(|opcode| **opcode != WrOpcode::SEND) {
        let work = Work::new(*opcode, &[a.sge(0, 8)]).at(b.memory.address(), b.region.lkey);
        assert_eq!(a.qp.post(&work), libc::EOPNOTSUPP, "{opcode:?}");
    }
    assert_eq!((a.node.attr().max_qp_rd_atom, a.node.attr().atomic_cap.0), (0, 0));
}

/// mlx issues 3162 and 4209: 11 are reported, 10 can be created, per device and not per process.
pub(crate) fn the_eleventh_queue_pair_is_one_too_many(rig: &Rig) {
    let (a, _b) = rig.unconnected(QpType::UC, Options::default());
    let other = rig.open("a");
    assert_eq!(a.node.attr().max_qp, 11);
    let make = || a.domain.qp(init_attr(QpType::UC, Options::default()), queues(&a));
    let mut made: Vec<_> = (1..10).map(|_| make().expect("one of ten")).collect();
    assert_eq!(make().err(), Some(libc::EBUSY));
    let domain = other.pd().expect("a domain");
    let (send, recv) = (other.cq(4, None).expect("a queue"), other.cq(4, None).expect("a queue"));
    let of_another = domain.qp(init_attr(QpType::UC, Options::default()), Queues { send, recv, srq: None });
    assert_eq!(of_another.err(), Some(libc::EBUSY), "of the same device");
    made.pop();
    assert!(make().is_ok());
}

/// mlx issue 3162.
pub(crate) fn registration_101_is_one_too_many(rig: &Rig) {
    let node = rig.open("a");
    let domain = node.pd().expect("a domain");
    let memory = Memory::new(PAGE);
    let mut made: Vec<_> =
        (0..100).map(|_| domain.register(&memory, ALL).expect("one of a hundred")).collect();
    assert_eq!(domain.register(&memory, ALL).err(), Some(libc::ENOMEM));
    made.pop();
    assert!(domain.register(&memory, ALL).is_ok());
    assert_eq!(node.attr().max_mr, 100);
}

/// 11, as reported. The leaks of the real kernel are not imitated.
pub(crate) fn domains_are_few(rig: &Rig) {
    let node = rig.open("a");
    let made: Vec<_> = (0..node.attr().max_pd).map(|_| node.pd().expect("a domain")).collect();
    assert_eq!(node.pd().err(), Some(libc::ENODATA));
    let again = rig.open("a");
    assert_eq!(again.pd().err(), Some(libc::ENODATA), "the limit is per device, not per process");
    assert!(rig.open("b").pd().is_ok(), "another device");
    drop(made);
    assert!(node.pd().is_ok() && again.pd().is_ok());
}

/// mesh's notes: zero-based registrations are refused.
pub(crate) fn registrations_have_their_own_addresses(rig: &Rig) {
    let domain = rig.open("a").pd().expect("a domain");
    let memory = Memory::new(PAGE);
    let zero = ALL | AccessFlags::ZERO_BASED;
    assert_eq!(domain.register(&memory, zero).err(), Some(libc::EOPNOTSUPP));
    let moved = domain.register_part(&memory, memory.address(), PAGE, 4096, ALL);
    assert_eq!(moved.err(), Some(libc::EOPNOTSUPP));
    // 0xfa0000 bytes are reported as the maximum, but not enforced.
    let large = Memory::new(0xfa_0000 + PAGE);
    assert!(
        large.address() >> 32 != (large.address() + large.len() as u64 - 1) >> 32
            || domain.register(&large, ALL).is_ok()
    );
}

/// TN, mesh's notes, ds4: a depth is rounded up, counts frames of 4 KiB, and is not fully usable.
pub(crate) fn depths_count_frames(rig: &Rig) {
    let options = Options { depth: 256, memory: 64 * FRAME, ..Options::default() };
    let (a, b) = rig.pair_with(QpType::UC, options);
    assert_eq!((b.qp.cap.max_send_wr, b.qp.cap.max_recv_wr), (1023, 1023));
    let sge = [b.sge(0, 16 * FRAME)];
    let count = (0..).take_while(|_| b.qp.receive(0, &sge) == 0).count();
    assert_eq!(count, 63, "of 16 frames each");
    assert_eq!(b.qp.receive(0, &[b.sge(0, FRAME)]), libc::ENOMEM, "1008 frames can be used");
    // Held sends can fill the whole depth: 63 messages of 16 frames, and 15 more frames.
    let (c, _d) = rig.pair_with(QpType::UC, options);
    let posted = (0..).take_while(|_| c.qp.post(&Work::send(&[c.sge(0, 16 * FRAME)])) == 0).count();
    assert_eq!(posted, 63);
    assert_eq!(c.qp.post(&Work::send(&[c.sge(0, 16 * FRAME)])), libc::ENOMEM);
    assert_eq!(c.qp.post(&Work::send(&[c.sge(0, 15 * FRAME)])), 0);
    assert_eq!(c.qp.post(&Work::send(&[c.sge(0, 1)])), libc::ENOMEM);
    drop(a);
}

/// Not known of the hardware: an option of the fabric file.
pub(crate) fn short_messages_take_whole_frames_where_the_fabric_says_so(rig: &Rig) {
    // A frame takes 33 ms.
    let slow = "bandwidth_gbps = 0.001";
    let took = |link: &str, bytes: usize| {
        let rig = rig.another("", link);
        let (a, b) = rig.pair(QpType::UC);
        // The least of several: the machine may be busy.
        let times = (0..4).map(|round| {
            b.receive(round, 0, bytes);
            let began = Instant::now();
            a.send(round, 0, bytes);
            assert_eq!(b.received(), (round, WcStatus::SUCCESS));
            assert_eq!(a.sent(), (round, WcStatus::SUCCESS));
            began.elapsed().as_millis()
        });
        times.min().expect("four rounds")
    };
    let whole = &format!("{slow}\nwhole_frames = true");
    let frames = |bytes: usize, link: &str| took(link, bytes) / 33;
    assert_eq!(frames(8, whole), 1);
    assert_eq!(frames(FRAME, whole), 1);
    assert_eq!(frames(FRAME + 1, whole), 2);
    assert_eq!(frames(8, slow), 0);
    assert_eq!(frames(FRAME, slow), 1);
}

/// TN.
pub(crate) fn both_ends_need_as_many_frames(rig: &Rig) {
    for (sent, room) in [(FRAME, 2 * FRAME), (1, FRAME + 1), (2 * FRAME, 3 * FRAME)] {
        let (a, b) = rig.pair(QpType::UC);
        b.memory.fill(0, 4 * FRAME, 0xee);
        b.receive(1, 0, room);
        a.send(2, 0, sent);
        assert_eq!(b.received(), (1, WcStatus::LOC_LEN_ERR), "{sent} into {room}");
        assert_eq!(a.sent(), (2, WcStatus::SUCCESS), "nobody tells the sender");
        assert!(b.memory.has_only(0, 4 * FRAME, 0xee));
    }
    let (a, b) = rig.pair(QpType::UC);
    for (sent, room) in [(1, FRAME), (FRAME - 1, FRAME), (FRAME + 1, 2 * FRAME)] {
        b.receive(1, 0, room);
        a.send(2, 0, sent);
        let wc = b.recv.poll();
        assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::SUCCESS, sent));
        assert_eq!(a.sent(), (2, WcStatus::SUCCESS));
    }
}

/// mesh's disassembly and ds4: registrations are mapped when the queue pair reaches RTR.
pub(crate) fn later_registrations_are_unknown_to_a_queue_pair(rig: &Rig) {
    let (a, b) = rig.pair(QpType::UC);
    let late = a.domain.register(&a.memory, ALL).expect("a registration");
    b.receive(1, 0, 64);
    a.post(&Work::send(&[a.memory.sge(0, 64, late.lkey)]));
    assert_eq!(a.sent(), (0, WcStatus::LOC_PROT_ERR));
    // A queue pair that reaches RTR later knows the registration.
    let (c, d) = rig.unconnected(QpType::UC, Options::default());
    let early = c.domain.register(&c.memory, ALL).expect("a registration");
    c.connect(&d.info(), Options::default());
    d.connect(&c.info(), Options::default());
    d.receive(1, 0, 64);
    c.post(&Work::send(&[c.memory.sge(0, 64, early.lkey)]));
    assert_eq!((c.sent(), d.received()), ((0, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
    let (e, f) = rig.pair(QpType::UC);
    let late = f.domain.register(&f.memory, ALL).expect("a registration");
    assert_eq!(f.qp.receive(1, &[f.memory.sge(0, 64, late.lkey)]), 0);
    e.send(2, 0, 64);
    assert_eq!(f.received(), (1, WcStatus::LOC_PROT_ERR));
}

/// TN: one scatter/gather element each way, no inline bytes.
pub(crate) fn one_piece_and_nothing_inline(rig: &Rig) {
    let (a, _b) = rig.pair(QpType::UC);
    let two = [a.sge(0, 8), a.sge(8, 8)];
    assert_eq!((a.qp.post(&Work::send(&two)), a.qp.receive(0, &two)), (libc::EINVAL, libc::EINVAL));
    assert_eq!((a.qp.cap.max_send_sge, a.qp.cap.max_inline_data), (1, 0));
    let inline = Work::send(&two[..1]).flags(SendFlags::SIGNALED | SendFlags::INLINE);
    assert_eq!(a.qp.post(&inline), libc::EINVAL);
    for wrong in [Options { sges: 2, ..Options::default() }, Options { inline: 1, ..Options::default() }] {
        assert_eq!(a.domain.qp(init_attr(QpType::UC, wrong), queues(&a)).err(), Some(libc::EINVAL));
    }
}

/// TN: 4095 frames of 4 KiB.
pub(crate) fn the_largest_message_has_4095_frames(rig: &Rig) {
    let most = 4095 * FRAME;
    let options = Options { depth: 4095, memory: most + FRAME, ..Options::default() };
    let (a, b) = rig.pair_with(QpType::UC, options);
    assert_eq!((a.node.port().max_msg_sz, a.qp.cap.max_send_wr), (16_773_120, 4095));
    a.memory.fill(0, most, 7);
    b.receive(1, 0, most);
    a.send(2, 0, most);
    let wc = b.recv.poll();
    assert_eq!((wc.status, wc.byte_len), (WcStatus::SUCCESS, 16_773_120));
    assert_eq!(a.sent(), (2, WcStatus::SUCCESS));
    assert!((0..most).step_by(FRAME - 1).all(|at| b.memory.get(at) == 7) && b.memory.get(most - 1) == 7);
    assert_eq!(b.qp.receive(1, &[b.sge(0, most + 1)]), libc::ENOMEM, "more frames than there are");
    assert_eq!(a.qp.post(&Work::send(&[a.sge(0, most + 1)])), libc::ENOMEM);
}

/// gojaccl: there are no completion events.
pub(crate) fn completions_are_polled(rig: &Rig) {
    let node = rig.open("a");
    assert_eq!(node.channel().err(), Some(libc::EOPNOTSUPP));
    let queue = node.cq(4, None).expect("a queue");
    assert_ne!(queue.arm(false), 0);
    assert_ne!(queue.arm(true), 0);
}

/// TN on the meaning of a completion: over a slow cable, the sender's comes before the receiver's.
pub(crate) fn a_send_completes_before_it_arrives(rig: &Rig) {
    let slow = rig.another("", "latency_us = 30000.0");
    let (a, b) = slow.pair(QpType::UC);
    b.receive(1, 0, 64);
    a.send(2, 0, 64);
    assert_eq!(a.sent(), (2, WcStatus::SUCCESS));
    assert!(b.recv.try_poll().expect("in order").is_none());
    assert_eq!(b.received(), (1, WcStatus::SUCCESS));
}

/// mlx issue 3467.
pub(crate) fn the_ipv4_address_can_be_missing(rig: &Rig) {
    let rig = rig.another("gid = \"missing\"", "");
    let (node, peer) = (rig.open("a"), rig.open("b"));
    assert_eq!((node.ipv4_index(), peer.ipv4_index()), (None, Some(1)));
    let b = End::new(&peer, QpType::UC, Options::default());
    let a = End::new(&node, QpType::UC, Options::default());
    assert_eq!(a.to_init(Options::default()), 0);
    let attr = full_attr(QpState::RTR, Some(&b.info()), Options::default());
    assert_eq!(a.qp.modify(&attr, mask(QpType::UC, QpState::RTR)), libc::EINVAL);
}

/// mlx issue 3467: the address appears when macOS gives up on DHCP.
pub(crate) fn the_ipv4_address_can_be_late(rig: &Rig) {
    let rig = rig.another("gid = \"late\", gid_after_ms = 300", "");
    let node = rig.open("a");
    assert_eq!(node.ipv4_index(), None);
    assert_eq!(crate::verbs::wait_for("the address", || node.ipv4_index()), 1);
}

/// mlx issue 3467: after a link flap the address may have another index, with an empty entry at the old one.
pub(crate) fn the_ipv4_address_can_be_elsewhere(rig: &Rig) {
    let rig = rig.another("gid_index = 2", "");
    let (a, b) = rig.unconnected(QpType::UC, Options::default());
    assert_eq!(a.node.ipv4_index(), Some(2));
    assert!(a.node.gid(1).is_some_and(verbs_sys::Gid::is_empty));
    assert_eq!(a.to_init(Options::default()), 0);
    let attr = full_attr(QpState::RTR, Some(&b.info()), Options::default());
    assert_eq!(a.qp.modify(&attr, mask(QpType::UC, QpState::RTR)), libc::EINVAL, "who hard-codes 1");
    assert_eq!(a.to_rtr(&b.info()), 0, "who looks for it");
}

/// The address of a port that no cable leads to.
pub(crate) fn an_address_out_of_reach_times_out(rig: &Rig) {
    let (a, _b) = rig.unconnected(QpType::UC, Options::default());
    assert_eq!(a.to_init(Options::default()), 0);
    let mut info = a.info();
    info.gid = verbs_sys::Gid::from_ipv4([10, 1, 2, 3].into());
    assert_eq!(a.to_rtr(&info), libc::ETIMEDOUT);
}

/// mlx issues 3777, 4485 and 4530.
pub(crate) fn a_port_that_is_down_has_no_domains(rig: &Rig) {
    let rig = rig.another("port = \"down\"", "");
    let node = rig.open("a");
    assert_eq!(node.port().state, PortState::DOWN);
    assert_eq!(node.pd().err(), Some(libc::ENODATA));
    let other = rig.open("b");
    assert_eq!((other.port().state, other.pd().err()), (PortState::DOWN, Some(libc::ENODATA)), "no link");
}

/// Returns two pages around a 4 GiB line, and two unused pages exactly 4 GiB below.
fn around_a_line() -> (Arc<Memory>, Arc<Memory>) {
    let line = |number: u64| (number << 32) - PAGE as u64;
    let both = |number| Some((Memory::at(line(number), 2 * PAGE)?, Memory::at(line(number - 1), 2 * PAGE)?));
    (16..64u64).find_map(both).expect("a free place")
}

/// Receives into memory across a line, and sends from it, with or without registered memory below.
pub(crate) fn cross_4gib_line(rig: &Rig, is_below_registered: bool) {
    let (a, b) = rig.unconnected(QpType::UC, Options::default());
    let (memory, below) = around_a_line();
    let region = b.domain.register(&memory, ALL).expect("a registration");
    let other = rig.open("b").pd().expect("a domain");
    let _below = is_below_registered.then(|| other.register(&below, ALL).expect("a registration"));
    a.connect(&b.info(), Options::default());
    b.connect(&a.info(), Options::default());
    memory.fill(0, 2 * PAGE, 0xee);
    below.fill(0, 2 * PAGE, 0xdd);
    a.memory.pattern(0, 2 * PAGE, 3);
    assert_eq!(b.qp.receive(1, &[memory.sge(0, 2 * PAGE, region.lkey)]), 0);
    a.send(2, 0, 2 * PAGE);
    assert_eq!(
        (a.sent(), b.received()),
        ((2, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)),
        "nobody is expected"
    );
    assert!(memory.has_pattern(0, PAGE, 3), "up to the line all is well");
    assert!(memory.has_only(PAGE, PAGE, 0xee), "nothing is written beyond it");
    assert!(below.has_only(0, PAGE, 0xdd));
    let seed = 3u8.wrapping_add((PAGE * 7) as u8);
    let is_hit = if is_below_registered { below.has_pattern(PAGE, PAGE, seed) } else { false };
    assert!(
        is_hit || !is_below_registered && below.has_only(PAGE, PAGE, 0xdd),
        "exactly 4 GiB lower, or lost"
    );
    // In the other direction, the bytes sent are those 4 GiB lower.
    memory.fill(0, 2 * PAGE, 0x11);
    below.fill(0, 2 * PAGE, 0x22);
    a.receive(3, 0, 2 * PAGE);
    b.post(&Work::send(&[memory.sge(0, 2 * PAGE, region.lkey)]).id(4));
    assert_eq!((b.sent(), a.received()), ((4, WcStatus::SUCCESS), (3, WcStatus::SUCCESS)));
    assert!(a.memory.has_only(0, PAGE, 0x11));
    assert!(a.memory.has_only(PAGE, PAGE, if is_below_registered { 0x22 } else { 0 }));
}

/// mesh's disassembly and test: bytes beyond the line land exactly 4 GiB lower.
pub(crate) fn memory_across_a_4_gib_line_is_corrupted(rig: &Rig) {
    cross_4gib_line(rig, true);
    cross_4gib_line(rig, false);
}

/// The device writes one warning for each such registration, and one when the first bytes are misplaced.
pub(crate) fn memory_across_a_4_gib_line_is_reported(rig: &Rig) {
    let message = Child::start(rig, QpType::UC, "hazard").stderr();
    let lines =
        |text| message.lines().filter(|line| line.starts_with("softrdma: ") && line.contains(text)).count();
    assert_eq!(
        (lines("cross a 4 GiB line"), lines("they are lost"), message.lines().count()),
        (1, 1, 2),
        "{message}"
    );
}

/// mlx issues 3910 and 4530: no event reports a peer's death. `lifetimes` kills one.
pub(crate) fn no_event_tells_of_a_peer(rig: &Rig) {
    let (a, b) = rig.pair(QpType::UC);
    a.receive(1, 0, 64);
    drop(b);
    a.recv.stays_empty();
    assert_eq!(a.node.event(Duration::ZERO), None);
    assert_eq!(a.qp.state(), QpState::RTS);
    assert!(!is_readable(-1, Duration::ZERO));
}

#[test]
fn the_device_looks_as_it_does_on_a_mac() {
    let rig = Rig::new(&Profile::APPLE_TB5, DataPath::Copied);
    let node = rig.open("a");
    let (attr, port) = (node.attr(), node.port());
    assert_eq!((attr.max_qp_wr, attr.max_sge, attr.max_cqe, attr.phys_port_cnt), (4095, 1, 4096, 1));
    assert_eq!((port.active_width, port.active_speed, port.state), (4, 4, PortState::ACTIVE));
    let table: Vec<_> = (0..4).filter_map(|index| node.gid(index)).collect();
    assert!(table[0].0.starts_with(&[0xfe, 0x80]) && table[2].0.starts_with(&[0xfe, 0x80]));
    assert!(table[1].to_ipv4().is_some_and(|address| address.octets()[..2] == [169, 254]));
}
