//! The roles of ranks in these tests.

use crate::{random, scenarios};
use rustix::process::{Signal, getpid, getppid, kill_process};
use std::{
    io::Write,
    time::{Duration, Instant},
};
use tbccl::{Communicator, Config};
use tbccl_cli::reference::parcel;

/// Plays the role of this process, if it has one; not a test.
#[test]
fn play() {
    let Ok(role) = std::env::var("ROLE") else { return };
    let config = Config::from_env().expect("readable");
    let mut comm = Communicator::from_env().expect("all join");
    let p2p = scenarios::p2p_of(&mut comm, &config);
    match role.as_str() {
        "everything" => {
            scenarios::lengths(&p2p);
            scenarios::buffered(&mut comm, &p2p);
            scenarios::ring(&p2p);
            scenarios::from_anyone(&p2p);
            scenarios::beside_a_collective(&mut comm, &p2p);
            scenarios::too_long(&p2p);
            scenarios::in_place(&p2p, comm.transport(), 8 << 20);
            scenarios::eager(&mut comm, &p2p);
            (0..3u32).for_each(|round| random::traffic(&p2p, round.into(), round, 200));
            comm.barrier().expect("all are here");
        }
        "leavers" => leavers(&mut comm, p2p),
        "last_words" => close_after_sending(&mut comm, p2p),
        "slow_neighbour" => slow_neighbour(&mut comm, p2p),
        "killed" => killed(&mut comm, &p2p),
        "close_after_kill" => close_after_kill(&mut comm, p2p),
        other => panic!("no role {other}"),
    }
    print(&format!("\n@done {} \n", comm.rank()));
}

/// Prints in one write, so that lines of ranks do not mix.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}

/// Rank 0 receives from any rank while the others close their p2p one after the other, and sends to one that
/// is still open.
fn leavers(comm: &mut Communicator, p2p: tbccl::P2p) {
    let me = p2p.rank().0;
    let received = (me == 0).then(|| parcel::recv(&p2p, None, 0, None, 8).expect("taken"));
    comm.barrier().expect("all are here");
    if me == 2 {
        drop(p2p);
        comm.barrier().expect("all are here");
        return;
    }
    if me == 1 {
        comm.barrier().expect("all are here");
        std::thread::sleep(Duration::from_millis(200));
        parcel::send(&p2p, 0, 0, 4, vec![1; 8]).expect("taken").open().expect("sent");
        parcel::recv(&p2p, Some(0), 0, None, 8).expect("taken").open().expect("received");
        return;
    }
    let (delivery, _) = {
        comm.barrier().expect("all are here");
        received.expect("posted").open().expect("received")
    };
    assert_eq!((delivery.from.0, delivery.tag), (1, 4));
    parcel::send(&p2p, 1, 0, 0, vec![2; 8]).expect("taken").open().expect("sent");
    let error = parcel::recv(&p2p, None, 0, None, 8).expect("taken").error().to_string();
    assert!(error.contains("closed its communicator"), "{error}");
}

/// Rank 1 sends and closes its p2p. Rank 0 then sends to it in vain, and receives all of its messages.
///
/// With `LATE`, the launcher is stopped for that many milliseconds, which delays its report of the close.
fn close_after_sending(comm: &mut Communicator, p2p: tbccl::P2p) {
    const MESSAGES: i32 = 90;
    let late = std::env::var("LATE").ok().map(|late| Duration::from_millis(late.parse().expect("a number")));
    let launcher = getppid().expect("tbccl run");
    comm.barrier().expect("all are here");
    if p2p.rank().0 == 1 {
        let waker = late.map(|late| {
            kill_process(launcher, Signal::STOP).expect("it is ours");
            std::thread::spawn(move || {
                std::thread::sleep(late);
                kill_process(launcher, Signal::CONT).expect("it is ours");
            })
        });
        for tag in 0..MESSAGES {
            parcel::send_slice(&p2p, 0, tag, &scenarios::bytes_of(1, 0, 10_000)).expect("sent");
        }
        drop(p2p);
        comm.barrier().expect("all are here");
        waker.into_iter().for_each(|waker| waker.join().expect("no panic"));
        return;
    }
    comm.barrier().expect("all are here");
    parcel::send_slice(&p2p, 1, 0, &[0; 8]).expect("it goes, or is not missed");
    std::thread::sleep(Duration::from_millis(50));
    let receive = |tag| parcel::recv(&p2p, Some(1), 0, Some(tag), 10_000).expect("taken");
    for parcel in (0..MESSAGES).map(receive).collect::<Vec<_>>() {
        assert!(parcel.open().expect("it was sent").1 == scenarios::bytes_of(1, 0, 10_000));
    }
}

/// Rank 1 closes its p2p, and waits until rank 2 has received its messages slowly. Rank 0 waits for rank 1
/// meanwhile.
fn slow_neighbour(comm: &mut Communicator, p2p: tbccl::P2p) {
    let me = p2p.rank().0;
    if me == 1 {
        for tag in 0..30 {
            parcel::send_slice(&p2p, 2, tag, &[7; 10_000]).expect("sent");
        }
    }
    comm.barrier().expect("all are here");
    match me {
        0 => {
            let error = parcel::recv(&p2p, Some(1), 0, None, 8).expect("taken").error();
            let is_right = matches!(&error, tbccl::Error::PeerLeft { peer, .. } if peer.rank.0 == 1);
            assert!(is_right, "{error}");
        }
        1 => drop(p2p),
        _ => std::thread::sleep(Duration::from_millis(1500)),
    }
    comm.barrier().expect("all are here");
}

/// Rank 1 is killed while the others wait for a message from it, or for it to receive theirs.
fn killed(comm: &mut Communicator, p2p: &tbccl::P2p) {
    let me = p2p.rank().0;
    comm.barrier().expect("all are here");
    if me == 1 {
        std::thread::sleep(Duration::from_millis(100));
        let _ = kill_process(getpid(), Signal::KILL);
    }
    let began = Instant::now();
    let parcel = match me {
        0 => parcel::recv(p2p, Some(1), 0, None, 8),
        2 => parcel::send(p2p, 1, 0, 4, vec![1; 1 << 20]),
        _ => parcel::recv(p2p, None, 0, None, 8),
    };
    let error = parcel.expect("taken").error().to_string();
    let took = began.elapsed().as_millis();
    print(&format!("\n@error {me} {took} {error}\n"));
    let again = parcel::send(p2p, 0, 0, 0, Vec::new()).expect_err("it has failed").to_string();
    assert_eq!(again, error);
}

/// Rank 0 sends short messages until rank 1, which reads none, is killed. Then it closes its p2p, and prints
/// the milliseconds that this takes.
fn close_after_kill(comm: &mut Communicator, p2p: tbccl::P2p) {
    comm.barrier().expect("all are here");
    if p2p.rank().0 == 1 {
        std::thread::sleep(Duration::from_millis(300));
        let _ = kill_process(getpid(), Signal::KILL);
    }
    let sent: Vec<_> = (0..5000).map(|_| parcel::send(&p2p, 1, 0, 1, vec![1; 8]).expect("taken")).collect();
    std::thread::sleep(Duration::from_millis(900));
    drop(sent);
    let began = Instant::now();
    drop(p2p);
    print(&format!("\n@closed {} {}\n", comm.rank(), began.elapsed().as_millis()));
}
