"""Errors that ranks get when another rank dies.

    tbccl run -n 4 --keep-going -- python python/tests/torch/failures.py FOLDER FAILURE
    python python/tests/torch/failures.py FOLDER FAILURE:RANKS:DEAD:TRANSPORT ...

The dying rank writes the time of its death to FOLDER. Each other rank prints `@error RANK FAILURE SECONDS
MESSAGE`, where SECONDS is the time from the death to the exception, which must name the dead rank. Every
later call must fail too. Without a launcher this process, which has imported torch, forks the jobs one after
the other.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tbccl.torch


def die(folder: str) -> None:
    """Kills this process, after writing the time to `folder`."""
    with open(os.path.join(folder, "time"), "w") as file:
        file.write(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def in_ddp(folder: str, dead: int) -> None:
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1000):
        if step == 5 and dist.get_rank() == dead:
            die(folder)
        optimizer.zero_grad()
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()


def in_a_blocking_call(folder: str, dead: int) -> None:
    for step in range(100_000):
        if step == 50 and dist.get_rank() == dead:
            die(folder)
        dist.all_reduce(torch.ones(1000))


def with_calls_in_flight(folder: str, dead: int) -> None:
    for step in range(100_000):
        works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(8)]
        if step == 50 and dist.get_rank() == dead:
            die(folder)
        for work in works:
            work.wait()


def in_a_future(folder: str, dead: int) -> None:
    for step in range(100_000):
        future = dist.all_reduce(torch.ones(1000), async_op=True).get_future()
        if step == 50 and dist.get_rank() == dead:
            die(folder)
        future.wait()


def in_a_message(folder: str, dead: int) -> None:
    if dist.get_rank() == dead:
        time.sleep(0.3)
        die(folder)
    dist.recv(torch.empty(1000), dead)


def in_a_group(folder: str, dead: int) -> None:
    group = dist.new_group([dead - 1, dead]) if dead else dist.new_group([0, 1])
    if dist.get_rank() == dead:
        dist.all_reduce(torch.ones(1), group=group)
        die(folder)
    if dist.get_rank(group) >= 0:
        for _ in range(100_000):
            dist.all_reduce(torch.ones(1), group=group)
    # Ranks outside the group get their error here.
    dist.all_reduce(torch.ones(1))


#: Longer than any job takes.
TIMEOUT_SECONDS = 60

FAILURES: dict[str, Callable[[str, int], None]] = {
    failure.__name__: failure
    for failure in (in_ddp, in_a_blocking_call, with_calls_in_flight, in_a_future, in_a_message, in_a_group)
}


def run_rank(failure: str, folder: str, dead: int) -> None:
    """Runs one rank of an initialized group until another rank dies."""
    try:
        FAILURES[failure](folder, dead)
    except RuntimeError as error:
        error_time = time.time()
        delay = error_time - float(Path(folder, "time").read_text())
        text = " ".join([str(error), *getattr(error, "__notes__", [])]).replace("\n", " ")
        print(f"@error {dist.get_rank()} {failure} {delay:.3f} {text}", flush=True)
    try:
        dist.all_reduce(torch.ones(1))
    except tbccl.Error:
        print(f"@later {dist.get_rank()} {failure}", flush=True)
    # A failed group can be destroyed.
    dist.destroy_process_group()


def run_forked(folder: str, failure: str, ranks: int, dead: int, transport: str) -> None:
    """Forks the ranks of a job from this process, and waits for them."""
    os.makedirs(folder)
    os.environ["TBCCL_TRANSPORT"] = transport
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            store = dist.FileStore(os.path.join(folder, "store"), ranks)
            dist.init_process_group("tbccl", store=store, rank=rank, world_size=ranks)
            run_rank(failure, folder, dead)
            os._exit(0)
        children.append(child)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    for rank, child in enumerate(children):
        while (wait_result := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                print(f"@hangs {rank} {failure}", flush=True)
                for other in children[rank:]:
                    os.kill(other, signal.SIGKILL)
                deadline += TIMEOUT_SECONDS
            time.sleep(0.02)
        expected = signal.SIGKILL if rank == dead else 0
        if wait_result[1] != expected:
            print(f"@ended {rank} {failure} {wait_result[1]}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    folder = sys.argv[1]
    if "RANK" in os.environ:
        dist.init_process_group("tbccl")
        run_rank(sys.argv[2], folder, dist.get_world_size() - 1)
        return
    for number, job in enumerate(sys.argv[2:]):
        failure, ranks, dead, transport = job.split(":")
        run_forked(os.path.join(folder, str(number)), failure, int(ranks), int(dead), transport)


if __name__ == "__main__":
    main()
