"""Two threads with a communicator each, and two that share one in an order that all ranks follow."""

from __future__ import annotations

import threading

import numpy as np

import tbccl

failures: list[BaseException] = []


def start_thread(work, *arguments) -> threading.Thread:
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


def alternate(comm: tbccl.Communicator, semaphores: list[threading.Semaphore], index: int) -> None:
    for turn in range(50):
        semaphores[index].acquire()
        work = comm.all_reduce_async(np.full(3, 10 * index + turn))
        semaphores[1 - index].release()
        assert (work.result() == (10 * index + turn) * comm.size).all()


def main() -> None:
    with tbccl.init(timeout=60) as comm:
        first, second = comm.split(0), comm.split(0)
        for thread in [start_thread(sums, first, 3), start_thread(sums, second, 3000)]:
            thread.join()
        semaphores = [threading.Semaphore(1), threading.Semaphore(0)]
        for thread in [start_thread(alternate, comm, semaphores, index) for index in (0, 1)]:
            thread.join()
        # Another thread runs Python code while one waits in a call.
        counted = 0
        waiting = start_thread(comm.barrier)
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
