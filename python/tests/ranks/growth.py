"""Ten thousand asynchronous calls of all kinds: neither Python's nor the process's memory may grow."""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc

import numpy as np

import tbccl

ROUNDS = int(sys.argv[1])


def resident() -> int:
    """Returns the resident memory of the process in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def calls(comm: tbccl.Communicator, generator: random.Random) -> None:
    data = np.full(generator.choice([1, 100, 5000]), comm.rank, np.float32)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    kind = generator.randrange(8)
    if kind == 0:
        work = comm.all_reduce_async(data)
    elif kind == 1:
        work = comm.all_gather_async(data)
    elif kind == 2:
        work = comm.reduce_scatter_async(np.concatenate([data] * comm.size))
    elif kind == 3:
        work = comm.broadcast_async(data, generator.randrange(comm.size))
    elif kind == 4:
        counts = [data.size] * comm.size
        work = comm.all_to_all_v_async(np.concatenate([data] * comm.size), counts, counts)
    elif kind == 5:
        group = comm.group()
        group.send(data, right)
        group.recv(np.empty_like(data), left)
        work = group.start()
    elif kind == 6:
        work = comm.all_reduce_async(comm.empty(data.size))
    else:
        work = comm.barrier_async()
    # Waits for some works, tests some, and drops others while they are in progress.
    action = generator.randrange(3)
    if action == 0:
        work.wait()
    elif action == 1:
        work.done()


def main() -> None:
    with tbccl.init(timeout=60) as comm:
        shared_random = random.Random(1)
        for _ in range(ROUNDS // 4):
            calls(comm, shared_random)
        comm.barrier()
        gc.collect()
        tracemalloc.start()
        for _ in range(100):
            calls(comm, shared_random)
        comm.barrier()
        gc.collect()
        before, resident_before = tracemalloc.get_traced_memory()[0], resident()
        for _ in range(ROUNDS):
            calls(comm, shared_random)
        comm.barrier()
        comm.barrier_async().wait()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        resident_grown = resident() - resident_before
        # A few objects may be in flight at either measurement; 200 bytes leaked per call would be megabytes.
        assert grown < 100_000, f"Python's memory has grown by {grown} bytes"
        assert resident_grown < 16 << 20, f"the process has grown by {resident_grown} bytes"


main()
