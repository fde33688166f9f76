"""Ranks that leave a group for another one, while others are still in their last call or come to it later.

    tbccl run -n 3 -- python python/tests/torch/rejoining.py STORE_FILE

Each rank prints `@rejoined RANK` after its checks.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import tbccl.torch

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FIRST, LAST = 0, SIZE - 1
LIMIT = timedelta(seconds=60)
#: Longest time that a rank takes to leave a group; a wait for the group's time limit takes longer.
LEAVE_SECONDS = 20.0
#: Delay of ranks that come late.
LATE_SECONDS = 0.5


class Meetings:
    """Prefixes of a store in common, a new one for each set of members."""

    def __init__(self, path: str) -> None:
        self._store, self._count = dist.FileStore(path, -1), 0

    def next(self) -> dist.Store:
        self._count += 1
        return dist.PrefixStore(f"meeting {self._count}", self._store)


def check_calls_go_on_without_a_rank_that_has_completed_them(group: dist.ProcessGroup) -> None:
    """The root of a broadcast and the sender of a message leave before the others ask for the bytes."""
    tensor = torch.full((1000,), float(RANK))
    message = torch.full((10,), float(RANK))
    if RANK == LAST:
        group.send([message], FIRST, 7).wait()
        group.broadcast(tensor, LAST).wait()
        return
    time.sleep(LATE_SECONDS)
    group.broadcast(tensor, LAST).wait()
    assert tensor.eq(LAST).all(), tensor
    if RANK == FIRST:
        group.recv([message], LAST, 7).wait()
        assert message.eq(LAST).all(), message


def check_a_call_fails_whose_rank_has_left(group: dist.ProcessGroup) -> None:
    if RANK == LAST:
        return
    began = time.monotonic()
    try:
        group.allreduce([torch.ones(1000)]).wait()
    except tbccl.Error as error:
        assert f"rank {LAST}" in str(error), error
    else:
        raise AssertionError(f"an all_reduce without rank {LAST} has succeeded")
    assert time.monotonic() - began < LEAVE_SECONDS


def rejoin(group: dist.ProcessGroup, meeting: dist.Store, rank: int, size: int) -> None:
    began = time.monotonic()
    group.rejoin(meeting, rank, size, LIMIT)
    took = time.monotonic() - began
    assert took < LEAVE_SECONDS, f"rank {RANK} has taken {took:.1f} s to leave"
    total = torch.ones(1)
    group.allreduce([total]).wait()
    assert total.item() == size, total


def main() -> None:
    meetings = Meetings(sys.argv[1])
    group = tbccl.torch.create_process_group(meetings.next(), RANK, SIZE, LIMIT)
    for _ in range(3):
        check_calls_go_on_without_a_rank_that_has_completed_them(group)
        rejoin(group, meetings.next(), RANK, SIZE)
    check_a_call_fails_whose_rank_has_left(group)
    rejoin(group, meetings.next(), RANK, SIZE)
    # Rank 0, which serves the rendezvous, leaves while the others stay and neither call nor leave.
    done, alone = meetings.next(), meetings.next()
    if RANK == FIRST:
        rejoin(group, alone, 0, 1)
        done.set("left", "")
    else:
        done.wait(["left"], LIMIT)
    group.shutdown()
    print(f"@rejoined {RANK}", flush=True)


if __name__ == "__main__":
    main()
