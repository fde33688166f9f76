//! The roles of ranks in these tests.

use rustix::{
    process::{DumpableBehavior, Signal, getpid, kill_process, set_dumpable_behavior},
    thread::{CapabilitySet, capabilities, set_capabilities},
};
use std::{
    io::Write,
    time::{Duration, Instant},
};
use support::milliseconds;
use tbccl::{Communicator, Element, Error, Rank, ReduceOp, Result, SharedCommunicator};

/// Elements of an all_reduce of 64 MiB.
pub(crate) const LARGE: usize = 16 << 20;

/// Plays the role of this process, if it has one; not a test.
#[test]
fn play() {
    let Ok(role) = std::env::var("ROLE") else { return };
    protect_memory();
    let mut comm = match Communicator::from_env() {
        Ok(comm) => comm,
        Err(error) => {
            let rank = std::env::var("TBCCL_RANK").unwrap_or_else(|_| "0".into());
            print(&format!("\n@refused {rank} {error}\n"));
            std::process::exit(3);
        }
    };
    match role.split_once(' ').unwrap_or((&role, "")) {
        ("join", _) => say(&comm, "joined", &std::process::id().to_string()),
        ("reduce", _) => reduce_until_it_fails(comm),
        ("abort", how) => abort(comm, how),
        ("one_fails", how) => one_fails(comm, how),
        ("calls", case) => calls(comm, case),
        ("sweep", rounds) => sweep(&mut comm, rounds.parse().expect("a number")),
        ("idle", _) => idle(&mut comm),
        ("give_up", _) => give_up(comm),
        ("huge", _) => huge(&mut comm),
        ("hang", case) => crate::hangs::hang(comm, case),
        (other, _) => panic!("no role {other}"),
    }
}

/// Protects the memory of the ranks that `PROTECTED` lists from the other ranks, if it is set.
fn protect_memory() {
    let (Ok(protected), Ok(rank)) = (std::env::var("PROTECTED"), std::env::var("TBCCL_RANK")) else { return };
    // With this right, which root has, the ranks could read all memory.
    let mut rights = capabilities(None).expect("this thread's");
    for set in [&mut rights.effective, &mut rights.permitted, &mut rights.inheritable] {
        set.remove(CapabilitySet::SYS_PTRACE);
    }
    set_capabilities(None, rights).expect("fewer rights");
    if protected.split(' ').any(|one| one == rank) {
        set_dumpable_behavior(DumpableBehavior::NotDumpable).expect("own process");
    }
}

/// Prints in one write, so that lines of ranks do not mix.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}

pub(crate) fn say(comm: &Communicator, word: &str, rest: &str) {
    print(&format!("\n@{word} {} {rest}\n", comm.rank()));
}

/// Prints how a call ended: the time of day, the duration, and the error.
pub(crate) fn report(comm: &Communicator, started: Instant, result: Result<()>) -> Option<Error> {
    let took = started.elapsed().as_millis();
    match result {
        Ok(()) => {
            say(comm, "fine", "");
            None
        }
        Err(error) => {
            say(comm, "error", &format!("{} {took} {error}", milliseconds()));
            Some(error)
        }
    }
}

/// Asserts that every call after a failure returns the same error at once, and that the communicator can be
/// dropped.
fn fail_again(mut comm: Communicator, first: &Error) -> ! {
    let started = Instant::now();
    for again in [comm.barrier(), comm.all_reduce_in_place(&mut [1i32; 10], ReduceOp::Max)] {
        assert_eq!(again.expect_err("it has failed").to_string(), first.to_string());
    }
    let message = comm.send(&[1u8], Rank((comm.rank().0 + 1) % comm.size()));
    assert_eq!(message.expect_err("it has failed").to_string(), first.to_string());
    assert!(started.elapsed() < Duration::from_secs(5), "nothing is waited for");
    let rank = comm.rank();
    drop(comm);
    print(&format!("\n@dropped {rank}\n"));
    std::process::exit(1);
}

fn reduce_until_it_fails(mut comm: Communicator) {
    let (input, mut output) = (vec![1.0f32; LARGE], vec![0.0; LARGE]);
    comm.all_reduce(&input, &mut output, ReduceOp::Sum).expect("all is well yet");
    say(&comm, "ready", &std::process::id().to_string());
    let sum = comm.size() as f32;
    loop {
        let started = Instant::now();
        let result = comm.all_reduce(&input, &mut output, ReduceOp::Sum);
        if result.is_ok() {
            assert!(output.iter().all(|x| *x == sum), "wrong without an error");
            continue;
        }
        let error = report(&comm, started, result).expect("it failed");
        fail_again(comm, &error);
    }
}

/// Rank 1 aborts after some microseconds while all ranks repeat an all_reduce of 64 MiB: from another thread
/// during its call, or itself between calls.
fn abort(comm: Communicator, how: &str) {
    let (place, after) = how.split_once(' ').expect("a place and a number");
    let after = Duration::from_micros(after.parse().expect("a number"));
    let comm = SharedCommunicator::new(comm);
    let rank = comm.rank();
    let (input, mut output) = (vec![1.0f32; LARGE], vec![0.0; LARGE]);
    let mut reduce = || comm.with(|comm| comm.all_reduce(&input, &mut output, ReduceOp::Sum)).expect("open");
    // Rank 1 may abort before another rank has left its first call.
    let mut failed = reduce().err();
    assert!(rank != Rank(1) || failed.is_none(), "all is well yet: {failed:?}");
    std::thread::scope(|scope| {
        if rank == Rank(1) {
            let aborts = scope.spawn(|| {
                std::thread::sleep(after);
                let (at, began) = (milliseconds(), Instant::now());
                comm.abort();
                print(&format!("\n@aborted {rank} {at} {}\n", began.elapsed().as_millis()));
            });
            if place == "outside" {
                aborts.join().expect("no panic");
                // The others must learn of the abort without a further call of this rank.
                std::thread::sleep(Duration::from_millis(2500));
            }
        }
        let error = loop {
            match failed.take() {
                Some(error) => break error,
                None => failed = reduce().err(),
            }
        };
        print(&format!("\n@error {rank} {} {error}\n", milliseconds()));
    });
    let again = comm.with(|comm| comm.barrier()).expect("open").expect_err("it has failed");
    assert!(comm.async_error().is_some(), "{again}");
    drop(comm);
    print(&format!("\n@dropped {rank}\n"));
}

/// Rank 1 ends in some way while the others are in a call with it.
fn one_fails(mut comm: Communicator, how: &str) {
    let entered = comm.barrier();
    if comm.rank() == Rank(1) {
        entered.expect("all is well yet");
        say(&comm, "going", &std::process::id().to_string());
        match how {
            // The standard library's handler returns from the first signal, because a real fault would recur.
            "segv" => (0..5).for_each(|_| {
                kill_process(getpid(), Signal::SEGV).expect("a signal");
                std::thread::sleep(Duration::from_millis(20));
            }),
            "abort" => std::process::abort(),
            "exit3" => std::process::exit(3),
            "exit0" => std::process::exit(0),
            "stop" => kill_process(getpid(), Signal::STOP).expect("a signal"),
            "leave" => {
                drop(comm);
                std::thread::sleep(Duration::from_secs(1));
                return;
            }
            other => panic!("no way {other} to fail"),
        }
        // A signal sent to the own process may arrive later.
        std::thread::sleep(Duration::from_secs(20));
        return;
    }
    let started = Instant::now();
    // Other ranks may be ahead, and fail before this rank has left the barrier.
    let result = entered.and_then(|()| comm.all_reduce_in_place(&mut vec![1.0f32; 1000], ReduceOp::Sum));
    let error = report(&comm, started, result).expect("rank 1 is not there");
    fail_again(comm, &error);
}

/// The last rank makes other calls than the rest. Then all ranks make the same call, which fails at the
/// latest.
fn calls(mut comm: Communicator, case: &str) {
    let odd = comm.rank().0 + 1 == comm.size();
    // Other ranks may be ahead, and fail before this rank has left the barrier.
    let mut result = comm.barrier();
    let started = Instant::now();
    if result.is_ok() {
        result = other_calls(&mut comm, case, odd);
    }
    if result.is_ok() {
        say(&comm, "passed", "");
        result = comm.barrier();
    }
    if let Some(error) = report(&comm, started, result) {
        fail_again(comm, &error);
    }
}

fn other_calls(comm: &mut Communicator, case: &str, odd: bool) -> Result<()> {
    let n = comm.size() as usize;
    let mut data = vec![1i32; 12 * n];
    let mut floats = vec![1.0f32; 12 * n];
    let (last, first) = (Rank(comm.size() - 1), Rank(0));
    match case {
        "op" => comm.all_reduce_in_place(&mut data, if odd { ReduceOp::Max } else { ReduceOp::Sum }),
        "dtype" if odd => comm.all_reduce_in_place(&mut floats, ReduceOp::Sum),
        "count" if odd => comm.all_reduce_in_place(&mut data[1..], ReduceOp::Sum),
        "large_count" => {
            let count = if odd { 1 << 20 } else { (1 << 20) + 1 };
            comm.all_reduce_in_place(&mut vec![1i32; count], ReduceOp::Sum)
        }
        "registered_count" => {
            let mut data = comm.alloc::<i32>(if odd { 1 << 20 } else { (1 << 20) + 1 })?;
            comm.all_reduce_in_place(&mut data, ReduceOp::Sum)
        }
        "collective" if odd => comm.broadcast(&mut data, first),
        "barrier" if odd => comm.barrier(),
        "dtype" | "count" | "collective" | "barrier" => comm.all_reduce_in_place(&mut data, ReduceOp::Sum),
        "root" => comm.broadcast(&mut data, if odd { last } else { first }),
        "large_root" => comm.broadcast(&mut vec![1i32; 1 << 20], if odd { last } else { first }),
        // Calls of this kind agree so far, so the root waits for its receivers in one of 16 of them.
        "repeated" => {
            (0..20).try_for_each(|_| comm.broadcast(&mut data, first))?;
            if odd {
                return comm.all_reduce_in_place(&mut data, ReduceOp::Sum);
            }
            (0..16).try_for_each(|_| comm.broadcast(&mut data, first))
        }
        "broadcast_count" => comm.broadcast(&mut data[usize::from(odd)..], first),
        "gather_count" => {
            let count = if odd { 5 } else { 6 };
            comm.all_gather(&vec![1i32; count], &mut vec![0; count * n])
        }
        "order" => {
            let mut both = [true, false];
            if odd {
                both.reverse();
            }
            for reduces in both {
                match reduces {
                    true => comm.all_reduce_in_place(&mut data, ReduceOp::Sum)?,
                    false => comm.broadcast(&mut data, first)?,
                }
            }
            Ok(())
        }
        "extra" if odd => {
            comm.all_reduce_in_place(&mut data, ReduceOp::Sum)?;
            comm.all_reduce_in_place(&mut floats, ReduceOp::Sum)
        }
        "extra" => comm.all_reduce_in_place(&mut data, ReduceOp::Sum),
        // Messages between the first and the last rank.
        "message_count" if odd => comm.recv(&mut data[1..], first),
        "message_dtype" if odd => comm.recv(&mut floats, first),
        "message_and_collective" if odd => comm.all_reduce_in_place(&mut data, ReduceOp::Sum),
        "message_count" | "message_dtype" | "message_and_collective" => {
            if comm.rank() == first {
                comm.send(&data, last)
            } else {
                Ok(())
            }
        }
        "stray_message" => {
            if comm.rank() == first {
                comm.send(&data, last)?;
            }
            comm.all_reduce_in_place(&mut data, ReduceOp::Sum)
        }
        other => panic!("no case {other}"),
    }
}

fn checked<T: Element + PartialEq + std::fmt::Debug>(what: &str, got: &[T], wanted: impl Fn(usize) -> T) {
    for (i, value) in got.iter().enumerate() {
        assert_eq!(*value, wanted(i), "{what} of {}: element {i}", got.len());
    }
}

/// Runs every collective on odd counts, and checks every element.
fn sweep(comm: &mut Communicator, rounds: u32) {
    let (n, me) = (comm.size() as usize, comm.rank().index());
    let value = |rank: usize, i: usize| ((i * 7 + rank * 13) % 251) as u16;
    let filled = |rank: usize, count: usize| (0..count).map(|i| value(rank, i)).collect::<Vec<u16>>();
    let sum = |i: usize| (0..n).map(|r| value(r, i)).sum::<u16>();
    for _ in 0..rounds {
        for count in [0, 1, 3, 63, 1001, 40_961] {
            let mut out = vec![0; count];
            comm.all_reduce(&filled(me, count), &mut out, ReduceOp::Sum).expect("all_reduce");
            checked("all_reduce", &out, sum);
            comm.all_reduce_in_place(&mut out, ReduceOp::Max).expect("all_reduce in place");
            checked("all_reduce in place", &out, sum);
            let mut all = vec![0; count * n];
            comm.all_gather(&filled(me, count), &mut all).expect("all_gather");
            checked("all_gather", &all, |i| value(i / count, i % count));
            comm.reduce_scatter(&filled(me, count * n), &mut out, ReduceOp::Sum).expect("reduce_scatter");
            checked("reduce_scatter", &out, |i| sum(me * count + i));
            comm.all_to_all(&filled(me, count * n), &mut all).expect("all_to_all");
            checked("all_to_all", &all, |i| value(i / count, me * count + i % count));
            let root = count % n;
            let mut data = filled(me, count);
            comm.broadcast(&mut data, Rank(root as u32)).expect("broadcast");
            checked("broadcast", &data, |i| value(root, i));
            comm.send_recv(&filled(me, count), &mut out).expect("send_recv");
            checked("send_recv", &out, |i| value((me + n - 1) % n, i));
            comm.barrier().expect("barrier");
        }
    }
    say(comm, "swept", &comm.counters().copied_bytes.to_string());
}

/// Rank 0 waits a second for rank 1, and prints how much processor time it used.
fn idle(comm: &mut Communicator) {
    comm.barrier().expect("barrier");
    if comm.rank() == Rank(1) {
        std::thread::sleep(Duration::from_secs(1));
        return comm.send(&[1u8], Rank(0)).expect("send");
    }
    let cpu = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec * 1000 + time.tv_nsec / 1_000_000
    };
    let before = cpu();
    comm.recv(&mut [0u8], Rank(1)).expect("recv");
    say(comm, "computed", &(cpu() - before).to_string());
}

/// Rank 1 is stopped while it reads rank 0's memory; rank 0 gives up and reuses that memory.
fn give_up(mut comm: Communicator) {
    let mut input = comm.alloc::<f32>(LARGE).expect("memory");
    let mut output = comm.alloc::<f32>(LARGE).expect("memory");
    input.fill(1.0);
    comm.barrier().expect("all is well yet");
    if comm.rank() == Rank(1) {
        say(&comm, "stopping", &std::process::id().to_string());
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            kill_process(getpid(), Signal::STOP).expect("a signal");
        });
    }
    let started = Instant::now();
    loop {
        let result = comm.all_reduce(&input, &mut output, ReduceOp::Sum);
        if result.is_err() {
            report(&comm, started, result);
            break;
        }
        if output.iter().any(|x| *x != 2.0) {
            say(&comm, "wrong", "and no error");
        }
    }
    input.fill(f32::NAN);
    say(&comm, "reused", "");
    std::thread::sleep(Duration::from_secs(2));
}

/// Reduces more elements than 31 bits can count.
fn huge(comm: &mut Communicator) {
    const COUNT: usize = (1 << 31) + 5;
    // Copies and compares whole blocks; single elements would take half a minute.
    let block = |by: i8| -> Vec<i8> { (0..61 * 4096).map(|i| by * ((i % 61) as i8 - 30)).collect() };
    let (given, summed) = (block(1), block(2));
    let started = Instant::now();
    let mut data: Vec<i8> = vec![0; COUNT];
    for chunk in data.chunks_mut(given.len()) {
        chunk.copy_from_slice(&given[..chunk.len()]);
    }
    comm.all_reduce_in_place(&mut data, ReduceOp::Sum).expect("all_reduce");
    for (at, chunk) in data.chunks(summed.len()).enumerate() {
        assert!(*chunk == summed[..chunk.len()], "in block {at}");
    }
    say(comm, "huge", &format!("{:?}", started.elapsed()));
}
