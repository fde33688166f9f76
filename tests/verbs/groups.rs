//! Many communicators and tagged messages over the queue pairs of one.

use crate::roles::say;
use std::time::{Duration, Instant};
use support::{FabricJob, Shape, Wiring};
use tbccl::{Communicator, Config, P2p, Rank, ReduceOp};
use tbccl_cli::reference::parcel;

const GROUPS: u32 = 32;
/// Bytes of a tagged message that goes from memory to memory.
const LONG: usize = 700_000;

/// Role: the world, 32 groups and tagged messages, all in use at a time.
pub(crate) fn many(mut comm: Communicator) {
    let config = Config::from_env().expect("good options");
    let me = comm.rank().0;
    let split = |comm: &mut Communicator, color: u32| {
        comm.split(Some(color), 0, &config).expect("all take part").expect("a color was given")
    };
    let p2p = P2p::new(split(&mut comm, 0)).expect("it works");
    let mut groups: Vec<Communicator> = (0..GROUPS)
        // Every third group is a half of the ranks.
        .map(|number| split(&mut comm, if number % 3 == 2 { me / 2 } else { 0 }))
        .collect();
    let next = (me + 1) % comm.size();
    for round in 0..3u32 {
        let previous = (me + comm.size() - 1) % comm.size();
        let received = parcel::recv(&p2p, Some(previous), 0, Some(7), LONG).expect("posted");
        let sent = parcel::send(&p2p, next, 0, 7, vec![(me + round) as u8; LONG]).expect("posted");
        for count in [1usize, 5000, 200_000] {
            for group in groups.iter_mut().chain([&mut comm]) {
                let mut sum = vec![group.rank().0 + round; count];
                group.all_reduce_in_place(&mut sum, ReduceOp::Sum).expect("all take part");
                let expected: u32 = (0..group.size()).map(|rank| rank + round).sum();
                assert!(sum.iter().all(|value| *value == expected), "{count} elements in round {round}");
                if count == 200_000 && round > 0 {
                    break;
                }
            }
        }
        sent.open().expect("it has arrived");
        let (_, bytes) = received.open().expect("it has arrived");
        assert!(bytes.iter().all(|byte| *byte == (previous + round) as u8));
    }
    // The world goes first, and what it has opened stays.
    say(&comm, "done", "");
    drop(comm);
    let last = groups.last_mut().expect("there are 32");
    last.barrier().expect("all take part");
}

/// Role: long messages over the world and groups in a random order, which all ranks know.
pub(crate) fn in_turns(mut comm: Communicator) {
    let config = Config::from_env().expect("good options");
    let mut groups: Vec<Communicator> = (0..4)
        .map(|_| comm.split(Some(0), 0, &config).expect("all take part").expect("a color was given"))
        .collect();
    let me = comm.rank().0;
    let mut data = vec![0u32; 80_000];
    let mut state = 0x1234_5678_9abc_def1u64;
    for round in 0..1500u32 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let root = Rank((state >> 20) as u32 % comm.size());
        let part = &mut data[..20_000 + (state >> 30) as usize % 60_000];
        part.fill(round ^ me);
        let group = match (state >> 50) as usize % 5 {
            4 => &mut comm,
            group => &mut groups[group],
        };
        group.broadcast(part, root).expect("all take part");
        assert!(part.iter().all(|value| *value == round ^ root.0), "round {round}");
    }
    say(&comm, "done", "");
}

/// Role: makes groups until the slab has no room for the streams of one; the world goes on, and takes the
/// place of the groups.
pub(crate) fn too_many(mut comm: Communicator) {
    let config = Config::from_env().expect("good options");
    let mut groups = Vec::new();
    let error = loop {
        match comm.split(Some(0), 0, &config) {
            Ok(group) => groups.extend(group),
            Err(error) => break error.to_string(),
        }
        assert!(groups.len() < 100, "the slab has no room for all of them");
    };
    assert!(error.contains("TBCCL_SLAB_BYTES"), "{error}");
    assert!(groups.len() > 2, "{} groups", groups.len());
    let mut sum = vec![1u32; 100_000];
    for group in groups.iter_mut().chain([&mut comm]) {
        group.all_reduce_in_place(&mut sum, ReduceOp::Max).expect("it is none of theirs");
    }
    drop(groups);
    let again = comm.split(Some(0), 0, &config).expect("there is room again").expect("a color was given");
    drop(again);
    say(&comm, "done", "");
}

/// Role: ranks 0 and 1 go on in a group of their own for three seconds, whatever becomes of rank 2.
pub(crate) fn bystanders(mut comm: Communicator) {
    let config = Config::from_env().expect("good options");
    let color = comm.rank().0 / 2;
    let mut group = comm.split(Some(color), 0, &config).expect("all take part").expect("a color was given");
    say(&comm, "made", "");
    let until = Instant::now() + Duration::from_secs(3);
    let mut go = [1u8];
    while go[0] == 1 {
        go[0] = u8::from(Instant::now() < until);
        group.broadcast(&mut go, Rank(0)).expect("rank 2 is not in the group");
    }
    say(&comm, "done", "");
}

/// A stream that was not opened once closed the first one to the same rank, which is the world's, in its
/// stead: the next call panicked (`chaos --seed 21 --round 30 --transport shm+verbs --fabric ib`).
#[test]
fn a_group_for_which_there_is_no_memory_closes_no_stream_of_others() {
    let wiring = Wiring { profile: "ib", shape: Shape::Mesh, nodes: 3, cables: 1 };
    let env = [("TBCCL_SLAB_BYTES", "64M")];
    FabricJob::run(&wiring, "", "too_many", &env).assert_success("done", 3);
}

/// A peer that can't be reached is no error for communicators that do not have it, though they share a wire.
#[test]
fn a_rank_without_a_cable_fails_no_group_that_it_is_not_in() {
    let wiring = Wiring { profile: "apple-tb5", shape: Shape::Mesh, nodes: 3, cables: 1 };
    let env = [("SOFTRDMA_REMAP", "1"), ("TBCCL_CABLE_WAIT", "0.3")];
    let mut job = FabricJob::start(&wiring, "", "bystanders", &env);
    job.wait_for("made", 3);
    job.fault(&["unplug", "n2/d0"]);
    job.fault(&["unplug", "n2/d1"]);
    job.finish().assert_success("done", 3);
}

/// A receive may be announced by the link while it is polled, after an attempt of the runtime that came too
/// early. It must not be announced twice: all later messages would be taken for others.
#[test]
fn a_receive_is_announced_once_though_the_queues_change_hands_meanwhile() {
    let env = [("SOFTRDMA_REMAP", "1"), ("TBCCL_TIMEOUT", "20")];
    let wiring = Wiring::pair("apple-tb5", 1);
    FabricJob::run(&wiring, "latency_us = 10.0\njitter_us = 10.0", "in_turns", &env)
        .assert_success("done", 2);
}

/// The rails of a process have three queue pairs, whatever is made over them.
#[test]
fn the_world_and_32_groups_and_tagged_messages_need_three_queue_pairs() {
    for nodes in [2, 4] {
        let wiring = Wiring { profile: "apple-tb5", shape: Shape::Mesh, nodes, cables: 1 };
        let env = [("SOFTRDMA_REMAP", "1")];
        let job = FabricJob::start_with(&wiring, "", "many_groups", &env, |home| {
            let file = home.join("fabric.toml");
            let text =
                std::fs::read_to_string(&file).expect("our file").replace(" }", ", usable_queue_pairs = 3 }");
            std::fs::write(file, text).expect("our folder");
        });
        job.finish().assert_success("done", nodes);
    }
}

/// Devices that write into remote memory have one queue pair per rail.
#[test]
fn the_world_and_32_groups_and_tagged_messages_need_one_queue_pair_with_remote_writes() {
    for profile in ["ib", "usb4"] {
        let env = [("SOFTRDMA_REMAP", "1")];
        let job = FabricJob::start_with(&Wiring::pair(profile, 1), "", "many_groups", &env, |home| {
            let file = home.join("fabric.toml");
            // One more for the probes of set-up.
            let text =
                std::fs::read_to_string(&file).expect("our file").replace(" }", ", usable_queue_pairs = 2 }");
            std::fs::write(file, text).expect("our folder");
        });
        job.finish().assert_success("done", 2);
    }
}
