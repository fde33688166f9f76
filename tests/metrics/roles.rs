//! The roles of ranks in these tests.

use crate::job::FOLDER;
use std::{path::Path, thread, time::Duration};
use support::eventually;
use tbccl::{Communicator, Rank, ReduceOp};

/// Plays the role of this process, if it has one; not a test.
#[test]
fn play() {
    let Ok(role) = std::env::var("ROLE") else { return };
    let mut comm = Communicator::from_env().expect("a job");
    let rank = comm.rank();
    match role.as_str() {
        "work" => work(&mut comm),
        "busy" => {}
        other => panic!("no role {other}"),
    }
    say("worked", rank);
    let folder = std::env::var(FOLDER).expect("a folder");
    let is_released = || Path::new(&folder).join(format!("leave-{rank}")).exists();
    if role == "busy" {
        let mut data = vec![1.0f32; 16 << 10];
        // All ranks go on while any of them has not been released.
        let mut going = [1u8];
        while going[0] > 0 {
            going[0] = u8::from(!is_released());
            comm.all_reduce_in_place(&mut going, ReduceOp::Max).expect("both are there");
            comm.all_reduce_in_place(&mut data, ReduceOp::Max).expect("both are there");
            thread::sleep(Duration::from_millis(1));
        }
    } else {
        eventually("the test releases this rank", is_released);
    }
    drop(comm);
    say("left", rank);
}

/// Prints in one write, so that lines of ranks do not mix.
fn say(word: &str, rank: Rank) {
    use std::io::Write;
    let text = format!("\n@{word} {rank} -\n");
    std::io::stdout().write_all(text.as_bytes()).expect("a pipe");
}

/// Makes five sums of 1000 `f32`, one gathering of 8 bytes per rank, two barriers, and a message of 40 bytes
/// from rank 0 to rank 1, which comes 200 ms late.
fn work(comm: &mut Communicator) {
    let mut data = [1.0f32; 1000];
    (0..5).for_each(|_| comm.all_reduce_in_place(&mut data, ReduceOp::Sum).expect("a sum"));
    comm.all_gather(&[1u64], &mut [0u64; 2]).expect("both are there");
    (0..2).for_each(|_| comm.barrier().expect("both are there"));
    match comm.rank() {
        Rank(0) => {
            thread::sleep(Duration::from_millis(200));
            comm.send(&[7u64; 5], Rank(1)).expect("it is received");
        }
        _ => comm.recv(&mut [0u64; 5], Rank(0)).expect("it is sent"),
    }
}
