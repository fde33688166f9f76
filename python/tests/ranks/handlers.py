"""Signal handlers that use communicators: `handlers.py CASE`. The signals interrupt calls of rank 0."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

import tbccl

#: Much shorter than the time limit of calls, much longer than an interrupted wait takes to end.
SOON_SECONDS = 10


def handle_in(seconds: float, handler: Callable[[], None], number: int = signal.SIGUSR1) -> None:
    """Sends a signal to this process in some seconds, and handles it."""
    signal.signal(number, lambda *_: handler())
    threading.Timer(seconds, os.kill, (os.getpid(), number)).start()


def expect(error_type: type[BaseException], call: Callable[[], object]) -> None:
    """Checks that a call raises an error of this type soon."""
    started = time.monotonic()
    try:
        call()
    except error_type:
        elapsed = time.monotonic() - started
        assert elapsed < SOON_SECONDS, elapsed
    else:
        raise AssertionError(f"no {error_type.__name__}")


def queued(comm: tbccl.Communicator) -> None:
    comm.all_reduce_async(np.ones(4))
    comm.all_reduce(np.ones(4))


def grouped(comm: tbccl.Communicator) -> None:
    with comm.group() as group:
        group.all_reduce(np.ones(4))


def closing(comm: tbccl.Communicator) -> None:
    """A handler closes the communicator on which this rank waits: the wait fails, on the other rank too."""
    waits = {
        "blocking": lambda comm: comm.all_reduce(np.ones(4)),
        "queued": queued,
        "waiting": lambda comm: comm.all_reduce_async(np.ones(4)).wait(),
        "timed": lambda comm: comm.all_reduce_async(np.ones(4)).wait(60),
        "group": grouped,
        "receiving": lambda comm: comm.recv(np.ones(4)),
        "splitting": lambda comm: comm.split(0),
    }
    for name, wait in waits.items():
        part = comm.split(0)
        if comm.rank == 0:
            handle_in(0.2, part.with_options(timeout=50).close)
            try:
                expect(tbccl.AbortedError, lambda: wait(part))
            except BaseException as error:
                raise AssertionError(name) from error
            assert part.is_closed, name
            part.close()
            expect(tbccl.Error, part.barrier)
        comm.barrier()
        if comm.rank == 1:
            expect(tbccl.Error, part.barrier)
            part.close()
    print("survived", flush=True)


def waiting_for_itself(comm: tbccl.Communicator) -> None:
    """A handler that would wait for the call that it has interrupted is told so, and the call goes on."""
    issued: list[tbccl.Work] = []
    done_before = comm.barrier_async()
    done_before.wait()

    def handler() -> None:
        for call in (
            comm.barrier,
            comm.barrier_async().wait,
            comm.barrier_async().result,
            lambda: comm.split(0),
            lambda: comm.shrink([1]),
            lambda: comm.grow_id(),
            lambda: comm.empty(3),
            lambda: grouped(comm),
        ):
            expect(tbccl.UsageError, call)
        # These do not wait for the call.
        assert done_before.wait() and comm.async_error() is None
        assert comm.stats()["begun"] >= 1 and "all_reduce" in comm.dump()
        issued.append(comm.all_reduce_async(np.full(2, 5.0)))
        comm.send(np.ones(1), to=1)

    if comm.rank == 0:
        handle_in(0.2, handler)
        assert comm.all_reduce(np.full(3, 7.0)).tolist() == [9.0] * 3
        assert issued[0].result().tolist() == [7.0] * 2
    else:
        comm.recv(np.zeros(1))
        assert comm.all_reduce(np.full(3, 2.0)).tolist() == [9.0] * 3
        comm.barrier()
        comm.barrier()
        assert comm.all_reduce(np.full(2, 2.0)).tolist() == [7.0] * 2
    # A wait for a request may run the call itself. Then the handler is told so, too.
    refused: list[bool] = []

    def call_in_a_wait() -> None:
        try:
            comm.barrier()
            refused.append(False)
        except tbccl.UsageError:
            refused.append(True)

    if comm.rank == 0:
        handle_in(0.2, call_in_a_wait)
        assert comm.all_reduce_async(np.full(2, 1.0)).result().tolist() == [3.0] * 2
        # A handler's call that is not refused runs behind the one that it has interrupted.
        if refused[0]:
            comm.barrier()
    else:
        time.sleep(0.6)
        assert comm.all_reduce(np.full(2, 2.0)).tolist() == [3.0] * 2
        comm.barrier()
    # A wait for another thread, or for a message, blocks no call of the handler.
    if comm.rank == 0:
        results = []
        handle_in(0.2, lambda: results.append(comm.all_reduce(np.ones(2)).tolist()))
        assert comm.recv(np.zeros(2), source=1).tolist() == [4.0, 4.0]
        assert results == [[2.0, 2.0]]
    else:
        comm.all_reduce(np.ones(2))
        comm.send(np.full(2, 4.0), to=0)
    comm.close()
    print("survived", flush=True)


def another_communicator(comm: tbccl.Communicator) -> None:
    """Ctrl-C still ends a call in whose midst a handler has called another communicator."""
    waits = {
        "blocking": lambda comm: comm.all_reduce(np.ones(4)),
        "waiting": lambda comm: comm.all_reduce_async(np.ones(4)).wait(),
        "receiving": lambda comm: comm.recv(np.ones(4)),
    }
    other = comm.split(0)
    for name, wait in waits.items():
        part = comm.split(0)
        if comm.rank == 0:
            sums: list[float] = []

            def handler() -> None:
                sums.append(other.all_reduce(np.ones(1))[0])
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

            handle_in(0.2, handler)
            try:
                expect(KeyboardInterrupt, lambda: wait(part))
            except BaseException as error:
                raise AssertionError(name) from error
            assert sums == [2.0], (name, sums)
        else:
            other.all_reduce(np.ones(1))
        comm.barrier()
        part.close()
    # A closed communicator of which no call is interrupted is closed as ever, in a handler too.
    if comm.rank == 0:
        handle_in(0.2, other.close)
        comm.barrier()
        assert other.is_closed and other.async_error() is None
    else:
        time.sleep(0.5)
        other.close()
        comm.barrier()
    comm.close()
    print("survived", flush=True)


def held_gil(comm: tbccl.Communicator) -> None:
    """A call that a thread makes goes on while the main thread holds the GIL."""
    # After some calls a thread that waits makes them itself.
    calls = 300
    # Rank 1 can't finish the last one without rank 0.
    large = np.ones(1 << 20)

    def wait_for_calls() -> None:
        for _ in range(calls):
            comm.all_reduce_async(np.ones(1)).wait()
        comm.all_reduce_async(large).wait()

    with open(sys.argv[2], "r+b") as file, mmap.mmap(file.fileno(), 1) as is_done:
        if comm.rank == 0:
            thread = threading.Thread(target=wait_for_calls)
            thread.start()
            time.sleep(0.2)
            sys.setswitchinterval(1000)
            until = time.monotonic() + SOON_SECONDS
            while is_done[0] == 0 and time.monotonic() < until:
                pass
            sys.setswitchinterval(0.005)
            assert is_done[0] == 1, "the call has waited for the GIL"
            thread.join()
        else:
            for _ in range(calls):
                comm.all_reduce(np.ones(1))
            time.sleep(0.6)
            comm.all_reduce(large)
            is_done[0] = 1
    comm.close()
    print("survived", flush=True)


def joining() -> None:
    """A handler calls `init` in the midst of `init`."""
    if os.environ["TBCCL_RANK"] == "0":
        handle_in(0.3, lambda: expect(tbccl.UsageError, tbccl.init))
    else:
        time.sleep(0.8)
    with tbccl.init(timeout=60) as comm:
        comm.barrier()
    print("survived", flush=True)


if sys.argv[1] == "joining":
    joining()
else:
    globals()[sys.argv[1]](tbccl.init(timeout=60))
