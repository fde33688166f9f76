//! Ownership, states, events and wrong names.
//!
//! # Safety
//! See `ends`.

use crate::{
    ends::{End, pair, spec},
    fabric::{APPLE, IB, PATIENCE, on},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{os::fd::BorrowedFd, path::Path, time::Duration};
use transport::verbs::{
    Access, Errno, EventType, Library, LocalRun, Operation, PostError, QpType, RemoteRun, SendRequest,
    VerbsError, WcStatus,
};

fn is_readable(fd: BorrowedFd<'_>, patience: Duration) -> bool {
    let timeout = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).expect("a descriptor") == 1
}

#[test]
fn devices_are_listed_and_found_by_name() {
    on("lifetimes::devices_are_listed_and_found_by_name", APPLE, |library| {
        let devices = library.devices().expect("a list");
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["rdma_en2", "rdma_en3", "rdma_en4"]);
        assert!(devices.iter().all(|device| device.guid != 0));
        assert!(devices[0].guid != devices[1].guid && devices[0].transport_type.0 == 100);
        let text = library.open("rdma_en33").expect_err("no such device").to_string();
        assert!(text.contains("did you mean `rdma_en3`?; known: rdma_en2, rdma_en3, rdma_en4"), "{text}");
        let context = library.open("rdma_en3").expect("a device");
        assert_eq!((context.name(), context.attributes().map(|attr| attr.max_mr)), ("rdma_en3", Some(100)));
        let gids = context.gids();
        assert!(gids.iter().any(|(index, gid)| *index == 1 && gid.is_ipv4_mapped()), "{gids:?}");
        assert!(gids.iter().all(|(_, gid)| !gid.is_empty()), "{gids:?}");
    });
}

#[test]
fn libraries_that_are_none_are_named() {
    let missing = Library::load(Some(Path::new("/there/is/no/libverbs.so"))).expect_err("no such file");
    assert!(matches!(&missing, VerbsError::Library { library, .. } if library == "/there/is/no/libverbs.so"));
    // A library that every process has, without any verbs function.
    let error = Library::load(Some(Path::new("libc.so.6"))).expect_err("no verbs library");
    let is_missing = |name: &str, symbol: &str| name == "libc.so.6" && symbol == "ibv_get_device_list";
    assert!(
        matches!(&error, VerbsError::Symbol { library, symbol } if is_missing(library, symbol)),
        "{error}"
    );
}

#[test]
fn what_was_made_first_ends_last() {
    on("lifetimes::what_was_made_first_ends_last", IB, |library| {
        let channel = {
            let context = library.open("ib0").expect("a device");
            let channel = context.channel().expect("a channel");
            let cq = context.completion_queue(16, Some(&channel)).expect("a queue");
            let domain = context.domain().expect("a domain");
            drop(context);
            let queue_pair = domain.queue_pair(&spec(QpType::RC), &cq).expect("a queue pair");
            drop((domain, cq));
            queue_pair.initialize(Access::Remote).expect("all that it needs is there");
            channel
        };
        assert_eq!(channel.drain(), 0);
    });
}

#[test]
fn queue_pairs_are_failed_reset_and_used_again() {
    on("lifetimes::queue_pairs_are_failed_reset_and_used_again", IB, |library| {
        let [mut a, mut b] = pair(library, ["ib0", "ib0"], QpType::RC, Access::Remote);
        a.receive(1, LocalRun::EMPTY).expect("posted");
        a.queue_pair.fail().expect("failed");
        assert_eq!(a.completion(1).status, WcStatus::WR_FLUSH_ERR);
        for end in [&a, &b] {
            end.queue_pair.initialize(Access::Remote).expect("initialised again");
        }
        a.connect(&b.address());
        b.connect(&a.address());
        b.receive(2, b.run(0, 8)).expect("posted");
        let request = SendRequest {
            id: 3,
            run: a.run(0, 8),
            operation: Operation::Send,
            signaled: true,
            inline: false,
        };
        a.post(&request).expect("posted");
        b.success(2);
        a.success(3);
        a.queue_pair.reset().expect("reset");
        assert_eq!(a.post(&request), Err(PostError::Failed(Errno::EINVAL)));
    });
}

#[test]
fn armed_queues_announce_completions() {
    on("lifetimes::armed_queues_announce_completions", IB, |library| {
        let [a, b] = pair(library, ["ib0", "ib0"], QpType::RC, Access::Remote);
        let channel = b.context.channel().expect("a channel");
        let cq = b.context.completion_queue(16, Some(&channel)).expect("a queue");
        let end = b.domain.queue_pair(&spec(QpType::RC), &cq).expect("a queue pair");
        end.initialize(Access::Remote).expect("initialised");
        a.queue_pair.initialize(Access::Remote).expect("initialised again");
        let theirs = transport::verbs::RemoteAddress { qp: end.number(), ..b.address() };
        a.connect(&theirs);
        let (gid_index, _) = b.gid();
        let ours = transport::verbs::LocalAddress {
            gid_index,
            mtu: transport::verbs::Mtu::B1024,
            psn: 7,
            class: transport::verbs::PacketClass::default(),
        };
        end.connect(&ours, &a.address()).expect("connected");
        for id in 0..2 {
            // SAFETY: the receive has no memory.
            unsafe { end.post_receive(id, LocalRun::EMPTY) }.expect("posted");
        }
        cq.arm().expect("armed");
        assert!(!is_readable(channel.fd(), Duration::ZERO) && channel.drain() == 0);
        let imm = Operation::WriteImm(b.target(0), 1);
        let request =
            SendRequest { id: 3, run: LocalRun::EMPTY, operation: imm, signaled: true, inline: false };
        a.post(&request).expect("posted");
        assert!(is_readable(channel.fd(), PATIENCE));
        assert_eq!((channel.drain(), channel.drain()), (1, 0));
        // The event comes once until the queue is armed again.
        a.post(&request).expect("posted");
        assert!(!is_readable(channel.fd(), Duration::ZERO) && channel.drain() == 0);
    });
}

#[test]
fn events_name_the_queue_pair_they_are_about() {
    on("lifetimes::events_name_the_queue_pair_they_are_about", IB, |library| {
        let [mut a, b] = pair(library, ["ib0", "ib0"], QpType::RC, Access::Remote);
        let bystander = b.domain.queue_pair(&spec(QpType::RC), &b.completions).expect("a queue pair");
        let fd = b.context.async_fd().expect("events can be waited for");
        assert!(!is_readable(fd, Duration::ZERO) && b.context.next_event().is_none());
        let target = RemoteRun { rkey: b.region.rkey() ^ 1, ..b.target(0) };
        let (run, operation) = (a.run(0, 8), Operation::Write(target));
        a.post(&SendRequest { id: 1, run, operation, signaled: true, inline: false }).expect("posted");
        assert_eq!(a.completion(1).status, WcStatus::REM_ACCESS_ERR);
        assert!(is_readable(fd, PATIENCE));
        let event = b.context.next_event().expect("what the descriptor announced");
        assert_eq!(event.kind, EventType::QP_ACCESS_ERR);
        assert!(event.is_about(&b.queue_pair) && !event.is_about(&bystander), "{event:?}");
    });
}

#[test]
fn devices_without_events_say_so() {
    on("lifetimes::devices_without_events_say_so", APPLE, |library| {
        let end = End::new(library, "rdma_en2", spec(QpType::UC), Access::Local);
        let error = end.context.channel().expect_err("no channels");
        assert!(
            matches!(&error, VerbsError::Refused(refusal) if refusal.errno == Errno::EOPNOTSUPP),
            "{error}"
        );
        // Without a channel, the queue can't be armed.
        end.completions.arm().expect_err("no announcements");
        assert_eq!(end.context.next_event(), None);
    });
}
