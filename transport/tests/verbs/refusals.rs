//! Failures of every kind that a device reports, and their messages.
//!
//! # Safety
//! See `ends`; and regions are deregistered before the memory that they cover is freed.

use crate::{
    ends::{End, pair, spec},
    fabric::{APPLE, IB, on},
};
use transport::verbs::{
    Access, Action, Cause, Completion, Context, Errno, Gid, Library, LocalAddress, LocalRun, Mtu, Operation,
    PacketClass, QpType, QueuePairSpec, RemoteAddress, RemoteRun, SendRequest, VerbsError, WcStatus,
};

/// The ports of two Macs on one machine: two cables, a port without a cable, and a port without an address.
const CABLES: &str = "
    profile = 'apple-tb5'
    [[node]]
    name = 'mac'
    device = [
        { name = 'rdma_en2' }, { name = 'rdma_en3' }, { name = 'rdma_en4' }, { name = 'rdma_en5' },
        { name = 'rdma_en6' }, { name = 'rdma_en7', gid = 'missing' },
    ]
    [[cable]]
    ends = ['mac/rdma_en2', 'mac/rdma_en3']
    [[cable]]
    ends = ['mac/rdma_en4', 'mac/rdma_en5']
    [[cable]]
    ends = ['mac/rdma_en7', 'mac/rdma_en7']
";

/// Checks that the error has this cause and number, and is one line that begins with the device and port.
fn expect(error: &VerbsError, cause: Cause, errno: Errno) {
    let text = error.to_string();
    let VerbsError::Refused(refusal) = error else { panic!("{text}") };
    assert_eq!((error.cause(), refusal.errno), (Some(cause), errno), "{text}");
    assert!(text.starts_with(&format!("{}/1: ", refusal.device)) && !text.contains('\n'), "{text}");
    assert!(text.contains(&errno.to_string()) && text.ends_with(cause.remedy()), "{text}");
}

#[test]
fn the_eleventh_queue_pair() {
    on("refusals::the_eleventh_queue_pair", APPLE, |library| {
        let context = library.open("rdma_en2").expect("a device");
        let (domain, cq) =
            (context.domain().expect("a domain"), context.completion_queue(16, None).expect("a queue"));
        let make = || domain.queue_pair(&spec(QpType::UC), &cq);
        let mut made: Vec<_> = (0..10).map(|_| make().expect("one of ten")).collect();
        expect(&make().expect_err("the eleventh"), Cause::QueuePairs, Errno::EBUSY);
        made.pop();
        make().expect("one was given back");
        // The device has no queue pairs of this type, no matter how many are left.
        let reliable = domain.queue_pair(&spec(QpType::RC), &cq).expect_err("no such service");
        expect(&reliable, Cause::Service(QpType::RC), Errno::EOPNOTSUPP);
    });
}

#[test]
fn the_hundred_and_first_region() {
    on("refusals::the_hundred_and_first_region", APPLE, |library| {
        let mut memory = vec![0u8; 4096];
        let domain = library.open("rdma_en2").expect("a device").domain().expect("a domain");
        let start = memory.as_mut_ptr();
        // SAFETY: `memory` outlives the regions, and nothing is posted.
        let make = || unsafe { domain.register(start, 4096, Access::Local) };
        let mut made: Vec<_> = (0..100).map(|_| make().expect("one of a hundred")).collect();
        expect(&make().expect_err("one too many"), Cause::Regions, Errno::ENOMEM);
        made.pop();
        drop(make().expect("one was given back"));
        drop(made);
    });
}

#[test]
fn memory_that_is_not_there() {
    on("refusals::memory_that_is_not_there", IB, |library| {
        let domain = library.open("ib0").expect("a device").domain().expect("a domain");
        let nowhere = std::ptr::without_provenance_mut(4096);
        // SAFETY: nothing is posted; the device must find that the memory is not mapped.
        let error = unsafe { domain.register(nowhere, 4096, Access::Local) }.expect_err("not mapped");
        expect(&error, Cause::Unmapped, Errno::EFAULT);
        let action = Action::Register { bytes: 4096 };
        assert!(matches!(error, VerbsError::Refused(refusal) if refusal.action == action));
    });
}

#[test]
fn a_port_without_cable() {
    on("refusals::a_port_without_cable", CABLES, |library| {
        let context = library.open("rdma_en6").expect("ports that are down can be opened");
        expect(&context.domain().expect_err("not on a port that is down"), Cause::PortDown, Errno::ENODATA);
    });
}

#[test]
fn domains_that_are_not_given_back() {
    on("refusals::domains_that_are_not_given_back", APPLE, |library| {
        let context = library.open("rdma_en2").expect("a device");
        let most = context.attributes().expect("limits").max_pd;
        let made: Vec<_> = (0..most).map(|_| context.domain().expect("there are more")).collect();
        expect(&context.domain().expect_err("none is left"), Cause::LeakedDomains, Errno::ENODATA);
        drop(made);
        context.domain().expect("they were given back");
    });
}

#[test]
fn more_than_there_is() {
    on("refusals::more_than_there_is", IB, |library| {
        let context = library.open("ib0").expect("a device");
        let error = context.completion_queue(1 << 20, None).expect_err("too deep");
        expect(&error, Cause::LimitExceeded, Errno::EINVAL);
        let (domain, cq) =
            (context.domain().expect("a domain"), context.completion_queue(16, None).expect("a queue"));
        let deep = QueuePairSpec { inline_bytes: 4096, ..spec(QpType::RC) };
        expect(&domain.queue_pair(&deep, &cq).expect_err("too much"), Cause::LimitExceeded, Errno::EINVAL);
    });
}

/// Connects the end to a peer at `gid`, from entry `gid_index` of the GID table.
fn connect(end: &End, gid: Gid, gid_index: u8) -> Result<(), VerbsError> {
    let theirs = RemoteAddress { gid, ..end.address() };
    end.queue_pair
        .connect(&LocalAddress { gid_index, mtu: Mtu::B1024, psn: 0, class: PacketClass::default() }, &theirs)
}

fn end(library: &Library, device: &str) -> End {
    End::new(library, device, spec(QpType::UC), Access::Local)
}

#[test]
fn a_cable_that_leads_elsewhere() {
    on("refusals::a_cable_that_leads_elsewhere", CABLES, |library| {
        let [here, there] = ["rdma_en2", "rdma_en5"].map(|device| end(library, device));
        let error = connect(&here, there.gid().1, here.gid().0).expect_err("another cable's end");
        expect(&error, Cause::WrongCable, Errno::ETIMEDOUT);
        assert!(error.to_string().contains(&there.gid().1.to_string()), "{error}");
        let right = end(library, "rdma_en3");
        here.queue_pair.initialize(Access::Local).expect("once more");
        connect(&here, right.gid().1, here.gid().0).expect("the right cable");
    });
}

#[test]
fn an_address_that_is_not_there() {
    on("refusals::an_address_that_is_not_there", CABLES, |library| {
        let missing = end(library, "rdma_en7");
        expect(&connect(&missing, missing.gid().1, 1).expect_err("a hole"), Cause::NoIpv4, Errno::EINVAL);
        let moved = end(library, "rdma_en2");
        let hole = (0..).find(|index| !moved.context.gids().iter().any(|(there, _)| there == index));
        let error = connect(&moved, moved.gid().1, hole.expect("a hole")).expect_err("a hole");
        expect(&error, Cause::AddressMoved, Errno::EINVAL);
    });
}

/// Returns the text for a failed completion.
fn explained(context: &Context, completion: &Completion) -> String {
    VerbsError::of_work(context, completion).to_string()
}

#[test]
fn work_that_comes_out_wrong() {
    on("refusals::work_that_comes_out_wrong", IB, |library| {
        let write = |end: &End, target: RemoteRun| {
            let (run, operation) = (end.run(0, 8), Operation::Write(target));
            end.post(&SendRequest { id: 1, run, operation, signaled: true, inline: false }).expect("posted");
        };
        let [mut a, mut b] = pair(library, ["ib0", "ib0"], QpType::RC, Access::Remote);
        b.receive(2, LocalRun::EMPTY).expect("posted");
        write(&a, RemoteRun { rkey: b.region.rkey() ^ 1, ..b.target(0) });
        let found = a.completion(1);
        assert_eq!(found.status, WcStatus::REM_ACCESS_ERR);
        assert!(explained(&a.context, &found).contains("the peer's key does not allow it"));
        let flushed = b.completion(2);
        assert_eq!(flushed.status, WcStatus::WR_FLUSH_ERR);
        let text = explained(&b.context, &flushed);
        assert!(
            text.starts_with(&format!("ib0/1, queue pair {}: WR_FLUSH_ERR", b.queue_pair.number())),
            "{text}"
        );
        // A peer whose queue pair was destroyed.
        let [mut a, b] = pair(library, ["ib0", "ib0"], QpType::RC, Access::Remote);
        let target = b.target(0);
        drop(b);
        write(&a, target);
        let found = a.completion(1);
        assert_eq!(found.status, WcStatus::RETRY_EXC_ERR);
        assert!(explained(&a.context, &found).contains("the peer does not answer"));
    });
}
