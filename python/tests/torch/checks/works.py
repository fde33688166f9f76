"""Work handles, their futures, and the memory that calls keep alive."""

from __future__ import annotations

import gc
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
