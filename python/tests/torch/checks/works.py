"""Work handles, their futures, and the memory that calls keep alive."""

from __future__ import annotations

import gc
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import tbccl

from checks.common import assert_equal, data_of, raises, rank, size, total


def check_works_and_futures() -> None:
    tensor = data_of(rank)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert_equal(future.wait()[0], total("SUM", (7,), torch.float32))
    assert_equal(doubled.wait(), total("SUM", (7,), torch.float32) * 2)
    assert work.wait() is True and work.is_completed() and work.is_success() and work.exception() is None
    assert work.result()[0] is tensor
    assert work.get_future().done()
    # A callback that waits for another call, as PowerSGD's do.
    more = torch.ones(2)
    chained = dist.all_reduce(data_of(rank), async_op=True).get_future().then(
        lambda done: dist.all_reduce(more, async_op=True).get_future().wait()[0] + done.value()[0][0]
    )
    assert_equal(chained.wait(), torch.full((2,), float(size)) + total("SUM", (7,), torch.float32)[0])


def check_futures_of_finished_works_wait_for_no_others() -> None:
    """A work is done before one whose future was asked for earlier, and makes that one possible."""
    next_rank, previous_rank = (rank + 1) % size, (rank - 1) % size
    received = torch.zeros(1)
    message = dist.irecv(received, previous_rank).get_future()
    # Each rank sends only once the future of its call is complete.
    wait_until_done(dist.all_reduce(data_of(rank), async_op=True).get_future())
    dist.send(torch.ones(1), next_rank)
    wait_until_done(message)
    assert received.item() == 1
    # The other ranks join the second call of rank 0 once the future of the first one is complete there.
    if rank == 0:
        first, second = (dist.all_reduce(torch.ones(1), async_op=True) for _ in range(2))
        second_future, first_future = second.get_future(), first.get_future()
        for peer in range(1, size):
            dist.send(torch.ones(1), peer)
        wait_until_done(first_future)
        assert not second_future.done()
        for peer in range(1, size):
            dist.send(torch.ones(1), peer)
        wait_until_done(second_future)
    else:
        for _ in range(2):
            dist.recv(torch.ones(1), 0)
            dist.all_reduce(torch.ones(1))


def check_futures_of_a_group_that_ends() -> None:
    group = dist.new_group()
    if rank == 0:
        time.sleep(0.3)
    received = torch.zeros(1)
    message = dist.irecv(received, 1, group=group).get_future() if rank == 0 else None
    future = dist.barrier(group=group, async_op=True).get_future()
    if rank == 1:
        # Sends when rank 0 has left the group.
        dist.recv(torch.zeros(1), 0)
        dist.send(torch.ones(1), 0, group=group)
    dist.destroy_process_group(group)
    wait_until_done(future)
    if rank == 0:
        assert not message.done()
        dist.send(torch.ones(1), 1)
        wait_until_done(message)
        assert received.item() == 1


def wait_until_done(future: torch.futures.Future) -> None:
    """Waits for a future within a bounded time."""
    deadline = time.monotonic() + 20
    while not future.done():
        assert time.monotonic() < deadline, "the future is not complete"
        time.sleep(0.001)


def check_a_wait_that_gives_up() -> None:
    dist.barrier()
    if rank == 0:
        work = dist.barrier(async_op=True)
        raises(tbccl.TimeoutError, "timed out", lambda: work.wait(timedelta(milliseconds=50)))
        assert not work.is_completed()
        dist.send(torch.ones(1), 1)
        work.wait()
    else:
        if rank == 1:
            dist.recv(torch.empty(1), 0)
        dist.barrier()


def check_tensors_that_the_program_forgets() -> None:
    outputs = []
    for number in range(20):
        output = torch.empty(size, 4096)
        work = dist.all_gather_into_tensor(output, data_of(rank, (4096,), seed=number), async_op=True)
        outputs.append((output, work) if number % 2 else None)
        dist.all_reduce(torch.ones(8192), async_op=True)
        del output, work
    gc.collect()
    for number, entry in enumerate(outputs):
        if entry is not None:
            entry[1].wait()
            contributions = [data_of(each, (4096,), seed=number) for each in range(size)]
            assert_equal(entry[0], torch.stack(contributions))
    dist.barrier()


def check_sequence_numbers() -> None:
    group = dist.new_group()
    started = group._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(torch.ones(1), group=group)
    dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()
    assert group._get_sequence_number_for_group() == started + 4
    dist.destroy_process_group(group)
