//! Several communicators of the same two processes, which use one network.

use crate::{
    fixture::*,
    verbs::{connect, endpoints_with},
};
use std::time::{Duration, Instant};
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, SizeClass,
    driver::{
        Endpoint,
        verbs::{Networks, VerbsConfig, VerbsEndpoint},
    },
    memory::Registered,
};

/// Bytes of a message in pieces.
const BULK: usize = (300 << 10) + 7;

/// Options of each rank. Each has its own list of networks, as two processes have.
fn configs() -> [VerbsConfig; 2] {
    [(); 2].map(|()| VerbsConfig {
        slab_bytes: Some(64 << 20),
        piece_bytes: 16 << 10,
        networks: Networks::separate(),
        ..VerbsConfig::default()
    })
}

/// Two ranks and their links by lane.
struct Communicator {
    ends: [VerbsEndpoint; 2],
    links: [Vec<Box<dyn Link>>; 2],
}

impl Communicator {
    fn new(device: &str, configs: &[VerbsConfig; 2]) -> Communicator {
        Communicator::of(connect(endpoints_with(device, configs)))
    }

    fn of(mut ends: [VerbsEndpoint; 2]) -> Communicator {
        let links = [0, 1].map(|rank| (0..2).map(|lane| ends[rank].link(1 - rank as u32, lane)).collect());
        Communicator { ends, links }
    }

    fn uses_network_of(&self, other: &Communicator) -> bool {
        (0..2).all(|rank| self.ends[rank].shares_network_with(&other.ends[rank]))
    }
}

/// A message from rank 0 to rank 1 on lane 1, of a bulk operation, between registered buffers.
struct Message {
    bytes: Vec<u8>,
    src: Registered,
    dst: Registered,
    send: SendState,
    recv: RecvState,
    is_sent: bool,
    is_received: bool,
}

impl Message {
    fn new(communicator: &Communicator, len: usize, seed: u64) -> Message {
        let bytes = noise(len, seed);
        let src = registered(communicator.ends[0].slab(), &bytes);
        let dst = registered(communicator.ends[1].slab(), &vec![0; len]);
        let send = SendState::new(seed, Protocol::Copy).with_size(SizeClass::Bulk);
        let recv = RecvState::new(seed, len).with_size(SizeClass::Bulk);
        Message { bytes, src, dst, send, recv, is_sent: false, is_received: false }
    }

    fn announce(&mut self, communicator: &mut Communicator) {
        let announced = communicator.links[1][1].announce(&mut self.recv, Some(self.dst.span_mut()));
        announced.expect("announced");
    }

    fn poll_send(&mut self, communicator: &mut Communicator) {
        if !self.is_sent {
            let progress = communicator.links[0][1].poll_send(&mut self.send, self.src.span());
            self.is_sent = progress.expect("send") == SendProgress::Complete;
        }
    }

    fn poll_recv(&mut self, communicator: &mut Communicator) {
        if !self.is_received {
            let mut sink = CopySink(self.dst.as_mut_slice());
            let progress = communicator.links[1][1].poll_recv(&mut self.recv, &mut sink);
            self.is_received = progress.expect("recv") == RecvProgress::Complete;
        }
    }

    fn finish(&mut self, communicator: &mut Communicator) {
        let until = Instant::now() + PATIENCE;
        while !(self.is_sent && self.is_received) {
            assert!(Instant::now() < until, "stuck");
            self.poll_send(communicator);
            self.poll_recv(communicator);
        }
        assert!(self.dst.as_slice() == self.bytes, "{} bytes", self.bytes.len());
    }
}

/// Sends messages of all kinds in both directions of a communicator.
fn exchange(communicator: &mut Communicator, seed: u64) {
    for (at, len) in [8, 5000, 40_000, BULK].into_iter().enumerate() {
        Message::new(communicator, len, seed + at as u64).finish(communicator);
        let bytes = noise(len, seed);
        let mut received = vec![0; len];
        let [a, b] = &mut communicator.links;
        transfer((&mut *b[0], &mut *a[0]), Protocol::Copy, (&bytes[..]).into(), &mut CopySink(&mut received));
        assert!(received == bytes, "{len} bytes back");
    }
}

pub(crate) fn a_later_communicator_uses_the_same_connections_and_messages_do_not_mix(device: &str) {
    let configs = configs();
    let mut first = Communicator::new(device, &configs);
    let mut second = Communicator::new(device, &configs);
    assert!(second.uses_network_of(&first));
    exchange(&mut first, 1);
    exchange(&mut second, 2);
    // A message of the first that nobody receives keeps none of the second's from arriving.
    for len in [16, 20_000, BULK] {
        let mut waiting = Message::new(&first, len, 3);
        (0..1000).for_each(|_| waiting.poll_send(&mut first));
        exchange(&mut second, 4);
        waiting.finish(&mut first);
    }
    // Nor does one that is announced and not sent.
    let mut announced = Message::new(&first, BULK, 5);
    announced.announce(&mut first);
    exchange(&mut second, 6);
    announced.finish(&mut first);
    // Both at once, several times: the placed queues change hands.
    for round in 0..4 {
        let mut one = Message::new(&first, BULK, 10 + round);
        let mut other = Message::new(&second, BULK, 20 + round);
        one.announce(&mut first);
        other.announce(&mut second);
        for _ in 0..50 {
            one.poll_send(&mut first);
            other.poll_send(&mut second);
            other.poll_recv(&mut second);
        }
        other.finish(&mut second);
        one.finish(&mut first);
    }
}

/// A sender that waits until its message is matched asks for that only after 2 ms, and then ever later.
pub(crate) fn a_matched_message_is_confirmed_before_its_sender_asks(device: &str) {
    let configs = configs();
    let _first = Communicator::new(device, &configs);
    let mut second = Communicator::new(device, &configs);
    for lane in [0, 1] {
        let mut waits = Vec::new();
        for number in 0..21 {
            let (bytes, mut received) = (noise(16, number), [0; 16]);
            let mut send = SendState::new(number, Protocol::Copy).with_match_ack();
            let mut recv = RecvState::new(number, 16);
            let [from, to] = &mut second.links;
            let until = Instant::now() + PATIENCE;
            let mut poll_send = || from[lane].poll_send(&mut send, (&bytes[..]).into()).expect("send");
            assert_ne!(poll_send(), SendProgress::Complete, "nobody has matched it");
            while to[lane].poll_recv(&mut recv, &mut CopySink(&mut received)).expect("recv")
                != RecvProgress::Complete
            {
                assert!(Instant::now() < until, "stuck");
            }
            let matched = Instant::now();
            // The receiver polls no more.
            while poll_send() != SendProgress::Complete {
                assert!(Instant::now() < until, "stuck");
            }
            waits.push(matched.elapsed());
        }
        waits.sort_unstable();
        assert!(waits[10] < Duration::from_millis(2), "on lane {lane}: {waits:?}");
    }
}

/// Tries both orders of the two ends, and messages that have come more or less far.
pub(crate) fn an_operation_that_is_given_up_leaves_other_communicators_and_memory_alone(device: &str) {
    let configs = configs();
    let mut other = Communicator::new(device, &configs);
    let is_reliable = !device.starts_with("bad");
    for (receiver_is_first, polls) in [(true, 0), (true, 3), (false, 3), (true, 40), (false, 40)] {
        let mut failing = Communicator::new(device, &configs);
        assert!(failing.uses_network_of(&other), "after {polls} polls");
        // It has the placed queues after this, where there are any.
        (0..3).for_each(|_| exchange(&mut failing, 60));
        let mut message = Message::new(&failing, 2 * BULK, 30);
        message.announce(&mut failing);
        for _ in 0..polls {
            message.poll_send(&mut failing);
            message.poll_recv(&mut failing);
        }
        let order = if receiver_is_first { [1, 0] } else { [0, 1] };
        let mut before = Vec::new();
        for rank in order {
            failing.links[rank].iter_mut().for_each(|link| link.abort());
            if rank == 1 {
                // The memory has other contents from now on.
                message.dst.as_mut_slice().fill(7);
                before = message.dst.as_slice().to_vec();
            } else {
                message.src.as_mut_slice().fill(9);
            }
            exchange(&mut other, 40);
        }
        assert!(message.dst.as_slice() == before, "written after it was given up, {polls} polls");
        drop(failing);
        exchange(&mut other, 50);
        let retransmitted = other.links[0][0].counters().retransmissions;
        assert!(is_reliable || retransmitted < 100_000);
    }
}

/// The sender may hold grants when the receiver gives up, and know nothing of it.
pub(crate) fn nothing_is_written_by_grants_of_an_operation_that_was_given_up(device: &str) {
    let configs = configs();
    let mut other = Communicator::new(device, &configs);
    let mut failing = Communicator::new(device, &configs);
    let mut message = Message::new(&failing, BULK, 30);
    message.announce(&mut failing);
    let (mut nothing, mut idle) = ([0; 8], RecvState::new(1, 8));
    for _ in 0..20 {
        let polled = failing.links[0][0].poll_recv(&mut idle, &mut CopySink(&mut nothing));
        assert_eq!(polled.expect("recv"), RecvProgress::Idle);
    }
    failing.links[1].iter_mut().for_each(|link| link.abort());
    for _ in 0..20 {
        message.poll_send(&mut failing);
        exchange(&mut other, 40);
    }
    assert!(message.dst.as_slice().iter().all(|byte| *byte == 0));
}

pub(crate) fn a_communicator_that_is_closed_leaves_the_network_to_others(device: &str) {
    let configs = configs();
    let first = Communicator::new(device, &configs);
    let mut second = Communicator::new(device, &configs);
    drop(first);
    exchange(&mut second, 1);
    let mut third = Communicator::new(device, &configs);
    assert!(third.uses_network_of(&second));
    // One end is closed while the other still sends.
    let mut unwanted = Message::new(&second, BULK, 2);
    unwanted.poll_send(&mut second);
    let Communicator { ends: [a, b], links: [links_a, links_b] } = second;
    drop((links_b, b));
    exchange(&mut third, 3);
    drop((links_a, a));
    exchange(&mut third, 4);
}

/// Ranks can be numbered otherwise than those of the communicator that has made the network.
pub(crate) fn ranks_may_have_other_numbers(device: &str) {
    let configs = configs();
    let first = Communicator::new(device, &configs);
    let [a, b] = endpoints_with(device, &configs);
    drop((a, b));
    let swapped = [configs[1].clone(), configs[0].clone()];
    let mut second = Communicator::new(device, &swapped);
    assert!(second.ends[0].shares_network_with(&first.ends[1]));
    exchange(&mut second, 1);
}

/// Peers learn early that a communicator is closed: what it has sent must have arrived by then, though the
/// network goes on for others.
pub(crate) fn a_communicator_closes_when_its_device_has_sent_all() {
    let configs = configs();
    let first = Communicator::new("slow_ib", &configs);
    let mut second = Communicator::new("slow_ib", &configs);
    assert!(second.uses_network_of(&first));
    let bytes = noise(5000, 1);
    let sent = second.links[0][1].poll_send(&mut SendState::new(1, Protocol::Copy), (&bytes[..]).into());
    assert_eq!(sent.expect("send"), SendProgress::Complete, "its memory is free at once");
    let began = Instant::now();
    second.ends[0].close(PATIENCE);
    assert!(began.elapsed() >= Duration::from_millis(30), "the cable takes 30 ms");
    let mut received = vec![0; bytes.len()];
    let mut state = RecvState::new(1, bytes.len());
    // The first poll finds the completion, and the second one the message.
    let polled = [(); 2].map(|()| second.links[1][1].poll_recv(&mut state, &mut CopySink(&mut received)));
    assert!(
        matches!(polled, [Ok(RecvProgress::Complete), _] | [_, Ok(RecvProgress::Complete)]),
        "{polled:?}"
    );
    assert!(received == bytes);
}

/// Devices have few queue pairs: those of communicators that have failed serve the next ones, also while the
/// program still has the failed ones.
pub(crate) fn the_queue_pairs_of_failed_communicators_serve_the_next_ones(device: &str) {
    let configs = configs();
    let mut failed = Vec::new();
    for number in 1..7 {
        // Another size of pieces makes another network.
        let config = |rank: usize| VerbsConfig { piece_bytes: number << 12, ..configs[rank].clone() };
        let mut next = Communicator::new(device, &[0, 1].map(config));
        assert!(failed.iter().all(|other| !next.uses_network_of(other)));
        exchange(&mut next, number);
        next.links.iter_mut().flatten().for_each(|link| link.abort());
        failed.push(next);
    }
    // The devices of the first ones are given back: calls fail, and nothing else happens.
    let first = &mut failed[0];
    let mut message = Message::new(first, 8, 1);
    let error =
        first.links[0][1].poll_send(&mut message.send, message.src.span()).expect_err("it has failed");
    assert!(error.to_string().contains("had failed"), "{error}");
    first.links[1][1].announce(&mut message.recv, None).expect_err("it has failed");
    for end in &mut first.ends {
        end.prefer_rail(1 - end.rank(), Some(0));
        assert!(end.rails(1 - end.rank()).is_empty() && end.progress_handle().is_some());
    }
    let counters = first.links[0][1].counters();
    assert_eq!(counters.retransmissions, 0);
    first.links.iter_mut().flatten().for_each(|link| link.abort());
}
