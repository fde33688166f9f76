"""Ranks that grow: one of them starts new ones, which join by an id, twice.

    tbccl run -n 2 -- python newcomers.py
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np

import tbccl


def check(comm: tbccl.Communicator, rank: int, size: int) -> None:
    """What any communicator does, and a message from the last rank to the first."""
    assert (comm.rank, comm.size) == (rank, size), (comm, rank, size)
    assert comm.all_gather(np.array([rank])).ravel().tolist() == list(range(size))
    assert comm.all_reduce(np.ones(5000))[0] == size
    if rank == size - 1:
        comm.send(np.array([rank]), 0, tag=7)
    if rank == 0:
        assert comm.recv(np.zeros(1, int), size - 1, 7)[0] == size - 1


def be_new(rank: int, size: int) -> None:
    """A process that no launcher of the job knows of."""
    uid = bytes.fromhex(sys.stdin.readline())
    with tbccl.Communicator.from_unique_id(uid, rank, size, timeout=60) as comm:
        check(comm, rank, size)
    print("@joined", flush=True)


def grown(comm: tbccl.Communicator, size: int) -> None:
    """Grows to a size; the new communicator lives beside the old one, which may grow again."""
    new, uid = [], None
    if comm.rank == 0:
        uid = comm.grow_id()
        for rank in range(comm.size, size):
            command = [sys.executable, __file__, str(rank), str(size)]
            new.append(subprocess.Popen(command, stdin=subprocess.PIPE, text=True))
            new[-1].stdin.write(uid.hex() + "\n")
            new[-1].stdin.close()
    with comm.grow(uid, size, timeout=60) as larger:
        check(larger, comm.rank, size)
        check(comm, comm.rank, comm.size)
    assert [process.wait(60) for process in new] == [0] * len(new)


def main() -> None:
    if sys.argv[1:]:
        be_new(int(sys.argv[1]), int(sys.argv[2]))
        return
    with tbccl.init(timeout=60) as comm:
        grown(comm, comm.size + 1)
        grown(comm, comm.size + 2)
        try:
            comm.grow(comm.grow_id() if comm.rank == 0 else None, comm.size - 1)
        except tbccl.InvalidArgumentError:
            print("@refused", flush=True)


main()
