//! Faults that are injected from outside while connections are up.
//!
//! # Safety
//! See `ends`.

mod ends;

use ends::{Plan, folder, pair};
use softrdma::{
    Observer,
    control::{Command, Override},
    fabric::Fabric,
};
use std::{ffi::c_int, path::Path, thread, time::Duration};
use verbs_sys::{AsyncEvent, Context, EventType, QpType, WcStatus};

const IB: &str = "ib-pair.toml";

unsafe extern "C" {
    fn ibv_get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int;
}

fn observe(folder: &Path) -> Observer {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/fabrics").join(IB);
    Observer::open(folder, Fabric::load(&file).expect("a fabric").digest).expect("a folder")
}

/// Waits for the next asynchronous event.
fn next_event(context: *mut Context) -> EventType {
    let mut event =
        AsyncEvent { element: verbs_sys::AsyncElement { port_num: 0 }, event_type: EventType(99) };
    // SAFETY: a living context, and a place for the event.
    assert_eq!(unsafe { ibv_get_async_event(context, &raw mut event) }, 0);
    event.event_type
}

#[test]
fn a_pulled_cable_fails_reliable_connections_and_takes_the_ports_down() {
    let folder = folder();
    let [a, b] = pair(IB, folder.path(), Plan::of(QpType::RC));
    let observer = observe(folder.path());
    observer.control().set_unplugged(0, true);
    observer.wake_all();
    assert_eq!(next_event(a.context), EventType::PORT_ERR);
    assert_eq!(next_event(b.context), EventType::PORT_ERR);
    assert_eq!(b.receive(1, b.piece(0, 8)), 0);
    assert_eq!(a.send(2, 8), 0);
    a.expect(2, WcStatus::RETRY_EXC_ERR);
    assert!(b.poll().is_none());
    observer.control().set_unplugged(0, false);
    observer.wake_all();
    assert_eq!(next_event(b.context), EventType::PORT_ACTIVE);
}

#[test]
fn a_message_outlives_a_short_break() {
    let folder = folder();
    let [a, b] = pair(IB, folder.path(), Plan::of(QpType::RC));
    let observer = observe(folder.path());
    assert_eq!(b.receive(1, b.piece(0, 8)), 0);
    observer.control().force_port(0, Override::Off);
    assert_eq!(a.send(2, 8), 0);
    assert!(a.poll().is_none());
    observer.control().force_port(0, Override::On);
    a.expect(2, WcStatus::SUCCESS);
    b.expect(1, WcStatus::SUCCESS);
}

#[test]
fn queue_pairs_and_completion_queues_fail_on_command() {
    let folder = folder();
    for (command, event) in [
        (Command::FailQp { port: 0, qp: 0 }, EventType::QP_FATAL),
        (Command::OverflowCq { port: 0, qp: 0 }, EventType::CQ_ERR),
    ] {
        let [a, _b] = pair(IB, folder.path(), Plan::of(QpType::RC));
        assert_eq!(a.receive(1, a.piece(0, 8)), 0);
        let observer = observe(folder.path());
        observer.control().issue(command);
        observer.wake_all();
        assert_eq!(next_event(a.context), event);
        if event == EventType::QP_FATAL {
            a.expect(1, WcStatus::WR_FLUSH_ERR);
        }
    }
}

#[test]
fn a_stalled_node_goes_on_where_it_stopped() {
    let folder = folder();
    let [a, b] = pair(IB, folder.path(), Plan::of(QpType::RC));
    let observer = observe(folder.path());
    assert_eq!(b.receive(1, b.piece(0, 8)), 0);
    observer.control().set_stalled(0, true);
    assert_eq!(a.send(2, 8), 0);
    thread::sleep(Duration::from_millis(20));
    assert!(a.poll().is_none() && b.poll().is_none());
    observer.control().set_stalled(0, false);
    a.expect(2, WcStatus::SUCCESS);
    b.expect(1, WcStatus::SUCCESS);
}
