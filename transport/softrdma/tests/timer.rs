//! The timer thread that acts for sleeping programs: when it exists, and its cost.
//!
//! There is one test because it counts the threads of the process.
//!
//! # Safety
//! See `ends`. A forked child leaves by `_exit` and runs none of the parent's destructors.

mod ends;

use ends::{End, Options, folder, pair};
use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};
use verbs_sys::{QpType, WcStatus, WrOpcode};

/// Writes a fabric file, with additional keys for its cable, into a folder.
fn fabric(folder: &Path, cable: &str) -> String {
    let path = folder.join("fabric.toml");
    let text = format!(
        "profile = \"ib\"\n[[node]]\nname = \"a\"\ndevice = [{{ name = \"d\" }}]\n[[node]]\nname = \"b\"\n\
         device = [{{ name = \"d\" }}]\n[[cable]]\nends = [\"a/d\", \"b/d\"]\n{cable}\n"
    );
    fs::write(&path, text).expect("room for a file");
    path.to_str().expect("text").to_owned()
}

/// Returns the CPU time of each timer thread of this process, in clock ticks.
fn timer_threads() -> Vec<u64> {
    let tasks = fs::read_dir("/proc/self/task").expect("a list").flatten();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    let ours = stats.filter_map(|stat| {
        let (name, rest) = stat.split_once(") ")?;
        let words: Vec<&str> = rest.split(' ').collect();
        let used = words.get(11)?.parse::<u64>().ok()? + words.get(12)?.parse::<u64>().ok()?;
        name.ends_with("(softrdma").then_some(used)
    });
    ours.collect()
}

/// Waits until the timer thread has named itself.
fn wait_for_timer_thread() {
    let until = Instant::now() + Duration::from_secs(20);
    while timer_threads().len() != 1 {
        assert!(Instant::now() < until, "{} timer threads", timer_threads().len());
        thread::yield_now();
    }
}

fn write_and_wait(a: &End, b: &End) {
    assert_eq!(a.post(1, WrOpcode::RDMA_WRITE, a.sge(0, 8), Some(b.target(8))), 0);
    a.expect(1, WcStatus::SUCCESS);
}

fn messages_without_time_need_none() {
    let folder = folder();
    let [a, b] = pair(&fabric(folder.path(), ""), folder.path(), Options::for_service(QpType::RC));
    for _ in 0..100 {
        assert_eq!(b.receive(2, b.sge(0, 8)), 0);
        assert_eq!(a.send(3, 8), 0);
        a.expect(3, WcStatus::SUCCESS);
        b.expect(2, WcStatus::SUCCESS);
        write_and_wait(&a, &b);
    }
    assert_eq!(timer_threads(), [0; 0], "nothing had a time");
}

fn one_runs_where_there_is_time_and_rests_where_nothing_is_due() {
    let folder = folder();
    let fabric = fabric(folder.path(), "latency_us = 100.0");
    let [a, b] = pair(&fabric, folder.path(), Options::for_service(QpType::RC));
    write_and_wait(&a, &b);
    wait_for_timer_thread();
    thread::sleep(Duration::from_millis(50));
    let before = timer_threads();
    thread::sleep(Duration::from_millis(300));
    let used = timer_threads()[0] - before[0];
    assert!(used <= 1, "{used} hundredths of a second for nothing");
    in_a_child(&fabric, folder.path());
    write_and_wait(&a, &b);
    drop((a, b));
    assert_eq!(timer_threads(), [0; 0], "its device is closed");
}

/// A child inherits no timer thread, starts its own, and receives a write while it sleeps.
fn in_a_child(fabric: &str, folder: &Path) {
    // SAFETY: the child only runs this closure and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let ran = std::panic::catch_unwind(|| {
            assert_eq!(timer_threads(), [0; 0]);
            let [c, d] = pair(fabric, folder, Options::for_service(QpType::UC));
            assert_eq!(c.post(1, WrOpcode::RDMA_WRITE, c.sge(0, 8), Some(d.target(0))), 0);
            wait_for_timer_thread();
            c.expect(1, WcStatus::SUCCESS);
        });
        // SAFETY: `_exit` runs no code of the parent.
        unsafe { libc::_exit(i32::from(ran.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the process is a child of this one; the pointer is a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child's status, times 256");
}

/// Closing a device does not wait for pending work.
fn closing_does_not_wait() {
    let folder = folder();
    let fabric = fabric(folder.path(), "latency_us = 10000000.0");
    let [a, b] = pair(&fabric, folder.path(), Options::for_service(QpType::RC));
    assert_eq!(a.post(1, WrOpcode::RDMA_WRITE, a.sge(0, 8), Some(b.target(8))), 0);
    let began = Instant::now();
    drop((a, b));
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    assert_eq!(timer_threads(), [0; 0]);
}

#[test]
fn there_is_one_while_it_is_needed() {
    messages_without_time_need_none();
    one_runs_where_there_is_time_and_rests_where_nothing_is_due();
    closing_does_not_wait();
}
