"""Invalid input, and errors that end a group."""

from __future__ import annotations

import torch
import torch.distributed as dist

import tbccl.torch

from checks.common import assert_equal, data_of, raises, rank, size, total


def check_bad_input() -> None:
    group = dist.group.WORLD
    meta = torch.empty(3, device="meta")
    raises(ValueError, "is on meta", lambda: dist.all_reduce(meta))
    raises(ValueError, "is on meta", lambda: dist.broadcast(meta, 0))
    raises(TypeError, "does not reduce it", lambda: dist.all_reduce(torch.ones(3).to(torch.float8_e5m2)))
    complex_tensor = torch.ones(2, dtype=torch.complex128)
    raises(TypeError, "summed and averaged", lambda: group.allreduce([complex_tensor], dist.ReduceOp.MAX))
    raises(ValueError, "fill", lambda: dist.all_gather_into_tensor(torch.empty(size + 1), torch.ones(1)))
    raises(ValueError, "take", lambda: dist.reduce_scatter_tensor(torch.empty(1), torch.ones(size + 1)))
    raises(ValueError, "tensors", lambda: group.allgather([[torch.ones(1)] * (size + 1)], [torch.ones(1)]))
    four, integer = torch.ones(4), torch.ones(1, dtype=torch.int32)
    raises(
        ValueError,
        "split_sizes",
        lambda: dist.all_to_all_single(four.clone(), four, [5] * size, [4] * size),
    )
    raises(TypeError, "one type", lambda: group.all_gather_single(torch.empty(size), integer))
    raises(ValueError, "not one of the", lambda: group.broadcast([torch.ones(1)], size))
    raises(ValueError, "tag", lambda: dist.isend(torch.ones(1), rank, tag=-1))
    raises(ValueError, "packed", lambda: tbccl.torch.quantized_all_reduce(torch.ones(3), dist.ReduceOp.MAX))
    raises(ValueError, "codec", lambda: tbccl.torch.quantized_all_reduce(torch.ones(3), codec="int3"))
    raises((ValueError, RuntimeError), "", lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND))
    # None of these calls was issued.
    tensor = data_of(rank)
    dist.all_reduce(tensor)
    assert_equal(tensor, total("SUM", (7,), torch.float32))


def check_lengths_that_differ_between_ranks() -> None:
    for async_op in (False, True):
        group = dist.new_group()

        def disagree() -> None:
            work = dist.all_reduce(torch.ones(3 + rank), group=group, async_op=async_op)
            if work is not None:
                work.wait()

        raises(tbccl.Error, "", disagree)
        raises(tbccl.Error, "", lambda: dist.all_reduce(torch.ones(3), group=group))
    dist.barrier()


def check_aborting() -> None:
    group = dist.new_group()
    if rank == 0:
        group.abort()
    raises(tbccl.Error, "", lambda: dist.all_reduce(torch.ones(1), group=group))
    dist.barrier()
