//! The order in which bytes become visible to a program that polls the last of them.

use crate::{
    children::{Child, WRITES, length},
    rig::{End, Options, Rig},
    verbs::{TIMEOUT, Work},
};
use std::time::Instant;
use verbs_sys::{QpType, SendFlags, WcStatus, WrOpcode};

/// A child writes; this process polls the last word of each message. When that word arrives, all others must
/// be there.
pub(crate) fn no_write_is_torn(rig: &Rig) {
    let child = Child::start(rig, QpType::RC, "write");
    let a = End::new(&rig.open("a"), QpType::RC, Options::default());
    let info = child.exchange(&a.info());
    a.connect(&info, Options::default());
    child.begin();
    let answer = 8192;
    for number in 1..=WRITES {
        let began = Instant::now();
        let len = length(number);
        let mut turns = 0u32;
        while a.memory.aligned_word(len - 8) != number {
            turns += 1;
            if turns.is_multiple_of(1000) {
                std::thread::yield_now();
                assert!(began.elapsed() < TIMEOUT, "no message {number}");
            }
        }
        // The words before the last are checked from the end, since those are copied last.
        let torn = (0..len / 8).rev().find(|word| a.memory.aligned_word(word * 8) != number);
        assert_eq!(torn, None, "message {number} of {len} bytes: a word that came after the last");
        a.memory.set_word(answer, number);
        let is_last = number % 8 == 0;
        let flags = if is_last { SendFlags::SIGNALED } else { SendFlags::NONE };
        let write =
            Work::new(WrOpcode::RDMA_WRITE, &[a.sge(answer, 8)]).at(info.address + answer as u64, info.rkey);
        a.post(&write.flags(flags));
        if is_last {
            assert_eq!(a.sent().1, WcStatus::SUCCESS);
        }
    }
    assert!(child.exits_successfully());
}
