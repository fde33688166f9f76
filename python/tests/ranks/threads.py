"""Two threads use one communicator, each in an order that all ranks have; and two have a communicator each."""

from __future__ import annotations

import threading

import numpy as np

import tbccl

failures: list[BaseException] = []


def guarded(work, *arguments) -> threading.Thread:
    def body() -> None:
        try:
            work(*arguments)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    return thread


def sums(comm: tbccl.Communicator, count: int) -> None:
    for turn in range(100):
        total = comm.all_reduce(np.full(count, comm.rank + turn, np.int64))
        assert (total == sum(range(comm.size)) + turn * comm.size).all()


def alternate(comm: tbccl.Communicator, turns: list[threading.Semaphore], mine: int) -> None:
    for turn in range(50):
        turns[mine].acquire()
        work = comm.all_reduce_async(np.full(3, 10 * mine + turn))
        turns[1 - mine].release()
        assert (work.result() == (10 * mine + turn) * comm.size).all()


def main() -> None:
    with tbccl.init(timeout=60) as comm:
        one, other = comm.split(0), comm.split(0)
        for thread in [guarded(sums, one, 3), guarded(sums, other, 3000)]:
            thread.join()
        turns = [threading.Semaphore(1), threading.Semaphore(0)]
        for thread in [guarded(alternate, comm, turns, mine) for mine in (0, 1)]:
            thread.join()
        # While one thread waits, another one runs Python.
        counted = 0
        waiting = guarded(comm.barrier)
        if comm.rank == 0:
            for counted in range(100_000):
                pass
            waiting.join()
            assert counted == 99_999
        else:
            waiting.join()
    if failures:
        raise failures[0]


main()
