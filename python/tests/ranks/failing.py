"""A job that fails: `failing.py FAILURE`. Ranks that are expected to survive print a line."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np

import tbccl


def killed(comm: tbccl.Communicator) -> None:
    """The last rank is killed in the middle of all-reduces."""
    data = np.ones(1 << 16, np.float32)
    if comm.rank == comm.size - 1:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    started = time.monotonic()
    try:
        while True:
            started = time.monotonic()
            comm.all_reduce(data)
    except tbccl.Error as error:
        elapsed = time.monotonic() - started
        assert isinstance(error, (tbccl.PeerDiedError, tbccl.RemoteError)), repr(error)
        assert error.peer == comm.size - 1 and elapsed < 3, (error.peer, elapsed, error)
        assert comm.async_error() is not None
        print("survived", type(error).__name__, flush=True)
        survivors = comm.shrink([comm.size - 1])
        assert survivors.all_reduce(np.ones(3))[0] == comm.size - 1
        survivors.close()


def send_of_sendrecv(comm: tbccl.Communicator) -> None:
    """Rank 1 leaves before it receives from rank 0, which also receives from rank 2, which takes its time."""
    data, out = np.ones(1 << 20), np.zeros(1 << 20)
    comm.barrier()
    if comm.rank == 1:
        comm.close()
    elif comm.rank == 2:
        time.sleep(12)
    else:
        started = time.monotonic()
        try:
            comm.sendrecv(data, 1, out, 2)
        except tbccl.PeerLeftError as error:
            elapsed = time.monotonic() - started
            assert error.peer == 1 and elapsed < 8, (error.peer, elapsed, error)
            print("survived", flush=True)


def mismatch(comm: tbccl.Communicator) -> None:
    """The ranks' calls differ in length."""
    try:
        comm.all_reduce(np.ones(3 + comm.rank, np.float32))
    except tbccl.MismatchError as error:
        assert {error.rank, error.peer} == {0, 1} and "all_reduce of" in error.call, vars(error)
        print("survived", flush=True)


def raising(comm: tbccl.Communicator) -> None:
    """An exception leaves the `with` block of one rank: the other rank gets an error."""
    started = time.monotonic()
    try:
        with comm:
            if comm.rank == 0:
                raise KeyError("mine")
            comm.barrier()
    except KeyError:
        print("survived", flush=True)
    except tbccl.RemoteError as error:
        assert error.peer == 0 and "aborted" in str(error) and time.monotonic() - started < 10, error
        print("survived", flush=True)


def queued(comm: tbccl.Communicator) -> None:
    comm.all_reduce_async(np.ones(4))
    comm.all_reduce(np.ones(4))


def grouped(comm: tbccl.Communicator) -> None:
    with comm.group() as group:
        group.all_reduce(np.ones(4))


def allocating(comm: tbccl.Communicator) -> None:
    comm.all_reduce_async(np.ones(4))
    comm.empty(4)


def interrupted(comm: tbccl.Communicator) -> None:
    """Ctrl-C during calls that the other rank never joins: blocking, queued, and in a wait."""
    blocking_calls = {
        "blocking": lambda comm: comm.all_reduce(np.ones(4)),
        "queued": queued,
        "waiting": lambda comm: comm.all_reduce_async(np.ones(4)).wait(),
        "timed": lambda comm: comm.all_reduce_async(np.ones(4)).wait(60),
        "group": grouped,
        "receiving": lambda comm: comm.recv(np.ones(4)),
        "splitting": lambda comm: comm.split(0),
        "allocating": allocating,
    }
    for name, wait in blocking_calls.items():
        part = comm.split(0)
        if comm.rank == 0:
            started = time.monotonic()
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                wait(part)
            except KeyboardInterrupt:
                elapsed = time.monotonic() - started
                assert elapsed < 10, (name, elapsed)  # The timeout is 60 s.
            else:
                raise AssertionError(f"{name}: the call was not interrupted")
            assert isinstance(part.async_error(), tbccl.AbortedError), name
            try:
                part.barrier()
            except tbccl.AbortedError:
                pass
            else:
                raise AssertionError(f"{name}: the aborted communicator accepted a call")
        comm.barrier()
        part.close()
    print("survived", flush=True)


def timing_out(comm: tbccl.Communicator) -> None:
    """A call that the other rank does not join in time."""
    if comm.rank == 0:
        try:
            comm.all_reduce(np.ones(4), timeout=0.3)
        except tbccl.TimeoutError as error:
            assert isinstance(error, TimeoutError) and error.rank == 0 and error.step, vars(error)
            print("survived", flush=True)
    else:
        time.sleep(1)
        print("survived", flush=True)


def aborted(comm: tbccl.Communicator) -> None:
    """Another thread aborts the communicator while a call waits."""
    if comm.rank == 0:
        threading.Timer(0.2, comm.abort).start()
    try:
        if comm.rank == 0:
            comm.barrier()
        else:
            time.sleep(1)
            comm.barrier()
    except (tbccl.AbortedError, tbccl.RemoteError):
        print("survived", flush=True)


comm = tbccl.init(timeout=60)
globals()[sys.argv[1]](comm)
