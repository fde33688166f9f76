"""What the others get when a rank dies.

    tbccl run -n 4 --keep-going -- python python/tests/torch/failures.py FOLDER WAY
    python python/tests/torch/failures.py FOLDER WAY:RANKS:DEAD:TRANSPORT ...

The rank that dies leaves the time of its death in FOLDER; each of the others prints `@told RANK WAY SECONDS MESSAGE`: how long
after it had an exception that names the dead rank. Every later call must fail as well. Without a launcher, one job after
the other is forked from this process, which has imported torch once for all.
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
    """Ends this process as a crash would."""
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
    # What the others call once they have heard.
    dist.all_reduce(torch.ones(1))


#: No job takes as long.
SECONDS = 60

WAYS: dict[str, Callable[[str, int], None]] = {
    way.__name__: way
    for way in (in_ddp, in_a_blocking_call, with_calls_in_flight, in_a_future, in_a_message, in_a_group)
}


def as_rank(way: str, folder: str, dead: int) -> None:
    """Plays a rank of a group that exists, until another one dies."""
    try:
        WAYS[way](folder, dead)
    except RuntimeError as error:
        heard = time.time()
        waited = heard - float(Path(folder, "time").read_text())
        text = " ".join([str(error), *getattr(error, "__notes__", [])]).replace("\n", " ")
        print(f"@told {dist.get_rank()} {way} {waited:.3f} {text}", flush=True)
    try:
        dist.all_reduce(torch.ones(1))
    except tbccl.Error:
        print(f"@later {dist.get_rank()} {way}", flush=True)
    # What has failed can be ended.
    dist.destroy_process_group()


def forked(folder: str, way: str, ranks: int, dead: int, transport: str) -> None:
    """Has children of this process be the ranks of a job."""
    os.makedirs(folder)
    os.environ["TBCCL_TRANSPORT"] = transport
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            store = dist.FileStore(os.path.join(folder, "store"), ranks)
            dist.init_process_group("tbccl", store=store, rank=rank, world_size=ranks)
            as_rank(way, folder, dead)
            os._exit(0)
        children.append(child)
    deadline = time.monotonic() + SECONDS
    for rank, child in enumerate(children):
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                print(f"@hangs {rank} {way}", flush=True)
                for other in children[rank:]:
                    os.kill(other, signal.SIGKILL)
                deadline += SECONDS
            time.sleep(0.02)
        expected = signal.SIGKILL if rank == dead else 0
        if ended[1] != expected:
            print(f"@ended {rank} {way} {ended[1]}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    folder = sys.argv[1]
    if "RANK" in os.environ:
        dist.init_process_group("tbccl")
        as_rank(sys.argv[2], folder, dist.get_world_size() - 1)
        return
    for number, job in enumerate(sys.argv[2:]):
        way, ranks, dead, transport = job.split(":")
        forked(os.path.join(folder, str(number)), way, int(ranks), int(dead), transport)


if __name__ == "__main__":
    main()
