//! Roles of ranks that use the program's own registered memory, or a large slab.

use crate::roles::{combined, element, say};
use tbccl::{Communicator, Rank, ReduceOp, Result};

/// Uses the program's own registered memory, more of it than devices have room for.
pub(crate) fn own_memory(comm: &mut Communicator, devices: &str) -> Result<()> {
    let (is_known, has_room) = (devices != "refuse", devices == "know it");
    let (n, me) = (comm.size(), comm.rank().0);
    let mut known: Vec<_> = (0..4).map(|_| comm.register(vec![0i32; 300_000])).collect::<Result<_>>()?;
    assert!(known.iter().all(|memory| memory.is_known_to_devices() == is_known));
    for round in 0..8 {
        let [mut a, mut b] = [round % 4, (round * 2 + 1) % 4];
        if a == b {
            b = (a + 1) % 4;
        }
        if a > b {
            (a, b) = (b, a);
        }
        let (left, right) = known.split_at_mut(b);
        let (input, output) = (&mut left[a], &mut right[0]);
        input.iter_mut().enumerate().for_each(|(at, x)| *x = element(me, at + round) as i32);
        let before = comm.counters().copied_bytes;
        comm.all_reduce(input, output, ReduceOp::Sum)?;
        let wrong =
            output.iter().enumerate().find(|(at, x)| **x != combined(ReduceOp::Sum, n, at + round) as i32);
        assert!(wrong.is_none(), "round {round}: {wrong:?}");
        comm.broadcast(&mut input[77..200_077], Rank(0))?;
        assert!(
            input[77..200_077].iter().enumerate().all(|(at, x)| *x == element(0, at + 77 + round) as i32)
        );
        let copied = comm.counters().copied_bytes - before;
        assert_eq!(copied == 0, has_room, "round {round}: {copied} bytes were copied");
    }
    let mut vector = known.swap_remove(0).into_vec();
    drop(known);
    let before = comm.counters().copied_bytes;
    comm.broadcast(&mut vector, Rank(0))?;
    assert!(comm.counters().copied_bytes > before, "it is not registered any more");
    let mut again = comm.register(vector)?;
    comm.broadcast(&mut again[5000..], Rank(1))?;
    Ok(())
}

/// Leaks the guards of registered memory, and uses memory that is mapped afterwards.
pub(crate) fn leaked_memory(comm: &mut Communicator) -> Result<()> {
    // Blocks of this size have a mapping each, whose address the next one takes when it is free.
    const COUNT: usize = 300_000;
    let (n, me) = (comm.size(), comm.rank().0);
    for round in 0..4 {
        let mut known = comm.register(vec![0i32; COUNT])?;
        assert!(known.is_known_to_devices());
        comm.all_reduce_in_place(&mut known, ReduceOp::Sum)?;
        std::mem::forget(known);
        let mut fresh: Vec<i32> = (0..COUNT).map(|at| element(me, at + round) as i32).collect();
        let before = comm.counters().copied_bytes;
        comm.all_reduce_in_place(&mut fresh, ReduceOp::Sum)?;
        let copied = comm.counters().copied_bytes - before;
        assert!(copied > 0, "round {round}: memory that nobody registered was taken for registered");
        let right = |at| combined(ReduceOp::Sum, n, at + round) as i32;
        let wrong = fresh.iter().enumerate().find(|(at, x)| **x != right(*at));
        assert!(wrong.is_none(), "round {round}: {wrong:?}");
    }
    Ok(())
}

/// Uses the program's own registered memory between four ranks of two hosts: devices access it in place.
pub(crate) fn far_memory(comm: &mut Communicator, devices: &str) -> Result<()> {
    let is_known = devices == "know it";
    let me = comm.rank().0;
    let far = Rank((me + 2) % 4);
    let mut memory = comm.register(vec![0i32; 300_000])?;
    assert_eq!(memory.is_known_to_devices(), is_known);
    for round in 0..4 {
        let sends = (me < 2) == (round % 2 == 0);
        let from = if sends { me } else { far.0 };
        memory
            .iter_mut()
            .enumerate()
            .for_each(|(at, x)| *x = if sends { element(me, at + round) as i32 } else { 0 });
        let before = comm.counters().copied_bytes;
        if sends {
            comm.send(&memory, far)?;
        } else {
            comm.recv(&mut memory, far)?;
        }
        let copied = comm.counters().copied_bytes - before;
        assert_eq!(copied == 0, is_known, "round {round}: {copied} bytes were copied");
        let wrong = memory.iter().enumerate().find(|(at, x)| **x != element(from, at + round) as i32);
        assert!(wrong.is_none(), "round {round}: {wrong:?}");
        memory.iter_mut().enumerate().for_each(|(at, x)| *x = element(me, at) as i32);
        comm.all_reduce_in_place(&mut memory, ReduceOp::Sum)?;
        let wrong = memory.iter().enumerate().find(|(at, x)| **x != combined(ReduceOp::Sum, 4, *at) as i32);
        assert!(wrong.is_none(), "round {round}: {wrong:?}");
    }
    Ok(())
}

/// Rank 1 exits during calls on the program's own registered memory. The other rank unmaps its memory after
/// its call has failed, while connections are still served.
pub(crate) fn abandon(comm: &mut Communicator) -> Result<()> {
    let mut known = comm.register(vec![1i32; 4 << 20])?;
    let error = (0..).find_map(|round| {
        if round == 5 && comm.rank().0 == 1 {
            std::thread::spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(3));
                std::process::exit(9);
            });
        }
        comm.all_reduce_in_place(&mut known, ReduceOp::Max).err()
    });
    drop(known);
    std::thread::sleep(std::time::Duration::from_millis(300));
    say(comm, "alive", "");
    Err(error.expect("an endless loop"))
}

/// Touches a few parts of buffers all over a slab of 6 GiB.
pub(crate) fn large_slab(comm: &mut Communicator) -> Result<()> {
    let (n, me) = (comm.size(), comm.rank().0);
    let gib = (1usize << 30) / size_of::<i32>();
    let mut buffers: Vec<_> = (0..5).map(|_| comm.alloc::<i32>(gib)).collect::<Result<_>>()?;
    for buffer in &mut buffers {
        for at in [0, gib / 3, gib - 5000] {
            let part = &mut buffer[at..at + 5000];
            part.iter_mut().for_each(|x| *x = me as i32 + 1);
            comm.all_reduce_in_place(part, ReduceOp::Sum)?;
            assert!(part.iter().all(|x| *x == (1..=n as i32).sum::<i32>()), "wrong at {at}");
        }
    }
    assert!(comm.alloc::<i32>(2 * gib).is_err(), "6 GiB are full");
    say(comm, "full", "");
    Ok(())
}
