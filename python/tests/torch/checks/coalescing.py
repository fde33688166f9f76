"""Coalesced operations, and several operations in flight."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from checks.common import assert_equal, data_of, rank, size, strided, total


def check_coalesced_operations() -> None:
    group = dist.group.WORLD
    tensors = [data_of(rank, (count,), torch.float32, count) for count in (1, 5, 1000)]
    tensors.append(strided(data_of(rank, (4,))))
    options = c10d.AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.SUM
    group.allreduce_coalesced(tensors, options).wait()
    for tensor, count in zip(tensors, (1, 5, 1000)):
        assert_equal(tensor, total("SUM", (count,), torch.float32, count))
    assert torch.equal(tensors[3], total("SUM", (4,), torch.float32))
    for gather, scatter in (
        (group.all_gather_single_coalesced, group.reduce_scatter_single_coalesced),
        (group.allgather_into_tensor_coalesced, group.reduce_scatter_tensor_coalesced),
    ):
        outputs = [torch.empty(size * count) for count in (2, 3)]
        gather(outputs, [data_of(rank, (count,), torch.float32, count) for count in (2, 3)]).wait()
        for output, count in zip(outputs, (2, 3)):
            contributions = [data_of(each, (count,), torch.float32, count) for each in range(size)]
            assert_equal(output, torch.cat(contributions))
        parts = [torch.empty(count) for count in (2, 3)]
        scatter(parts, outputs).wait()
        for part, output, count in zip(parts, outputs, (2, 3)):
            assert_equal(part, output[rank * count :][:count] * size)
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
    group.allgather_coalesced(lists, [data_of(rank, (2,)), data_of(rank, (3,))]).wait()
    for each, (two, three) in enumerate(lists):
        assert_equal(two, data_of(each, (2,)))
        assert_equal(three, data_of(each, (3,)))


def check_coalescing_manager() -> None:
    for async_ops in (False, True):
        tensors = [data_of(rank, (count,)) for count in (3, 4)]
        with dist._coalescing_manager(async_ops=async_ops) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if async_ops:
            manager.wait()
        for tensor, count in zip(tensors, (3, 4)):
            assert_equal(tensor, total("SUM", (count,), torch.float32))
    # With a device, calls of different kinds form one group, beside messages.
    tensor, output, received = data_of(rank), torch.empty(size, 2), torch.empty(3)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.group.WORLD.allreduce([tensor])
        dist.all_gather_into_tensor(output, data_of(rank, (2,)))
        dist.isend(data_of(rank, (3,)), (rank + 1) % size)
        dist.irecv(received, (rank - 1) % size)
    manager.wait()
    assert_equal(tensor, total("SUM", (7,), torch.float32))
    assert_equal(output, torch.stack([data_of(each, (2,)) for each in range(size)]))
    assert_equal(received, data_of((rank - 1) % size, (3,)))


def check_a_gather_beside_sums_in_a_batch() -> None:
    """On devices a batch has several pieces. Sums of one piece travel together, on all ranks or on none.

    The root needs more host memory for the gather than the others.
    """
    for root in range(size):
        own, sums = data_of(rank, (4096,)), [data_of(rank, (3000,), seed=seed) for seed in range(2)]
        outputs = [torch.empty(4096) for _ in range(size)] if rank == root else None
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
            dist.gather(own, outputs, root, async_op=True)
            for tensor in sums:
                dist.group.WORLD.allreduce([tensor])
        manager.wait()
        for seed, tensor in enumerate(sums):
            assert_equal(tensor, total("SUM", (3000,), torch.float32, seed))
        for each, output in enumerate(outputs or []):
            assert_equal(output, data_of(each, (4096,)))


def check_operations_in_flight_together() -> None:
    works, checks = [], []
    for number in range(40):
        tensor, output = data_of(rank, (50,), seed=number), torch.empty(size, 9)
        works.append(dist.all_reduce(tensor, async_op=True))
        works.append(dist.all_gather_into_tensor(output, data_of(rank, (9,), seed=number), async_op=True))
        checks.append((tensor, output))
    for work in reversed(works):
        work.wait()
    for number, (tensor, output) in enumerate(checks):
        assert_equal(tensor, total("SUM", (50,), torch.float32, number))
        assert_equal(output, torch.stack([data_of(each, (9,), seed=number) for each in range(size)]))
