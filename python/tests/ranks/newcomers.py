"""Ranks whose communicator grows twice: rank 0 starts new ranks, which join by an id.

    tbccl run -n 2 -- python newcomers.py
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np

import tbccl


def check(comm: tbccl.Communicator, rank: int, size: int) -> None:
    """Checks collectives, and a message from the last rank to the first."""
    assert (comm.rank, comm.size) == (rank, size), (comm, rank, size)
    assert comm.all_gather(np.array([rank])).ravel().tolist() == list(range(size))
    assert comm.all_reduce(np.ones(5000))[0] == size
    if rank == size - 1:
        comm.send(np.array([rank]), 0, tag=7)
    if rank == 0:
        assert comm.recv(np.zeros(1, int), size - 1, 7)[0] == size - 1


def join_as_new_rank(rank: int, size: int) -> None:
    """Joins as a process that the job's launcher did not start."""
    uid = bytes.fromhex(sys.stdin.readline())
    with tbccl.Communicator.from_unique_id(uid, rank, size, timeout=60) as comm:
        check(comm, rank, size)
    print("@joined", flush=True)


def grow_to(comm: tbccl.Communicator, size: int) -> None:
    """Grows to `size` ranks; the new communicator lives beside the old one, which may grow again."""
    processes, uid = [], None
    if comm.rank == 0:
        uid = comm.grow_id()
        for rank in range(comm.size, size):
            command = [sys.executable, __file__, str(rank), str(size)]
            processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, text=True))
            processes[-1].stdin.write(uid.hex() + "\n")
            processes[-1].stdin.close()
    with comm.grow(uid, size, timeout=60) as larger:
        check(larger, comm.rank, size)
        check(comm, comm.rank, comm.size)
    assert [process.wait(60) for process in processes] == [0] * len(processes)


def main() -> None:
    if sys.argv[1:]:
        join_as_new_rank(int(sys.argv[1]), int(sys.argv[2]))
        return
    with tbccl.init(timeout=60) as comm:
        grow_to(comm, comm.size + 1)
        grow_to(comm, comm.size + 2)
        try:
            comm.grow(comm.grow_id() if comm.rank == 0 else None, comm.size - 1)
        except tbccl.InvalidArgumentError:
            print("@refused", flush=True)


main()
