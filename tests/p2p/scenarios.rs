//! Scenarios with p2p, independent of where ranks run. Every byte is checked.

use std::time::Duration;
use tbccl::{Communicator, Config, Delivery, Error, P2p, P2pRequest, Rank, ReduceOp};
use tbccl_cli::reference::parcel::{self, Parcel, recv, recv_slice, send, send_buffered, send_slice};

/// Creates the p2p of a communicator.
pub(crate) fn p2p_of(comm: &mut Communicator, config: &Config) -> P2p {
    let split = comm.split(Some(0), 0, config).expect("all come").expect("we have a colour");
    P2p::new(split).expect("it is new")
}

/// Returns the bytes of a message.
pub(crate) fn bytes_of(from: u32, to: u32, len: usize) -> Vec<u8> {
    let seed = (from * 31 + to * 7).wrapping_add(len as u32).wrapping_mul(97);
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

/// Opens a message that was received from a rank, and checks it.
fn check(parcel: Parcel, (from, to): (u32, u32), tag: i32, len: usize) {
    let (delivery, bytes) = parcel.open().expect("it came");
    assert_eq!(delivery, Delivery { from: Rank(from), tag, bytes: len });
    assert!(bytes[..len] == bytes_of(from, to, len), "{len} bytes from {from} to {to}");
    assert!(bytes[len..].iter().all(|byte| *byte == 0xee), "written beyond {len} bytes");
}

/// Lengths at the limits of each protocol.
const LENGTHS: [usize; 16] =
    [0, 1, 35, 36, 37, 4040, 4041, 12_048, 12_049, 16_383, 16_384, 16_385, 65_536, 262_144, 262_145, 1 << 20];

/// All ranks send to all, including themselves: before any receives, after all receives, and once more for
/// each length.
pub(crate) fn lengths(p2p: &P2p) {
    let (me, n) = (p2p.rank().0, p2p.size());
    let send_all = |len: usize| -> Vec<Parcel> {
        (0..n).map(|to| send(p2p, to, 5, len as i32, bytes_of(me, to, len)).expect("taken")).collect()
    };
    let recv_all = |len: usize| -> Vec<Parcel> {
        (0..n).map(|from| recv(p2p, Some(from), 5, Some(len as i32), len + 3).expect("taken")).collect()
    };
    let check_all = |received: Vec<Parcel>, len: usize| {
        received.into_iter().zip(0..).for_each(|(parcel, from)| check(parcel, (from, me), len as i32, len));
    };
    for len in LENGTHS {
        let sent = send_all(len);
        check_all(recv_all(len), len);
        let received = recv_all(len);
        let sent_again = send_all(len);
        check_all(received, len);
        for parcel in sent.into_iter().chain(sent_again) {
            let delivery = parcel.open().expect("sent").0;
            assert_eq!(delivery, Delivery { from: Rank(me), tag: len as i32, bytes: len });
        }
    }
    // All lengths are sent at once, and received from the longest to the shortest.
    let sent: Vec<Parcel> = LENGTHS.into_iter().flat_map(send_all).collect();
    for len in LENGTHS.into_iter().rev() {
        check_all(recv_all(len), len);
    }
    sent.into_iter().for_each(|parcel| drop(parcel.open().expect("sent")));
}

/// All ranks send to all, including themselves, and write to the memory at once: before any receives, and
/// after all receives.
pub(crate) fn buffered(comm: &mut Communicator, p2p: &P2p) {
    let (me, n) = (p2p.rank().0, p2p.size());
    let send_all = |len: usize| -> Vec<P2pRequest> {
        let send = |to: u32| {
            let mut bytes = bytes_of(me, to, len);
            let request = send_buffered(p2p, to, 7, len as i32, &bytes).expect("taken");
            bytes.fill(0xff);
            request
        };
        (0..n).map(send).collect()
    };
    let recv_all = |len: usize| -> Vec<Parcel> {
        (0..n).map(|from| recv(p2p, Some(from), 7, Some(len as i32), len + 3).expect("taken")).collect()
    };
    for len in [0, 36, 37, 12_049, 262_144, 1 << 20] {
        let sent = send_all(len);
        comm.barrier().expect("all have sent");
        let received = recv_all(len).into_iter().zip(0..);
        received.for_each(|(parcel, from)| check(parcel, (from, me), len as i32, len));
        let received = recv_all(len);
        comm.barrier().expect("all have posted receives");
        let sent_again = send_all(len);
        received.into_iter().zip(0..).for_each(|(parcel, from)| check(parcel, (from, me), len as i32, len));
        for request in sent.into_iter().chain(sent_again) {
            let delivery = request.wait(Some(parcel::TIMEOUT)).expect("done in time").expect("sent");
            assert_eq!(delivery, Delivery { from: Rank(me), tag: len as i32, bytes: len });
        }
    }
}

/// Each rank forwards messages to the next one, several rounds, with both requests issued at once.
pub(crate) fn ring(p2p: &P2p) {
    let (me, n) = (p2p.rank().0, p2p.size());
    let (next, last) = ((me + 1) % n, (me + n - 1) % n);
    for len in [8, 1000, 40_000, 3 << 20] {
        let mut token = bytes_of(me, me, len);
        for _ in 0..n {
            let received = recv(p2p, Some(last), 0, Some(1), len).expect("taken");
            let sent = send(p2p, next, 0, 1, token).expect("taken");
            token = received.open().expect("received").1;
            sent.open().expect("sent");
        }
        assert!(token == bytes_of(me, me, len), "it has gone round");
    }
}

/// Rank 0 receives from any rank with any tag; the messages of each rank arrive in order.
pub(crate) fn from_anyone(p2p: &P2p) {
    const EACH: u32 = 50;
    let (me, n) = (p2p.rank().0, p2p.size());
    if me > 0 {
        let length = |i: u32| if i % 10 == 3 { 30_000 } else { 4 + i as usize };
        let message = |i: u32| {
            let mut bytes = vec![me as u8; length(i)];
            bytes[..4].copy_from_slice(&i.to_le_bytes());
            bytes
        };
        let sent: Vec<Parcel> =
            (0..EACH).map(|i| send(p2p, 0, 9, i as i32 - 7, message(i)).expect("taken")).collect();
        sent.into_iter().for_each(|parcel| drop(parcel.open().expect("sent")));
        return;
    }
    let mut seen = vec![0; n as usize];
    let posted: Vec<Parcel> =
        (0..EACH * (n - 1) / 2).map(|_| recv(p2p, None, 9, None, 30_000).expect("taken")).collect();
    let rest = EACH * (n - 1) - posted.len() as u32;
    let later = (0..rest).map(|_| recv(p2p, None, 9, None, 30_000).expect("taken"));
    for parcel in posted.into_iter().chain(later) {
        let (delivery, bytes) = parcel.open().expect("received");
        let from = delivery.from;
        let number = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        assert_eq!((number, delivery.tag), (seen[from.index()], number as i32 - 7), "in order from {from}");
        assert!(bytes[4..delivery.bytes].iter().all(|byte| *byte == from.0 as u8));
        seen[from.index()] += 1;
    }
    assert!(seen[1..].iter().all(|count| *count == EACH), "{seen:?}");
}

/// Large messages progress while both ranks are in a collective on another communicator.
pub(crate) fn beside_a_collective(comm: &mut Communicator, p2p: &P2p) {
    let (me, n) = (p2p.rank().0, p2p.size());
    let (next, last) = ((me + 1) % n, (me + n - 1) % n);
    for len in [100, 10_000, 2 << 20] {
        let sent = send(p2p, next, 1, 2, bytes_of(me, next, len)).expect("taken");
        let mut sum = vec![1.0f32; 10_000];
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).expect("reduced");
        assert!(sum.iter().all(|x| *x == n as f32));
        check(recv(p2p, Some(last), 1, Some(2), len + 3).expect("taken"), (last, me), 2, len);
        comm.barrier().expect("all are here");
        assert_eq!(sent.open().expect("sent").0.bytes, len);
    }
    // Rank 0 sends, and makes no p2p call until its receiver has confirmed the message in a collective.
    if me == 0 {
        let sent = send(p2p, 1, 1, 3, bytes_of(0, 1, 1 << 20)).expect("taken");
        comm.barrier().expect("all are here");
        assert!(sent.request.test().expect("it was received").is_ok());
    } else {
        if me == 1 {
            check(recv(p2p, Some(0), 1, Some(3), 1 << 20).expect("taken"), (0, 1), 3, 1 << 20);
        }
        std::thread::sleep(Duration::from_millis(20));
        comm.barrier().expect("all are here");
    }
}

/// Sends messages of up to 16 KiB before the receiver posts a receive: none of them waits for it, but with
/// the driver that buffers nothing.
pub(crate) fn eager(comm: &mut Communicator, p2p: &P2p) {
    if comm.transport() == "rehearsal" {
        return;
    }
    let (me, size) = (p2p.rank().0, p2p.size());
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    for len in [100, 4096, 16 << 10] {
        let sent = send(p2p, next, 0, 9, bytes_of(me, next, len)).expect("taken");
        sent.open().expect("sent before its receive");
        comm.barrier().expect("all are here");
        check(recv(p2p, Some(previous), 0, Some(9), len).expect("taken"), (previous, me), 9, len);
    }
}

/// A message longer than its receive is an error of the receive, in every order and by every protocol; later
/// messages are delivered.
pub(crate) fn too_long(p2p: &P2p) {
    let me = p2p.rank().0;
    if me > 1 {
        return;
    }
    for len in [8, 1000, 100_000] {
        for early in [true, false] {
            if me == 0 {
                if early {
                    send(p2p, 1, 2, 0, bytes_of(0, 1, len))
                        .expect("taken")
                        .open()
                        .expect("it is not the sender's");
                } else {
                    recv_slice(p2p, 1, 77, &mut []).expect("the receive is there");
                    send(p2p, 1, 2, 0, bytes_of(0, 1, len)).expect("taken").open().expect("as above");
                }
                send(p2p, 1, 2, 0, bytes_of(0, 1, len)).expect("taken").open().expect("sent");
                continue;
            }
            if early {
                std::thread::sleep(Duration::from_millis(5));
            }
            let short = recv(p2p, Some(0), 2, Some(0), len - 1).expect("taken");
            let right = recv(p2p, Some(0), 2, Some(0), len + 3).expect("taken");
            if !early {
                send_slice(p2p, 0, 77, &[]).expect("sent");
            }
            let error = short.error();
            let said = error.to_string();
            let Error::Truncated { peer, tag: 0, context: 2, bytes, capacity, .. } = error else {
                panic!("{said}")
            };
            assert_eq!((peer.rank, bytes, capacity), (Rank(0), len, len - 1));
            assert!(said.contains(&len.to_string()) && said.contains("from rank 0"), "{said}");
            check(right, (0, 1), 0, len);
        }
    }
    assert!(p2p.failed().is_none());
}

/// Registered memory is not copied if the transport supports that.
pub(crate) fn in_place(p2p: &P2p, transport: &str, len: usize) {
    let me = p2p.rank().0;
    if me <= 1 {
        carried_in_place(p2p, transport, len);
    }
    // The barrier separates the counters of this scenario from those of the next one.
    if me == 1 {
        for rank in (0..p2p.size()).filter(|rank| *rank != 1) {
            send_slice(p2p, rank, 5, &[0]).expect("sent");
        }
    } else {
        recv_slice(p2p, 1, 5, &mut [0]).expect("received");
    }
}

fn carried_in_place(p2p: &P2p, transport: &str, len: usize) {
    let me = p2p.rank().0;
    let mut buffer = p2p.alloc::<u8>(len).expect("memory");
    let before = p2p.stats().expect("sound").links;
    if me == 0 {
        buffer.copy_from_slice(&bytes_of(0, 1, len));
        send_slice(p2p, 1, 4, &buffer).expect("sent");
    } else {
        recv_slice(p2p, 0, 4, &mut buffer).expect("received");
        assert!(buffer[..] == bytes_of(0, 1, len));
    }
    let done = p2p.stats().expect("sound").links - before;
    // Control frames are copied.
    let copies = transport.starts_with("tcp") || transport == "rehearsal";
    assert!(copies || done.copied_bytes < len as u64 / 1024, "{done:?}");
    if me == 1 {
        assert!(done.moved_bytes >= len as u64, "{done:?}");
    }
}
