"""Ranks that leave a group for another one, while others are still in their last call or come to it later.

    tbccl run -n 3 -- python python/tests/torch/rejoining.py STORE_FILE

Each rank prints `@rejoined RANK` after its checks.
"""

from __future__ import annotations

import itertools
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
#: Delays of ranks that come late. The last one exceeds the time for which a rank waits that leaves.
LATE_SECONDS = (0.5, 3.0)


class Meetings:
    """Prefixes of a store in common, a new one for each set of members."""

    def __init__(self, path: str) -> None:
        self._store, self._count = dist.FileStore(path, -1), 0

    def next(self) -> dist.Store:
        self._count += 1
        return dist.PrefixStore(f"meeting {self._count}", self._store)


def check_calls_go_on_without_a_rank_that_has_completed_them(
    group: dist.ProcessGroup, leaves: int, late_seconds: float
) -> None:
    """The root of a broadcast and the sender of a message leaves before the others ask for the bytes."""
    receives = SIZE - 1 - leaves
    tensor = torch.full((1000,), float(RANK))
    message = torch.full((10,), float(RANK))
    if RANK == leaves:
        group.send([message], receives, 7).wait()
        group.broadcast(tensor, leaves).wait()
        return
    time.sleep(late_seconds)
    group.broadcast(tensor, leaves).wait()
    assert tensor.eq(leaves).all(), tensor
    if RANK == receives:
        group.recv([message], leaves, 7).wait()
        assert message.eq(leaves).all(), message


def check_others_go_on_with_a_call_that_a_rank_has_completed(group: dist.ProcessGroup) -> None:
    """Rank 0 leaves, and with it the rendezvous, while the last rank waits for one that comes late."""
    if RANK not in (FIRST, LAST):
        time.sleep(LATE_SECONDS[-1])
    blocks = [[torch.zeros(1000) for _ in range(SIZE)]] if RANK == LAST else []
    options = dist.GatherOptions()
    options.rootRank = LAST
    group.gather(blocks, [torch.full((1000,), float(RANK))], options).wait()
    for rank, block in enumerate(blocks[0] if blocks else []):
        assert block.eq(rank).all(), (rank, block)


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
    # Rank 0 serves the rendezvous of the group.
    for leaves, late_seconds in itertools.product((FIRST, LAST), LATE_SECONDS):
        check_calls_go_on_without_a_rank_that_has_completed_them(group, leaves, late_seconds)
        rejoin(group, meetings.next(), RANK, SIZE)
    check_others_go_on_with_a_call_that_a_rank_has_completed(group)
    rejoin(group, meetings.next(), RANK, SIZE)
    check_a_call_fails_whose_rank_has_left(group)
    rejoin(group, meetings.next(), RANK, SIZE)
    # Rank 0 leaves while the others stay and neither call nor leave.
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
