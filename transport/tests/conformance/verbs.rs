//! Pairs of ranks over devices, and cases for devices only.
//!
//! # Safety
//! A mapping is registered, and unmapped after the registration has ended.

use crate::fixture::*;
use std::{path::PathBuf, time::Instant};
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink, SizeClass,
    driver::{
        Endpoint,
        verbs::{VerbsConfig, VerbsEndpoint},
    },
    memory::{Mapping, Registered, Span, SpanMut},
};

/// Fabric of the tests: a device of every kind connected to itself, devices whose queues accept less than
/// they report, and pairs with a bad cable between them.
pub(crate) const FABRIC: &str = "
    [[node]]
    name = 'a'
    device = [
        { name = 'lo_ib', profile = 'ib' },
        { name = 'lo_usb4', profile = 'usb4' },
        { name = 'lo_apple', profile = 'apple-tb5' },
        { name = 'shallow_ib', profile = 'ib', usable_depth = 24 },
        { name = 'shallow_apple', profile = 'apple-tb5', usable_depth = 24 },
        { name = 'slow_ib', profile = 'ib' },
        { name = 'slow_ib_2', profile = 'ib' },
        { name = 'bad_ib', profile = 'ib' },
        { name = 'bad_ib_2', profile = 'ib' },
        { name = 'bad_usb4', profile = 'usb4' },
        { name = 'bad_usb4_2', profile = 'usb4' },
        { name = 'bad_apple', profile = 'apple-tb5' },
        { name = 'bad_apple_2', profile = 'apple-tb5' },
        { name = 'left_ib', profile = 'ib' },
        { name = 'left_ib_2', profile = 'ib' },
        { name = 'right_ib', profile = 'ib' },
        { name = 'right_ib_2', profile = 'ib' },
        { name = 'left_apple', profile = 'apple-tb5' },
        { name = 'left_apple_2', profile = 'apple-tb5' },
        { name = 'right_apple', profile = 'apple-tb5' },
        { name = 'right_apple_2', profile = 'apple-tb5' },
        { name = 'far_ib', profile = 'ib' },
        { name = 'far_ib_2', profile = 'ib' },
        { name = 'far_usb4', profile = 'usb4' },
        { name = 'far_usb4_2', profile = 'usb4' },
        { name = 'far_apple', profile = 'apple-tb5' },
        { name = 'far_apple_2', profile = 'apple-tb5' },
    ]
    [[cable]]
    ends = ['a/lo_ib', 'a/lo_ib']
    [[cable]]
    ends = ['a/lo_usb4', 'a/lo_usb4']
    [[cable]]
    ends = ['a/lo_apple', 'a/lo_apple']
    [[cable]]
    ends = ['a/shallow_ib', 'a/shallow_ib']
    [[cable]]
    ends = ['a/shallow_apple', 'a/shallow_apple']
    [[cable]]
    ends = ['a/left_ib', 'a/left_ib_2']
    [[cable]]
    ends = ['a/right_ib', 'a/right_ib_2']
    [[cable]]
    ends = ['a/left_apple', 'a/left_apple_2']
    [[cable]]
    ends = ['a/right_apple', 'a/right_apple_2']
    [[cable]]
    ends = ['a/far_ib', 'a/far_ib_2']
    [[cable]]
    ends = ['a/far_usb4', 'a/far_usb4_2']
    [[cable]]
    ends = ['a/far_apple', 'a/far_apple_2']
    [[cable]]
    ends = ['a/slow_ib', 'a/slow_ib_2']
    latency_us = 30000.0
    [[cable]]
    ends = ['a/bad_ib', 'a/bad_ib_2']
    loss = 0.01
    corruption = 0.01
    seed = 1
    [[cable]]
    ends = ['a/bad_usb4', 'a/bad_usb4_2']
    loss = 0.01
    corruption = 0.01
    latency_us = 20.0
    jitter_us = 20.0
    seed = 2
    [[cable]]
    ends = ['a/bad_apple', 'a/bad_apple_2']
    loss = 0.01
    corruption = 0.01
    seed = 3
";

/// Two connected endpoints on one device, on a pair of devices, or on several pairs joined by `+`.
///
/// A trailing `uc` in the name requests unreliable connections.
pub(crate) fn endpoints(device: &str, config: &VerbsConfig) -> [VerbsEndpoint; 2] {
    connect(endpoints_with(device, &[config.clone(), config.clone()]))
}

/// As [`endpoints`], not connected, with the options of each rank.
pub(crate) fn endpoints_with(device: &str, configs: &[VerbsConfig; 2]) -> [VerbsEndpoint; 2] {
    let (device, unreliable) = device.split_once(' ').map_or((device, false), |(name, _)| (name, true));
    let is_pair =
        |device: &&str| ["bad", "slow", "left", "right"].iter().any(|pair| device.starts_with(pair));
    let ours: Vec<String> = device.split('+').map(str::to_owned).collect();
    let theirs = |one: &str| if is_pair(&one) { format!("{one}_2") } else { one.to_owned() };
    let theirs = device.split('+').map(theirs).collect();
    let matrix: transport::driver::verbs::Matrix = vec![vec![vec![], ours], vec![theirs, vec![]]];
    [0, 1].map(|rank: u32| {
        let config = VerbsConfig {
            library: std::env::var_os("TBCCL_TEST_VERBS_LIBRARY").map(PathBuf::from),
            matrix: Some(matrix.clone()),
            reliable: unreliable.then_some(false),
            ..configs[rank as usize].clone()
        };
        VerbsEndpoint::new(&config, rank, 2, Box::new(|_| ()))
    })
}

/// Connects two endpoints.
pub(crate) fn connect(mut ends: [VerbsEndpoint; 2]) -> [VerbsEndpoint; 2] {
    let mut messages = Vec::new();
    loop {
        let next: Vec<Option<Vec<u8>>> =
            ends.iter_mut().map(|end| end.exchange(&messages).expect("a message")).collect();
        match next.into_iter().collect::<Option<Vec<_>>>() {
            Some(next) => messages = next,
            None => return ends,
        }
    }
}

impl Pair {
    pub(crate) fn verbs(device: &str) -> Pair {
        let config =
            VerbsConfig { slab_bytes: Some(64 << 20), piece_bytes: 16 << 10, ..VerbsConfig::default() };
        Pair(endpoints(device, &config).map(|mut end| {
            let peer = 1 - end.rank();
            Side {
                links: (0..2).map(|lane| end.link(peer, lane)).collect(),
                slab: end.slab().clone(),
                object: None,
                endpoint: Some(end),
                tcp: None,
                is_resumable: false,
                kept: Vec::new(),
            }
        }))
    }
}

/// Destination into which the device itself places a message.
pub(crate) struct DeviceSink<'a>(pub(crate) SpanMut<'a>);

impl Sink for DeviceSink<'_> {
    fn write(&mut self, offset: usize, data: Span<'_>) {
        panic!("{} bytes at {offset} were not put where they belong", data.len());
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        Some(self.0)
    }
}

/// Messages of bulk operations up to this length travel in slots: both ends copy them, and neither waits.
const COPIED_BYTES: usize = 128 << 10;

pub(crate) fn registered_memory_is_never_copied(mut pair: Pair) {
    registered_memory_is_never_copied_between(&mut pair);
}

/// Ranks in different calls get an error, not each other's data, at equal and at different lengths.
pub(crate) fn pieces_of_another_operation_are_an_error(mut pair: Pair) {
    // A lane each, since a lane is of no use after an error.
    for (at, expected_len) in [190_000, 9_000].into_iter().enumerate() {
        let src = registered(&pair.0[0].slab, &noise(190_000, 3));
        let mut dst = pair.0[1].slab.allocate(expected_len).expect("room");
        let (a, b) = pair.ends(at);
        let mut send = SendState::new(1, Protocol::Copy).with_size(SizeClass::Bulk);
        let mut recv = RecvState::new(2, expected_len).with_size(SizeClass::Bulk);
        let until = Instant::now() + PATIENCE;
        let error = loop {
            assert!(Instant::now() < until, "no error");
            if let Err(error) = a.poll_send(&mut send, src.span()) {
                break error;
            }
            match b.poll_recv(&mut recv, &mut CopySink(dst.as_mut_slice())) {
                Ok(progress) => assert_ne!(progress, RecvProgress::Complete, "of another operation"),
                Err(error) => break error,
            }
        };
        let is_named = matches!(
            error,
            transport::TransportError::Mismatch { .. } | transport::TransportError::Length { .. }
        );
        assert!(is_named, "{error}");
    }
}

/// The sender of a short message is done at once, whenever its receiver comes.
pub(crate) fn a_short_message_does_not_wait_for_its_receiver(mut pair: Pair) {
    for len in [1, 4033, 8065, 12_097, 16_385, COPIED_BYTES] {
        let bytes = noise(len, 3);
        let src = registered(&pair.0[0].slab, &bytes);
        let mut dst = pair.0[1].slab.allocate(len).expect("room");
        let (a, b) = pair.ends(1);
        let mut send = SendState::new(9, Protocol::Copy).with_size(SizeClass::Bulk);
        let mut recv = RecvState::new(9, len).with_size(SizeClass::Bulk);
        assert!(b.announce(&mut recv, Some(dst.span_mut())).expect("announced"));
        let until = Instant::now() + PATIENCE;
        while a.poll_send(&mut send, src.span()).expect("send") != SendProgress::Complete {
            assert!(Instant::now() < until, "stuck");
        }
        let mut sink = CopySink(dst.as_mut_slice());
        while b.poll_recv(&mut recv, &mut sink).expect("recv") != RecvProgress::Complete {
            assert!(Instant::now() < until, "stuck");
        }
        assert!(dst.as_slice() == bytes, "{len} bytes");
    }
}

/// A call that has ended leaves nothing behind that its rank would have to send later: a program that
/// computes next would keep its peer waiting.
pub(crate) fn what_is_complete_needs_its_sender_no_more(mut pair: Pair) {
    for (len, size) in [(8, SizeClass::Small), (COPIED_BYTES, SizeClass::Bulk), (1 << 20, SizeClass::Bulk)] {
        let bytes = noise(len, 3);
        let mut received = vec![0; len];
        let (a, b) = pair.ends(1);
        // More messages than a send queue has entries.
        for number in 0..if len <= COPIED_BYTES { 600 } else { 40 } {
            let mut send = SendState::new(9, Protocol::Copy).with_size(size);
            let mut recv = RecvState::new(9, len).with_size(size);
            let (mut is_sent, mut is_received, mut polls) = (false, false, 0);
            while !is_received {
                is_sent = is_sent
                    || a.poll_send(&mut send, Span::from(&*bytes)).expect("send") == SendProgress::Complete;
                let progress = b.poll_recv(&mut recv, &mut CopySink(&mut received)).expect("recv");
                is_received = progress == RecvProgress::Complete;
                polls += u32::from(is_sent && progress == RecvProgress::Idle);
                assert!(polls < 100, "message {number} of {len} bytes is still at its sender");
            }
            while !is_sent {
                is_sent =
                    a.poll_send(&mut send, Span::from(&*bytes)).expect("send") == SendProgress::Complete;
            }
        }
        assert!(received == bytes, "{len} bytes");
    }
}

fn registered_memory_is_never_copied_between(pair: &mut Pair) {
    for len in [COPIED_BYTES + 1, 200_000, 1 << 20, (3 << 20) + 5] {
        let bytes = noise(len, 3);
        let src = registered(&pair.0[0].slab, &bytes);
        let mut dst = pair.0[1].slab.allocate(len).expect("room");
        let (a, b) = pair.ends(1);
        let mut send = SendState::new(9, Protocol::Copy).with_size(SizeClass::Bulk);
        let mut recv = RecvState::new(9, len).with_size(SizeClass::Bulk);
        let before = (a.counters(), b.counters());
        assert!(b.announce(&mut recv, Some(dst.span_mut())).expect("announced"));
        let (mut sent, mut received) = (false, false);
        let until = Instant::now() + PATIENCE;
        while !(sent && received) {
            assert!(Instant::now() < until, "stuck");
            sent = sent || a.poll_send(&mut send, src.span()).expect("send") == SendProgress::Complete;
            let mut sink = DeviceSink(dst.span_mut());
            received = received || b.poll_recv(&mut recv, &mut sink).expect("recv") == RecvProgress::Complete;
        }
        assert!(dst.as_slice() == bytes, "{len} bytes");
        let (sent, received) = (a.counters() - before.0, b.counters() - before.1);
        assert_eq!((sent.copied_bytes, received.copied_bytes), (0, 0), "{len} bytes");
        assert_eq!((sent.sent_messages, received.received_messages), (1, 1));
        assert_eq!(received.moved_bytes, len as u64);
    }
}

/// Without losses, the suite's other cases on such cables would show nothing.
pub(crate) fn what_is_lost_or_damaged_is_sent_again(mut pair: Pair) {
    crate::traffic::exchange(&mut pair);
    (0..5).for_each(|_| registered_memory_is_never_copied_between(&mut pair));
    let all = pair.0.iter().flat_map(|side| &side.links).map(|link| link.counters());
    let (retransmissions, reconnections) =
        all.fold((0, 0), |(a, b), all| (a + all.retransmissions, b + all.reconnections));
    assert!(retransmissions > 0, "nothing was retransmitted");
    // Queues that match sends with receives by order are recreated.
    let matched = pair.0[0].endpoint.as_ref().is_some_and(|endpoint| !endpoint.is_one_sided());
    assert_eq!(reconnections > 0, matched, "{reconnections} connections were made new");
}

/// Destroying a queue pair discards what its device has not sent, which could be the last message of a job.
pub(crate) fn an_endpoint_closes_when_its_device_has_sent_all(mut pair: Pair) {
    let bytes = noise(100, 1);
    let (a, _) = pair.ends(0);
    let sent = a.poll_send(&mut SendState::new(1, Protocol::Copy), Span::from(&*bytes)).expect("send");
    assert_eq!(sent, SendProgress::Complete, "its memory is free at once");
    let began = Instant::now();
    let endpoint = pair.0[0].endpoint.as_mut().expect("an endpoint");
    endpoint.close(PATIENCE);
    assert!(began.elapsed().as_millis() >= 30, "the cable takes 30 ms");
}

/// Apple's device and soft-RoCE reject work below the depth that they report. The cable must stay in use.
pub(crate) fn depth_is_learnt_from_refusals(mut pair: Pair) {
    crate::traffic::exchange(&mut pair);
    registered_memory_is_never_copied_between(&mut pair);
    let all = pair.0.iter().flat_map(|side| &side.links).map(|link| link.counters());
    let (refused, reconnections) = all.fold((0, 0), |(a, b), all| (a + all.refused, b + all.reconnections));
    assert!(refused > 0, "nothing was refused");
    // A piece whose trailer was refused breaks the order of a data queue; each queue learns this once.
    assert!(reconnections <= 4, "{reconnections} connections were made new");
}

/// Opens two pairs of devices without a matrix, of which rank 0 has the first pair's at a node without its
/// cores.
pub(crate) fn a_device_far_from_the_cores_of_its_rank_has_the_last_rail() {
    let sysfs = tempfile::tempdir().expect("a folder");
    let device = sysfs.path().join("class/infiniband/left_ib/device");
    std::fs::create_dir_all(&device).expect("a folder");
    // Linux has no core of this number, so no test may use it.
    std::fs::write(device.join("local_cpulist"), "65535\n").expect("a file");
    let config = |devices: &str| VerbsConfig {
        library: std::env::var_os("TBCCL_TEST_VERBS_LIBRARY").map(PathBuf::from),
        slab_bytes: Some(64 << 20),
        devices: Some(devices.parse().expect("names")),
        sysfs: sysfs.path().to_owned(),
        ..VerbsConfig::default()
    };
    let configs = ["left_ib,right_ib", "left_ib_2,right_ib_2"].map(config);
    let ends = connect(
        [0, 1].map(|rank: u32| VerbsEndpoint::new(&configs[rank as usize], rank, 2, Box::new(|_| ()))),
    );
    let names = |end: &VerbsEndpoint| {
        end.rails(1 - end.rank()).into_iter().map(|rail| [rail.ours, rail.theirs]).collect::<Vec<_>>()
    };
    assert_eq!(names(&ends[0]), [["right_ib", "right_ib_2"], ["left_ib", "left_ib_2"]]);
    assert_eq!(names(&ends[1]), [["right_ib_2", "right_ib"], ["left_ib_2", "left_ib"]]);
}

/// Completions of a failed cable may be polled long after the sender has reported the arrival on another
/// path.
pub(crate) fn what_a_failed_cable_had_brought_is_no_piece_too_many() {
    const PIECES: usize = 9;
    let config = VerbsConfig {
        slab_bytes: Some(64 << 20),
        piece_bytes: 16 << 10,
        window: PIECES as u32,
        poll_batch: 1,
        ..VerbsConfig::default()
    };
    let mut ends = endpoints("left_ib+right_ib", &config);
    let bytes = noise(PIECES * (16 << 10), 3);
    let src = registered(ends[1].slab(), &bytes);
    let mut dst = [0; 2].map(|_| ends[0].slab().allocate(bytes.len()).expect("room"));
    let [a, b] = &mut ends;
    // All pieces use rail 1; the other rail carries the report that rail 1 is down.
    a.prefer_rail(1, Some(1));
    b.prefer_rail(0, Some(1));
    let (mut into, mut from) = ([0, 1].map(|lane| a.link(1, lane)), [0, 1].map(|lane| b.link(0, lane)));
    let until = Instant::now() + PATIENCE;
    let tend = |link: &mut Box<dyn Link>| {
        assert!(Instant::now() < until, "stuck");
        let idle = link.poll_recv(&mut RecvState::new(1, 8), &mut CopySink(&mut [0; 8]));
        assert_eq!(idle.expect("nothing is amiss"), RecvProgress::Idle);
    };
    let expect = |link: &mut Box<dyn Link>, destination: &mut Registered| {
        let mut recv = RecvState::new(9, bytes.len()).with_size(SizeClass::Bulk);
        assert!(link.announce(&mut recv, Some(destination.span_mut())).expect("announced"));
        recv
    };
    let is_received = |link: &mut Box<dyn Link>, recv: &mut RecvState, destination: &mut Registered| {
        link.poll_recv(recv, &mut DeviceSink(destination.span_mut())).expect("recv") == RecvProgress::Complete
    };
    let mut recv = [0, 1].map(|lane| expect(&mut into[lane], &mut dst[lane]));
    // The second lane is polled first and gets its new credits last.
    for lane in [1, 0] {
        let mut send = SendState::new(9, Protocol::Copy).with_size(SizeClass::Bulk);
        while from[lane].poll_send(&mut send, src.span()).expect("send") != SendProgress::Complete {
            assert!(Instant::now() < until, "stuck");
        }
    }
    fault(&["fail-qp", "a/right_ib_2"]);
    (0..50).for_each(|_| tend(&mut from[0]));
    for lane in [0, 1] {
        while !is_received(&mut into[lane], &mut recv[lane], &mut dst[lane]) {
            tend(&mut from[0]);
        }
        assert!(dst[lane].as_slice() == bytes, "lane {lane}");
    }
    (0..50).for_each(|_| tend(&mut into[0]));
}

/// Injects a fault into the fabric of this test.
fn fault(args: &[&str]) {
    let library =
        std::env::var_os("TBCCL_TEST_VERBS_LIBRARY").map(PathBuf::from).expect("set for this process");
    let tool = library.with_file_name("softrdma");
    let folder = std::env::var_os("SOFTRDMA_DIR").expect("set for this process");
    let output = std::process::Command::new(tool).arg("fault").arg("--dir").arg(folder).args(args).output();
    let output = output.expect("the tool");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Pieces have arrived when the operation is aborted and its memory is freed: their completions must not
/// touch it.
pub(crate) fn lent_memory_is_let_alone_once_it_was_given_back(mut pair: Pair) {
    const LEN: usize = 2 * COPIED_BYTES;
    let bytes = noise(LEN, 3);
    let src = registered(&pair.0[0].slab, &bytes);
    let memory = Mapping::private_for_device(LEN, 4 << 30).expect("memory for a test");
    let endpoint = pair.0[1].endpoint.as_mut().expect("an endpoint");
    // SAFETY: the mapping stays until the registration guard is dropped.
    let lease = unsafe { endpoint.register(memory.as_ptr(), LEN) }.expect("not lent yet");
    // SAFETY: the span is the whole mapping while it exists; no other code uses it.
    let destination = unsafe { SpanMut::new(memory.as_ptr(), LEN) };
    endpoint.begin_use(destination.as_span());
    let (a, b) = pair.ends(0);
    let mut recv = RecvState::new(9, LEN).with_size(SizeClass::Bulk);
    assert!(b.announce(&mut recv, Some(destination)).expect("announced"));
    let mut send = SendState::new(9, Protocol::Copy).with_size(SizeClass::Bulk);
    let until = Instant::now() + PATIENCE;
    while a.poll_send(&mut send, src.span()).expect("send") != SendProgress::Posted {
        assert!(Instant::now() < until, "stuck");
    }
    b.abort();
    drop((lease, memory));
    // Between calls, the keep-alive thread takes completions.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let mut received = vec![0; 1];
    let again = b.poll_recv(&mut RecvState::new(10, 1), &mut CopySink(&mut received));
    assert!(!matches!(again, Ok(RecvProgress::Complete)));
}
