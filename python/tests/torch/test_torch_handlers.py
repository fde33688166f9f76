"""Signal handlers that use process groups in the midst of this rank's calls."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from jobs import forkserver, run, tbccl
from tbccl import AbortedError, InvalidArgumentError
from tbccl.torch.work import Work

#: Begins every program: `handle_soon` sends this process a signal and handles it.
PROLOGUE = """
import os, signal, sys, threading, time
import tbccl, torch, torch.distributed as dist

def handle_soon(handler):
    signal.signal(signal.SIGUSR1, lambda *_: handler())
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()

dist.init_process_group("tbccl")
dist.barrier()
started = time.monotonic()
"""

WAITS = {
    "blocking": "dist.all_reduce(torch.ones(4))",
    "queued": "dist.all_reduce(torch.ones(4), async_op=True); dist.all_reduce(torch.ones(4))",
    "waiting": "dist.all_reduce(torch.ones(4), async_op=True).wait()",
    "receiving": "dist.recv(torch.ones(4), 1)",
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_handler_that_destroys_the_group_ends_the_wait_on_it(wait: str) -> None:
    program = f"""
if dist.get_rank() == 0:
    handle_soon(dist.destroy_process_group)
    try:
        {WAITS[wait]}
    except tbccl.AbortedError:
        print("ended", time.monotonic() - started < 10, not dist.is_initialized(), flush=True)
else:
    try:
        dist.recv(torch.ones(1), 0)
    except tbccl.Error:
        print("ended", time.monotonic() - started < 10, True, flush=True)
"""
    assert run_program(program).count("ended True True") == 2


def test_an_exception_of_a_handler_ends_a_wait_and_not_the_call() -> None:
    program = """
def fail():
    raise tbccl.InvalidArgumentError("of the handler")

if dist.get_rank() == 0:
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    handle_soon(fail)
    try:
        work.wait()
    except tbccl.InvalidArgumentError as error:
        assert "of the handler" in str(error), error
    # The call keeps its memory until it has failed by itself.
    while not work.is_completed():
        assert time.monotonic() - started < 10
    assert isinstance(work.exception(), tbccl.AbortedError), work.exception()
    print("ended", flush=True)
else:
    time.sleep(3)  # The handler comes first, on a busy machine too.
    print("ended", flush=True)
"""
    assert run_program(program).count("ended") == 2


def test_an_exception_of_a_handler_in_the_end_of_a_group_reaches_the_program() -> None:
    program = """
def fail():
    raise tbccl.InvalidArgumentError("of the handler")

if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(4), async_op=True)
    handle_soon(fail)
    try:
        dist.destroy_process_group()
    except tbccl.InvalidArgumentError as error:
        assert "of the handler" in str(error), error
        print("ended", flush=True)
    dist.destroy_process_group()
    assert not dist.is_initialized()
else:
    time.sleep(3)  # The handler comes first, on a busy machine too.
    print("ended", flush=True)
"""
    assert run_program(program).count("ended") == 2


@pytest.mark.parametrize("is_of_handler", [True, False])
def test_a_wait_raises_what_has_ended_it(is_of_handler: bool) -> None:
    """The call may have failed by the time at which the exception of a handler is looked at."""
    of_call = AbortedError("the program aborted the communicator")
    raised = InvalidArgumentError("of the handler") if is_of_handler else of_call

    def fail(error: Exception) -> None:
        raise error

    request = SimpleNamespace(wait=lambda _: fail(raised), test=lambda: fail(of_call))
    group = SimpleNamespace(
        _sequence_number=0,
        _default_timeout=None,
        _completion_lock=threading.Lock(),
        _annotated=lambda error: error,
        _untrack=lambda _: None,
    )
    work = Work(group, request, [])
    with pytest.raises(type(raised)):
        work.wait()
    assert work.exception() is of_call


def test_an_exception_of_a_handler_leaves_a_monitored_barrier() -> None:
    """Also an exception of tbccl, which the barrier would take for the death of a rank."""
    program = """
from datetime import timedelta

def fail():
    raise tbccl.InvalidArgumentError("of the handler")

if dist.get_rank() == 0:
    handle_soon(fail)
    try:
        dist.group.WORLD.monitored_barrier(timedelta(seconds=30))
    except tbccl.InvalidArgumentError as error:
        assert "of the handler" in str(error), error
    assert time.monotonic() - started < 10
print("ended", flush=True)
if dist.get_rank() == 1:
    time.sleep(3)  # The handler comes first, on a busy machine too.
"""
    assert run_program(program).count("ended") == 2


def run_program(text: str) -> str:
    """Runs a program text on two ranks after the prologue, and returns their output."""
    command = [tbccl(), "run", "-n", "2", "--timeout", "60", "--", *forkserver(), "-c", PROLOGUE + text]
    return run(command).expect_success()
