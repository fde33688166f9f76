"""Groups of some ranks, groups used by several threads, monitored barriers, and timeouts."""

from __future__ import annotations

import inspect
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import tbccl

from checks.common import assert_equal, data_of, raises, rank, size, total


def check_groups() -> None:
    members = [0, size - 1]
    group = dist.new_group(members)
    if rank in members:
        assert dist.get_world_size(group) == 2 and dist.get_rank(group) == members.index(rank)
        assert group.group_name and dist.get_backend(group) == "tbccl"
        tensor = data_of(rank)
        dist.all_reduce(tensor, group=group)
        assert_equal(tensor, total("SUM", (7,), torch.float32, members=members))
        tensor = data_of(rank)
        dist.broadcast(tensor, members[1], group=group)
        assert_equal(tensor, data_of(members[1]))
        # Messages of two groups do not match, although tags and ranks are the same.
        received = torch.empty(2)
        if rank == members[0]:
            dist.send(torch.tensor([1.0, 1.0]), members[1])
            dist.send(torch.tensor([2.0, 2.0]), members[1], group=group)
        else:
            assert dist.recv(received, group=group) == members[0]
            assert received[0] == 2
            dist.recv(received, members[0])
            assert received[0] == 1
    dist.barrier()
    # Several groups at a time, some of one rank.
    own, _ = dist.new_subgroups(1)
    tensor = data_of(rank)
    dist.all_reduce(tensor, group=own)
    assert_equal(tensor, data_of(rank))
    groups = [dist.new_group([each, (each + 1) % size]) for each in range(size)] if size > 2 else []
    for each, neighbors in enumerate(groups):
        if rank in (each, (each + 1) % size):
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=neighbors)
            assert tensor.item() == 2
    dist.destroy_process_group(own)
    if rank in members:
        dist.destroy_process_group(group)


def check_a_group_that_ends_with_messages_on_their_way() -> None:
    group = dist.new_group()
    started = time.monotonic()
    tensor = torch.zeros(100)
    dist.irecv(tensor, (rank + 1) % size, group=group, tag=77)  # No rank sends this message.
    dist.destroy_process_group(group)
    assert time.monotonic() - started < 20
    # The group keeps the tensor's memory alive.
    assert any(tensor is kept for orphan in dist.group.WORLD._orphans for kept in orphan._results)
    dist.barrier()


def check_two_groups_from_two_threads() -> None:
    import threading

    groups = [dist.new_group(), dist.new_group()]
    errors: list[BaseException] = []

    def use(number: int) -> None:
        try:
            for turn in range(50):
                tensor = data_of(rank, (30,), seed=turn + 100 * number)
                work = dist.all_reduce(tensor, group=groups[number], async_op=turn % 3 == 0)
                if work is not None:
                    work.wait()
                assert_equal(tensor, total("SUM", (30,), torch.float32, turn + 100 * number))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    for group in groups:
        dist.destroy_process_group(group)


def monitored_barrier(timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """Calls torch's barrier, or the group's own where torch supports gloo only, as in 2.8."""
    try:
        dist.monitored_barrier(timeout=timeout, wait_all_ranks=wait_all_ranks)
    except ValueError as error:
        assert "only implemented for GLOO" in str(error), error
        dist.group.WORLD.monitored_barrier(timeout, wait_all_ranks)


def check_monitored_barriers() -> None:
    monitored_barrier()
    if rank == 0:
        raises(
            RuntimeError,
            "Rank 1 failed to pass monitoredBarrier",
            lambda: monitored_barrier(timeout=timedelta(seconds=0.3)),
        )
    elif rank != 1:
        raises(
            RuntimeError,
            "reached monitoredBarrier",
            lambda: monitored_barrier(timeout=timedelta(seconds=20)),
        )
    dist.barrier()
    if rank == 0 and size > 2:
        missing = ", ".join(str(each) for each in range(1, size))
        raises(
            RuntimeError,
            f"Ranks {missing} failed to pass",
            lambda: monitored_barrier(timeout=timedelta(seconds=0.3), wait_all_ranks=True),
        )
    dist.barrier()
    group = dist.new_group([0, 1])
    if rank < 2:
        group.monitored_barrier(timedelta(seconds=20))


def check_time_limits() -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        started = time.monotonic()
        raises(tbccl.Error, "within the time limit", lambda: dist.barrier(group))
        assert 0.5 < time.monotonic() - started < 20
        raises(tbccl.Error, "", lambda: dist.all_reduce(torch.ones(1), group=group))
    dist.barrier()
    group = dist.new_group()
    # torch 2.8 has no timeout argument of a barrier.
    if rank == 0 and "timeout" in inspect.signature(dist.barrier).parameters:
        started = time.monotonic()
        limit = timedelta(seconds=1)
        raises(tbccl.Error, "within the time limit", lambda: dist.barrier(group, timeout=limit))
        assert 0.5 < time.monotonic() - started < 20
    dist.barrier()
    group = dist.new_group()
    group._set_default_timeout(timedelta(seconds=1))
    if rank == 0:
        raises(tbccl.Error, "within the time limit", lambda: dist.all_reduce(torch.ones(1), group=group))
    dist.barrier()
