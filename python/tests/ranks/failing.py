"""A job in which something goes wrong: `failing.py HOW`. Ranks that are to survive print what they saw."""

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
    since = time.monotonic()
    try:
        while True:
            since = time.monotonic()
            comm.all_reduce(data)
    except tbccl.Error as error:
        took = time.monotonic() - since
        assert isinstance(error, (tbccl.PeerDiedError, tbccl.RemoteError)), repr(error)
        assert error.peer == comm.size - 1 and took < 3, (error.peer, took, error)
        assert comm.async_error() is not None
        print("survived", type(error).__name__, flush=True)
        rest = comm.shrink([comm.size - 1])
        assert rest.all_reduce(np.ones(3))[0] == comm.size - 1
        rest.close()


def mismatch(comm: tbccl.Communicator) -> None:
    """Ranks call different things."""
    try:
        comm.all_reduce(np.ones(3 + comm.rank, np.float32))
    except tbccl.MismatchError as error:
        assert {error.rank, error.peer} == {0, 1} and "all_reduce of" in error.call, vars(error)
        print("survived", flush=True)


def raising(comm: tbccl.Communicator) -> None:
    """An exception leaves the block of a rank: the others hear of it."""
    since = time.monotonic()
    try:
        with comm:
            if comm.rank == 0:
                raise KeyError("mine")
            comm.barrier()
    except KeyError:
        print("survived", flush=True)
    except tbccl.RemoteError as error:
        assert error.peer == 0 and "aborted" in str(error) and time.monotonic() - since < 10, error
        print("survived", flush=True)


def grouped(comm: tbccl.Communicator) -> None:
    with comm.group() as group:
        group.all_reduce(np.ones(4))


def interrupted(comm: tbccl.Communicator) -> None:
    """Ctrl-C in an all-reduce to which the other rank never comes: blocking, behind another call, and in a wait."""
    waits = {
        "blocking": lambda one: one.all_reduce(np.ones(4)),
        "queued": lambda one: (one.all_reduce_async(np.ones(4)), one.all_reduce(np.ones(4))),
        "waiting": lambda one: one.all_reduce_async(np.ones(4)).wait(),
        "timed": lambda one: one.all_reduce_async(np.ones(4)).wait(60),
        "group": grouped,
        "receiving": lambda one: one.recv(np.ones(4)),
        "splitting": lambda one: one.split(0),
    }
    for name, wait in waits.items():
        part = comm.split(0)
        if comm.rank == 0:
            at = time.monotonic()
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                wait(part)
            except KeyboardInterrupt:
                took = time.monotonic() - at
                assert took < 10, (name, took)  # the time limit is far beyond
            else:
                raise AssertionError(f"{name}: nothing was interrupted")
            assert isinstance(part.async_error(), tbccl.AbortedError), name
            try:
                part.barrier()
            except tbccl.AbortedError:
                pass
            else:
                raise AssertionError(f"{name}: the communicator goes on")
        comm.barrier()
        part.close()
    print("survived", flush=True)


def timing_out(comm: tbccl.Communicator) -> None:
    """A call that the other rank does not come to in time."""
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
    """Another thread aborts while a call waits."""
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
