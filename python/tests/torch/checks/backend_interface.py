"""Checks of the interface beside operations: options, memory, times, and groups made of groups."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

import tbccl
import tbccl.torch

from checks.common import raises, rank, size


def check_options_and_time_limits() -> None:
    group = dist.new_group(timeout=timedelta(seconds=77))
    assert group.options._timeout == timedelta(seconds=77), group.options._timeout
    assert group.options.backend == "tbccl" and group.options.group_name == group.group_name
    work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
    assert work.timeout == timedelta(seconds=77), work.timeout
    work.wait()
    raises(tbccl.UsageError, "TBCCL_TRACE", work._get_duration)
    dist.destroy_process_group(group)


def check_registered_memory_is_used_in_place() -> None:
    group = dist.group.WORLD
    host = torch.device("cpu")
    assert group.supports_tensor_alloc(host)
    tensor = group.allocate_tensor(1000, dtype=torch.bfloat16, device=host)
    assert tensor.shape == (1000,) and tensor.dtype is torch.bfloat16
    dist.all_reduce(tensor.fill_(1))
    assert tensor.float().tolist() == 1000 * [size]
    raises(ValueError, "torch.empty", lambda: group.allocate_tensor(1, dtype=torch.int8, device="cuda"))


def check_what_cannot_be_had_names_what_to_use_instead() -> None:
    group = dist.group.WORLD
    raises(tbccl.UsageError, "allocate_tensor", lambda: group.mem_allocator)
    raises(tbccl.UsageError, "use send and recv", group.new_window)
    if size > 1 and rank != size - 1:
        raises(tbccl.UsageError, "group.rejoin", lambda: dist.shrink_group([size - 1]))
    assert not group.supports_window and not group.supports_completion_hooks


def check_split_groups() -> None:
    parts = [list(range(0, size, 2)), list(range(1, size, 2))]
    own = parts[rank % 2]
    for _ in range(2):
        group = dist.split_group(split_ranks=parts)
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == sum(own) and dist.get_process_group_ranks(group) == own
        if len(own) > 1:
            peer = own[(own.index(rank) + 1) % len(own)]
            received = torch.empty(1)
            receiving = dist.irecv(received, own[own.index(rank) - 1], group=group)
            dist.send(torch.tensor([float(rank)]), peer, group=group)
            receiving.wait()
            assert received.item() == own[own.index(rank) - 1]
        dist.destroy_process_group(group)


def check_merged_groups() -> None:
    alone = dist.split_group(split_ranks=[[each] for each in range(size)])
    store = dist.PrefixStore("check/merged", dist.group.WORLD.get_group_store())
    merged = alone.merge_remote_group(store, size, timedelta(seconds=30), "merged")
    tensor = torch.ones(3)
    merged.allreduce([tensor]).wait()
    assert tensor.tolist() == 3 * [size] and merged.size() == size
    merged.shutdown()
    dist.destroy_process_group(alone)


def check_a_group_is_reconfigured_in_place() -> None:
    """Two rounds with other orders of ranks, the second one after an abort."""
    group, store = dist.new_group(), dist.group.WORLD.get_group_store()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False), process_group=group)
    assert group.supports_reconfigure
    store.set(f"check/handle/{rank}", group.get_reconfigure_handle())
    handles = [store.get(f"check/handle/{each}").decode() for each in range(size)]
    for uuid, order in enumerate((handles[::-1], handles)):
        # Leaving the group would end calls of ranks that are still in them.
        dist.barrier()
        if uuid == 1:
            group.abort()
        dist._reconfigure(uuid, order, group, timedelta(seconds=30)).wait()
        assert (group.rank(), group.size()) == (order.index(handles[rank]), size)
        tensor = torch.ones(2)
        group.allreduce([tensor]).wait()
        assert tensor.tolist() == 2 * [size]
        model.zero_grad()
        model(torch.full((1, 2), float(rank))).sum().backward()
        assert model.module.weight.grad.tolist() == [2 * [sum(range(size)) / size]]
    wrong = ["nobody"]
    raises(ValueError, "handle of this process", lambda: dist._reconfigure(9, wrong, group))
    dist.barrier()
    dist.destroy_process_group(group)
