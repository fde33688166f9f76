//! Scenarios with derived communicators, independent of how the ranks were started.
//!
//! Each process has a name, its rank in the first communicator, which identifies it in derived communicators.
//! A violation is a panic, which ends the rank with an exit status other than 0.

use std::{
    io::Write,
    time::{Duration, Instant, SystemTime},
};
use tbccl::{Communicator, Config, Error, Rank, ReduceOp, Result, UniqueId};

/// Elements of an all_reduce of 64 MiB.
pub(crate) const LARGE: usize = 16 << 20;

/// Returns milliseconds since the epoch, a clock that processes share.
pub(crate) fn milliseconds() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis()
}

/// Prints a message in one write, so that lines of ranks do not mix.
pub(crate) fn print_message(word: &str, name: u32, rest: &str) {
    let _ = std::io::stdout().write_all(format!("\n@{word} {name} {rest}\n").as_bytes());
    let _ = std::io::stdout().flush();
}

pub(crate) fn config() -> Config {
    Config::from_env().expect("good options")
}

/// Asserts that the communicator has these members in this order, and works.
pub(crate) fn check(comm: &mut Communicator, name: u32, members: &[u32]) {
    assert_eq!(comm.size() as usize, members.len(), "{name}: {members:?}");
    assert_eq!(members[comm.rank().index()], name, "{members:?}");
    let mut names = vec![0; members.len()];
    comm.all_gather(&[name], &mut names).expect("all take part");
    assert_eq!(names, members, "as {name} sees it");
    let (mut sum, wanted) = (vec![f64::from(name); 5000], members.iter().sum::<u32>());
    comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).expect("all take part");
    assert!(sum.iter().all(|value| *value == f64::from(wanted)), "{name}: {} and not {wanted}", sum[0]);
    comm.barrier().expect("all take part");
}

/// Splits communicators in several ways, and closes them in different orders.
pub(crate) fn split(mut comm: Communicator) {
    let (name, size) = (comm.rank().0, comm.size());
    let everyone: Vec<u32> = (0..size).collect();
    let reversed: Vec<u32> = (0..size).rev().collect();
    // One group in reverse order.
    let mut turned = made(comm.split(Some(7), -(name as i32), &config()));
    check(&mut turned, name, &reversed);
    check(&mut comm, name, &everyone);
    // Two groups by parity, where equal keys keep the order; some ranks join no group.
    let same: Vec<u32> = everyone.iter().copied().filter(|other| other % 2 == name % 2).collect();
    let mut half = made(comm.split(Some(name % 2), 5, &config()));
    check(&mut half, name, &same);
    let part = comm.split((name > 0).then_some(u32::MAX), i32::MIN, &config()).expect("all call it");
    assert_eq!(part.is_none(), name == 0);
    if let Some(mut part) = part {
        check(&mut part, name, &everyone[1..]);
    }
    // Split a communicator derived from a closed one, and one derived from another.
    drop(comm);
    check(&mut turned, name, &reversed);
    let mut again = made(turned.split(Some(0), name as i32, &config()));
    drop(turned);
    check(&mut again, name, &everyone);
    let mut alone = made(half.split(Some(name), 0, &config()));
    check(&mut alone, name, &[name]);
    // Odd ranks close in another order than even ones.
    if name % 2 == 0 {
        drop(half);
        check(&mut again, name, &everyone);
        drop(again);
    } else {
        check(&mut again, name, &everyone);
        drop(again);
        drop(half);
    }
    drop(alone);
    print_message("split", name, "");
}

fn made(split: Result<Option<Communicator>>) -> Communicator {
    split.expect("all take part").expect("a colour was given")
}

/// Shrinks a communicator without failures, and one that has been shrunk.
pub(crate) fn shrink_healthy(mut comm: Communicator) {
    let (name, size) = (comm.rank().0, comm.size());
    let everyone: Vec<u32> = (0..size).collect();
    let mut all = comm.shrink(&[], &config()).expect("all take part");
    check(&mut all, name, &everyone);
    if name > 0 {
        let mut some = comm.shrink(&[Rank(0)], &config()).expect("they take part");
        check(&mut some, name, &everyone[1..]);
        if name > 1 {
            let mut fewer = some.shrink(&[Rank(0)], &config()).expect("they take part");
            drop(some);
            check(&mut fewer, name, &everyone[2..]);
        }
    }
    check(&mut comm, name, &everyone);
    print_message("shrunk", name, "");
}

/// Returns a pseudo-random number of a seed and a round.
pub(crate) fn random(seed: u64, round: u32) -> u64 {
    let mut x = seed.wrapping_add(u64::from(round).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Kills one rank after another during an all_reduce of `count` elements; the others shrink the communicator
/// until `last` are left.
pub(crate) fn ladder(mut comm: Communicator, seed: u64, last: usize, count: usize) {
    let name = comm.rank().0;
    let mut members: Vec<u32> = (0..comm.size()).collect();
    let (input, mut output) = (vec![1.0f32; count], vec![0.0; count]);
    for round in 0.. {
        check(&mut comm, name, &members);
        if members.len() == last {
            break;
        }
        let chance = random(seed, round);
        let victim = Rank((chance % members.len() as u64) as u32);
        if comm.rank() == victim {
            // No rank may still be in an earlier call when the victim dies.
            comm.all_reduce(&input, &mut output, ReduceOp::Sum).expect("all take part");
            kill_soon(Duration::from_micros((chance >> 32) % 60_000), name, round);
        }
        let error = reduce_until_it_fails(&mut comm, &input, &mut output);
        print_message("error", name, &format!("{round} {} {error}", milliseconds()));
        assert!(matches!(&error, Error::PeerDied { peer, .. } if peer.rank == victim), "{victim}: {error}");
        let shrunk = comm.shrink(&[victim], &config()).unwrap_or_else(|error| panic!("{name}: {error}"));
        comm = shrunk;
        members.remove(victim.index());
    }
    print_message("through", name, &members.len().to_string());
}

fn reduce_until_it_fails(comm: &mut Communicator, input: &[f32], output: &mut [f32]) -> Error {
    let sum = comm.size() as f32;
    loop {
        if let Err(error) = comm.all_reduce(input, output, ReduceOp::Sum) {
            return error;
        }
        assert!(output.iter().all(|x| *x == sum), "wrong without an error");
    }
}

/// Kills this process after a delay, and prints the time.
fn kill_soon(after: Duration, name: u32, round: u32) {
    std::thread::spawn(move || {
        std::thread::sleep(after);
        print_message("dying", name, &format!("{round} {}", milliseconds()));
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    });
}

/// Kills two ranks, of which the others first learn of one. A shrink that leaves out too few ranks names the
/// missing one.
pub(crate) fn two_die(mut comm: Communicator) {
    let (name, size) = (comm.rank().0, comm.size());
    let dead = [Rank(0), Rank(size - 2)];
    if dead.contains(&comm.rank()) {
        comm.barrier().expect("all take part");
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    comm.barrier().and_then(|()| comm.barrier()).expect_err("some are dead");
    let mut left_out = vec![dead[usize::from(std::env::var("FIRST").as_deref() == Ok("1"))]];
    let began = Instant::now();
    let mut shrunk = loop {
        match comm.shrink(&left_out, &config()) {
            Ok(shrunk) => break shrunk,
            Err(Error::Absent { ranks, why }) => {
                print_message("absent", name, &why);
                assert!(
                    !ranks.is_empty() && ranks.iter().all(|rank| dead.contains(rank)),
                    "{ranks:?}: {why}"
                );
                left_out.extend(ranks);
            }
            Err(other) => panic!("{name}: {other}"),
        }
    };
    let rest: Vec<u32> = (0..size).filter(|other| !dead.contains(&Rank(*other))).collect();
    check(&mut shrunk, name, &rest);
    print_message("through", name, &began.elapsed().as_millis().to_string());
}

/// Splits a communicator. A rank dies after the exchange of colors, before it meets the others.
pub(crate) fn split_orphaned(mut comm: Communicator, victim: Rank) {
    let name = comm.rank().0;
    if comm.rank() == victim {
        // The part of a split that travels over links.
        let mut words = vec![0i64; 2 * comm.size() as usize];
        comm.all_gather(&[0, 0], &mut words).expect("all take part");
        std::thread::sleep(Duration::from_millis(300));
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    let patient = Config { timeout: Duration::from_secs(60), ..config() };
    let began = Instant::now();
    let error = comm.split(Some(0), 0, &patient).map(drop).expect_err("a rank never comes");
    assert!(matches!(&error, Error::Absent { ranks, .. } if ranks[..] == [victim]), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}: {error}", began.elapsed());
    print_message("orphaned", name, &error.to_string());
}

/// Grows a communicator by as many new ranks, which are threads, and closes the old one meanwhile.
pub(crate) fn grow(mut comm: Communicator) {
    let (name, size) = (comm.rank().0, comm.size());
    // Any rank may create the id; here the last one does.
    let ours = (name + 1 == size).then(|| comm.grow_id().expect("a rendezvous"));
    let everyone: Vec<u32> = (0..2 * size).collect();
    let newcomer = |id: UniqueId, new: u32| {
        let mut grown = Communicator::from_unique_id(&id, new, 2 * size, &config()).expect("all come");
        check(&mut grown, new, &everyone);
    };
    std::thread::scope(|scope| {
        for new in size..2 * size {
            if let Some(id) = &ours {
                let (id, newcomer) = (id.clone(), &newcomer);
                scope.spawn(move || newcomer(id, new));
            }
        }
        let mut grown = comm.grow(ours.as_ref(), 2 * size, &config()).expect("all come");
        drop(comm);
        check(&mut grown, name, &everyone);
    });
    print_message("grown", name, "");
}

/// Grows a communicator by a rank that never comes. Rank 0, which has created the id, dies meanwhile.
pub(crate) fn grow_orphaned(mut comm: Communicator) {
    let (name, size) = (comm.rank().0, comm.size());
    let ours = (name == 0).then(|| comm.grow_id().expect("a rendezvous"));
    if name == 0 {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(1));
            std::process::abort();
        });
    }
    let error = comm.grow(ours.as_ref(), size + 1, &config()).expect_err("a rank never comes");
    assert!(matches!(&error, Error::Absent { ranks, .. } if ranks[..] == [Rank(0)]), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("rank 0 (process ") && !text.contains("launcher"), "{text}");
    print_message("orphaned", name, &text);
}

/// Grows the communicator of ranks 0 and 1 by rank 2. Rank 1 does not call it in time.
pub(crate) fn grow_alone(mut comm: Communicator) {
    let name = comm.rank().0;
    let mut pair = comm.split((name < 2).then_some(0), 0, &config()).expect("all call it");
    let mut bytes = pair
        .as_mut()
        .filter(|_| name == 0)
        .map_or([0; UniqueId::BYTES], |pair| *pair.grow_id().expect("a rendezvous").as_bytes());
    comm.broadcast(&mut bytes, Rank(0)).expect("all call it");
    let id = UniqueId::from_bytes(bytes).expect("an id");
    let missing = "rank 1 (process ";
    match (name, pair) {
        (0, Some(mut pair)) => {
            let grown = pair.grow(Some(&id), 3, &config()).expect_err("a rank is missing");
            assert!(matches!(&grown, Error::Absent { ranks, .. } if ranks[..] == [Rank(1)]), "{grown:?}");
            assert!(grown.to_string().contains(missing), "{grown}");
            let began = Instant::now();
            let again = pair.barrier().expect_err("the communicator has failed").to_string();
            assert!(began.elapsed() < Duration::from_secs(1) && again.contains(missing), "{again}");
        }
        (1, _) => std::thread::sleep(config().timeout + Duration::from_secs(1)),
        _ => {
            let patient = Config { timeout: config().timeout + Duration::from_secs(20), ..config() };
            let joined = Communicator::from_unique_id(&id, 2, 3, &patient);
            let error = joined.map(drop).expect_err("nobody else comes").to_string();
            assert!(error.contains("can't grow") && error.contains(missing), "{error}");
        }
    }
    print_message("alone", name, "");
}
