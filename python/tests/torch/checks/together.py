"""Operations on many tensors, and many operations in flight."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from checks.common import given, rank, same, size, strided, total


def check_coalesced_operations() -> None:
    group = dist.group.WORLD
    tensors = [given(rank, (count,), torch.float32, count) for count in (1, 5, 1000)]
    tensors.append(strided(given(rank, (4,))))
    options = c10d.AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.SUM
    group.allreduce_coalesced(tensors, options).wait()
    for tensor, count in zip(tensors, (1, 5, 1000)):
        same(tensor, total("SUM", (count,), torch.float32, count))
    assert torch.equal(tensors[3], total("SUM", (4,), torch.float32))
    for gather, scatter in (
        (group.all_gather_single_coalesced, group.reduce_scatter_single_coalesced),
        (group.allgather_into_tensor_coalesced, group.reduce_scatter_tensor_coalesced),
    ):
        outputs = [torch.empty(size * count) for count in (2, 3)]
        gather(outputs, [given(rank, (count,), torch.float32, count) for count in (2, 3)]).wait()
        for output, count in zip(outputs, (2, 3)):
            same(output, torch.cat([given(each, (count,), torch.float32, count) for each in range(size)]))
        parts = [torch.empty(count) for count in (2, 3)]
        scatter(parts, outputs).wait()
        for part, output, count in zip(parts, outputs, (2, 3)):
            same(part, output[rank * count :][:count] * size)
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
    group.allgather_coalesced(lists, [given(rank, (2,)), given(rank, (3,))]).wait()
    for each, (two, three) in enumerate(lists):
        same(two, given(each, (2,)))
        same(three, given(each, (3,)))


def check_coalescing_manager() -> None:
    for async_ops in (False, True):
        tensors = [given(rank, (count,)) for count in (3, 4)]
        with dist._coalescing_manager(async_ops=async_ops) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if async_ops:
            manager.wait()
        for tensor, count in zip(tensors, (3, 4)):
            same(tensor, total("SUM", (count,), torch.float32))
    # With a device, calls of different kinds go together, and messages beside them.
    tensor, output, received = given(rank), torch.empty(size, 2), torch.empty(3)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.group.WORLD.allreduce([tensor])
        dist.all_gather_into_tensor(output, given(rank, (2,)))
        dist.isend(given(rank, (3,)), (rank + 1) % size)
        dist.irecv(received, (rank - 1) % size)
    manager.wait()
    same(tensor, total("SUM", (7,), torch.float32))
    same(output, torch.stack([given(each, (2,)) for each in range(size)]))
    same(received, given((rank - 1) % size, (3,)))


def check_operations_in_flight_together() -> None:
    works, checks = [], []
    for number in range(40):
        tensor, output = given(rank, (50,), salt=number), torch.empty(size, 9)
        works.append(dist.all_reduce(tensor, async_op=True))
        works.append(dist.all_gather_into_tensor(output, given(rank, (9,), salt=number), async_op=True))
        checks.append((tensor, output))
    for work in reversed(works):
        work.wait()
    for number, (tensor, output) in enumerate(checks):
        same(tensor, total("SUM", (50,), torch.float32, number))
        same(output, torch.stack([given(each, (9,), salt=number) for each in range(size)]))
