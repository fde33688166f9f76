//! The roles of ranks in these tests.

use rustix::process::{Signal, getpid, kill_process};
use std::{fmt::Debug, io::Write, path::Path, time::Instant};
use support::milliseconds;
use tbccl::{Communicator, Config, Element, Error, Rank, ReduceOp, Result, SharedCommunicator};

/// Plays the role of this process, if it has one; not a test.
#[test]
fn play() {
    let Ok(role) = std::env::var("ROLE") else { return };
    let joined = if role == "relayed" { as_a_host_of_its_own() } else { Communicator::from_env() };
    let mut comm = match joined {
        Ok(comm) => comm,
        Err(error) => {
            let rank = std::env::var("TBCCL_RANK").unwrap_or_else(|_| "0".into());
            print(&format!("\n@refused {rank} {error}\n"));
            std::process::exit(3);
        }
    };
    let (name, rest) = role.split_once(' ').unwrap_or((&role, ""));
    let done = match name {
        "split" => return crate::scenarios::split(comm),
        "many_groups" => return crate::groups::many(comm),
        "in_turns" => return crate::groups::in_turns(comm),
        "too_many" => return crate::groups::too_many(comm),
        "bystanders" => return crate::groups::bystanders(comm),
        "abort" => return abort(comm),
        "ladder" => {
            return crate::scenarios::ladder(
                comm,
                rest.parse().expect("a number"),
                2,
                crate::scenarios::LARGE,
            );
        }
        "collectives" => collectives(&mut comm),
        "gaps" => gaps(&mut comm),
        "relayed" => relayed(&mut comm),
        "disagree" => disagree(&mut comm),
        "operations" => operations(&mut comm, rest.parse().expect("a number")),
        "hosted" => hosted(&mut comm),
        "close_after_kill" => close_after_kill(&mut comm),
        "large_sums" => large_sums(&mut comm),
        "computes" => computes(&mut comm, Path::new(rest)),
        "leaves" => leaves(&mut comm, Path::new(rest)),
        "until" => until(&mut comm, Path::new(rest)),
        "note_pauses" => crate::fault_gaps::note_pauses(&mut comm, Path::new(rest)),
        "survive" => survive(&mut comm),
        "own_memory" => crate::registered::own_memory(&mut comm, rest),
        "leaked_memory" => crate::registered::leaked_memory(&mut comm),
        "far_memory" => crate::registered::far_memory(&mut comm, rest),
        "abandon" => crate::registered::abandon(&mut comm),
        "large_slab" => crate::registered::large_slab(&mut comm),
        other => panic!("no role {other}"),
    };
    match done {
        Ok(()) => say(&comm, "done", ""),
        Err(error) => {
            say(&comm, "error", &format!("{} {error}", milliseconds()));
            let again = comm.barrier().expect_err("it has failed");
            assert_eq!(again.to_string(), error.to_string());
            drop(comm);
            std::process::exit(1);
        }
    }
}

/// Joins with the node's name as that of the host, if the launcher has named no host.
fn as_a_host_of_its_own() -> Result<Communicator> {
    let mut config = Config::from_env()?;
    if config.host_id.is_empty() {
        config.host_id = std::env::var("SOFTRDMA_NODE").expect("a node");
    }
    Communicator::from_env_with(&config)
}

/// Prints in one write, so that lines of ranks do not mix.
pub(crate) fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}

pub(crate) fn say(comm: &Communicator, word: &str, rest: &str) {
    print(&format!("\n@{word} {} {rest}\n", comm.rank()));
}

/// Elements whose sums and products over five ranks are exact.
trait SmallElement: Element + PartialEq + Debug {
    fn of(number: u32) -> Self;
}

macro_rules! small {
    ($($type:ty),*) => { $(impl SmallElement for $type {
        #[allow(clippy::cast_lossless, reason = "one line for all")]
        fn of(number: u32) -> Self {
            number as $type
        }
    })* };
}

small!(f32, f64, i8, u16, i32, u64);

/// Returns element `at` of a rank's input: 1 or 2, so nothing overflows.
pub(crate) fn element(rank: u32, at: usize) -> u32 {
    1 + ((at as u32).wrapping_mul(2_654_435_761).wrapping_add(rank * 97) >> 13) % 2
}

pub(crate) fn combined(op: ReduceOp, ranks: u32, at: usize) -> u32 {
    let all = (0..ranks).map(|rank| element(rank, at));
    match op {
        ReduceOp::Sum => all.sum(),
        ReduceOp::Prod => all.product(),
        ReduceOp::Max => all.max().unwrap_or_default(),
        _ => all.min().unwrap_or_default(),
    }
}

/// Registered or unregistered memory.
enum Memory<T: Element> {
    Unregistered(Vec<T>),
    Registered(tbccl::Buffer<T>),
}

impl<T: SmallElement> Memory<T> {
    fn new(comm: &Communicator, registered: bool, len: usize, value: impl Fn(usize) -> u32) -> Memory<T> {
        let values = (0..len).map(|at| T::of(value(at)));
        if !registered {
            return Memory::Unregistered(values.collect());
        }
        let mut buffer = comm.alloc(len).expect("room in the slab");
        buffer.iter_mut().zip(values).for_each(|(place, value)| *place = value);
        Memory::Registered(buffer)
    }

    fn slice(&mut self) -> &mut [T] {
        match self {
            Memory::Unregistered(values) => values,
            Memory::Registered(buffer) => buffer,
        }
    }

    fn assert_values(&mut self, what: &str, value: impl Fn(usize) -> u32) {
        let wrong = self.slice().iter().enumerate().find(|(at, found)| **found != T::of(value(*at)));
        assert!(wrong.is_none(), "{what}: wrong at {wrong:?}");
    }
}

fn collectives(comm: &mut Communicator) -> Result<()> {
    for registered in [false, true] {
        for count in [1, 1031, 40_000] {
            check_all::<f32>(comm, registered, count)?;
        }
        check_all::<i8>(comm, registered, 100)?;
        check_all::<u16>(comm, registered, 3000)?;
        check_all::<f64>(comm, registered, 5000)?;
        check_all::<i32>(comm, registered, 800_000)?;
        check_all::<u64>(comm, registered, 1024)?;
    }
    Ok(())
}

/// Messages up to this length may be copied at each end; longer ones in registered memory never are.
const SHORT_MESSAGE_BYTES: usize = 128 << 10;

/// Checks all collectives, and messages between neighbors, on blocks of `count` elements.
fn check_all<T: SmallElement>(comm: &mut Communicator, registered: bool, count: usize) -> Result<()> {
    let (n, me) = (comm.size(), comm.rank().0);
    let ours = move |at: usize| element(me, at);
    let what = format!("{count} of {}, registered {registered}", std::any::type_name::<T>());
    let before = comm.counters().copied_bytes;
    let memory = |comm: &Communicator, blocks: u32, value: &dyn Fn(usize) -> u32| {
        Memory::<T>::new(comm, registered, count * blocks as usize, value)
    };
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
        let (mut input, mut output) = (memory(comm, 1, &ours), memory(comm, 1, &|_| 0));
        comm.all_reduce(input.slice(), output.slice(), op)?;
        output.assert_values(&format!("all_reduce {op}, {what}"), |at| combined(op, n, at));
        comm.all_reduce_in_place(input.slice(), op)?;
        input.assert_values(&format!("all_reduce {op} in place, {what}"), |at| combined(op, n, at));
        let (mut input, mut output) = (memory(comm, n, &ours), memory(comm, 1, &|_| 0));
        let block = me as usize * count;
        comm.reduce_scatter(input.slice(), output.slice(), op)?;
        output.assert_values(&format!("reduce_scatter {op}, {what}"), |at| combined(op, n, block + at));
        comm.reduce_scatter_in_place(input.slice(), op)?;
        let mut block = Memory::Unregistered(input.slice()[block..block + count].to_vec());
        block.assert_values(&format!("reduce_scatter {op} in place, {what}"), |at| {
            combined(op, n, me as usize * count + at)
        });
    }
    let gathered = |at: usize| element((at / count) as u32, at % count);
    let (mut input, mut output) = (memory(comm, 1, &ours), memory(comm, n, &|_| 0));
    comm.all_gather(input.slice(), output.slice())?;
    output.assert_values(&format!("all_gather, {what}"), gathered);
    let own = move |at: usize| if at / count == me as usize { element(me, at % count) } else { 0 };
    let mut data = memory(comm, n, &own);
    comm.all_gather_in_place(data.slice())?;
    data.assert_values(&format!("all_gather in place, {what}"), gathered);
    for root in 0..n {
        let mut data = memory(comm, 1, &ours);
        comm.broadcast(data.slice(), Rank(root))?;
        data.assert_values(&format!("broadcast from {root}, {what}"), |at| element(root, at));
        let (mut input, mut output) = (memory(comm, 1, &ours), memory(comm, 1, &|_| 0));
        comm.broadcast_from(input.slice(), output.slice(), Rank(root))?;
        output.assert_values(&format!("broadcast_from {root}, {what}"), |at| element(root, at));
    }
    let (mut input, mut output) = (memory(comm, n, &ours), memory(comm, n, &|_| 0));
    comm.all_to_all(input.slice(), output.slice())?;
    let block = me as usize * count;
    output
        .assert_values(&format!("all_to_all, {what}"), |at| element((at / count) as u32, block + at % count));
    let (mut input, mut output) = (memory(comm, 1, &ours), memory(comm, 1, &|_| 0));
    comm.send_recv(input.slice(), output.slice())?;
    output.assert_values(&format!("send_recv, {what}"), |at| element((me + n - 1) % n, at));
    comm.barrier()?;
    let mut answer = memory(comm, 1, &|_| 0);
    match me {
        0 => {
            comm.send(input.slice(), Rank(1))?;
            comm.recv(answer.slice(), Rank(1))?;
        }
        1 => {
            comm.recv(answer.slice(), Rank(0))?;
            comm.send(input.slice(), Rank(0))?;
        }
        _ => {}
    }
    if me < 2 {
        answer.assert_values(&format!("messages, {what}"), |at| element(1 - me, at));
    }
    let copied = comm.counters().copied_bytes - before;
    let may_copy = !registered || count * size_of::<T>() / n as usize <= SHORT_MESSAGE_BYTES;
    assert!(copied == 0 || may_copy, "{what}: {copied} bytes were copied");
    Ok(())
}

/// Operations that fail on a ring of five, and others that work afterwards.
fn gaps(comm: &mut Communicator) -> Result<()> {
    let me = comm.rank().0;
    let far = Rank((me + 2) % 5);
    for error in [comm.send(&[1u8], far), comm.recv(&mut [0u8], far)] {
        let error = error.expect_err("no cable");
        let expected_text = format!("rank {me}: no cable connects it with rank {far} (process ");
        assert!(
            matches!(error, Error::Transport(_)) && error.to_string().starts_with(&expected_text),
            "{error}"
        );
    }
    let mut data = [me];
    comm.all_reduce_in_place(&mut data, ReduceOp::Sum)?;
    assert_eq!(data, [10]);
    // Blocks of unequal lengths to all ranks, forwarded by those between.
    let length = |from: u32, to: u32| ((from + 2 * to) % 4 * 3000) as usize;
    let counts = |of: &dyn Fn(u32) -> usize| (0..5).map(of).collect::<Vec<_>>();
    let (sent, expected) = (counts(&|to| length(me, to)), counts(&|from| length(from, me)));
    let send: Vec<u32> = (0..5).flat_map(|to| vec![me * 10 + to; length(me, to)]).collect();
    let mut recv = vec![0; expected.iter().sum()];
    comm.all_to_all_v(&send, &sent, &mut recv, &expected)?;
    let right: Vec<u32> = (0..5).flat_map(|from| vec![from * 10 + me; length(from, me)]).collect();
    assert_eq!(recv, right, "rank {me}");
    Ok(())
}

/// Runs all collectives, and sends messages between each two ranks, of which some have no cable.
fn relayed(comm: &mut Communicator) -> Result<()> {
    assert_eq!(comm.transport(), "shm+verbs");
    collectives(comm)?;
    let (n, me) = (comm.size(), comm.rank().0);
    for len in [1, 3000, 200_000] {
        for (a, b) in (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))) {
            let sent = |from: u32| (0..len).map(|at| element(from, at)).collect::<Vec<u32>>();
            let mut received = vec![0; len];
            if me == a {
                comm.send(&sent(a), Rank(b))?;
                comm.recv(&mut received, Rank(b))?;
            } else if me == b {
                comm.recv(&mut received, Rank(a))?;
                comm.send(&sent(b), Rank(a))?;
            } else {
                continue;
            }
            assert!(received == sent(a + b - me), "{len} elements between {a} and {b}");
        }
    }
    comm.barrier()
}

/// Runs `count` operations of all kinds, most of them small, and checks each.
fn operations(comm: &mut Communicator, count: u32) -> Result<()> {
    let (n, me) = (comm.size(), comm.rank().0);
    let started = Instant::now();
    for k in 0..count {
        let len = [1, 7, 60, 500, 1000, 3][k as usize % 6] * if k % 100 == 99 { 40 } else { 1 };
        let turn = k as usize;
        let mut data = Memory::<f32>::new(comm, k % 2 == 0, len, |at| element(me, at + turn));
        match k % 3 {
            0 => {
                let mut all = Memory::<f32>::new(comm, k % 2 == 0, len * n as usize, |_| 0);
                comm.all_gather(data.slice(), all.slice())?;
                all.assert_values(&format!("all_gather {k}"), |at| {
                    element((at / len) as u32, at % len + turn)
                });
            }
            1 => {
                comm.broadcast(data.slice(), Rank(k % n))?;
                data.assert_values(&format!("broadcast {k}"), |at| element(k % n, at + turn));
            }
            _ => {
                comm.all_reduce_in_place(data.slice(), ReduceOp::Sum)?;
                data.assert_values(&format!("all_reduce {k}"), |at| combined(ReduceOp::Sum, n, at + turn));
            }
        }
    }
    say(comm, "repeated", &comm.counters().retransmissions.to_string());
    say(comm, "took", &started.elapsed().as_millis().to_string());
    Ok(())
}

/// Runs operations whose results may be wrong, since damaged messages go unnoticed.
fn survive(comm: &mut Communicator) -> Result<()> {
    let mut data = comm.alloc::<u64>(50_000)?;
    for k in 0..300 {
        comm.all_reduce_in_place(&mut data[..[3, 50_000, 700][k % 3]], ReduceOp::Max)?;
    }
    Ok(())
}

/// Runs operations until rank 0 finds the file.
fn until(comm: &mut Communicator, file: &Path) -> Result<()> {
    let (n, me) = (comm.size(), comm.rank().0);
    let mut data = comm.alloc::<i32>(200_000)?;
    let mut rounds = 0u64;
    loop {
        for (at, place) in data.iter_mut().enumerate() {
            *place = (at % 1000) as i32 + me as i32;
        }
        comm.all_reduce_in_place(&mut data, ReduceOp::Sum)?;
        let base = (0..n as i32).sum::<i32>();
        let wrong = data.iter().enumerate().find(|(at, x)| **x != (at % 1000) as i32 * n as i32 + base);
        assert!(wrong.is_none(), "round {rounds}: {wrong:?}");
        let mut over = [u8::from(me == 0 && file.exists())];
        comm.broadcast(&mut over, Rank(0))?;
        if rounds == 3 {
            say(comm, "running", &std::process::id().to_string());
        }
        rounds += 1;
        if over[0] != 0 && rounds > 3 {
            say(comm, "rounds", &rounds.to_string());
            return Ok(());
        }
    }
}

/// Rank 0 sends to rank 1, which was killed, closes the communicator of both, and prints the milliseconds
/// that this takes.
fn close_after_kill(comm: &mut Communicator) -> Result<()> {
    let config = Config::from_env().expect("valid");
    let mut group = comm.split(Some(0), 0, &config)?.expect("a color");
    group.barrier()?;
    if comm.rank() == Rank(1) {
        kill_process(getpid(), Signal::KILL).expect("this process");
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    group.send(&[1u8; 100], Rank(1))?;
    let began = Instant::now();
    drop(group);
    say(comm, "closed", &began.elapsed().as_millis().to_string());
    std::process::exit(0);
}

/// Rank 1 stops itself before a call on a communicator whose rendezvous it has. Rank 0 prints the
/// milliseconds until its error.
fn hosted(comm: &mut Communicator) -> Result<()> {
    let config = Config::from_env().expect("valid");
    let mut group = comm.split(Some(0), -(comm.rank().0 as i32), &config)?.expect("a color");
    group.barrier()?;
    if comm.rank() == Rank(1) {
        say(comm, "stops", &std::process::id().to_string());
        kill_process(getpid(), Signal::STOP).expect("this process");
        std::thread::sleep(std::time::Duration::from_secs(60));
        return Ok(());
    }
    let began = Instant::now();
    let error = group.barrier().expect_err("rank 1 is stopped");
    say(comm, "failed", &format!("{} {error}", began.elapsed().as_millis()));
    std::process::exit(1);
}

/// Sums large arrays, out of place, in place, and in parts.
fn large_sums(comm: &mut Communicator) -> Result<()> {
    let ranks = comm.size() as i32;
    let input = vec![1i32; 800_012];
    let (mut output, mut part) = (vec![0; input.len()], vec![0; input.len() / comm.size() as usize]);
    for _ in 0..4 {
        comm.reduce_scatter(&input, &mut part, ReduceOp::Sum)?;
        assert!(part.iter().all(|sum| *sum == ranks));
        comm.all_reduce(&input, &mut output, ReduceOp::Sum)?;
        assert!(output.iter().all(|sum| *sum == ranks));
        comm.all_reduce_in_place(&mut output, ReduceOp::Sum)?;
        assert!(output.iter().all(|sum| *sum == ranks * ranks));
    }
    Ok(())
}

/// Sends to rank 1 once a file is there. Rank 1 computes meanwhile, and until another file is there.
fn computes(comm: &mut Communicator, folder: &Path) -> Result<()> {
    comm.barrier()?;
    say(comm, "running", &std::process::id().to_string());
    let file = folder.join(if comm.rank() == Rank(0) { "send" } else { "receive" });
    while !file.exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut data = [comm.rank().0; 3];
    comm.broadcast(&mut data, Rank(0))?;
    assert_eq!(data, [0; 3]);
    Ok(())
}

/// Sends to rank 1 once a file is there, and leaves. Rank 1 receives.
fn leaves(comm: &mut Communicator, folder: &Path) -> Result<()> {
    comm.barrier()?;
    say(comm, "running", &std::process::id().to_string());
    if comm.rank() == Rank(0) {
        while !folder.join("send").exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        return comm.send(&[7u32; 3], Rank(1));
    }
    let mut data = [0u32; 3];
    comm.recv(&mut data, Rank(0))?;
    assert_eq!(data, [7; 3]);
    Ok(())
}

/// Repeats an all_reduce until rank 1 aborts, from another thread.
fn abort(mut comm: Communicator) {
    comm.barrier().expect("all is well yet");
    let (rank, comm) = (comm.rank(), SharedCommunicator::new(comm));
    let mut data = vec![1i32; 200_000];
    let error = std::thread::scope(|scope| {
        if rank == Rank(1) {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                print(&format!("\n@aborted {rank} {}\n", milliseconds()));
                comm.abort();
            });
        }
        let mut reduce = || comm.with(|comm| comm.all_reduce_in_place(&mut data, ReduceOp::Max));
        std::iter::repeat_with(|| reduce().expect("open").err()).flatten().next().expect("an endless loop")
    });
    print(&format!("\n@error {rank} {} {error}\n", milliseconds()));
}

/// The last rank reduces fewer elements than the others. Then all ranks make the same call.
fn disagree(comm: &mut Communicator) -> Result<()> {
    comm.barrier()?;
    let is_last = comm.rank().0 + 1 == comm.size();
    let mut data = vec![1i32; 1000 - usize::from(is_last)];
    comm.all_reduce_in_place(&mut data, ReduceOp::Sum)?;
    comm.barrier()
}
